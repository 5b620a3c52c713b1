"""The order of an epoch and the batches of every kind: pure functions of seed, epoch and step."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.batches.sampler import ClassPairSampler, batch_boundaries, epoch_order
from tests.batches.conftest import IN_FILE_ORDER, SHUFFLED, Maker
from tests.batches.helpers import epochs, near, seeds, sequences_of, some_lengths, steps_of, tokens_in


@pytest.mark.parametrize("name", SHUFFLED + IN_FILE_ORDER)
@settings(max_examples=6, deadline=None)
@given(seed=seeds, epoch=epochs, shuffler=st.randoms(use_true_random=False))
def test_a_step_is_the_same_whenever_it_is_asked_for(
    makers: Mapping[str, Maker], name: str, seed: int, epoch: int, shuffler: random.Random
) -> None:
    expected = steps_of(makers[name](seed), epoch)
    assert len(expected) > 2
    again = makers[name](seed)
    steps = list(range(len(expected)))
    shuffler.shuffle(steps)
    for step in steps:
        again.batch(epoch + shuffler.randint(0, 3), 0)  # another epoch in between
        assert sequences_of(again.batch(epoch, step)) == expected[step]


@pytest.mark.parametrize("name", SHUFFLED)
def test_another_epoch_and_another_seed_have_another_order(makers: Mapping[str, Maker], name: str) -> None:
    rows = [tokens_in(steps_of(makers[name](seed), epoch)) for seed in (0, 1, 77) for epoch in (0, 1, 5)]
    assert len({tuple(row) for row in rows}) == len(rows)


@pytest.mark.parametrize("name", IN_FILE_ORDER)
def test_an_evaluation_is_the_same_for_every_seed_and_epoch(makers: Mapping[str, Maker], name: str) -> None:
    """Its order, its masks and its pairs: every evaluation reads the same."""
    passes = [steps_of(makers[name](seed), epoch) for seed in (0, 1, 77) for epoch in (0, 1, 5)]
    assert passes == passes[:1] * len(passes)


@given(keys=st.lists(st.tuples(seeds, epochs), min_size=2, max_size=6, unique=True), count=st.integers(20, 60))
def test_an_order_has_every_item_once_and_no_two_keys_share_one(keys: list[tuple[int, int]], count: int) -> None:
    orders = [epoch_order(count, seed, epoch).tolist() for seed, epoch in keys]
    assert all(sorted(order) == list(range(count)) for order in orders)
    assert len({tuple(order) for order in orders}) == len(keys)


def test_the_order_is_uniform() -> None:
    """Each item is in each position equally often: 5 standard deviations for each of 36."""
    trials = 3000
    firsts = np.array([epoch_order(6, 9, epoch) for epoch in range(trials)])
    for position in range(6):
        for item in range(6):
            assert near(int((firsts[:, position] == item).sum()), trials, 1 / 6)


@given(lengths=some_lengths, budget=st.integers(1, 120))
def test_the_items_of_a_batch_begin_in_one_span_of_tokens(lengths: list[int], budget: int) -> None:
    boundaries = batch_boundaries(np.array(lengths), budget).tolist()
    begin = [0, *accumulate(lengths)]
    spans = [{begin[item] // budget for item in range(low, high)} for low, high in pairwise(boundaries)]
    assert (boundaries[0], boundaries[-1]) == (0, len(lengths))
    assert all(len(span) == 1 for span in spans)
    assert len(set.union(*spans)) == len(spans)


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=40),
    seed=seeds,
    epoch=epochs,
    size=st.integers(2, 12),
    by_tokens=st.booleans(),
)
def test_with_class_pairs_every_item_has_another_of_its_class_in_its_batch(
    labels: list[int], seed: int, epoch: int, size: int, by_tokens: bool
) -> None:
    lengths = np.arange(1, len(labels) + 1) if by_tokens else np.ones(len(labels), dtype=np.int64)
    sampler = ClassPairSampler(lengths, size, seed, np.array(labels))
    steps = [sampler.items(epoch, step).tolist() for step in range(sampler.steps(epoch))]
    visited = [item for step in steps for item in step]
    assert set(visited) == set(range(len(labels)))
    assert len(visited) == sum(labels.count(k) + labels.count(k) % 2 for k in set(labels))  # the odd ones twice
    for step in steps:
        classes = [labels[item] for item in step]
        assert all(classes.count(k) > 1 for k in classes)
        if not by_tokens:
            assert len(step) <= size + size % 2
