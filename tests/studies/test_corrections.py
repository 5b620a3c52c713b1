"""Tests of single models and corrections, against statsmodels and simulated tables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.contingency_tables import mcnemar as their_mcnemar
from statsmodels.stats.multitest import multipletests

from headstart.studies.corrections import holm, holm_levels, mcnemar, p_values_against_best


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_mcnemar_is_statsmodels(pairs: list[tuple[bool, bool]]) -> None:
    one, other = np.array(pairs).T
    table = [[(one & other).sum(), (one & ~other).sum()], [(~one & other).sum(), (~one & ~other).sum()]]
    assert mcnemar(one, other) == pytest.approx(their_mcnemar(table, exact=True).pvalue)


@settings(max_examples=15, deadline=None)  # theirs takes a tenth of a second
@given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
def test_holm_is_statsmodels(ps: list[float]) -> None:
    assert holm(ps) == pytest.approx(multipletests(ps, method="holm")[1])


def test_holm_of_nothing() -> None:
    assert holm([]) == ()


@pytest.mark.parametrize("runs", [2, 24])
def test_of_equally_good_runs_none_is_called_worse_than_the_best(runs: int) -> None:
    """In one table of twenty at most. Runs that find the same texts hard, and disagree about a fifth of them."""
    draw, mistaken, tables = np.random.default_rng(0), 0, 150
    for _ in range(tables):
        right = (draw.random(400) < 0.8) ^ (draw.random((runs, 400)) < 0.12)
        best = int(right.mean(axis=1).argmax())
        ps = p_values_against_best(right[best], [right[k] for k in range(runs) if k != best])
        mistaken += min(ps) < 0.05
    assert mistaken / tables < 0.05 + 2 * (0.05 * 0.95 / tables) ** 0.5  # by Holm, of 24, it would be a fifth


def test_one_that_is_worse_is_told_from_the_best() -> None:
    draw = np.random.default_rng(0)
    right = draw.random((24, 400)) < np.array([0.85] * 23 + [0.6])[:, None]
    best = int(right.mean(axis=1).argmax())
    ps = p_values_against_best(right[best], [right[k] for k in range(24) if k != best])
    assert ps[-1] < 0.001


@given(st.lists(st.integers(1, 200), min_size=1, max_size=10), st.sampled_from([0.01, 0.05]))
def test_the_levels_reject_what_holm_rejects(numbers: list[int], alpha: float) -> None:
    ps = [number / 997 for number in numbers]  # none is at a level, where rounding would decide
    levels = holm_levels(ps, alpha)
    assert [p < 1 - level for p, level in zip(ps, levels, strict=True)] == [p < alpha for p in holm(ps)]
    assert all(1 - alpha - 1e-12 <= level <= 1 - alpha / len(ps) for level in levels)


def test_after_the_first_that_is_not_rejected_the_level_stays() -> None:
    assert holm_levels([0.001, 0.9, 0.03, 0.04], 0.05) == pytest.approx([1 - 0.05 / 4, *[1 - 0.05 / 3] * 3])
    assert holm_levels([], 0.05) == ()
