"""`--seeds auto`: seeds are added until the primary questions are decided, and how the error rate stays at 5 %.

Whoever tests after 3, after 5 and after 8 seeds, and stops as soon as something is significant, has three chances to be
wrong. So the earlier looks are at stricter levels. By simulation, arms that are equal are called different at any of
the looks in at most 5 of 100 studies (`docs/statistics.md`, `tools/simulate.py`).

The runs of a look are among those of the next: nothing is trained twice.
"""

from __future__ import annotations

from headstart.runs.comparison import Comparison, DifferenceResult
from headstart.studies.statistics import student_quantile

LOOKS = (3, 5, 8)  # seeds of each arm
ALPHAS = {3: 0.005, 5: 0.01}  # error rates of the looks before the last
LAST_ALPHA = 0.035  # of the last look, after however many seeds
FAR = 2.0  # standard errors by which more seeds may yet move a difference


def alpha_at(seeds: int, *, last: bool = False) -> float:
    """The error rate for `compare_arms` with so many seeds of each arm, where they are added until it is decided.

    `last`: no seeds will be added whatever the answer, because the time is up or because they cannot help.

    >>> [alpha_at(seeds) for seeds in LOOKS], alpha_at(4, last=True)
    ([0.005, 0.01, 0.035], 0.035)
    """
    if last or seeds >= LOOKS[-1]:
        return LAST_ALPHA
    return ALPHAS[next(look for look in LOOKS if look >= seeds)]


def settled(comparison: Comparison) -> bool:
    """Whether every primary question is decided: better, worse or equivalent."""
    return not open_questions(comparison)


def seeds_can_help(comparison: Comparison) -> bool:
    """Whether more seeds might decide a primary question that is open.

    With infinitely many, the interval of a difference would be as wide as the test rows leave it. They cannot help
    where it would include zero, and reach beyond what matters, even if they moved the difference by two standard
    errors.
    """
    return any(_might_be_decided(each, comparison) for each in open_questions(comparison))


def open_questions(comparison: Comparison) -> list[DifferenceResult]:
    """The primary differences that are not decided."""
    return [each for each in comparison.differences if each.primary and each.decision == "undecided"]


def _might_be_decided(difference: DifferenceResult, comparison: Comparison) -> bool:
    components, value = difference.components, abs(difference.scores["accuracy"].value)
    if components is None:
        return True
    width = _width_without_seeds(difference, comparison.rows)
    arms = [comparison.arm(name) for name in (difference.arm, difference.reference)]
    runs = max(len(arm.runs) for arm in arms)
    seeds = sum(components.seeds) + sum(components.unshared) / comparison.rows
    moved: float = FAR * (seeds / runs) ** 0.5
    return value + moved > width or max(0.0, value - moved) + width < comparison.matters


def _width_without_seeds(difference: DifferenceResult, rows: int) -> float:
    """Half the interval that infinitely many seeds would leave, at the level of the last look."""
    assert difference.components is not None
    quantile = student_quantile(max(rows - 1, 1), 1 - LAST_ALPHA / 2)
    return float(quantile * (difference.components.items / rows) ** 0.5)
