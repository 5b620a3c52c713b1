"""From run folders to a comparison: every run's predictions on test, grouped by arm and put through the statistics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from headstart.errors import DataError, listed_names
from headstart.metrics import Floats, temperature_scaled
from headstart.runs.comparison import (
    ALPHA,
    ArmResult,
    Comparison,
    Cost,
    DifferenceResult,
    Mode,
    RunScores,
    WorthResult,
)
from headstart.runs.pile import YOURS, read_pile
from headstart.runs.predictions import Predictions
from headstart.runs.run import RunFolder
from headstart.runs.titles import arm_mode
from headstart.runs.tuning import ArmTuning
from headstart.studies import statistics
from headstart.studies.contrasts import PRETRAINED, STUDENTS, Contrasts, choose_contrasts
from headstart.studies.differences import compare_pairs
from headstart.studies.scores import scores
from headstart.studies.statistics import ArmPredictions
from headstart.studies.verdict import title, verdict
from headstart.studies.worth import least_worth

T = TypeVar("T")


@dataclass(frozen=True)
class Arm:
    """One way to make a classifier. `base` is the name of what it starts from (or, from scratch, is built like)."""

    name: str
    mode: Mode
    base: str | None = None

    @property
    def searched(self) -> str:
        """The arm whose settings it has: students are not searched, and have those of the same arm without."""
        return self.name.replace(self.mode, "full", 1) if self.mode in STUDENTS else self.name


ArmBudget = tuple[Arm, int]  # an arm, and how many labelled texts it learned from


@dataclass(frozen=True)
class FinishedRun:
    path: Path
    seed: int
    subset: bool  # whether its seed drew the labelled texts that it learned from
    train_rows: int
    class_names: tuple[str, ...]
    valid: Predictions
    test: Predictions
    cost: Cost
    tuning: ArmTuning | None  # where the run chose its own settings

    @cached_property
    def scaled(self) -> Floats:
        """Probabilities on test after temperature scaling on valid, by which calibration is judged."""
        return temperature_scaled(self.test.probabilities, self.valid.probabilities, self.valid.labels)


def read_run(path: Path) -> FinishedRun:
    """A finished run's predictions on valid and test, what it cost, and how it chose its settings."""
    run = RunFolder(path)
    result, tuning = run.result(), run.result_json().get("tuning")
    predictions = run.predictions(result.class_names)
    valid, test = (predictions.split(name) for name in ("valid", "test"))
    settings = run.settings()
    seed, subset = settings.get("seed", 0), settings.get("labels") is not None
    return FinishedRun(
        path=path,
        seed=seed,
        subset=subset,
        train_rows=result.rows["train"],
        class_names=result.class_names,
        valid=valid,
        test=test,
        cost=_sum([run_cost(path.with_name(name)) for name in settings.get("of", [path.name])]),
        tuning=None if tuning is None else ArmTuning.from_json(tuning),
    )


def run_cost(path: Path) -> Cost:
    """What a run took, and the training of its teachers, but for the time in which it chose its own settings.

    Older runs recorded less.
    """
    run = RunFolder(path)
    result = run.result_json()
    cost, seconds = result.get("cost", {}), run.manifest().seconds
    if seconds is not None and "tuning" in result:
        seconds = max(0.0, seconds - result["tuning"]["seconds"])
    if seconds is not None and "distillation" in result:
        seconds += sum(teacher.get("seconds") or 0.0 for teacher in result["distillation"]["teachers"])
    predict_seconds, size = cost.get("predict_seconds"), cost.get("bytes")
    return Cost(
        seconds=seconds,
        milliseconds=None if predict_seconds is None else 1000 * predict_seconds,
        megabytes=None if size is None else size / 1e6,
        pretraining=_pretraining(path, run.settings()),
    )


def _pretraining(path: Path, settings: Mapping[str, Any]) -> float | None:
    """What the base took that a run started from, where its study made it from a pile of text."""
    from_pile = Path(settings.get("init", "")).name == YOURS and settings.get("mode") != "scratch"
    pile = read_pile(path.parent.parent) if from_pile else None
    return None if pile is None else pile.seconds


