from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headstart.errors import DataError
from headstart.runs.comparison import (
    ArmResult,
    Comparison,
    Components,
    DifferenceResult,
    Estimate,
    RunScores,
    WorthResult,
)
from headstart.runs.study import StudyData, StudyFolder, study_of
from headstart.runs.sweep import Sweep, Trial
from headstart.runs.tuning import ArmTuning, Tried

ARM = ArmResult(
    name="full",
    mode="full",
    base="base",
    budget=400,
    runs=(RunScores("runs/full", 0, {"accuracy": 0.5}, {"accuracy": 0.5}, None),),
    scores={"accuracy": Estimate(0.5, 0.4, 0.6)},
    leak_free=None,
)
WORTH = WorthResult("full", "scratch", 50, low=80.0)
COMPARISON = Comparison(("no", "yes"), 100, 2, "full", (ARM,), (), (ARM,), (WORTH,), ("It works.",))
SWEEP = Sweep("grid", ("lr",), (Trial("runs/a", {"lr": 0.1}, valid={"accuracy": 0.5, "loss": 1.0}, best=True),), 60)


def test_the_records_are_read_back(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    folder.write_comparison(COMPARISON)
    folder.write_sweep(SWEEP)
    assert folder.comparison() == COMPARISON and folder.sweep() == SWEEP


@pytest.mark.parametrize(
    ("low", "expected"),
    [(80.0, WORTH), (None, WorthResult("full", "scratch", 50, low=400, beyond=True)), (50.0, replace(WORTH, low=None))],
)
def test_what_labels_are_worth_in_older_records(low: float | None, expected: WorthResult) -> None:
    """They had a value with an interval, whose ends were None beyond the last budget, 400."""
    worth = {"arm": "full", "reference": "scratch", "labels": 50, "value": None, "low": low, "high": None}
    curves = tuple(replace(ARM, name="scratch", budget=budget) for budget in (50, 400))
    written = {**replace(COMPARISON, curves=curves).to_json(), "worth": [{**worth, "at_most": False}]}
    assert Comparison.from_json(written).worth == (expected,)


def test_a_difference_is_read_back() -> None:
    difference = DifferenceResult(
        "full", "tfidf", {"accuracy": Estimate(0.02, 0.01, 0.03)}, 0.99, 0.02, 0.04, 0.03, None, None,
        primary=True, level=0.975, decision="better", components=Components(0.3, (0.1,), (0.2,)),
    )  # fmt: skip
    comparison = replace(COMPARISON, differences=(difference,))
    again = Comparison.from_json(json.loads(json.dumps(comparison.to_json())))
    assert again == comparison
    mirrored = again.difference("tfidf", "full")
    assert mirrored is not None and mirrored.decision == "worse"


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


def test_the_entry_of_the_chosen_settings_is_the_one_on_the_most_texts() -> None:
    """A combination may be screened on a sample before it is tried on all texts."""
    tried = [Tried({"strength": c}, accuracy, 0.5, rows, 1.0) for c, accuracy, rows in ((1, 0.9, 50), (1, 0.8, 400))]
    assert ArmTuning({"strength": 1}, tuple(tried), 2.0).best == tried[1]
    assert ArmTuning({"strength": 2}, tuple(tried), 2.0).best is None
