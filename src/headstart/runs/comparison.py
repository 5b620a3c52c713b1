"""What a comparison says: the numbers that the verdict, the terminal and the page are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from typing import Any, Literal

from headstart.runs.tuning import ArmTuning
from headstart.wording import parts_of, plain_text, two_digits

ALPHA = 0.05  # a p-value below it is significant
Mode = Literal["scratch", "frozen", "full", "contrastive", "full+self", "full+teacher", "baseline", "ensemble"]
Decision = Literal["better", "worse", "equivalent", "undecided"]
COSTS = {"seconds": "train s", "milliseconds": "ms/text", "megabytes": "MB"}  # columns of a table
OPPOSITE: dict[Decision, Decision] = {"better": "worse", "worse": "better"}


@dataclass(frozen=True)
class Estimate:
    """A number with its interval: of an arm at 95 %, of a difference at the difference's level."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class RunScores:
    """One run: its scores on valid and on test, and what is odd about it."""

    path: str  # of the run folder, within the study's
    seed: int
    valid: Mapping[str, float]
    test: Mapping[str, float]
    degenerate: str | None  # `one class only`, `no better than majority`


@dataclass(frozen=True)
class Cost:
    """What an arm takes: means over its runs; None where it was not measured."""

    seconds: float | None = None  # to train one model and its teachers, its settings being known
    milliseconds: float | None = None  # to classify one text
    megabytes: float | None = None  # of the model on disk, in float32
    pretraining: float | None = None  # seconds in which this study made the base from a pile of text


@dataclass(frozen=True)
class ArmResult:
    """An arm over its seeds, with so many labelled texts to learn from."""

    name: str
    mode: Mode
    base: str | None
    budget: int  # labelled texts to train on
    runs: tuple[RunScores, ...]
    scores: Mapping[str, Estimate]
    leak_free: Mapping[str, Estimate] | None  # None where no test row stands in train or valid
    cost: Cost = Cost()
    tuning: ArmTuning | None = None  # how its settings were chosen; None where they were given

    @property
    def trained(self) -> bool:
        """Whether it is a transformer that this study trained: no baseline, and nothing put together from others."""
        return self.mode not in ("baseline", "ensemble")


@dataclass(frozen=True)
class Components:
    """The variance of a difference with I test rows and R runs of an arm: (items + Σ unshared / R) / I + Σ seeds / R.

    The sums are over the arms that have a seed.
    """

    items: float
    seeds: tuple[float, ...]
    unshared: tuple[float, ...]  # a run's own luck with the items


@dataclass(frozen=True)
class DifferenceResult:
    """An arm minus the reference; all but the two dicts of scores are of accuracy.

    The interval excludes zero exactly where the difference is significant: both are decided at `level`.
    """

    arm: str
    reference: str
    scores: Mapping[str, Estimate]
    better: float  # the probability that the arm is ahead
    p: float
    holm: float  # p, corrected for the number of questions in its family and of looks: significant below 0.05
    detectable: float  # the smallest true difference that such a study finds with a power of 80 %, at this level
    mcnemar: float | None  # where each of the two is a single model
    leak_free: Mapping[str, Estimate] | None
    primary: bool = False  # one of the questions that the comparison was made for
    level: float = 1 - ALPHA  # of its intervals: that at which its step of Holm's procedure decides
    decision: Decision = "undecided"
    leak_free_p: float | None = None  # corrected as `holm` is
    leak_free_level: float | None = None
    components: Components | None = None
    budget: int | None = None  # labelled texts that both learned from, where it is not the largest budget

    @property
    def detectable_points(self) -> str:
        """The smallest difference that could show, in points; no two arms are more than 100 apart."""
        return f"{100 * self.detectable:.1f}" if self.detectable <= 1 else "none"


@dataclass(frozen=True)
class WorthResult:
    """How many labels the reference needs at least to do as well as the arm with `budget`: one-sided, at 95 %."""

    arm: str
    reference: str
    budget: int
    low: float | None  # None where the reference is not significantly worse with its smallest budget
    beyond: bool = False  # it is worse with its largest budget too, which is `low`


