"""What the tests of tokenizers share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def small_bert(tmp_path: Path) -> Path:
    """A vocab.txt of letters and a few longer pieces."""
    letters = [chr(code) for code in range(0x21, 0x180) if chr(code).isprintable()]
    longer = ["the", "book", "##ing", "read", "##ss", "na", "##ve", "20", "##24", "œuvre", "##’"]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters), *longer]
    lower = [piece for piece in pieces if piece == piece.lower() or piece.startswith("[")]
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(dict.fromkeys(lower)) + "\n", encoding="utf-8")
    return path
