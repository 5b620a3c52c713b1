"""Windows that grow: the same tokens, in short sequences until half of the run is over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headstart.batches.batch import Batch, micro_batch
from headstart.batches.growing import GrowingBatches, cut
from headstart.batches.sampler import RunLength


def batch_of(lengths: list[int]) -> Batch:
    starts = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    ids = torch.arange(sum(lengths))
    return Batch(ids, starts, max(lengths), targets=ids + 1, causal=True)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 50))
def test_pieces_are_the_sequences_again(lengths: list[int], window: int) -> None:
    whole = batch_of(lengths)
    short = cut(whole, window)
    sizes = np.diff(short.starts.numpy())
    assert sizes.min() >= 1
    assert sizes.max() == short.longest <= window
    assert set(whole.starts.tolist()) <= set(short.starts.tolist())  # no piece reaches into another sequence
    assert len(sizes) == sum(-(-length // window) for length in lengths)  # and there are no more than need be
    for name, tensor in whole.tensors().items():
        assert name == "starts" or getattr(short, name) is tensor
    assert short.causal


def test_pieces_of_a_sequence_are_of_nearly_one_length() -> None:
    sizes = np.diff(cut(batch_of([33]), 32).starts.numpy())
    assert sizes.tolist() == [17, 16]  # and not 32 and 1


@dataclass
class Fixed:
    """Epochs of seven steps, each of one sequence of 20 tokens."""

    version: int = 5

    def steps(self, epoch: int) -> int:
        return 7

    def batch(self, epoch: int, step: int) -> Batch:
        return batch_of([20])


@pytest.mark.parametrize(
    ("run_length", "total"), [(RunLength(epochs=2), 14), (RunLength(epochs=9, steps=10), 10), (RunLength(), 7)]
)
def test_the_first_half_of_the_steps_is_short(run_length: RunLength, total: int) -> None:
    growing = GrowingBatches(Fixed(), 8, run_length)
    assert growing.steps(0) == 7
    longest = [growing.batch(*divmod(number, 7)).longest for number in range(total)]
    assert longest == [7] * (total // 2) + [20] * (total - total // 2)
    assert growing.version == 5  # of the draws of the batches within


def test_pieces_are_divided_among_processes() -> None:
    short = cut(batch_of([20, 20]), 8)
    parts: list[Any] = [micro_batch(short, index, 2) for index in range(2)]
    assert torch.cat([part.ids for part in parts]).tolist() == list(range(40))
    assert torch.cat([part.targets for part in parts]).tolist() == list(range(1, 41))
