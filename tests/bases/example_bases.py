"""Bases that ship, for tests: tiny ones, in a folder that headstart takes for its own."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from headstart import bases

CARD = """\
# a tiny base

**Language.** French.

**Data.** Letters to an aunt, and
nothing else. None is real.

**Licence.** MIT, as the package. The letters are not part of it.
"""


def ship(models: Mapping[str, Path], package: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies of model folders as the bases that ship, by name, with a card and digests; returns `package`."""
    sums = ""
    for name, model in models.items():
        shutil.copytree(model, package / name)
        (package / name / bases.CARD).write_text(CARD)
        for file in sorted((package / name).iterdir()):
            if file.name != bases.CARD:
                sums += f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {name}/{file.name}\n"
    (package / bases.SUMS).write_text(sums)
    monkeypatch.setattr(bases, "HERE", package)
    return package
