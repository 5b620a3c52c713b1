"""The demo in seconds: a hundred reviews of those that ship, a tiny base, one epoch."""

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
    (here / "reviews").mkdir(parents=True)
    for split in ("train", "valid", "test"):
        rows = (demo.REVIEWS / f"{split}.csv").read_text(encoding="utf-8").splitlines(keepends=True)
        (here / "reviews" / f"{split}.csv").write_text("".join(rows[:41]), encoding="utf-8")
    shutil.copytree(base, here / "lab-fr")
    (here / "demo.toml").write_text(TINY)
    for name, path in (("HERE", ""), ("REVIEWS", "reviews"), ("BASE", "lab-fr"), ("RECIPE", "demo.toml")):
        monkeypatch.setattr(demo, name, here / path)
    (tmp_path / "une place à moi").mkdir()
    monkeypatch.chdir(tmp_path / "une place à moi")
    yield here
