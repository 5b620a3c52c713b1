"""Fingerprints: equal for equal settings, equal texts and equal weights, wherever they lie."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from headstart.bases import find
from headstart.reading.examples import Examples


def settings_key(values: Any) -> str:
    """Twelve letters for a run's settings and the fingerprints of what it reads.

    >>> settings_key({"lr": 1e-5, "seed": 0}) == settings_key({"seed": 0, "lr": 1e-5})
    True
    >>> settings_key({"seed": 0}) == settings_key({"seed": 1})
    False
    """
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def base_fingerprint(init: str) -> str:
    """A digest of the files of a base; of its name where there are none, as for a preset."""
    path = find(init)
    path = path / "model" if (path / "model").is_dir() else path
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else []
    digest = hashlib.sha256(b"" if files else init.encode())
    for path in files:
        with path.open("rb") as file:
            digest.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def split_fingerprints(splits: Mapping[str, Examples]) -> dict[str, str]:
    """A digest of the texts and labels of each split, in their order."""
    return {name: _digest(examples) for name, examples in splits.items()}


def _digest(examples: Examples) -> str:
    digest = hashlib.sha256()
    for row in examples.rows:
        digest.update(json.dumps([row.text, row.second, row.label]).encode())
    return digest.hexdigest()
