"""What a comparison could show, before anything trains."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from headstart.errors import DataError
from headstart.runs.comparison import Comparison
from headstart.studies.plan import Question, _assumed_components, plan_study
from headstart.studies.statistics import difference, expected_mean
from tests.studies.test_looks import arm, comparison, study
from tests.studies.test_statistics import simulated

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def question(plan_rows: int, seeds: int, matters: float = 0.02) -> Question:
    """Of the linear model."""
    return plan_study(plan_rows, seeds, matters).questions[1]


def test_more_rows_and_more_seeds_show_smaller_differences() -> None:
    few, many = question(200, 5), question(2000, 5)
    assert many.detectable[5] < few.detectable[5]
    assert few.detectable[8] < few.detectable[5] < few.detectable[3]


def test_what_is_needed_is_enough_and_a_tenth_less_is_not() -> None:
    needed = question(600, 8).rows_needed
    assert needed is not None
    assert question(needed, 8).detectable[8] <= 0.02 < question(int(needed * 0.9), 8).detectable[8]
    seeds = question(20_000, 5).seeds_needed
    assert seeds is not None
    assert question(20_000, seeds).detectable[seeds] <= 0.02 < question(20_000, seeds - 1).detectable[seeds - 1]


def test_seeds_cannot_make_up_for_few_rows_nor_rows_for_few_seeds() -> None:
    assert question(100, 5).seeds_needed is None
    assert question(100, 3, matters=0.001).rows_needed is None


def test_without_seeds_it_is_the_textbooks() -> None:
    """(2.24 + 0.84) standard errors at the level of the first of two questions, 97.5 %."""
    components = replace(_assumed_components()["pretrained", "linear"], seeds=(0.0,), unshared=(0.0,))
    quantiles = NormalDist().inv_cdf(1 - 0.0125) + NormalDist().inv_cdf(0.8)
    expected = quantiles * (components.items / 10_000) ** 0.5
    assert expected_mean(components, 10_000, 5).detectable(0.975) == pytest.approx(expected, rel=0.001)


@pytest.mark.parametrize("seeds", [3, 8])
def test_a_difference_of_this_size_is_found_in_four_of_five_studies(seeds: int) -> None:
    """By a pilot of the same kind: studies with a true difference that a plan calls the smallest that shows."""
    rng = np.random.default_rng(4)
    pilots = [comparison(study(rng, [0.8, 0.8, 0.8], 400, 0.01), 8) for _ in range(30)]
    plans = [plan_study(400, seeds, 0.02, pilot=pilot).questions[0].detectable[seeds] for pilot in pilots]
    arms = [0.8 + float(np.median(plans)), 0.8]
    found = [difference(*simulated(rng, arms, seeds, 400, 0.01)).p < 0.025 for _ in range(200)]
    assert 0.7 <= np.mean(found) <= 0.93


def test_the_assumptions_are_about_those_of_the_recorded_studies() -> None:
    """Half the 95 % interval of each pretrained arm against the linear model, within a third of what is assumed."""
    ratios = []
    for path in RESULTS.glob("*.json"):
        record = json.loads(path.read_text())
        for each in record.get("differences", ()):
            pair = (each["arm"].partition(":")[0], each["reference"].partition(":")[0])
            if "tfidf" in pair and set(pair) & {"full", "frozen"}:
                mean = expected_mean(_assumed_components()["pretrained", "linear"], record["test_rows"], 5)
                ratios.append((each["high"] - each["low"]) / 2 / mean.half_width())
    assert len(ratios) >= 8
    assert 0.75 <= np.median(ratios) <= 1.33


def test_auto_plans_for_the_last_look() -> None:
    plan = plan_study(600, "auto", 0.02)
    assert plan.seeds == 8
    assert plan.level == pytest.approx(1 - 0.035 / 2)


def test_rows_and_seeds_together() -> None:
    """Where neither alone suffices; and a study of that size finds the difference."""
    scratch = plan_study(600, 5, 0.02).questions[0]
    assert scratch.rows_needed is None and scratch.seeds_needed is None
    assert scratch.both_needed is not None
    rows, seeds = scratch.both_needed
    assert plan_study(rows, seeds, 0.02).questions[0].detectable[seeds] <= 0.02
    assert rows < 10_000 and seeds <= 20


def test_a_pilot_that_says_too_little() -> None:
    pilot = comparison(study(np.random.default_rng(5), [0.8] * 3, 200, 0.01), 3)
    old = replace(pilot, differences=tuple(replace(each, components=None) for each in pilot.differences))
    with pytest.raises(DataError, match="run the same `headstart compare` again"):
        plan_study(200, 5, 0.02, pilot=old, name="study")
    single: Comparison = replace(pilot, arms=tuple(arm(each.name, 1) for each in pilot.arms))
    with pytest.raises(DataError, match="has one seed"):
        plan_study(200, 5, 0.02, pilot=single, name="study")
