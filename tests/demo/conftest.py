"""The demo in seconds: a hundred answers of those that ship, a tiny base, one epoch."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from headstart import demo

TINY = """\
study = "compare"
tune = "none"
frozen_head = "trained"
seeds = 2
epochs = 1
batch_size = 32
window = 16
jobs = 1
"""


@pytest.fixture
def tiny(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that `headstart.demo` takes for its own; the current folder is an empty one beside it."""
    here = tmp_path / "package" / "demo"
    (here / "debat").mkdir(parents=True)
    for split in ("train", "valid", "test"):
        head, *rows = (demo.DEBAT / f"{split}.csv").read_text(encoding="utf-8").splitlines(keepends=True)
        rows = [row for row in rows if row.startswith(("climat,", "école,"))]
        (here / "debat" / f"{split}.csv").write_text("".join([head, *rows[:40]]), encoding="utf-8")
    shutil.copytree(base, here / "lab-fr")
    (here / "demo.toml").write_text(TINY)
    for name, path in (("HERE", ""), ("DEBAT", "debat"), ("BASE", "lab-fr"), ("RECIPE", "demo.toml")):
        monkeypatch.setattr(demo, name, here / path)
    (tmp_path / "une place à moi").mkdir()
    monkeypatch.chdir(tmp_path / "une place à moi")
    yield here
