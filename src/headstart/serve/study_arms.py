"""Which arms of a comparison can be tried out: read from the study folder, without opening a model.

Of each arm and label budget one run is shown: the first seed whose model was kept. Its arm's accuracy is the mean of
all its runs. What cannot be shown is named, with the reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.errors import DataError
from headstart.reading.examples import Text
from headstart.runs.comparison import Comparison
from headstart.runs.predictions import read_predicted
from headstart.runs.run import LINEAR, PREDICTIONS, RunFolder
from headstart.runs.study import StudyFolder
from headstart.runs.titles import arm_mode, arm_title, base_name, run_title

AGAIN = "run the same `headstart compare` again"
EXAMPLES = 5
LONGEST_EXAMPLE = 400  # characters


@dataclass(frozen=True)
class Accuracy:
    """On test: the mean over so many runs, and its 95 % interval once the study is done."""

    value: float
    runs: int
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class StudyArm:
    """One way to make a classifier, learned from so many labels, and the run of it that answers."""

    name: str  # as in the report
    title: str
    mode: str
    budget: int
    run: Path
    run_title: str
    accuracy: Accuracy | None

    @property
    def is_linear(self) -> bool:
        return self.mode == "baseline"

    @property
    def bytes(self) -> int:
        """Of its weights on disk."""
        files = [self.run / LINEAR] if self.is_linear else (self.run / "model").glob("*.safetensors")
        return sum(file.stat().st_size for file in files)


@dataclass(frozen=True)
class MissingArm:
    name: str
    budget: int
    reason: str


@dataclass(frozen=True)
class StudyExample:
    """A text to try, and its label where it is known."""

    text: Text
    label: str | None


@dataclass(frozen=True)
class StudyArms:
    title: str  # the verdict in a line
    class_names: tuple[str, ...]
    arms: tuple[StudyArm, ...]  # in the order of the report: the best on all labels first
    missing: tuple[MissingArm, ...]

    @property
    def budgets(self) -> tuple[int, ...]:
        return tuple(sorted({arm.budget for arm in self.arms}))

    def of_budget(self, budget: int) -> list[StudyArm]:
        return [arm for arm in self.arms if arm.budget == budget]


@dataclass(frozen=True)
class _Trained:
    """An arm with a label budget, and its runs that are done."""

    name: str
    mode: str
    budget: int
    runs: tuple[Path, ...]
    accuracy: Accuracy | None

    @property
    def score(self) -> float:
        return 0.0 if self.accuracy is None else self.accuracy.value


def read_arms(path: Path) -> StudyArms:
    """The arms of a study of `headstart compare`, finished or not."""
    folder = StudyFolder(path)
    data = folder.data()
    if folder.compared:
        comparison = folder.comparison()
        title, class_names, trained = comparison.title, comparison.class_names, list(_compared(path, comparison))
    else:
        title, class_names, trained = "", () if data is None else data.class_names, list(_so_far(folder.done()))
    found = [_kept(each) for each in trained if each.name != "majority"]  # which has no words to look at
    arms = tuple(each for each in found if isinstance(each, StudyArm))
    rows = 0 if data is None else data.rows.get("train", 0)
    expected = _expected(folder.settings(), trained, rows)
    known = {(each.name, each.budget) for each in trained}
    missing = [each for each in found if isinstance(each, MissingArm)]
    missing += [MissingArm(name, budget, "not trained yet") for name, budget in expected if (name, budget) not in known]
    if not arms:
        reasons = "; ".join(dict.fromkeys(f"{each.name}: {each.reason}" for each in missing)) or "no run is done"
        raise DataError(path, f"no model of this comparison can be tried ({reasons})", fix=AGAIN)
    return StudyArms(title, class_names, arms, tuple(missing))


def _compared(path: Path, comparison: Comparison) -> Iterator[_Trained]:
    """In the order of the table of the report, whatever the budget."""
    order = [row[0] for row in comparison.table()]
    arms = comparison.curves or comparison.arms
    for arm in sorted(arms, key=lambda arm: (order.index(arm.name) if arm.name in order else -1, arm.budget)):
        estimate = arm.scores["accuracy"]
        accuracy = Accuracy(estimate.value, len(arm.runs), estimate.low, estimate.high)
        yield _Trained(arm.name, arm.mode, arm.budget, tuple(path / run.path for run in arm.runs), accuracy)


def _so_far(runs: Sequence[RunFolder]) -> Iterator[_Trained]:
    """The runs of a study that is not finished, by mode, base and budget; the best arm first."""
    groups: dict[tuple[str, str | None, str, int], list[RunFolder]] = defaultdict(list)
    for run in runs:
        settings = run.settings()
        mode = arm_mode(settings)
        groups[mode, base_name(settings.get("init")), str(settings.get("kind") or mode), _budget(run)].append(run)
    several = {mode for mode, *_ in groups if len({base for other, base, *_ in groups if other == mode}) > 1}
    found = []
    for (mode, base, kind, budget), own in groups.items():
        scores = [test["accuracy"] for run in own if (test := run.result().test) is not None]
        accuracy = Accuracy(sum(scores) / len(scores), len(scores)) if scores else None
        name = f"{kind}:{base}" if mode in several else kind
        found.append(_Trained(name, mode, budget, tuple(run.path for run in own), accuracy))
    best = {each.name: max(other.score for other in found if other.name == each.name) for each in found}
    yield from sorted(found, key=lambda each: (-best[each.name], each.name, each.budget))


def _budget(run: RunFolder) -> int:
    return int(run.settings().get("labels") or run.result().rows.get("train", 0))


def _kept(trained: _Trained) -> StudyArm | MissingArm:
    """The first run whose model was kept."""
    if trained.mode == "ensemble":
        return MissingArm(trained.name, trained.budget, "an ensemble has no model of its own")
    there = [run for run in trained.runs if RunFolder(run).done]
    kept = [run for run in there if (run / LINEAR if trained.mode == "baseline" else run / "model").exists()]
    if not kept:
        reason = "its model was not kept" if there else "its run folder was moved or deleted"
        return MissingArm(trained.name, trained.budget, reason)
    settings = RunFolder(kept[0]).settings()
    base, probe = base_name(settings.get("init")), settings.get("frozen_head") == "probe"
    title = arm_title(trained.mode, base, settings.get("kind"), trained_head=not probe)
    run_name = run_title(settings, trained.budget)
    return StudyArm(trained.name, title, trained.mode, trained.budget, kept[0], run_name, trained.accuracy)


def _expected(settings: Mapping[str, Any], trained: Sequence[_Trained], rows: int) -> list[tuple[str, int]]:
    """Every arm with every budget that the study was asked for."""
    asked = [word.strip() for word in str(settings.get("arms", "")).split(",") if word.strip()]
    asked = ["tfidf", *(["tfidf+self"] if "unlabelled" in settings else []), *asked]
    modes = {each.mode for each in trained}
    names = [each.name for each in trained if each.name != "majority"]
    names += [word for word in asked if word not in names and word.partition(":")[0] not in modes]
    words = str(settings.get("labels") or "all").replace(" ", "").split(",")
    budgets = {int(word) if word.isdecimal() else rows for word in words} - {0}
    return [(name, budget) for name in dict.fromkeys(names) for budget in sorted(budgets)]


def disagreements(arms: Sequence[StudyArm]) -> tuple[StudyExample, ...]:
    """A few texts of valid to which these arms gave different labels, from each label in turn. Test is not read."""
    answers = [read_predicted(arm.run / PREDICTIONS, "valid") for arm in arms if (arm.run / PREDICTIONS).is_file()]
    by_label: dict[str, list[Text]] = {}
    for rows in zip(*answers, strict=False):
        row = rows[0][0]
        short = 0 < len(row.text + (row.second or "")) <= LONGEST_EXAMPLE
        if short and len({predicted for _, predicted in rows}) > 1:
            by_label.setdefault(row.label, []).append(row.text if row.second is None else (row.text, row.second))
    in_turn = [
        (group[k], label) for k in range(EXAMPLES) for label, group in sorted(by_label.items()) if k < len(group)
    ]
    return tuple(StudyExample(text, label) for text, label in dict(in_turn).items())[:EXAMPLES]
