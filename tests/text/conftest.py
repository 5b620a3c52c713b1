"""What the tests of text share."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstart.text import writing
from headstart.text.tokenizer import Tokenizer
from tests.text.made_corpora import KINDS, made_texts, write_corpus


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    Tokenizer.train(made_texts(400), kind=request.param, size=900).save(folder)
    return Tokenizer.load(folder)


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return Tokenizer.train(made_texts(400), kind="bpe", size=500)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus.txt", made_texts(300, seed=1))


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "CHUNK", 4000)  # some fifteen chunks for `corpus`


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
