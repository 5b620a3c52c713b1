"""What the page needs, read from the folders of studies and runs, and nothing else.

    study of `headstart compare`   study.toml, comparison.json, data.json, and the run folders in runs/
    study of `headstart sweep`     study.toml, sweep.json, data.json, and of each run its settings and its manifest
    run of `headstart finetune`    several of them are set side by side
    run of `headstart pretrain`    its loss and its bits per byte

Two readings of the same folders are equal, and so are the pages made from them.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.config import ModelConfig, read_head, read_toml
from headstart.errors import DataError
from headstart.model.count import Count, count
from headstart.runs.comparison import ArmResult, Comparison, Estimate, RunScores, valid_accuracy
from headstart.runs.events import Evaluated, Step
from headstart.runs.run import RunFolder
from headstart.runs.sweep import Sweep
from headstart.studies.outcomes import compare_runs
from headstart.studies.statistics import reliability

MISTAKES = 10
LONGEST = 4000  # characters of a text that are kept


@dataclass(frozen=True)
class Mistake:
    """A text that was taken for another class, and how sure the model was."""

    text: str
    second: str | None
    label: str
    predicted: str
    confidence: float
    file: str  # its name: the folder it lies in says nothing to who is sent the page
    line: int
    length: int  # of the text, of which LONGEST characters are kept


@dataclass(frozen=True)
class Run:
    """One run folder, without its predictions."""

    path: str
    settings: Mapping[str, Any]
    manifest: Mapping[str, Any]
    curve: tuple[tuple[float, float], ...]  # epoch, accuracy on valid
    speed: float | None  # tokens a second, while it trained
    parameters: Count | None  # by block, where the model was kept


@dataclass(frozen=True)
class Arm:
    """An arm on all labels: its scores, its runs, and what they answered, summed over them."""

    result: ArmResult
    runs: tuple[Run, ...]
    confusion: tuple[tuple[int, ...], ...] | None  # rows are true, columns predicted; None without predictions
    bins: tuple[tuple[float, float, int], ...]  # mean confidence, accuracy and number of the answers in each


@dataclass(frozen=True)
class Study:
    """A comparison, with what stands behind it. Runs that were given by themselves make one too."""

    path: str
    name: str
    settings: Mapping[str, Any]
    comparison: Comparison
    intervals: bool  # False: there are only means, and the range of the seeds
    split: str  # that was scored: test, or valid where there is no test
    arms: tuple[Arm, ...]  # baselines last
    best: str  # the arm that is best on valid
    mistakes: tuple[Mistake, ...]  # of its first run
    data: Mapping[str, Any] = field(default_factory=dict)  # data.json


@dataclass(frozen=True)
class Tuning:
    """A sweep, with what stands behind it."""

    path: str
    name: str
    settings: Mapping[str, Any]
    sweep: Sweep
    runs: tuple[Mapping[str, Any], ...]  # the settings of each trial that was begun
    manifests: tuple[Mapping[str, Any], ...]  # of those that came to their end
    data: Mapping[str, Any]  # data.json


@dataclass(frozen=True)
class Pretraining:
    """How a language model was trained: the loss by step, and what was measured on valid."""

    run: Run
    name: str
    loss: tuple[tuple[float, float], ...]  # step, mean loss of the steps since the one before
    valid: tuple[tuple[int, Mapping[str, float]], ...]
    result: Mapping[str, Any]


@dataclass(frozen=True)
class Records:
    studies: tuple[Study, ...]
    tunings: tuple[Tuning, ...]
    pretraining: tuple[Pretraining, ...]


def read(paths: Iterable[str | Path]) -> Records:
    """The records of these folders; finetune runs among them are set side by side, as one study."""
    studies: list[Study] = []
    tunings: list[Tuning] = []
    pretraining: dict[Path, Pretraining] = {}
    loose: list[Path] = []
    for path in map(Path, paths):
        kind = _kind(path)
        if kind == "compare":
            studies.append(_read_study(path))
        elif kind == "sweep":
            tunings.append(_read_tuning(path))
        elif kind == "finetune":
            loose.append(path)
        elif kind == "pretrain":
            pretraining.setdefault(path.resolve(), _read_pretraining(path))
        else:
            raise DataError(
                path, f"it is a study of the kind {kind!r}, and a page shows compare, sweep, finetune and pretrain"
            )
    if loose:
        studies.append(_read_loose(loose))
    for base in _bases(studies, tunings):
        if base.resolve() not in pretraining and (base / "run.toml").is_file() and _kind(base) == "pretrain":
            pretraining[base.resolve()] = _read_pretraining(base)
    return Records(tuple(studies), tuple(tunings), tuple(pretraining.values()))


def _kind(path: Path) -> str:
    for name in ("study.toml", "run.toml"):
        if (path / name).is_file():
            return str(read_toml(path / name).get("study"))
    raise DataError(
        path,
        "there is no study.toml and no run.toml in it" if path.exists() else "no such folder",
        fix="name a folder that headstart wrote a study or a run to",
    )


def _bases(studies: Iterable[Study], tunings: Iterable[Tuning]) -> list[Path]:
    """The folders that the runs started from, in their order; a study may have written one as NAME=FOLDER."""
    settings = [run.settings for study in studies for arm in study.arms for run in arm.runs]
    settings += [run for tuning in tunings for run in tuning.runs]
    return [Path(init) for init in dict.fromkeys(str(each.get("init", "")) for each in settings) if init]


# --- a comparison ---


def _read_study(path: Path) -> Study:
    if not (path / "comparison.json").is_file():
        raise DataError(path, "the comparison is not done", fix="run the same `headstart compare` again: it goes on")
    found = _json(path / "comparison.json")
    try:
        comparison = Comparison.from_json(found)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(path / "comparison.json", f"it is no comparison of this headstart ({error!r})") from None
    data = _json(path / "data.json") if (path / "data.json").is_file() else {}
    settings = read_toml(path / "study.toml")
    return _study(path, settings, comparison, path, "test", data, intervals=True)


def _read_loose(folders: Sequence[Path]) -> Study:
    """Runs that are in no study, as if they were one; without a test there are means on valid and no statistics."""
    folders = list(dict.fromkeys(folders))
    tested = all(_result(folder).get("test") for folder in folders)
    if tested:
        _check_told(folders)
    comparison = compare_runs(folders) if tested else _tally(folders)
    settings = read_toml(folders[0] / "run.toml")
    split = "test" if tested else "valid"
    return _study(folders[0], settings, comparison, Path(), split, {}, intervals=tested)


def _check_told(folders: Iterable[Path]) -> None:
    """Runs of an earlier headstart may not say all that a comparison needs."""
    for folder in folders:
        lacking = "how many texts it learned from" if "rows" not in _result(folder) else ""
        lacking = "what it answered" if not (folder / "predictions.parquet").is_file() else lacking
        if lacking:
            raise DataError(
                folder,
                f"it does not say {lacking}, which a comparison with other runs needs",
                fix="run it again with this headstart, or leave it out",
            )


def _study(
    path: Path,
    settings: Mapping[str, Any],
    comparison: Comparison,
    root: Path,
    split: str,
    data: Mapping[str, Any],
    *,
    intervals: bool,
) -> Study:
    ordered = sorted(comparison.arms, key=lambda arm: not arm.trained)
    arms = tuple(_read_arm(arm, root, comparison.labels, split) for arm in ordered)
    best = max(comparison.arms, key=valid_accuracy)
    mistakes = _mistakes(_predictions(root / best.runs[0].path, comparison.labels, split))
    name = path.resolve().name if settings["study"] == "compare" else "fine-tuning runs"
    return Study(str(path), name, settings, comparison, intervals, split, arms, best.name, mistakes, data)


def _read_arm(arm: ArmResult, root: Path, labels: tuple[str, ...], split: str) -> Arm:
    runs = tuple(_read_run(root / run.path, run.path) for run in arm.runs)
    answers = [_predictions(root / run.path, labels, split) for run in arm.runs]
    there = [answer for answer in answers if answer is not None]
    if not there:
        return Arm(arm, runs, None, ())
    true = np.concatenate([answer.true for answer in there])
    probabilities = np.concatenate([answer.probabilities for answer in there])
    return Arm(arm, runs, _confusion(true, probabilities.argmax(1), len(labels)), reliability(probabilities, true))


def _read_run(folder: Path, name: str) -> Run:
    if not (folder / "manifest.json").is_file():
        raise DataError(folder, "the run is not done: it has no manifest.json", fix="go on with it with --resume")
    events = RunFolder(folder).events() if (folder / "events.jsonl").is_file() else []
    curve = tuple(
        (float(event.epoch), event.scores["accuracy"])
        for event in events
        if isinstance(event, Evaluated) and "accuracy" in event.scores
    )
    steps = [event for event in events if isinstance(event, Step)]
    seconds = sum(event.seconds for event in steps)
    speed = steps[-1].tokens / seconds if seconds else None
    settings = read_toml(folder / "run.toml")
    return Run(name, settings, _json(folder / "manifest.json"), curve, speed, _parameters(folder, settings))


def _parameters(folder: Path, settings: Mapping[str, Any]) -> Count | None:
    path = folder / "model" / "config.json"
    if not path.is_file():
        return None
    found = _json(path)
    head = None if found.get("head") is None else read_head(found["head"], str(path))
    config = ModelConfig.from_mapping(found.get("model", {}), str(path))
    return count(config, head, frozen=settings.get("mode") == "frozen")


# --- a sweep ---


def _read_tuning(path: Path) -> Tuning:
    if not (path / "sweep.json").is_file():
        raise DataError(path, "no trial of the sweep is done", fix="run the same `headstart sweep` with --resume")
    try:
        sweep = Sweep.from_json(_json(path / "sweep.json"))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(path / "sweep.json", f"it is no sweep of this headstart ({error!r})") from None
    folders = [path / trial.run for trial in sweep.trials]
    runs = tuple(read_toml(folder / "run.toml") for folder in folders if (folder / "run.toml").is_file())
    manifests = tuple(_json(folder / "manifest.json") for folder in folders if (folder / "manifest.json").is_file())
    data = _json(path / "data.json") if (path / "data.json").is_file() else {}
    return Tuning(str(path), path.resolve().name, read_toml(path / "study.toml"), sweep, runs, manifests, data)


# --- predictions ---


@dataclass(frozen=True)
class _Answers:
    true: NDArray[np.int64]
    probabilities: NDArray[np.float64]  # (n, C)
    table: Any
    labels: tuple[str, ...]


def _predictions(folder: Path, labels: tuple[str, ...], split: str) -> _Answers | None:
    import pyarrow.compute
    import pyarrow.parquet

    path = folder / "predictions.parquet"
    if not path.is_file():
        return None
    try:
        table = pyarrow.parquet.read_table(path)
        table = table.filter(pyarrow.compute.equal(table["split"], split))
        number = {label: k for k, label in enumerate(labels)}
        true = np.array([number[label] for label in table["label"].to_pylist()], np.int64)
        columns = [np.asarray(table[f"probability:{label}"], np.float64) for label in labels]
    except (KeyError, OSError, pyarrow.ArrowException) as error:
        raise DataError(
            path, f"it does not hold the predictions for the classes {', '.join(labels)} ({error})"
        ) from None
    return _Answers(true, np.stack(columns, axis=1), table, labels) if len(true) else None


def _confusion(true: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> tuple[tuple[int, ...], ...]:
    counts = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (true, predicted), 1)
    return tuple(tuple(map(int, row)) for row in counts)


def _mistakes(answers: _Answers | None) -> tuple[Mistake, ...]:
    """The wrong answers that were given with the most confidence."""
    if answers is None:
        return ()
    predicted = answers.probabilities.argmax(1)
    confidence = answers.probabilities.max(1)
    wrong = np.flatnonzero(predicted != answers.true)
    worst = wrong[np.argsort(-confidence[wrong], kind="stable")][:MISTAKES]
    rows = answers.table.take(worst).to_pylist()
    return tuple(
        Mistake(
            text=row["text"][:LONGEST],
            second=None if row["second"] is None else row["second"][:LONGEST],
            label=row["label"],
            predicted=answers.labels[predicted[k]],
            confidence=float(confidence[k]),
            file=Path(row["path"]).name,
            line=row["line"],
            length=len(row["text"]),
        )
        for k, row in zip(worst, rows, strict=True)
    )


# --- runs by themselves ---


def _tally(folders: Sequence[Path]) -> Comparison:
    """Finetune runs without a test: for each mode and base the mean on valid, and the range of its seeds."""
    found = {folder: (read_toml(folder / "run.toml"), _result(folder)) for folder in folders}
    tables = {tuple(result["labels"]) for _, result in found.values()}
    if len(tables) > 1:
        raise DataError(folders[0], "the runs have different classes", fix="make a page for each data set")
    bases = {settings["init"] for settings, _ in found.values()}
    groups: dict[tuple[Any, str], list[RunScores]] = defaultdict(list)
    for folder, (settings, result) in found.items():
        scores = RunScores(str(folder), settings["seed"], result["valid"], result["valid"], None)
        groups[settings["mode"], settings["init"]].append(scores)
    arms = []
    for (mode, init), runs in groups.items():
        base = Path(init).name
        ranges = {metric: _range([run.valid[metric] for run in runs]) for metric in ("accuracy", "macro_f1")}
        name = mode if len(bases) == 1 else f"{mode}:{base}"
        arms.append(ArmResult(name, mode, base, 0, tuple(runs), ranges, None))
    return Comparison(tables.pop(), 0, 0, arms[0].name, tuple(arms), (), (), ())


def _range(values: Sequence[float]) -> Estimate:
    return Estimate(float(np.mean(values)), min(values), max(values))


def _result(folder: Path) -> dict[str, Any]:
    if not (folder / "result.json").is_file():
        raise DataError(folder, "the run is not done: it has no result.json", fix="go on with it with --resume")
    return _json(folder / "result.json")


# --- pretraining ---


def _read_pretraining(folder: Path, points: int = 120) -> Pretraining:
    events = RunFolder(folder).events()
    losses = [(event.step, event.loss) for event in events if isinstance(event, Step) and math.isfinite(event.loss)]
    size = max(1, math.ceil(len(losses) / points))
    parts = [losses[begin : begin + size] for begin in range(0, len(losses), size)]
    loss = tuple((float(part[-1][0]), float(np.mean([value for _, value in part]))) for part in parts)
    valid = tuple((event.step, event.scores) for event in events if isinstance(event, Evaluated))
    return Pretraining(_read_run(folder, str(folder)), folder.resolve().name, loss, valid, _result(folder))


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(path, f"it cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise DataError(path, f"it holds a {type(found).__name__}, and an object was expected")
    return found
