"""A batch, and its micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from headstart.batches.batch import Batch, micro_batch
from tests.batches.conftest import IN_FILE_ORDER, SHUFFLED, Maker
from tests.batches.helpers import few, sequences_of, steps_of


@pytest.mark.parametrize("name", SHUFFLED + IN_FILE_ORDER)
def test_a_batch_that_is_changed_in_position_changes_no_other(makers: Mapping[str, Maker], name: str) -> None:
    data = makers[name](3)
    expected = steps_of(data, 0)
    for step in range(data.steps(0)):
        batch = data.batch(0, step)
        for tensor in batch.tensors().values():
            tensor.zero_()
    assert steps_of(data, 0) == expected


def test_every_tensor_of_a_batch_moves(makers: Mapping[str, Maker]) -> None:
    for name in ("pairs of texts", "next sentence", "across"):
        batch = makers[name](0).batch(0, 0)
        moved = batch.to("meta")
        assert moved.longest == batch.longest
        for field in ("ids", "starts", "segments", "targets", "masked", "labels", "rows"):
            before, after = getattr(batch, field), getattr(moved, field)
            assert (before is None) == (after is None)
            if before is not None:
                assert (after.device.type, after.shape, after.dtype) == ("meta", before.shape, before.dtype)
                assert before.device.type == "cpu"


def check_micro_batches(batch: Batch, count: int) -> None:
    """Each sequence is in the micro-batch where it begins, empty ones at the end in the last; None without any."""
    sequences = sequences_of(batch)
    size = len(batch.ids)
    owners = [min(start * count // size, count - 1) for start in batch.starts[:-1].tolist()]
    for index in range(count):
        part = micro_batch(batch, index, count)
        expected = [sequence for sequence, owner in zip(sequences, owners, strict=True) if owner == index]
        assert ([] if part is None else sequences_of(part)) == expected
        assert (part is None) == (expected == [])


@pytest.mark.parametrize("name", SHUFFLED + IN_FILE_ORDER)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_the_micro_batches_of_a_step_are_the_step(makers: Mapping[str, Maker], name: str, count: int) -> None:
    data = makers[name](1)
    for step in range(data.steps(2)):
        check_micro_batches(data.batch(2, step), count)


@example(lengths=[3, 1, 0], count=2, every=1)
@example(lengths=[0, 4, 0, 0, 4, 0, 0], count=2, every=1)
@few
@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any),
    count=st.integers(1, 9),
    every=st.integers(1, 3),
)
def test_the_micro_batches_of_any_batch_are_the_batch(lengths: list[int], count: int, every: int) -> None:
    size = sum(lengths)
    positions = torch.arange(0, size, every)  # with every token masked, those at the edges of a micro-batch are
    batch = Batch(
        ids=torch.arange(size),
        starts=torch.tensor([0, *accumulate(lengths)], dtype=torch.int32),
        longest=max(lengths),
        segments=torch.arange(size) % 2,
        targets=positions + 1000,
        masked=positions,
        labels=torch.arange(len(lengths)) % 3,
        rows=torch.arange(len(lengths)) + 7,
    )
    check_micro_batches(batch, count)
    check_micro_batches(replace(batch, masked=None, targets=torch.arange(size) + 1), count)
    check_micro_batches(replace(batch, segments=None, masked=None, targets=None, labels=None, rows=None), count)


def test_micro_batches_are_about_equal() -> None:
    """None has more than its part of the tokens and one sequence."""
    lengths = [5, 1, 9, 3, 3, 8, 2, 7, 4, 6]
    batch = Batch(torch.arange(48), torch.tensor([0, *accumulate(lengths)], dtype=torch.int32), 9)
    for count in (2, 3, 4):
        parts = [micro_batch(batch, index, count) for index in range(count)]
        assert all(part is not None and len(part.ids) < 48 / count + 9 for part in parts)
