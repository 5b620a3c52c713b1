"""Seeds that are added until the question is decided."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headstart.runs.comparison import ArmResult, Comparison, Components, DifferenceResult, Estimate, RunScores
from headstart.studies.contrasts import Contrasts
from headstart.studies.differences import compare_pairs
from headstart.studies.looks import LOOKS, alpha_at, seeds_can_help, settled
from headstart.studies.statistics import ArmPredictions
from tests.studies.test_statistics import simulated

PRIMARY = (("full", "scratch"), ("full", "tfidf"))
CONTRASTS = Contrasts((), (), None, None, None, None, (), None, PRIMARY, ())


def arm(name: str, runs: int) -> ArmResult:
    scores = tuple(RunScores(f"runs/{name}{k}", k, {}, {}, None) for k in range(runs))
    return ArmResult(name, "baseline" if name == "tfidf" else "full", None, 100, scores, {}, None)


def comparison(arms: dict[str, ArmPredictions], seeds: int, *, last: bool = False, matters: float = 0.0) -> Comparison:
    """What a study knows after so many seeds."""
    arms = {name: ArmPredictions(each.probabilities[:seeds], each.labels) for name, each in arms.items()}
    differences = compare_pairs(CONTRASTS, arms, {}, dict.fromkeys(arms, ()), alpha_at(seeds, last=last), matters)
    results = tuple(arm(name, len(each)) for name, each in arms.items())
    rows = len(arms["full"].labels)
    return Comparison(("a", "b"), rows, 0, "scratch", results, differences, (), (), matters=matters)


def study(rng: np.random.Generator, accuracies: list[float], items: int, sd: float) -> dict[str, ArmPredictions]:
    full, scratch, tfidf = simulated(rng, accuracies, LOOKS[-1], items, [sd, sd, 0.0])
    return {"full": full, "scratch": scratch, "tfidf": ArmPredictions(tfidf.probabilities[:1], tfidf.labels)}


def test_the_levels_of_the_looks_add_up_to_5_percent() -> None:
    assert sum(map(alpha_at, LOOKS)) == pytest.approx(0.05)
    assert [alpha_at(seeds) for seeds in (1, 4, 20)] == [alpha_at(3), alpha_at(5), alpha_at(8)]
    assert alpha_at(3, last=True) == alpha_at(8)


@pytest.mark.parametrize(("scratch", "sd"), [(0.8, 0.03), (0.5, 0.01)])
def test_equal_arms_are_called_different_at_any_look_in_at_most_5_of_100_studies(scratch: float, sd: float) -> None:
    """Any primary question whose arms are equal: both, or that of the linear model beside one that is decided."""
    rng, studies, mistaken = np.random.default_rng(0), 120, 0
    for _ in range(studies):
        arms = study(rng, [0.8, scratch, 0.8], 200, sd)
        looks = [comparison(arms, seeds).differences for seeds in LOOKS]
        equal = [each for look in looks for each in look if scratch == 0.8 or each.reference == "tfidf"]
        mistaken += any(each.decision != "undecided" for each in equal)
    assert mistaken / studies <= 0.05 + 2 * (0.05 * 0.95 / studies) ** 0.5


def test_a_question_is_settled_once_it_is_decided() -> None:
    rng = np.random.default_rng(1)
    assert settled(comparison(study(rng, [0.9, 0.6, 0.6], 500, 0.01), 5))
    assert not settled(comparison(study(rng, [0.8, 0.8, 0.6], 500, 0.01), 3))
    assert settled(comparison(study(rng, [0.8, 0.8, 0.8], 2000, 0.0), 8, matters=0.1))
    assert settled(replace(comparison(study(rng, [0.8] * 3, 100, 0.01), 3), differences=()))


def test_against_a_single_model_few_test_rows_cannot_be_made_up_for_by_seeds() -> None:
    rng = np.random.default_rng(2)
    studies = [comparison(study(rng, [0.8, 0.5, 0.8], 300, 0.002), 5) for _ in range(20)]
    hopeless = [each for each in studies if not settled(each) and not seeds_can_help(each)]
    assert len(hopeless) >= 10  # in the others the difference is large by chance


def test_where_seeds_make_the_interval_wide_more_of_them_can_help() -> None:
    assert seeds_can_help(comparison(study(np.random.default_rng(3), [0.8, 0.77, 0.5], 2000, 0.03), 3))


def one_difference(value: float, components: Components | None, matters: float = 0.0) -> Comparison:
    """Of arms with four seeds and one, on 400 test rows, which is open."""
    interval = {"accuracy": Estimate(value, value - 0.5, value + 0.5)}
    difference = DifferenceResult(
        "full", "tfidf", interval, 0.5, 0.5, 0.5, 0.1, None, None, primary=True, components=components
    )
    arms = (arm("full", 4), arm("tfidf", 1))
    return Comparison(("a", "b"), 400, 0, "tfidf", arms, (difference,), (), (), matters=matters)


def test_by_hand() -> None:
    """Items alone leave 2.11 · √(0.16 / 400) = 4.2 points; four seeds may move it by 2 · √(0.0004 / 4) = 2."""
    components = Components(items=0.16, seeds=(0.0004,), unshared=(0.0,))
    assert not seeds_can_help(one_difference(0.020, components))
    assert seeds_can_help(one_difference(0.025, components))
    assert seeds_can_help(one_difference(-0.025, components))
    assert seeds_can_help(one_difference(0.01, components, matters=0.045))  # it may yet be equivalent
    assert not seeds_can_help(one_difference(0.021, components, matters=0.041))


def test_a_record_without_components_may_be_helped() -> None:
    assert seeds_can_help(one_difference(0.0, None))
