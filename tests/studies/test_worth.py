"""What labels are worth: on exact curves, and in simulated studies whose truth is known."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest

from headstart.errors import ModelError
from headstart.studies.worth import least_worth
from tests.studies.test_statistics import exact, simulated

BUDGETS = (100, 200, 400, 800)


def on_log_line(*budgets: int) -> list[float]:
    """Ten points for each doubling, from 0.5 at 100 labels: no chord of it is above or below it."""
    return [0.5 + 0.1 * log(budget / 100) / log(2) for budget in budgets]


def curve(*accuracies: float, items: int = 100_000) -> list[tuple[int, object]]:
    return [(budget, exact(each, items)) for budget, each in zip(BUDGETS, accuracies, strict=False)]


def test_of_a_curve_that_is_known_exactly() -> None:
    """Half-way between 200 and 400 on a logarithmic scale is 283."""
    low = least_worth(curve(*on_log_line(*BUDGETS)), exact(0.65, 100_000))  # type: ignore[arg-type]
    assert low is not None
    assert 270 < low < 283


def test_with_fewer_than_four_budgets_it_is_a_budget() -> None:
    assert least_worth(curve(*on_log_line(100, 200, 400)), exact(0.65, 100_000)) == 200  # type: ignore[arg-type]


def test_beyond_the_curve() -> None:
    flat = curve(0.5, 0.6, 0.65, 0.66)
    assert least_worth(flat, exact(0.9, 100_000)) == 800  # type: ignore[arg-type]
    assert least_worth(flat, exact(0.5, 100_000)) is None  # type: ignore[arg-type]


def test_a_budget_that_is_not_significantly_worse_ends_it() -> None:
    """Though a larger one is, by chance: more labels do not make a model worse."""
    assert least_worth(curve(0.5, 0.7, 0.6, 0.9), exact(0.7, 100_000)) < 200  # type: ignore[arg-type, operator]


def test_a_curve_that_flattens_lies_below_the_line_before() -> None:
    """18 points for the doubling before: 0.69 is reached after 1 of them at the earliest."""
    low = least_worth(curve(0.5, 0.68, 0.72, 0.74), exact(0.69, 100_000))  # type: ignore[arg-type]
    assert low is not None
    assert 200 < low <= exp(log(200) + log(2) / 18)


def test_a_curve_that_gets_steeper_may_rise_anywhere() -> None:
    assert least_worth(curve(0.5, 0.52, 0.7, 0.75), exact(0.69, 100_000)) == 200  # type: ignore[arg-type]
    assert least_worth(curve(0.5, 0.52, 0.7, 0.75), exact(0.51, 100_000)) == 100  # type: ignore[arg-type]


@pytest.mark.parametrize("budgets", [[], [200, 100], [100, 100], [0, 100]])
def test_budgets_rise(budgets: list[int]) -> None:
    with pytest.raises(ModelError, match="each above the last"):
        least_worth([(labels, exact(0.6)) for labels in budgets], exact(0.7))


@pytest.mark.parametrize("spacing", [2, 4])
@pytest.mark.parametrize("shape", ["power law", "sigmoid"])
def test_at_least_holds_in_95_of_100_studies(spacing: int, shape: str) -> None:
    """The truth, 200 labels, lies between two budgets."""
    rng = np.random.default_rng(17)
    budgets = [round(200 * spacing**power) for power in (-1.5, -0.5, 0.5, 1.5)]
    accuracies = [
        0.9 - 0.4 * (50 / budget) ** 0.5 if shape == "power law" else 0.5 + 0.35 / (1 + (300 / budget) ** 2)
        for budget in (*budgets, 200)
    ]
    lows = []
    for _ in range(80):
        *reference, arm = simulated(rng, accuracies, 5, 500, 0.01)
        lows.append(least_worth([*zip(budgets, reference, strict=True)], arm) or 0)
    assert np.mean([low <= 200 for low in lows]) >= 0.95
    assert np.mean([low > 0 for low in lows]) >= 0.5  # it is not silent
