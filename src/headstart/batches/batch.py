"""A batch: sequences that lie end to end, without padding, and how one is divided among micro-batches or processes.

No loader and no state: step 1,234 of epoch 3 is computed from (seed, epoch, step), so a run that was stopped goes on
where it was. `share_of` divides a step among the micro-batches of one process, or among processes side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]
IGNORE_INDEX = -100  # a target that no loss counts


@dataclass(frozen=True)
class Batch:
    """Tokens end to end: sequence s is tokens `starts[s]` up to `starts[s + 1]`. N tokens, S sequences, M masked."""

    ids: Tensor  # (N,)
    starts: Tensor  # (S + 1,) int32
    longest: int
    segments: Tensor | None = None  # (N,) 0 for the first text of a pair, 1 for the second
    targets: Tensor | None = None  # (N,) the next token, or (M,) the token behind each mask
    masked: Tensor | None = None  # (M,) where the masks are
    labels: Tensor | None = None  # (S,) the class of each sequence
    rows: Tensor | None = None  # (S,) which example of the set each sequence is

    def tensors(self) -> dict[str, Tensor]:
        """What of it is there, by name."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in found.items() if isinstance(value, Tensor)}

    def to(self, device: torch.device | str) -> Batch:
        return self._with(lambda value: value.to(device, non_blocking=True))

    def pinned(self) -> Batch:
        """Where a GPU can fetch it without the CPU waiting for that."""
        return self._with(Tensor.pin_memory)

    def _with(self, change: Callable[[Tensor], Tensor]) -> Batch:
        changed: dict[str, Any] = {name: change(value) for name, value in self.tensors().items()}
        return replace(self, **changed)


class Batches(Protocol):
    """What the training loop asks of its data."""

    def steps(self, epoch: int) -> int:
        """How many steps the epoch has."""

    def batch(self, epoch: int, step: int) -> Batch:
        """One step of it."""


def share_of(batch: Batch, share: int, shares: int) -> Batch | None:
    """One of several equal parts of a batch, by tokens, sequences kept whole; None where nothing is left for it.

    The parts of a batch are the batch: losses that are sums add up to the same, whoever computes them.
    """
    if shares == 1:
        return batch
    starts = batch.starts.numpy()
    first, last = np.searchsorted(starts[:-1], [len(batch.ids) * k / shares for k in (share, share + 1)])
    if share == shares - 1:
        last = len(starts) - 1  # with the empty sequences at the end, if there are any
    if first == last:
        return None
    low, high = int(starts[first]), int(starts[last])
    part: dict[str, Any] = {"ids": batch.ids[low:high], "starts": batch.starts[first : last + 1] - low}
    part["longest"] = int(part["starts"].diff().max())
    if batch.segments is not None:
        part["segments"] = batch.segments[low:high]
    if batch.masked is not None and batch.targets is not None:
        inside = (batch.masked >= low) & (batch.masked < high)
        part |= {"masked": batch.masked[inside] - low, "targets": batch.targets[inside]}
    elif batch.targets is not None:
        part["targets"] = batch.targets[low:high]
    if batch.labels is not None:
        part["labels"] = batch.labels[first:last]
    if batch.rows is not None:
        part["rows"] = batch.rows[first:last]
    return Batch(**part)


def rng(*key: int) -> np.random.Generator:
    """A stream of random numbers that the key alone decides."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))


@lru_cache(maxsize=8)
def order(count: int, seed: int, epoch: int) -> Ints:
    """(count,): the order in which an epoch visits its items."""
    return rng(seed, epoch, 0).permutation(count)


def flat(pieces: Sequence[NDArray[Any]]) -> dict[str, Any]:
    """The part that every batch has."""
    lengths = [len(piece) for piece in pieces]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ids = np.concatenate(pieces).astype(np.int64)
    return {"ids": torch.from_numpy(ids), "starts": torch.from_numpy(starts), "longest": max(lengths)}


def token_edges(lengths: Ints, tokens: int) -> Ints:
    """Cut a row of lengths into runs that begin in successive spans of `tokens` tokens.

    >>> token_edges(np.array([3, 3, 3, 3, 9, 1]), 6).tolist()
    [0, 2, 4, 5, 6]
    """
    before = np.cumsum(lengths) - lengths  # tokens before each item
    span = before // tokens
    return np.concatenate([[0], np.flatnonzero(np.diff(span)) + 1, [len(lengths)]])
