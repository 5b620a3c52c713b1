"""What a comparison could show, before anything trains: the smallest difference, and what two points would take.

The variance of a difference depends on the test rows and the seeds by components that a study measures. Before there
is one, they follow from four assumptions, which are about what the studies of docs/results.md have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any, Literal

from headstart.errors import DataError
from headstart.runs.comparison import ALPHA, ArmResult, Comparison, Components
from headstart.studies.contrasts import STUDENTS
from headstart.studies.looks import LAST_ALPHA, LOOKS
from headstart.studies.statistics import expected_mean

ACCURACY = 0.8
SEED_SPREAD = 0.01  # standard deviation of the runs' true accuracies
SAME_ARM = 0.7  # correlation, text by text, of being right: of two runs of an arm
TWO_ARMS = 0.45  # of two arms
MOST_ROWS, MOST_SEEDS = 10_000_000, 1000
FEW_ROWS = 200  # that a test set has anyway
SEEDS = (3, 5, 8, 10, 15, 20, 30, 50, 100)  # that are tried together with more test rows
ASSUMED = (
    f"assumed, as in the studies of docs/results.md: accuracy {ACCURACY:g}, seeds that differ by {100 * SEED_SPREAD:g} "
    f"point, a correlation of {SAME_ARM} between the right answers of two seeds and of {TWO_ARMS} between two arms; "
    "`headstart plan STUDY` takes them from a study"
)


@dataclass(frozen=True)
class Question:
    """One of the primary questions, and what it would take to answer it."""

    arm: str
    reference: str
    detectable: dict[int, float]  # by seeds: the smallest true difference that is found with a power of 80 %
    rows_needed: int | None  # test rows that find `matters` with the plan's seeds; None where none do
    seeds_needed: int | None  # seeds of each arm that find it with the plan's test rows
    both_needed: tuple[int, int] | None  # test rows and seeds that find it, where both may grow


@dataclass(frozen=True)
class StudyPlan:
    """What a comparison with so many test rows and seeds could show."""

    rows: int  # of test
    seeds: int  # of each arm that has a seed; the most, where they are added until it is decided
    matters: float  # 0.02 is two points
    level: float  # of the intervals
    assumptions: str
    questions: tuple[Question, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def plan_study(
    rows: int, seeds: int | Literal["auto"], matters: float, *, pilot: Comparison | None = None, name: str = ""
) -> StudyPlan:
    """With the components of a pilot study, called `name`, or with assumed ones."""
    components = _assumed_components() if pilot is None else _measured_components(pilot, name)
    alpha = LAST_ALPHA if seeds == "auto" else ALPHA
    level = 1 - alpha / len(components)  # of the first step of Holm's procedure
    most = LOOKS[-1] if seeds == "auto" else seeds
    questions = tuple(_question(*pair, each, rows, most, matters, level) for pair, each in components.items())
    assumptions = ASSUMED if pilot is None else f"measured in {name}"
    return StudyPlan(rows, most, matters, level, assumptions, questions)


def _question(
    arm: str, reference: str, components: Components, rows: int, seeds: int, matters: float, level: float
) -> Question:
    def detectable(rows: int, seeds: int) -> float:
        return expected_mean(components, rows, seeds).detectable(level)

    return Question(
        arm,
        reference,
        detectable={runs: detectable(rows, runs) for runs in sorted({*LOOKS, seeds})},
        rows_needed=_least(lambda count: detectable(count, seeds) <= matters, 2, MOST_ROWS),
        seeds_needed=_least(lambda count: detectable(rows, count) <= matters, 2, MOST_SEEDS),
        both_needed=study_needed(components, matters, level),
    )


def study_needed(components: Components, size: float, level: float) -> tuple[int, int] | None:
    """Test rows and seeds with which a difference of this size is found in four of five studies; None where none do.

    As many seeds as bring the rows to within a half more than infinitely many seeds would need, or to so few that fewer
    would save nothing.
    """

    def rows_with(seeds: int) -> int | None:
        return _least(lambda rows: expected_mean(components, rows, seeds).detectable(level) <= size, 2, MOST_ROWS)

    fewest = rows_with(MOST_SEEDS)
    for seeds in SEEDS if fewest is not None else ():
        rows = rows_with(seeds)
        if rows is not None and fewest is not None and rows <= max(1.5 * fewest, FEW_ROWS):
            return rows, seeds
    return None


def _least(enough: Callable[[int], bool], low: int, high: int) -> int | None:
    """The smallest number that is enough, as all above it are; to two figures, rounded up.

    >>> _least(lambda number: number >= 1234, 2, 10_000), _least(lambda number: False, 2, 100)
    (1300, None)
    """
    if not enough(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    unit: int = 10 ** max(0, len(str(low)) - 2)
    return ceil(low / unit) * unit


def _assumed_components() -> dict[tuple[str, str], Components]:
    """Of networks with seeds, and of a linear model with none: it is one model, right or wrong text by text."""
    variance = ACCURACY * (1 - ACCURACY)  # of one text for one model
    spread, unshared = SEED_SPREAD**2, variance * (1 - SAME_ARM)
    return {
        ("pretrained", "scratch"): Components(2 * variance * (SAME_ARM - TWO_ARMS), (spread,) * 2, (unshared,) * 2),
        ("pretrained", "linear"): Components(variance * (SAME_ARM + 1 - 2 * TWO_ARMS), (spread,), (unshared,)),
    }


def _measured_components(pilot: Comparison, name: str) -> dict[tuple[str, str], Components]:
    primary = [each for each in pilot.differences if each.primary and each.components is not None]
    if not primary:
        problem = "it does not say what its variance is made of: a headstart before 0.2 wrote it"
        fix = "run the same `headstart compare` again: nothing is trained, and it is written anew"
        raise DataError(Path(name), problem, fix=fix)
    for each in primary:
        if any(_has_unknown_spread(pilot.arm(arm)) for arm in (each.arm, each.reference)):
            problem = f"{each.arm} or {each.reference} has one seed, which says nothing of how far seeds differ"
            raise DataError(Path(name), problem, fix="run the same `headstart compare` with --seeds 3")
    return {(each.arm, each.reference): each.components for each in primary if each.components is not None}


def _has_unknown_spread(arm: ArmResult) -> bool:
    return arm.mode in ("full", *STUDENTS, "scratch") and len(arm.runs) == 1
