"""The search for settings: equal effort for each arm, nothing done twice, test never looked at, failures reported."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headstart.cli.compare import show
from headstart.errors import TrainingError
from headstart.report.page import write_report
from headstart.runs.comparison import Comparison
from headstart.runs.run import RunFolder
from headstart.studies import looks, tuning
from headstart.studies import study as module
from headstart.studies.compare import _work, compare, open_study
from headstart.studies.effort import EFFORTS, QUICK, SHORT, Effort, RunsAhead, choose_effort, needed_epochs
from headstart.studies.finetune import finetune
from headstart.studies.settings import CompareSettings
from headstart.studies.study import Study
from headstart.studies.tuning import STEP, Outcome, next_rate

SMALL = Effort(rates=4, finalists=2, epochs=3, longer=(2,), dropouts=(0.2,), most_times=2)


@pytest.fixture(autouse=True)
def small_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EFFORTS, "quick", (SMALL,))
    monkeypatch.setattr(tuning, "LEAST_STEPS", 1)


def settings(world: Path, base: Path, **changes: Any) -> CompareSettings:
    given: dict[str, Any] = {
        "data": str(world / "train.txt"),
        "valid": str(world / "valid.txt"),
        "test": str(world / "test.txt"),
        "init": (str(base),),
        "arms": "scratch,full",
        "tune": "quick",
        "seeds": 2,
        "batch_size": 40,
    }
    return CompareSettings(**{**given, **changes})


@pytest.fixture(scope="module")
def done(world: Path, base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Comparison]:
    folder = tmp_path_factory.mktemp("tuned") / "s"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(EFFORTS, "quick", (SMALL,))
        patch.setattr(tuning, "LEAST_STEPS", 1)
        return folder, compare(settings(world, base), folder)


def trial_settings(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Of every trial on disk, by mode."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((folder / "trials").glob("[!.]*")):
        values = RunFolder(path).settings()
        found.setdefault(values["mode"], []).append(values)
    return found


def test_arms_get_the_same_number_of_trials_and_epochs(done: tuple[Path, Comparison]) -> None:
    trials = trial_settings(done[0])
    assert set(trials) == {"scratch", "full"}
    epochs = {mode: Counter(each["epochs"] for each in values) for mode, values in trials.items()}
    assert epochs["scratch"] == epochs["full"] == {SHORT: 4, 3: 3, 6: 1}
    assert sum(count * each for each, count in epochs["full"].items()) == SMALL.trial_epochs


def test_what_is_chosen_is_the_best_long_trial_and_is_what_the_runs_have(done: tuple[Path, Comparison]) -> None:
    folder, comparison = done
    for name in ("scratch", "full"):
        record = comparison.arm(name).tuning
        assert record is not None
        assert len(record.tried) == 8
        assert record.best is not None
        long = [each for each in record.tried if each.settings["epochs"] > SHORT]
        assert record.best.accuracy == max(each.accuracy or 0.0 for each in long)
        assert record.seconds == pytest.approx(sum(each.seconds for each in record.tried))
        assert record.as_good is not None
        assert 0 <= record.as_good <= 3
        for run in comparison.arm(name).runs:
            values = RunFolder(folder / run.path).settings()
            assert {key: values[key] for key in record.chosen} == dict(record.chosen)


def test_a_trial_never_sees_test(done: tuple[Path, Comparison]) -> None:
    folder, _ = done
    for path in (folder / "trials").glob("[!.]*"):
        run = RunFolder(path)
        assert run.result().test is None
        predictions = run.predictions(run.result().class_names)
        assert len(predictions.split("valid")) == run.result().rows["valid"] > 0
        assert len(predictions.split("test")) == 0
        assert "test" not in run.result().rows


def test_what_is_done_is_not_done_again(
    done: tuple[Path, Comparison], world: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **more: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(module, "finetune", refuse)
    monkeypatch.setattr(module, "run_trial", refuse)
    folder, comparison = done
    assert compare(settings(world, base), folder) == comparison


def test_a_rate_that_was_given_is_not_searched(world: Path, base: Path, tmp_path: Path) -> None:
    asked = settings(world, base, full=("lr=3e-3",))
    searches = {search.arm.name: search for search in open_study(asked, tmp_path / "s").searches}
    assert searches["full"].start == 3e-3
    assert [trial.values.get("lr") for trial in searches["full"].progress(SMALL).short] == [None]
    asked = settings(world, base, full=("lr=3e-3",), epochs=2)
    (scratch,) = open_study(asked, tmp_path / "s").searches  # of full nothing is left to search
    assert scratch.arm.name == "scratch"
    assert all("epochs" not in trial.values for trial in scratch.progress(SMALL).short)
    assert len(scratch.progress(SMALL).short) == 3


def test_the_range_grows_at_its_edge_and_is_refined_inside() -> None:
    scores = {rate: (-abs(math.log10(rate) + 1), 0.0) for rate in (1e-4, 1e-4 / STEP, 1e-4 * STEP)}  # best at 0.1
    for _ in range(6):
        rate = next_rate(scores)
        scores[rate] = (-abs(math.log10(rate) + 1), 0.0)
    assert 0.05 < max(scores, key=lambda rate: scores[rate]) < 0.2
    assert len(scores) == 9


def test_every_trial_of_an_arm_diverges(
    world: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headstart.studies import trials

    genuine = finetune

    def sometimes(settings: Any, out: Path, **more: Any) -> Any:
        if settings.mode == "scratch":
            raise TrainingError("the loss became nan at step 3")
        return genuine(settings, out, **more)

    monkeypatch.setattr(trials, "finetune", sometimes)
    comparison = compare(settings(world, base, seeds=1), tmp_path / "s")
    assert [arm.name for arm in comparison.arms] == ["majority", "tfidf", "full"]
    assert any("scratch is missing: every trial failed (the loss became nan" in note for note in comparison.notes)
    assert Comparison.from_json(json.loads((tmp_path / "s" / "comparison.json").read_text())).notes == comparison.notes


def test_settings_are_chosen_on_no_more_labels_than_the_runs_have(world: Path, base: Path, tmp_path: Path) -> None:
    studies = {
        labels: open_study(settings(world, base, labels=labels), tmp_path / str(labels)) for labels in (None, "20,40")
    }
    rows = {
        labels: len({row for fold in study.searches[0].folds for row in (*fold.train.rows, *fold.valid.rows)})
        for labels, study in studies.items()
    }
    valid = len(studies[None].splits["valid"].rows)
    assert rows == {None: len(studies[None].splits["train"].rows) + valid, "20,40": 40 + valid}
    # 300 steps on 40 labels, five times the least of an epoch; but never more than with 40 labels.
    assert studies["20,40"].first_runs == RunsAhead(2, (0.5, 1.0), 300 / 60, at_most_largest=True)
    assert studies["20,40"].first_runs.epochs(Effort(rates=1, finalists=0, epochs=2)) == 2 * (2 + 2)


def test_effort_is_cut_to_the_time_there_is() -> None:
    efforts = (SMALL, replace(SMALL, longer=(), dropouts=()), Effort(rates=1, finalists=0, epochs=2))
    runs = RunsAhead(3)
    enough = 2 * needed_epochs(SMALL, runs) / 0.85
    assert choose_effort(efforts, [1.0, 1.0], enough + 1, runs) is efforts[0]
    assert choose_effort(efforts, [1.0, 1.0], enough - 1, runs) is efforts[1]
    assert choose_effort(efforts, [1e6], enough, runs) is efforts[2]
    with_budgets = RunsAhead(3, shares=(0.1, 0.5, 1.0), least_epochs=2.0)
    longest = SMALL.most_epochs
    assert with_budgets.epochs(SMALL) == 3 * (max(2.0, 0.1 * longest) + 0.5 * longest + longest)
    assert choose_effort(efforts, [1.0, 1.0], enough + 1, with_budgets) is efforts[1]


@pytest.mark.parametrize("seeds", [3, 5])
def test_efforts_are_so_close_that_the_next_one_uses_half_of_the_time(seeds: int) -> None:
    needed = [needed_epochs(effort, RunsAhead(seeds)) for effort in QUICK]
    shares = [after / before for before, after in pairwise(needed)]
    assert all(0.5 <= share < 1 for share in shares)
    # An arm that needs many epochs gets them wherever there is time: eight to ten with two thirds of the first effort.
    most = {effort.most_epochs for effort, epochs in zip(QUICK, needed, strict=True) if epochs > 0.66 * needed[0]}
    assert most == {8, 10}


class FakeSearch:
    """A search that has tried all that an effort asks for; `gains` by the most times the epochs."""

    def __init__(self, gains: dict[int, float]) -> None:
        self.gains, self.seconds_per_epoch = gains, 1.0

    def progress(self, effort: Effort) -> SimpleNamespace:
        return SimpleNamespace(waiting=[])

    def improvement(self, effort: Effort) -> float:
        return self.gains.get(max(effort.longer), 0.0)


def fake_study(minutes: float, searches: Sequence[FakeSearch], linear: Sequence[SimpleNamespace] = ()) -> Study:
    asked: Any = SimpleNamespace(tune="quick", seconds=60 * minutes, processes=1, seeds=3)
    plan: Any = lambda seeds, tuned: linear  # noqa: E731
    fakes: Any = tuple(searches)
    return Study(asked, Path("nowhere"), {}, (), plan, fakes, math.inf)


@pytest.mark.parametrize(
    ("gains", "minutes", "expected"),
    [
        (({2: 0.0}, {2: 0.009}), 60, (2,)),
        (({2: 0.0}, {2: 0.01}), 60, (2, 4)),  # of one arm: both are tried with more
        (({2: 0.3, 4: 0.02}, {2: 0.0, 4: 0.0}), 60, (2, 4, 8)),
        (({2: 0.3, 4: 0.3, 8: 0.3}, {}), 60, (2, 4, 8)),  # and no more
        (({2: 0.3, 4: 0.3}, {}), 2, (2,)),  # there is no time for more
    ],
)
def test_epochs_are_doubled_while_an_arm_improves_and_there_is_time(
    monkeypatch: pytest.MonkeyPatch, gains: tuple[dict[int, float], ...], minutes: float, expected: tuple[int, ...]
) -> None:
    monkeypatch.setitem(EFFORTS, "quick", (replace(SMALL, most_times=8),))
    chosen = fake_study(minutes, [FakeSearch(each) for each in gains]).effort
    assert chosen is not None
    assert chosen.longer == expected


@pytest.mark.parametrize(("minutes", "waits"), [(10, False), (5, True)])
def test_trials_wait_for_the_linear_models_only_where_time_is_short(
    monkeypatch: pytest.MonkeyPatch, minutes: float, waits: bool
) -> None:
    """With 120 s that each may take, 360 are left of ten minutes, which is enough, and 60 of five."""
    monkeypatch.setitem(EFFORTS, "quick", (SMALL, Effort(rates=1, finalists=0, epochs=2)))
    linear = [SimpleNamespace(seed=None, done=False, seconds=0.0) for _ in range(2)]
    study = fake_study(minutes, [FakeSearch({}), FakeSearch({})], linear)
    assert 60 < 2 * needed_epochs(SMALL, RunsAhead(3)) / 0.85 < 300
    assert (study.effort is None) == waits
    for run in linear:
        run.done = True
    assert study.effort == SMALL


def test_a_brief_search_is_the_same_however_long_it_takes(world: Path, base: Path, tmp_path: Path) -> None:
    study = open_study(settings(world, base, tune="brief", labels="20,40"), tmp_path / "s")
    assert (study.effort, study.deadline) == (EFFORTS["brief"][0], math.inf)
    assert len(study.trials) == 2 * 3  # three learning rates an arm, and a fourth once these are known


def test_time_is_up_before_an_arm_has_every_budget(world: Path, base: Path, tmp_path: Path) -> None:
    """Tables, verdict and page are made of what there is."""
    study = open_study(settings(world, base, tune="none", minutes=60, labels="20,40", lr=1e-3), tmp_path / "s")
    first = [run for run in study.runs if run.arm.mode == "baseline" or (run.seed, run.budget) == (0, 20)]
    for run in first:
        assert study._do(run, log=lambda text: None)
    comparison = study.conclude()
    assert {arm.name for arm in comparison.arms} == {"majority", "tfidf"}
    assert {(arm.name, arm.budget) for arm in comparison.curves} >= {("full", 20), ("scratch", 20)}
    assert any("Time was up with 6 runs to do" in note for note in comparison.notes)
    write_report([tmp_path / "s"], tmp_path / "report.html")
    show(comparison)


def test_time_is_up(world: Path, base: Path, tmp_path: Path) -> None:
    study = open_study(settings(world, base, minutes=0.001), tmp_path / "s")
    study = replace(study, deadline=time.monotonic() - 1)
    study.work()
    comparison = study.conclude()
    assert [arm.name for arm in comparison.arms] == ["majority", "tfidf"]
    assert any("Time was up before the settings of scratch, full were found" in note for note in comparison.notes)
    again = open_study(settings(world, base, minutes=5), tmp_path / "s")  # more time, and the rest is done
    again.work()
    assert {arm.name for arm in again.conclude().arms} == {"majority", "tfidf", "scratch", "full"}


def test_seeds_are_added_until_the_question_is_settled(
    world: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {3: False, 5: True}
    monkeypatch.setattr(looks, "settled", lambda found: answers[len(found.arm("full").runs)])
    monkeypatch.setattr(looks, "seeds_can_help", lambda found: True)
    comparison = compare(settings(world, base, seeds="auto", tune="none", epochs=1, lr=1e-3), tmp_path / "s")
    assert [run.seed for run in comparison.arm("full").runs] == [0, 1, 2, 3, 4]
    monkeypatch.setattr(looks, "seeds_can_help", lambda found: False)
    comparison = compare(settings(world, base, seeds="auto", tune="none", epochs=1, lr=1e-3), tmp_path / "t")
    assert len(comparison.arm("full").runs) == 3


CHILD = """
import json, sys
from headstart.studies import tuning
from headstart.studies.compare import compare
from headstart.studies.finetune import finetune
from headstart.studies.effort import EFFORTS, Effort
from headstart.studies.settings import CompareSettings
EFFORTS["quick"] = (Effort(rates=4, finalists=2, epochs=3, longer=(2,), dropouts=(0.2,)),)
tuning.LEAST_STEPS = 1
compare(CompareSettings.from_mapping(json.loads(sys.argv[1]), "x"), sys.argv[2])
"""


def kill_when(process: subprocess.Popen[bytes], folder: Path, pattern: str, count: int) -> None:
    """SIGKILL as soon as so many runs that match have begun."""
    deadline = time.monotonic() + 120
    while len(list(folder.glob(pattern))) < count and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.slow
@pytest.mark.parametrize(("pattern", "count"), [("trials/full-*", 2), ("runs/*-seed3-*", 1)])
def test_killed_in_the_middle_it_goes_on_and_does_nothing_twice(
    done: tuple[Path, Comparison], world: Path, base: Path, tmp_path: Path, pattern: str, count: int
) -> None:
    asked = settings(world, base, seeds=4)
    command = [sys.executable, "-c", CHILD, json.dumps(asked.to_mapping()), str(tmp_path / "s")]
    kill_when(subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}), tmp_path / "s", pattern, count)
    finished = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").glob("*/*/manifest.json")}
    assert finished
    comparison = compare(asked, tmp_path / "s")
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert trial_settings(tmp_path / "s").keys() == trial_settings(done[0]).keys()
    for name in ("scratch", "full"):
        mine, theirs = comparison.arm(name).tuning, done[1].arm(name).tuning
        assert mine is not None
        assert theirs is not None
        assert mine.chosen == theirs.chosen
        assert [each.accuracy for each in mine.tried] == [each.accuracy for each in theirs.tried]


def test_several_processes_know_what_to_do_next(world: Path, base: Path, tmp_path: Path) -> None:
    asked = settings(world, base, seeds=1)
    first, second = ({run.folder for run in open_study(asked, tmp_path / "s")._next_runs()} for _ in range(2))
    assert first == second
    assert {folder.name.partition("-")[0] for folder in first} == {"majority", "tfidf", "scratch", "full"}


def test_workers_have_no_more_time_than_the_command(world: Path, base: Path, tmp_path: Path) -> None:
    asked = settings(world, base, seeds=1, minutes=5)
    _work(asked.to_mapping(), str(tmp_path / "s"), time.monotonic() - 1)
    assert {path.parent.name.partition("-")[0] for path in (tmp_path / "s").glob("*/*/manifest.json")} == {
        "majority",
        "tfidf",
    }


def test_epochs_that_were_given_are_reckoned_with(world: Path, base: Path, tmp_path: Path) -> None:
    for given, epochs in (({}, SHORT), ({"epochs": 6}, 6)):
        (search,) = open_study(settings(world, base, arms="full", **given), tmp_path / "s").searches
        search.outcomes[search.first.folder] = Outcome(0.5, 1.0, seconds=12.0)
        assert search.seconds_per_epoch == 12.0 / epochs
