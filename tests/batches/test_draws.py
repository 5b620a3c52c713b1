"""Random numbers that depend on a key and a number alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.batches.draws import below, draw, streams, threshold
from tests.batches.helpers import few, near

MASK = 2**64 - 1


def splitmix64(state: int) -> int:
    """As published: the output function of SplitMix64, in whole numbers of Python."""
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB & MASK
    return state ^ (state >> 31)


def test_the_draws_of_a_stream_are_those_of_splitmix64() -> None:
    """The first outputs for seed 1234567, as its reference implementation in C (Vigna, 2015) prints them."""
    seed = np.array([1234567], np.uint64)
    drawn = [int(draw(seed, number)[0]) for number in range(1, 6)]
    assert drawn == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@few
@given(state=st.integers(0, MASK), number=st.integers(0, 2**40))
def test_a_draw_can_be_taken_anywhere(state: int, number: int) -> None:
    expected = splitmix64((state + number * 0x9E3779B97F4A7C15) & MASK)
    assert int(draw(np.array([state], np.uint64), number)[0]) == expected
    many = draw(np.array([state, state], np.uint64), np.array([number, number + 1]))
    assert int(many[0]) == expected != int(many[1])


def test_streams_differ_by_key_and_item() -> None:
    items = np.arange(1000)
    keys = [(0, 0, 1), (0, 0, 2), (0, 1, 1), (1, 0, 1), (2**32 - 1, 5, 1)]
    drawn = np.concatenate([streams(key, items) for key in keys])
    assert len(np.unique(drawn)) == len(drawn)
    assert streams((3, 4), items[::-1]).tolist() == streams((3, 4), items).tolist()[::-1]


@pytest.mark.parametrize("limit", [1, 2, 7, 1000])
def test_below_is_uniform(limit: int) -> None:
    drawn = below(streams((limit,), np.arange(20_000)), limit)
    counts = np.bincount(drawn, minlength=limit)
    assert len(counts) == limit
    expected = len(drawn) / limit
    if limit > 1:  # chi-squared, within five standard deviations of its mean
        statistic = float(((counts - expected) ** 2 / expected).sum())
        assert abs(statistic - (limit - 1)) <= 5 * math.sqrt(2 * (limit - 1))


def test_below_takes_a_limit_for_each() -> None:
    limits = np.arange(1, 2000)
    drawn = below(streams((1,), limits), limits)
    assert (drawn >= 0).all()
    assert (drawn < limits).all()


@pytest.mark.parametrize("chance", [0.0, 0.15, 0.5, 0.999])
def test_bits_are_below_a_threshold_with_that_chance(chance: float) -> None:
    bits = streams((9,), np.arange(50_000))
    assert near(int((bits < threshold(chance)).sum()), len(bits), chance)


def test_draws_of_neighbouring_streams_are_independent() -> None:
    """Of two streams and of two draws of one: no correlation beyond five standard deviations."""
    items = np.arange(40_000)
    numbers = [draw(streams((0, 0, 1), items + k), n).astype(float) for k in (0, 1) for n in (0, 1, 2)]
    correlations = np.corrcoef(numbers)[np.triu_indices(len(numbers), 1)]
    assert np.abs(correlations).max() < 5 / math.sqrt(len(items))
