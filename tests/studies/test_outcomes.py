"""From run folders to a comparison: folders written by hand, so that every number is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headstart.config import to_toml
from headstart.errors import DataError
from headstart.runs.comparison import Cost
from headstart.runs.tuning import ArmTuning, Tried
from headstart.studies import statistics
from headstart.studies.outcomes import Arm, compare_arms, compare_runs, read_run

TRUTH = ["a", "b"] * 20  # of test; valid is the first ten


def write_run(
    folder: Path, wrong: set[int], *, seed: int = 0, mode: str = "full", rows: int = 100, base: str = "base",
    classes: str = "ab", truth: list[str] | None = None, always: str | None = None, labels: int | None = None,
) -> Path:  # fmt: skip
    """A run that is right everywhere but on these rows of test, with probability 0.8."""
    folder.mkdir(parents=True)
    truth = truth or TRUTH
    table = []
    for split, expected in (("valid", truth[:10]), ("test", truth)):
        for row, label in enumerate(expected):
            said = always or (label if split == "valid" or row not in wrong else next(c for c in classes if c != label))
            rest = 0.2 / (len(classes) - 1)
            chances = {f"probability:{c}": 0.8 if c == said else rest for c in classes}
            table.append({"split": split, "text": f"{split} {row}", "label": label, "predicted": said, **chances})
    pq.write_table(pa.Table.from_pylist(table), folder / "predictions.parquet")
    (folder / "result.json").write_text(json.dumps({"labels": list(classes), "rows": {"train": rows}}))
    subset = {} if labels is None else {"labels": labels}
    (folder / "run.toml").write_text(to_toml({"study": "finetune", "mode": mode, "init": base, "seed": seed, **subset}))
    (folder / "manifest.json").write_text("{}")
    return folder


def test_known_answers(tmp_path: Path) -> None:
    full = [write_run(tmp_path / f"full{i}", {*range(4 + 2 * i)}, seed=i) for i in range(2)]
    scratch = [write_run(tmp_path / f"scratch{i}", {*range(10)}, seed=i) for i in range(2)]
    arms = {(Arm("full", "full", "x"), 100): full, (Arm("scratch", "scratch", "x"), 100): scratch}
    found = compare_arms(arms, leaked=[0, 1], root=tmp_path)
    assert found.reference == "scratch"
    assert found.arm("full").scores["accuracy"].value == pytest.approx(np.mean([36 / 40, 34 / 40]))
    leak_free = found.arm("full").leak_free
    assert leak_free is not None
    assert leak_free["accuracy"].value == pytest.approx(np.mean([36 / 38, 34 / 38]))
    assert [run.path for run in found.arm("full").runs] == ["full0", "full1"]
    assert found.arm("full").runs[0].valid["accuracy"] == 1.0
    # All 10 rows of valid are right, so the temperature makes 0.8 into 1 - 1 / 24, of which 0.9 are right.
    assert found.arm("full").runs[0].test["calibration"] == pytest.approx(1 - 1 / 24 - 0.9, abs=1e-5)
    each_run = [run.test["calibration"] for run in found.arm("full").runs]
    assert found.arm("full").scores["calibration"].value == pytest.approx(np.mean(each_run))
    (difference,) = found.differences
    assert (difference.arm, difference.reference) == ("full", "scratch")
    assert difference.scores["accuracy"].value == pytest.approx(0.875 - 0.75)
    assert difference.leak_free is not None
    assert difference.leak_free["accuracy"].value == pytest.approx((35 - 30) / 38)
    assert difference.mcnemar is None
    assert not found.curves
    assert not found.worth


def test_two_single_models_have_mcnemars_test(tmp_path: Path) -> None:
    """The one is right on 6 rows where the other is wrong, and never the other way: 2 · (1/2)^6."""
    runs = {
        (Arm("full", "full", "x"), 100): [write_run(tmp_path / "a", {*range(4)})],
        (Arm("scratch", "scratch", "x"), 100): [write_run(tmp_path / "b", {*range(10)})],
    }
    assert compare_arms(runs).differences[0].mcnemar == pytest.approx(2 * 0.5**6)


def test_what_an_arm_costs_is_the_mean_of_its_runs(tmp_path: Path) -> None:
    """A run that tuned itself took 30 s of its 40 for that; an old one recorded nothing."""
    tuning = ArmTuning({"strength": 1.0}, (Tried({"strength": 1.0}, 0.8, 0.5, 40, 30.0),), 30.0)
    runs = [write_run(tmp_path / f"full{i}", set(), seed=i) for i in range(3)]
    record(runs[0], 40.0, {"cost": {"predict_seconds": 0.002, "bytes": 8_000_000}, "tuning": tuning.to_json()})
    record(runs[1], 20.0, {"cost": {"predict_seconds": 0.004, "bytes": 8_000_000}})
    arm = compare_arms({(Arm("full", "full", "x"), 100): runs}).arm("full")
    assert arm.cost == Cost(seconds=15.0, milliseconds=3.0, megabytes=8.0)
    assert arm.tuning == tuning


def test_an_ensemble_costs_what_its_members_cost(tmp_path: Path) -> None:
    members = [write_run(tmp_path / name, set()) for name in ("full", "tfidf")]
    record(members[0], 40.0, {"cost": {"predict_seconds": 0.002, "bytes": 8_000_000}})
    record(members[1], 2.0, {"cost": {"predict_seconds": 0.001, "bytes": 1_000_000}})
    both = write_run(tmp_path / "both", set())
    record(both, 0.1, {})
    (both / "run.toml").write_text(to_toml({"study": "ensemble", "of": ["full", "tfidf"], "seed": 0}))
    assert read_run(both).cost == Cost(seconds=42.0, milliseconds=3.0, megabytes=9.0)
    record(members[1], 2.0, {})
    assert read_run(both).cost == Cost(seconds=42.0)


def record(folder: Path, seconds: float, result: dict[str, Any]) -> None:
    """How long a run took, and more of its result."""
    (folder / "manifest.json").write_text(json.dumps({"seconds": seconds}))
    before = json.loads((folder / "result.json").read_text())
    kept = {name: value for name, value in before.items() if name in ("labels", "rows")}
    (folder / "result.json").write_text(json.dumps({**kept, **result}))


def test_runs_that_learned_nothing(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "constant", set(), always="a"),
        write_run(tmp_path / "coin", {*range(20)}),
        write_run(tmp_path / "fine", {*range(19)}),
    ]
    found = compare_arms({(Arm("full", "full", "x"), 100): runs, (Arm("majority", "baseline"), 100): runs[:1]})
    assert [run.degenerate for run in found.arm("full").runs] == ["one class only", "no better than majority", None]
    assert found.arm("majority").runs[0].degenerate is None  # it is meant to be


def test_budgets_make_curves_and_the_most_labels_make_the_arms(tmp_path: Path) -> None:
    runs = {}
    for mode, worst in (("scratch", 16), ("full", 8)):
        for labels, fewer in ((50, 0), (100, 2), (200, 4)):
            wrong = {*range(worst - fewer)}
            folder = write_run(tmp_path / f"{mode}{labels}", wrong, mode=mode, rows=labels)
            runs[Arm(mode, "full" if mode == "full" else "scratch", "x"), labels] = [folder]
    found = compare_arms(runs)
    assert {arm.budget for arm in found.arms} == {200}
    assert len(found.curves) == 6
    assert [(each.arm, each.budget) for each in found.worth] == [("full", 50), ("full", 100), ("full", 200)]
    # Full makes 8 mistakes where scratch makes the same and 8, 6 or 4 more: a coin falls so 4 times in 6 of 100 tries.
    assert (found.worth[0].low, found.worth[0].beyond) == (100, False)
    smaller = [(each.budget, each.arm, each.reference) for each in found.curve_differences]
    assert smaller == [(50, "full", "scratch"), (100, "full", "scratch")]
    gains = [each.scores["accuracy"].value for each in (*found.curve_differences, *found.differences)]
    assert gains == pytest.approx([8 / 40, 8 / 40, 8 / 40])


def test_loose_runs_are_gathered_by_mode_and_base(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / f"{mode}{i}", {i}, seed=i, mode=mode) for mode in ("full", "scratch") for i in (0, 1)
    ]
    found = compare_runs(folders)
    assert {arm.name: [run.seed for run in arm.runs] for arm in found.arms} == {"full": [0, 1], "scratch": [0, 1]}
    folders.append(write_run(tmp_path / "third", set(), base="runs/other"))
    assert {arm.name for arm in compare_runs(folders).arms} == {"full:base", "scratch:base", "full:other"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"classes": "abc"}, "its labels are a, b, c, and those of"),
        ({"truth": ["b", "a"] * 20}, "its valid rows are not"),
    ],
)
def test_runs_of_other_questions_are_refused(tmp_path: Path, options: dict[str, str], words: str) -> None:
    folders = [write_run(tmp_path / "one", set()), write_run(tmp_path / "two", set(), **options)]  # type: ignore[arg-type]
    with pytest.raises(DataError, match=words):
        compare_runs(folders)


def test_arms_of_other_seeds_are_compared(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / f"full{i}", {i}, seed=i) for i in (2, 0, 1)]
    folders += [write_run(tmp_path / f"scratch{i}", {i, 9}, seed=i, mode="scratch") for i in (0, 1)]
    found = compare_runs(folders)
    assert [run.seed for run in found.arm("full").runs] == [0, 1, 2]
    assert [(each.arm, each.reference) for each in found.differences] == [("full", "scratch")]


def test_arms_that_learned_from_the_same_subsets_are_paired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    difference = statistics.difference

    def spy(*arms: Any, paired: bool) -> Any:
        asked.append(paired)
        return difference(*arms, paired=paired)

    monkeypatch.setattr(statistics, "difference", spy)
    for labels, same_seeds in ((None, True), (20, True), (20, False)):
        place = tmp_path / f"{labels}-{same_seeds}"
        runs = [write_run(place / f"full{i}", {i}, seed=i, labels=labels) for i in (0, 1)]
        seeds = (0, 1) if same_seeds else (5, 6)
        runs += [write_run(place / f"scratch{i}", {i, 9}, seed=i, mode="scratch", labels=labels) for i in seeds]
        compare_runs(runs)
    assert asked == [False, True, False]