@dataclass(frozen=True)
class Comparison:
    """Every arm on all labels, each against the reference; and where budgets were asked for, every arm on each."""

    class_names: tuple[str, ...]
    rows: int  # of test
    leaked: int  # of them
    reference: str
    arms: tuple[ArmResult, ...]
    differences: tuple[DifferenceResult, ...]
    curves: tuple[ArmResult, ...]
    worth: tuple[WorthResult, ...]
    verdict: tuple[str, ...] = ()  # a paragraph each; what stands between two ** is emphasised
    matters: float = 0.0  # a difference of accuracy below it counts as none: 0.02 is two points
    title: str = ""  # the verdict in one line
    notes: tuple[str, ...] = ()  # what was left out, and why
    curve_differences: tuple[DifferenceResult, ...] = ()  # the primary ones on each smaller budget

    def arm(self, name: str) -> ArmResult:
        return next(arm for arm in self.arms if arm.name == name)

    def difference(self, one: str, other: str) -> DifferenceResult | None:
        """The first minus the other, whichever way round it was computed; None where it was not."""
        for result in self.differences:
            if (result.arm, result.reference) == (one, other):
                return result
            if (result.arm, result.reference) == (other, one):
                return replace(
                    result,
                    arm=one,
                    reference=other,
                    scores=_negated(result.scores),
                    better=1 - result.better,
                    decision=OPPOSITE.get(result.decision, result.decision),
                    leak_free=None if result.leak_free is None else _negated(result.leak_free),
                )
        return None

    def table(self) -> list[list[str]]:
        """Each arm on test, the best first, its accuracy with the 95 % interval; the first row names the columns."""
        costs = [name for name in COSTS if any(getattr(arm.cost, name) is not None for arm in self.arms)]
        head = ["test", "runs", "accuracy", "", *(COSTS[name] for name in costs), "macro-F1", "calibration"]
        rows = [[*head, *(["leak-free"] if self.leaked else [])]]
        for arm in sorted(self.arms, key=lambda arm: -arm.scores["accuracy"].value):
            accuracy = arm.scores["accuracy"]
            row = [arm.name, str(len(arm.runs)), f"{accuracy.value:.4f}", f"{accuracy.low:.3f} to {accuracy.high:.3f}"]
            taken = [getattr(arm.cost, name) for name in costs]
            row += ["" if value is None else two_digits(value) for value in taken]
            row += [f"{arm.scores[name].value:.4f}" for name in ("macro_f1", "calibration")]
            rows.append([*row, *([] if arm.leak_free is None else [f"{arm.leak_free['accuracy'].value:.4f}"])])
        return rows

    def __str__(self) -> str:
        rows = self.table()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([*(line.rstrip() for line in lines), "", *map(plain_text, self.verdict), *self.notes])

    def _repr_html_(self) -> str:
        """The table and the verdict, for a notebook."""
        head, *rows = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in self.table()]
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        verdict = "".join(f"<p>{_html(paragraph)}</p>" for paragraph in (*self.verdict, *self.notes))
        return f"<table><thead><tr>{head.replace('td>', 'th>')}</tr></thead><tbody>{body}</tbody></table>{verdict}"

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers; on disk, class names and a budget are both called `labels`."""
        values = _renamed(asdict(self), "class_names", "labels")
        for name in ("arms", "curves", "worth"):
            values[name] = [_renamed(item, "budget", "labels") for item in values[name]]
        return {"format": 1, **values}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Comparison:
        return cls(
            class_names=tuple(values["labels"]),
            rows=values["rows"],
            leaked=values["leaked"],
            reference=values["reference"],
            arms=tuple(map(_arm, values["arms"])),
            differences=tuple(map(_difference, values["differences"])),
            curves=tuple(map(_arm, values["curves"])),
            worth=tuple(_worth(item, values["curves"]) for item in values["worth"]),
            verdict=tuple(values["verdict"]),
            matters=values.get("matters", 0.0),
            title=values.get("title", ""),
            notes=tuple(values.get("notes", ())),
            curve_differences=tuple(map(_difference, values.get("curve_differences", ()))),
        )


def valid_accuracy(arm: ArmResult) -> float:
    """The mean over seeds of accuracy on valid, by which arms are chosen."""
    return sum(run.valid["accuracy"] for run in arm.runs) / len(arm.runs)


def _html(paragraph: str) -> str:
    parts = ((escape(part), strong) for part, strong in parts_of(paragraph))
    return "".join(f"<strong>{part}</strong>" if strong else part for part, strong in parts)


def _negated(scores: Mapping[str, Estimate]) -> dict[str, Estimate]:
    return {name: Estimate(-each.value, -each.high, -each.low) for name, each in scores.items()}


def _renamed(values: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
    return {new if name == old else name: value for name, value in values.items()}


def _arm(values: Mapping[str, Any]) -> ArmResult:
    tuning = values.get("tuning")
    parts = {
        "runs": tuple(RunScores(**run) for run in values["runs"]),
        "cost": Cost(**values.get("cost", {})),
        "tuning": None if tuning is None else ArmTuning.from_json(tuning),
    }
    return ArmResult(**{**_renamed(values, "labels", "budget"), **parts, **_estimates(values)})


def _difference(values: Mapping[str, Any]) -> DifferenceResult:
    components = values.get("components")
    parts = {} if components is None else {name: _tuple(value) for name, value in components.items()}
    return DifferenceResult(**{**values, **_estimates(values), "components": Components(**parts) if parts else None})


def _worth(values: Mapping[str, Any], curves: Sequence[Mapping[str, Any]]) -> WorthResult:
    """Version 0.1.0 wrote a value with a two-sided interval, whose end was None beyond the last budget."""
    low, beyond = values["low"], values.get("beyond", False)
    if "at_most" in values:
        budgets = [curve["labels"] for curve in curves if curve["name"] == values["reference"]]
        beyond = low is None
        low = max(budgets) if beyond else low if low > min(budgets) else None
    return WorthResult(values["arm"], values["reference"], values["labels"], low, beyond)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _estimates(values: Mapping[str, Any]) -> dict[str, dict[str, Estimate] | None]:
    return {
        name: None if values[name] is None else {metric: Estimate(**each) for metric, each in values[name].items()}
        for name in ("scores", "leak_free")
    }