def _sum(costs: Sequence[Cost]) -> Cost:
    """Of an ensemble: what all of its members take; a base that was made for one of them is made once."""
    *taken, pretraining = zip(*map(astuple, costs), strict=True)
    seconds, milliseconds, megabytes = (None if None in values else sum(values) for values in taken)
    return Cost(seconds, milliseconds, megabytes, next((value for value in pretraining if value is not None), None))


def _mean(costs: Sequence[Cost]) -> Cost:
    """Over the runs of an arm, of those that recorded it."""
    measured = ([value for value in values if value is not None] for values in zip(*map(astuple, costs), strict=True))
    return Cost(*(sum(values) / len(values) if values else None for values in measured))


def compare_arms(
    folders: Mapping[ArmBudget, Sequence[Path]],
    *,
    reference: str | None = None,
    leaked: Iterable[int] = (),
    root: Path | None = None,
    alpha: float = ALPHA,
    matters: float = 0.0,
    tuning: Mapping[str, ArmTuning] | None = None,
) -> Comparison:
    """The comparison of arms, each a list of run folders under (arm, label budget).

    `leaked` are the rows of test that stand in train or valid; `root` is the folder that paths are relative to;
    `alpha` is the error rate of each family of questions (`looks.alpha_at`, where seeds are added until they are
    decided); `matters` is the smallest difference that counts, 0.02 for two points; `tuning` says how the settings of
    arms were chosen.
    """
    runs = {key: sorted(map(read_run, paths), key=lambda run: run.seed) for key, paths in folders.items()}
    first = next(iter(runs.values()))[0]
    _check_same_data([run for of_arm in runs.values() for run in of_arm])
    leaked = sorted(leaked)
    predictions = {key: _stack(of_arm) for key, of_arm in runs.items()}
    leak_free = {key: each.without(leaked) for key, each in predictions.items()} if leaked else {}
    results = {
        key: _arm_result(key[0], runs[key], predictions[key], leak_free.get(key), root or Path()) for key in runs
    }
    largest = max(budget for _, budget in results)
    tuning = tuning or {}
    arms = tuple(
        replace(result, tuning=tuning.get(result.name, result.tuning))
        for (_, budget), result in results.items()
        if budget == largest
    )
    reference = reference or _usual_reference(arms)
    contrasts = choose_contrasts(arms, reference)

    def differences(contrasts: Contrasts, budget: int) -> tuple[DifferenceResult, ...]:
        subsets = {name: [run.seed for run in of_arm if run.subset] for name, of_arm in _by_name(runs, budget).items()}
        there, free = _by_name(predictions, budget), _by_name(leak_free, budget)
        return compare_pairs(contrasts.within(there), there, free, subsets, alpha, matters)

    comparison = Comparison(
        class_names=first.class_names,
        rows=len(first.test.labels),
        leaked=len(leaked),
        reference=reference,
        arms=arms,
        differences=differences(contrasts, largest),
        curves=tuple(results.values()) if len(results) > len(arms) else (),
        worth=tuple(_label_worth(contrasts, predictions)),
        matters=matters,
        curve_differences=tuple(
            replace(each, budget=budget)
            for budget in sorted({budget for _, budget in results} - {largest})
            for each in differences(replace(contrasts, secondary=()), budget)
        ),
    )
    return replace(comparison, verdict=verdict(comparison, contrasts), title=title(comparison, contrasts))


def compare_runs(folders: Sequence[Path]) -> Comparison:
    """The comparison of fine-tuning runs that were made one by one: runs of one mode and one base are an arm."""
    settings_of = {folder: RunFolder(folder).settings() for folder in folders}
    several_bases = len({str(settings["init"]) for settings in settings_of.values()}) > 1
    grouped: dict[ArmBudget, list[Path]] = defaultdict(list)
    for folder, settings in settings_of.items():
        mode, base = cast(Mode, arm_mode(settings)), Path(settings["init"]).name
        arm = Arm(f"{mode}:{base}" if several_bases else mode, mode, base)
        grouped[arm, RunFolder(folder).result().rows["train"]].append(folder)
    return compare_arms(grouped)


