"""tools/attack/models.py: a short share of the attack on model folders, and that it would see what it looks for."""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from types import ModuleType

import pytest

from headstart.errors import CheckpointError

TOOLS = Path(__file__).parents[1] / "tools"


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(TOOLS)
    return importlib.import_module("attack.models")


def test_a_short_share_of_the_attack(models: ModuleType) -> None:
    outcomes = models.run(60, seed=7)
    assert len(outcomes) == 60
    assert [outcome for outcome in outcomes if not outcome.good] == []
    assert {outcome.kind for outcome in outcomes} == {"answered", "refused"}


def test_a_case_is_decided_by_its_number_and_the_seed(models: ModuleType, tmp_path: Path) -> None:
    models.prepare(tmp_path)
    first, again = (models.attack(tmp_path, 3, random.Random("1/3")).case for _ in range(2))
    assert first == again
    assert len({models.attack(tmp_path, 3, random.Random(seed)).case for seed in range(5)}) > 1


def test_every_model_answers_while_it_is_whole(models: ModuleType, tmp_path: Path) -> None:
    models.prepare(tmp_path / "models")
    for folder in sorted((tmp_path / "models").iterdir()):
        model = next(folder.glob("*.pt"), folder)
        expected = "opened" if model.suffix == ".pt" else "used"
        assert models.use(model, tmp_path / "scratch" / folder.name) == expected


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CheckpointError("no file config.json"), "refused"),
        (CheckpointError("\ud800"), "traceback"),
        (KeyError("head"), "traceback"),
        (MemoryError(), "memory"),
        (BaseException("a panic"), "traceback"),
    ],
    ids=["refused", "not printable", "traceback", "memory", "panic"],
)
def test_outcomes_are_told_apart(
    models: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, kind: str
) -> None:
    def fail(*_: object) -> str:
        raise error

    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    monkeypatch.setattr(models, "use", fail)
    assert models.attack(tmp_path, 0, random.Random(1)).kind == kind
