"""The demo in seconds: some answers of those that ship, a tiny base, one epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from headstart import demo
from tests.bases.example_bases import ship

TINY = """\
study = "compare"
tune = "none"
frozen_head = "trained"
labels = "20,40"
seeds = 2
epochs = 1
batch_size = 32
window = 16
jobs = 1
"""
RUNS = 10 + 10  # on each of two budgets: three arms and two baselines with two seeds


@pytest.fixture
def tiny(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that `headstart.demo` takes for its own; the current folder is an empty one beside it."""
    here = tmp_path / "package" / "demo"
    (here / "debat").mkdir(parents=True)
    for split in ("train", "valid", "test"):
        head, *rows = (demo.DEBAT / f"{split}.csv").read_text(encoding="utf-8").splitlines(keepends=True)
        rows = [row for row in rows if row.startswith(("climat,", "école,"))]
        (here / "debat" / f"{split}.csv").write_text("".join([head, *rows[:60]]), encoding="utf-8")
    write_datasheet(here / "debat")
    (here / "demo.toml").write_text(TINY)
    for name, path in (("HERE", ""), ("DEBAT", "debat"), ("RECIPE", "demo.toml")):
        monkeypatch.setattr(demo, name, here / path)
    ship({demo.BASE: base}, tmp_path / "package" / "bases", monkeypatch)
    (tmp_path / "une place à moi").mkdir()
    monkeypatch.chdir(tmp_path / "une place à moi")
    yield here


def write_datasheet(folder: Path) -> None:
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.csv"))}
    rows = "".join(f"| `{name}` | 60 | `{digest}` |\n" for name, digest in digests.items())
    (folder / "DATASHEET.md").write_text(f"| file | rows | SHA-256 |\n|---|---|---|\n{rows}")