def _check_same_data(runs: Sequence[FinishedRun]) -> None:
    first = runs[0]
    for run in runs[1:]:
        if run.class_names != first.class_names:
            names = [listed_names(each.class_names) for each in (run, first)]
            problem = f"its labels are {names[0]}, and those of {first.path} are {names[1]}"
            raise DataError(run.path, problem, fix="compare runs on one data set")
        for name, mine, theirs in (("valid", run.valid, first.valid), ("test", run.test, first.test)):
            if mine.texts != theirs.texts or not np.array_equal(mine.labels, theirs.labels):
                problem = f"its {name} rows are not those of {first.path}"
                raise DataError(run.path, problem, fix="compare runs on one data set")


def _stack(runs: Sequence[FinishedRun]) -> ArmPredictions:
    probabilities, scaled = np.stack([run.test.probabilities for run in runs]), np.stack([run.scaled for run in runs])
    return ArmPredictions(probabilities, runs[0].test.labels, scaled)


def _arm_result(
    arm: Arm, runs: Sequence[FinishedRun], predictions: ArmPredictions, leak_free: ArmPredictions | None, root: Path
) -> ArmResult:
    return ArmResult(
        name=arm.name,
        mode=arm.mode,
        base=arm.base,
        budget=runs[0].train_rows,
        runs=tuple(_run_scores(arm, run, root) for run in runs),
        scores=statistics.estimate(predictions),
        leak_free=None if leak_free is None else statistics.estimate(leak_free),
        cost=_mean([run.cost for run in runs]),
        tuning=runs[0].tuning,
    )


def _run_scores(arm: Arm, run: FinishedRun, root: Path) -> RunScores:
    path = run.path.relative_to(root) if run.path.is_relative_to(root) else run.path
    return RunScores(
        path=path.as_posix(),
        seed=run.seed,
        valid=scores(run.valid.probabilities, run.valid.labels),
        test=scores(run.test.probabilities, run.test.labels, run.scaled),
        degenerate=None if arm.mode in ("baseline", "ensemble") else _degenerate(run.test),
    )


def _degenerate(test: Predictions) -> str | None:
    """What marks a run that learned nothing. It is reported, and it stays in every number."""
    predicted = test.probabilities.argmax(1)
    if len(np.unique(predicted)) == 1:
        return "one class only"
    majority = np.bincount(test.labels).max() / len(predicted)
    return "no better than majority" if (predicted == test.labels).mean() <= majority else None


def _usual_reference(arms: Sequence[ArmResult]) -> str:
    """Scratch where there is one; else the first that was trained; else the first."""
    order = {"scratch": 0, **dict.fromkeys(PRETRAINED, 1), **dict.fromkeys(STUDENTS, 2), "baseline": 3, "ensemble": 4}
    return min(arms, key=lambda arm: order[arm.mode]).name


def _by_name(values: Mapping[ArmBudget, T], budget: int) -> dict[str, T]:
    return {arm.name: each for (arm, its_budget), each in values.items() if its_budget == budget}


def _label_worth(contrasts: Contrasts, predictions: Mapping[ArmBudget, ArmPredictions]) -> Iterator[WorthResult]:
    """For each base and budget: how many labels its arm from scratch needs to do as well, and the linear model."""
    budgets = sorted({budget for _, budget in predictions})
    if len(budgets) < 2:
        return
    by_name = {(arm.name, budget): each for (arm, budget), each in predictions.items()}
    for arms in contrasts.bases:
        for reference in (arms.scratch, contrasts.linear):
            if reference is None:
                continue
            name = reference.name
            curve = [(budget, by_name[name, budget]) for budget in budgets if (name, budget) in by_name]
            for budget in budgets:
                if (arms.best.name, budget) in by_name:
                    low = least_worth(curve, by_name[arms.best.name, budget])
                    yield WorthResult(arms.best.name, name, budget, low, beyond=low == curve[-1][0])
