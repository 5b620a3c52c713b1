"""Batches of labelled examples: a number of examples a step, or a budget of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.batches.batch import Batch, Ints, order, rng, token_edges
from headstart.batches.encoding import Encoded
from headstart.errors import DataError


@dataclass
class ExampleBatches:
    """`batch_size` examples a step; or, where `tokens` is given, about so many tokens a step.

    The order is drawn anew each epoch and lengths fall as they may: a batch is a fair sample, and since nothing is
    padded there is nothing to gain by sorting. Of each text a share `left_out` of the tokens is missing, other ones
    each epoch: `keep` are those that always stay, as the special ones do.
    """

    data: Encoded
    seed: int
    batch_size: int = 8
    tokens: int | None = None
    left_out: float = 0.0
    keep: Sequence[int] = ()
    _last: tuple[int, Ints] | None = field(
        default=None, init=False, repr=False, compare=False
    )  # the edges of the last epoch asked for

    def __post_init__(self) -> None:
        if len(self.data) == 0:
            raise DataError("examples", "there are no rows to train on")

    def steps(self, epoch: int) -> int:
        return len(self.edges(epoch)) - 1

    def batch(self, epoch: int, step: int) -> Batch:
        edges = self.edges(epoch)
        whole = self.data.batch(order(len(self.data), self.seed, epoch)[edges[step] : edges[step + 1]])
        if not self.left_out:
            return whole
        stays = rng(self.seed, epoch, 1, step).random(len(whole.ids)) >= self.left_out
        return thinned(whole, stays | np.isin(whole.ids.numpy(), self.keep))

    def edges(self, epoch: int) -> Ints:
        """(steps + 1,): where in the epoch's order each step begins."""
        count = len(self.data)
        if self.tokens is None:
            return np.append(np.arange(0, count, self.batch_size), count)
        if self._last is None or self._last[0] != epoch:
            self._last = epoch, token_edges(self.data.lengths[order(count, self.seed, epoch)], self.tokens)
        return self._last[1]


def thinned(batch: Batch, stays: NDArray[np.bool_]) -> Batch:
    """The batch with those of its tokens (N,) that stay; a text that would lose all of them keeps its first.

    >>> batch = Batch(torch.tensor([5, 6, 7, 8]), torch.tensor([0, 3, 4], dtype=torch.int32), longest=3)
    >>> few = thinned(batch, np.array([False, True, True, False]))
    >>> few.ids.tolist(), few.starts.tolist(), few.longest
    ([6, 7, 8], [0, 2, 3], 2)
    """
    starts = batch.starts.numpy()
    left = np.concatenate([[0], np.cumsum(stays)])[starts]
    emptied = np.flatnonzero(np.diff(left) == 0)
    stays = stays.copy()
    stays[starts[emptied]] = True
    left = np.concatenate([[0], np.cumsum(stays)])[starts].astype(np.int32)
    return replace(
        batch,
        ids=batch.ids[stays],
        starts=torch.from_numpy(left),
        longest=int(np.diff(left).max()),
        segments=None if batch.segments is None else batch.segments[stays],
    )
