"""Families of questions: that interval and decision agree, and that equal arms are seldom called different."""

from __future__ import annotations

import numpy as np
import pytest

from headstart.runs.comparison import DifferenceResult, Estimate
from headstart.studies.contrasts import Contrasts, excludes_zero
from headstart.studies.differences import compare_pairs, decide
from headstart.studies.statistics import ArmPredictions
from tests.studies.test_statistics import simulated

NAMES = ("full", "scratch", "tfidf", "frozen", "full+tfidf")
PRIMARY = (("full", "scratch"), ("full", "tfidf"))
SECONDARY = (("frozen", "scratch"), ("full", "frozen"), ("full+tfidf", "tfidf"), ("tfidf", "scratch"))


def contrasts(secondary: tuple[tuple[str, str], ...] = SECONDARY) -> Contrasts:
    return Contrasts((), (), None, None, None, None, (), None, PRIMARY, secondary)


def study(
    rng: np.random.Generator, accuracies: list[float], runs: int = 3, items: int = 200
) -> dict[str, ArmPredictions]:
    return dict(zip(NAMES, simulated(rng, accuracies, runs, items, 0.02), strict=False))


def compare(
    arms: dict[str, ArmPredictions], secondary: tuple[tuple[str, str], ...] = SECONDARY, leaked: int = 0,
    alpha: float = 0.05, matters: float = 0.0,
) -> tuple[DifferenceResult, ...]:  # fmt: skip
    leak_free = {name: arm.without(range(leaked)) for name, arm in arms.items()} if leaked else {}
    return compare_pairs(contrasts(secondary), arms, leak_free, dict.fromkeys(arms, ()), alpha, matters)


@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_an_interval_excludes_zero_exactly_where_the_difference_is_significant(alpha: float) -> None:
    """In 150 studies with any differences; of all test rows, and of those that are in no other split."""
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(150):
        arms = study(rng, list(rng.uniform(0.7, 0.85, 5)), runs=int(rng.integers(1, 5)))
        for each in compare(arms, leaked=20, alpha=alpha):
            apart = excludes_zero(each.scores["accuracy"])
            assert apart == (each.holm < 0.05) == (each.decision in ("better", "worse"))
            assert each.leak_free is not None and each.leak_free_p is not None
            assert excludes_zero(each.leak_free["accuracy"]) == (each.leak_free_p < 0.05)
            seen.add((apart, each.primary, each.level > 1 - alpha))
    assert len(seen) >= 6  # both answers, in both families, with and without a correction


def test_secondary_pairs_do_not_weaken_the_primary_ones() -> None:
    rng = np.random.default_rng(1)
    for _ in range(10):
        arms = study(rng, list(rng.uniform(0.7, 0.85, 5)))
        assert compare(arms)[:2] == compare(arms, secondary=())


def test_leak_free_scores_are_judged_by_their_own_p() -> None:
    """The difference is in the leaked rows alone: without them there is none."""
    labels = np.zeros(200, np.int64)
    right = np.arange(200) % 4 > 0
    better = right | (np.arange(200) < 60)
    arms = {
        name: ArmPredictions(np.where(each[None, :, None], [0.9, 0.1], [0.1, 0.9]), labels)
        for name, each in (("full", better), ("scratch", right), ("tfidf", right))
    }
    first = compare(arms, secondary=(), leaked=60)[0]
    assert first.decision == "better" and first.leak_free_p == 1.0


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.001, 0.03, "better"), (-0.03, -0.001, "worse"), (-0.01, 0.03, "undecided"), (-0.019, 0.019, "equivalent"),
     (0.001, 0.019, "equivalent"), (0.03, 0.05, "better"), (0.0, 0.03, "undecided"), (-0.03, 0.02, "undecided")],
)  # fmt: skip
def test_what_an_interval_decides(low: float, high: float, expected: str) -> None:
    assert decide(Estimate((low + high) / 2, low, high), matters=0.02) == expected


def test_without_a_difference_that_matters_nothing_is_equivalent() -> None:
    assert decide(Estimate(0.0, -1e-9, 1e-9)) == "undecided"


def test_arms_that_differ_by_what_matters_are_seldom_called_equivalent() -> None:
    """In 5 of 100 studies at most; and arms that are equal often are."""
    rng, studies = np.random.default_rng(2), 200
    calls = {
        gap: [compare(study(rng, [0.8 + gap, 0.8, 0.8], 5, 1000), (), matters=0.05)[:2] for _ in range(studies)]
        for gap in (0.05, 0.0)
    }
    equivalent = {gap: np.mean([any(d.decision == "equivalent" for d in s) for s in calls[gap]]) for gap in calls}
    assert equivalent[0.05] <= 0.05
    assert equivalent[0.0] > 0.5


@pytest.mark.parametrize("scratch", [0.8, 0.5])
def test_equal_arms_are_called_different_in_at_most_5_of_100_studies(scratch: float) -> None:
    """Any of the primary questions whose arms are equal: both of them, or one beside another that is decided."""
    rng, studies = np.random.default_rng(3), 300
    mistaken = 0
    for _ in range(studies):
        results = compare(study(rng, [0.8, scratch, 0.8], 5, 200), ())
        mistaken += any(each.holm < 0.05 for each in results if scratch == 0.8 or each.reference == "tfidf")
    assert mistaken / studies <= 0.05 + 2 * (0.05 * 0.95 / studies) ** 0.5
