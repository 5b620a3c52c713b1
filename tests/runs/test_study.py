from __future__ import annotations

import json
from pathlib import Path

import pytest

from headstart.errors import DataError
from headstart.runs.comparison import ArmResult, Comparison, Estimate, RunScores, WorthResult
from headstart.runs.study import StudyData, StudyFolder, study_of
from headstart.runs.sweep import Sweep, Trial

ARM = ArmResult(
    name="full",
    mode="full",
    base="base",
    budget=400,
    runs=(RunScores("runs/full", 0, {"accuracy": 0.5}, {"accuracy": 0.5}, None),),
    scores={"accuracy": Estimate(0.5, 0.4, 0.6)},
    leak_free=None,
)
WORTH = WorthResult("full", "scratch", 50, value=120.0, low=80.0, high=None, at_most=False)
COMPARISON = Comparison(("no", "yes"), 100, 2, "full", (ARM,), (), (ARM,), (WORTH,), ("It works.",))
SWEEP = Sweep("grid", ("lr",), (Trial("runs/a", {"lr": 0.1}, valid={"accuracy": 0.5, "loss": 1.0}, best=True),), 60)


def test_the_records_are_read_back(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    folder.write_comparison(COMPARISON)
    folder.write_sweep(SWEEP)
    assert folder.comparison() == COMPARISON and folder.sweep() == SWEEP


def test_keys_on_disk_are_those_of_before(tmp_path: Path) -> None:
    """Scripts read them, and so do earlier versions."""
    StudyFolder(tmp_path).write_comparison(COMPARISON)
    found = json.loads((tmp_path / "comparison.json").read_text())
    assert found["format"] == 1 and found["labels"] == ["no", "yes"]
    assert (found["arms"][0]["labels"], found["curves"][0]["labels"], found["worth"][0]["labels"]) == (400, 400, 50)


@pytest.mark.parametrize("leaked", [None, (1, 3)])
def test_what_is_known_of_the_data_is_read_back(tmp_path: Path, leaked: tuple[int, ...] | None) -> None:
    folder = StudyFolder(tmp_path)
    assert folder.data() is None
    data = StudyData({"train": "ab"}, {"train": 3}, ("no", "yes"), leaked, None if leaked is None else {"findings": 0})
    folder.write_data(data)
    assert folder.data() == data


def test_a_folder_says_which_command_wrote_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no study\.toml and no run\.toml"):
        study_of(tmp_path)
    StudyFolder(tmp_path).write_settings({"study": "sweep", "lr": 0.1})
    assert study_of(tmp_path) == "sweep"


def test_records_that_are_missing_or_damaged(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    with pytest.raises(DataError, match=r"not done.*headstart compare"):
        folder.comparison()
    with pytest.raises(DataError, match=r"no trial.*headstart sweep"):
        folder.sweep()
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(DataError, match="it is no sweep of this headstart"):
        folder.sweep()
