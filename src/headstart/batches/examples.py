"""Batches of labelled examples: a number of examples a step, or a budget of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.batches.batch import Batch, rng
from headstart.batches.encoding import EncodedExamples
from headstart.batches.sampler import BatchSampler
from headstart.errors import DataError


@dataclass
class ExampleBatches:
    """`batch_size` examples a step; or, where `tokens` is given, about so many tokens a step.

    Batches are not sorted by length: without padding nothing is gained by it. With `token_dropout` each text loses that
    share of its tokens, others each epoch; `never_dropped` are ids that always stay, as special tokens do.
    """

    data: EncodedExamples
    seed: int
    batch_size: int = 8
    tokens: int | None = None
    token_dropout: float = 0.0
    never_dropped: Sequence[int] = ()
    sampler: BatchSampler = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.data) == 0:
            raise DataError("examples", "there are no rows to train on")
        if self.tokens is None:  # a step of `batch_size` items, each of which counts as one
            self.sampler = BatchSampler(np.ones(len(self.data), np.int64), self.batch_size, self.seed)
        else:
            self.sampler = BatchSampler(self.data.lengths, self.tokens, self.seed)

    def steps(self, epoch: int) -> int:
        return self.sampler.steps(epoch)

    def batch(self, epoch: int, step: int) -> Batch:
        batch = self.data.batch(self.sampler.items(epoch, step))
        if not self.token_dropout:
            return batch
        kept = rng(self.seed, epoch, 1, step).random(len(batch.ids)) >= self.token_dropout
        return drop_tokens(batch, kept | np.isin(batch.ids.numpy(), self.never_dropped))


def drop_tokens(batch: Batch, kept: NDArray[np.bool_]) -> Batch:
    """The batch with only those of its tokens (N,) that are kept; a text that would lose all keeps its first.

    >>> batch = Batch(torch.tensor([5, 6, 7, 8]), torch.tensor([0, 3, 4], dtype=torch.int32), longest=3)
    >>> fewer = drop_tokens(batch, np.array([False, True, True, False]))
    >>> fewer.ids.tolist(), fewer.starts.tolist(), fewer.longest
    ([6, 7, 8], [0, 2, 3], 2)
    """
    old_starts = batch.starts.numpy()
    starts = np.concatenate([[0], np.cumsum(kept)])[old_starts]
    emptied = np.flatnonzero(np.diff(starts) == 0)
    kept = kept.copy()
    kept[old_starts[emptied]] = True
    starts = np.concatenate([[0], np.cumsum(kept)])[old_starts].astype(np.int32)
    return replace(
        batch,
        ids=batch.ids[kept],
        starts=torch.from_numpy(starts),
        longest=int(np.diff(starts).max()),
        segments=None if batch.segments is None else batch.segments[kept],
    )
