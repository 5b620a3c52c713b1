"""What the page shows, read from the folders of studies and runs.

    study of `headstart compare`   its comparison and its run folders
    study of `headstart sweep`     its trials, and of each run the settings and the manifest
    run of `headstart finetune`    several of them are compared
    run of `headstart pretrain`    its loss and its bits per byte

Two readings of the same folders are equal, and so are the pages made from them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headstart.config import ModelConfig, read_head
from headstart.errors import DataError
from headstart.files import read_json
from headstart.model.count import Count, count
from headstart.report.answers import (
    Answers,
    ByClass,
    Mistake,
    bins,
    by_class,
    confusion,
    most_confident_mistakes,
    read_answers,
    read_split,
)
from headstart.runs.comparison import ArmResult, Comparison, Estimate, RunScores, valid_accuracy
from headstart.runs.events import Evaluated, Step
from headstart.runs.manifest import Manifest
from headstart.runs.run import PREDICTIONS, RUN, Result, RunFolder
from headstart.runs.study import StudyData, StudyFolder, study_of
from headstart.runs.sweep import Sweep
from headstart.studies.outcomes import compare_runs

LOSSES = 120  # points of a loss curve, at most


@dataclass(frozen=True)
class Run:
    """One run folder, without its predictions."""

    path: str
    settings: Mapping[str, Any]
    manifest: Manifest
    curve: tuple[tuple[float, float], ...]  # epoch, accuracy on valid
    speed: float | None  # tokens a second, while it trained
    parameters: Count | None  # by block, where the model was kept


@dataclass(frozen=True)
class Arm:
    """An arm on all labels: its scores, its runs, and their predictions, summed over the runs."""

    result: ArmResult
    runs: tuple[Run, ...]
    confusion: tuple[tuple[int, ...], ...] | None  # rows are true, columns predicted; None without predictions
    bins: tuple[tuple[float, float, int], ...]  # mean confidence, accuracy and number of answers, after scaling


@dataclass(frozen=True)
class Study:
    """A comparison with its runs, or runs that were named one by one."""

    path: str
    name: str
    settings: Mapping[str, Any]
    comparison: Comparison
    intervals: bool  # False: there are only means, and the range of the seeds
    split: str  # that was scored: test, or valid where there is no test
    arms: tuple[Arm, ...]  # baselines last
    best: str  # the arm that is best on valid
    mistakes: tuple[Mistake, ...]  # of its first run
    by_class: tuple[ByClass, ...]  # the primary differences, class by class
    data: StudyData


@dataclass(frozen=True)
class SweepStudy:
    """A sweep with its runs."""

    path: str
    name: str
    settings: Mapping[str, Any]
    sweep: Sweep
    runs: tuple[Mapping[str, Any], ...]  # the settings of each trial that was begun
    manifests: tuple[Manifest, ...]  # of those that are done
    data: StudyData


@dataclass(frozen=True)
class Pretraining:
    """How a language model was trained: the loss by step, and the scores on valid."""

    run: Run
    name: str
    loss: tuple[tuple[float, float], ...]  # step, mean loss of the steps since the one before
    valid: tuple[tuple[int, Mapping[str, float]], ...]
    result: Result


@dataclass(frozen=True)
class Records:
    studies: tuple[Study, ...]
    sweeps: tuple[SweepStudy, ...]
    pretraining: tuple[Pretraining, ...]


def read(paths: Iterable[str | Path]) -> Records:
    """The records of these folders; finetune runs among them are compared, as one study."""
    folders: dict[str, list[Path]] = {"compare": [], "sweep": [], "finetune": [], "pretrain": []}
    for path in map(Path, paths):
        kind = study_of(path)
        if kind not in folders:
            known = ", ".join(folders)
            raise DataError(path, f"it is a study of the kind {kind!r}, and a page shows {known}")
        folders[kind].append(path)
    studies = [_read_comparison(path) for path in folders["compare"]]
    sweeps = [_read_sweep(path) for path in folders["sweep"]]
    if folders["finetune"]:
        studies.append(_read_finetuned(list(dict.fromkeys(folders["finetune"]))))
    settings = [run.settings for study in studies for arm in study.arms for run in arm.runs]
    settings += [run for sweep in sweeps for run in sweep.runs]
    bases = [Path(str(run["init"])) for run in settings if run.get("init")]
    pretrained: dict[Path, Path] = {}
    for path in (*folders["pretrain"], *(base for base in bases if _is_pretraining(base))):
        pretrained.setdefault(path.resolve(), path)
    return Records(tuple(studies), tuple(sweeps), tuple(map(_read_pretraining, pretrained.values())))


def _is_pretraining(base: Path) -> bool:
    return (base / RUN).is_file() and study_of(base) == "pretrain"


# --- fine-tuning ---


def _read_comparison(path: Path) -> Study:
    folder = StudyFolder(path)
    comparison = folder.comparison()
    return _study(path, folder.settings(), comparison, path, "test", folder.data() or StudyData())


def _read_finetuned(folders: Sequence[Path]) -> Study:
    """Runs that are in no study, as if they were one; without a test there are means on valid and no statistics."""
    results = {folder: RunFolder(folder).result() for folder in folders}
    tested = all(result.test for result in results.values())
    if tested:
        for folder, result in results.items():
            _check_complete(folder, result)
    comparison = compare_runs(folders) if tested else _means_on_valid(results)
    split = "test" if tested else "valid"
    return _study(folders[0], RunFolder(folders[0]).settings(), comparison, Path(), split, StudyData())


def _check_complete(folder: Path, result: Result) -> None:
    """Runs of an earlier headstart may not have all that a comparison needs."""
    missing = "" if result.rows else "how many texts it learned from"
    missing = missing if (folder / PREDICTIONS).is_file() else "what it answered"
    if missing:
        raise DataError(
            folder,
            f"it does not say {missing}, which a comparison with other runs needs",
            fix="run it again with this headstart, or leave it out",
        )


def _means_on_valid(results: Mapping[Path, Result]) -> Comparison:
    """For each mode and base the mean on valid, and the range of its seeds."""
    classes = {result.class_names for result in results.values()}
    if len(classes) > 1:
        raise DataError(next(iter(results)), "the runs have different classes", fix="make a page for each data set")
    groups: dict[tuple[Any, str], list[RunScores]] = defaultdict(list)
    for folder, result in results.items():
        settings, valid = RunFolder(folder).settings(), result.valid or {}
        groups[settings["mode"], settings["init"]].append(
            RunScores(str(folder), settings["seed"], valid, valid, degenerate=None)
        )
    several_bases = len({init for _, init in groups}) > 1
    arms = []
    for (mode, init), runs in groups.items():
        base = Path(init).name
        name = f"{mode}:{base}" if several_bases else mode
        ranges = {metric: mean_and_range([run.valid[metric] for run in runs]) for metric in ("accuracy", "macro_f1")}
        arms.append(ArmResult(name, mode, base, 0, tuple(runs), ranges, None))
    return Comparison(classes.pop(), 0, 0, arms[0].name, tuple(arms), (), (), ())


def mean_and_range(values: Sequence[float]) -> Estimate:
    return Estimate(float(np.mean(values)), min(values), max(values))


def _study(
    path: Path, settings: Mapping[str, Any], comparison: Comparison, root: Path, split: str, data: StudyData
) -> Study:
    """`root` is the folder that the paths of the runs are relative to."""
    ordered = sorted(comparison.arms, key=lambda arm: not arm.trained)
    best = max(comparison.arms, key=valid_accuracy)
    answers = {arm.name: read_answers(arm, root, comparison.class_names, split) for arm in comparison.arms}
    return Study(
        path=str(path),
        name=path.resolve().name if settings["study"] == "compare" else "fine-tuning runs",
        settings=settings,
        comparison=comparison,
        intervals=split == "test",
        split=split,
        arms=tuple(_read_arm(arm, root, answers[arm.name], len(comparison.class_names)) for arm in ordered),
        best=best.name,
        mistakes=most_confident_mistakes(read_split(root / best.runs[0].path, comparison.class_names, split)),
        by_class=tuple(by_class(comparison, answers)) if split == "test" else (),
        data=data,
    )


def _read_arm(arm: ArmResult, root: Path, answers: Answers | None, classes: int) -> Arm:
    runs = tuple(_read_run(root / run.path, run.path) for run in arm.runs)
    if answers is None:
        return Arm(arm, runs, None, ())
    labels = np.concatenate([run.labels for run in answers.runs])
    predicted = np.concatenate([run.probabilities.argmax(1) for run in answers.runs])
    return Arm(arm, runs, confusion(labels, predicted, classes), bins(answers))


def _read_run(path: Path, name: str) -> Run:
    folder = RunFolder(path)
    manifest, events, settings = folder.manifest(), folder.events(), folder.settings()
    scores = [(event.epoch, event.scores) for event in events if isinstance(event, Evaluated)]
    curve = tuple((epoch, each["accuracy"]) for epoch, each in scores if "accuracy" in each)
    steps = [event for event in events if isinstance(event, Step)]
    seconds = sum(step.seconds for step in steps)
    speed = steps[-1].tokens / seconds if seconds else None
    return Run(name, settings, manifest, curve, speed, _parameters(path / "model" / "config.json", settings))


def _parameters(path: Path, settings: Mapping[str, Any]) -> Count | None:
    if not path.is_file():
        return None
    description = read_json(path)
    head = None if description.get("head") is None else read_head(description["head"], str(path))
    config = ModelConfig.from_mapping(description.get("model", {}), str(path))
    return count(config, head, frozen=settings.get("mode") == "frozen")


# --- sweeps and pretraining ---


def _read_sweep(path: Path) -> SweepStudy:
    folder = StudyFolder(path)
    sweep = folder.sweep()
    runs = [RunFolder(path / trial.run) for trial in sweep.trials]
    return SweepStudy(
        path=str(path),
        name=path.resolve().name,
        settings=folder.settings(),
        sweep=sweep,
        runs=tuple(run.settings() for run in runs if (run.path / RUN).is_file()),
        manifests=tuple(run.manifest() for run in runs if run.done),
        data=folder.data() or StudyData(),
    )


def _read_pretraining(path: Path) -> Pretraining:
    folder = RunFolder(path)
    run, events = _read_run(path, str(path)), folder.events()
    losses = [(event.step, event.loss) for event in events if isinstance(event, Step) and math.isfinite(event.loss)]
    size = max(1, math.ceil(len(losses) / LOSSES))
    parts = [losses[begin : begin + size] for begin in range(0, len(losses), size)]
    loss = tuple((float(part[-1][0]), float(np.mean([value for _, value in part]))) for part in parts)
    valid = tuple((event.step, event.scores) for event in events if isinstance(event, Evaluated))
    return Pretraining(run, path.resolve().name, loss, valid, folder.result())
