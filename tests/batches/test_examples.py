"""Batches of labelled examples: each row once an epoch, and token dropout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from headstart.batches.examples import ExampleBatches
from headstart.batches.sampler import epoch_order
from tests.batches.helpers import PlainSequence, encoded, epochs, numbered, seeds, sequences_in, some_lengths, steps_of


def rows_in(steps: Sequence[Sequence[PlainSequence]]) -> list[int]:
    return [sequence.row for sequence in sequences_in(steps) if sequence.row is not None]


@given(lengths=some_lengths, size=st.integers(1, 12), seed=seeds, epoch=epochs)
def test_every_example_is_once_in_an_epoch_of_batches(lengths: list[int], size: int, seed: int, epoch: int) -> None:
    steps = steps_of(ExampleBatches(encoded(lengths), seed, batch_size=size), epoch)
    assert sorted(rows_in(steps)) == list(range(len(lengths)))
    assert all(len(step) == size for step in steps[:-1])
    assert 0 < len(steps[-1]) <= size


@given(lengths=some_lengths, budget=st.integers(1, 120), seed=seeds, epoch=epochs)
def test_every_example_is_once_in_an_epoch_of_budgets(lengths: list[int], budget: int, seed: int, epoch: int) -> None:
    steps = steps_of(ExampleBatches(encoded(lengths), seed, tokens=budget), epoch)
    assert sorted(rows_in(steps)) == list(range(len(lengths)))
    assert all(sum(len(sequence.ids) for sequence in step) < budget + max(lengths) for step in steps)
    assert all(steps), "a step without a row"
    assert len(steps) <= math.ceil(sum(lengths) / budget), "steps smaller than they need be"


@given(lengths=some_lengths, size=st.integers(1, 12), budget=st.none() | st.integers(1, 120), seed=seeds, epoch=epochs)
def test_a_step_holds_the_rows_between_two_boundaries_of_the_order(
    lengths: list[int], size: int, budget: int | None, seed: int, epoch: int
) -> None:
    data = ExampleBatches(encoded(lengths), seed, batch_size=size, tokens=budget)
    data.steps(epoch + 1)  # another epoch before
    boundaries = data.sampler.epoch(epoch).boundaries.tolist()
    order = epoch_order(len(lengths), seed, epoch).tolist()
    rows = [[sequence.row for sequence in step] for step in steps_of(data, epoch)]
    assert rows == [order[low:high] for low, high in pairwise(boundaries)]
    assert (boundaries[0], boundaries[-1], len(boundaries)) == (0, len(lengths), data.steps(epoch) + 1)


@given(lengths=some_lengths, seed=seeds)
def test_a_row_comes_with_its_own_tokens_and_label(lengths: list[int], seed: int) -> None:
    rows = numbered(lengths)
    for sequence in sequences_in(steps_of(ExampleBatches(encoded(lengths), seed, batch_size=4), 0)):
        assert sequence.row is not None
        assert sequence.ids == rows[sequence.row]
        assert sequence.label == sequence.row % 3


@given(lengths=some_lengths, rate=st.floats(0.01, 0.99), seed=seeds, epoch=epochs)
def test_token_dropout(lengths: list[int], rate: float, seed: int, epoch: int) -> None:
    """What stays keeps its order, its row and its label; special tokens always stay, and no text is empty."""
    rows, never_dropped = numbered(lengths), [numbered(lengths)[-1][-1]]
    data = ExampleBatches(encoded(lengths), seed, token_dropout=rate, never_dropped=never_dropped)
    for sequence in sequences_in(steps_of(data, epoch)):
        assert sequence.row is not None
        text = iter(rows[sequence.row])
        assert sequence.ids and all(token in text for token in sequence.ids)  # consumes: a subsequence
        assert never_dropped[0] in sequence.ids or never_dropped[0] not in rows[sequence.row]
        assert sequence.label == sequence.row % 3


def test_token_dropout_drops_that_share_and_other_tokens_each_epoch() -> None:
    batches = ExampleBatches(encoded([400] * 20), 0, token_dropout=0.2)
    first, second = ({s.row: s.ids for s in sequences_in(steps_of(batches, epoch))} for epoch in (0, 1))
    assert 0.78 < sum(map(len, first.values())) / 8000 < 0.82
    assert all(first[row] != second[row] for row in first)


def test_segments_are_dropped_with_their_tokens() -> None:
    pairs = encoded([30] * 8)
    pairs = replace(pairs, segments=(pairs.ids % 2).astype(np.int8))
    batch = ExampleBatches(pairs, 0, token_dropout=0.5).batch(0, 0)
    assert len(batch.ids) < 240 and batch.segments is not None
    assert torch.equal(batch.segments, batch.ids % 2)
