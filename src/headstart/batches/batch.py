"""A batch: sequences that lie end to end, how one is divided among micro-batches or processes, and padded for a GPU.

No loader and no state: step 1,234 of epoch 3 is computed from (seed, epoch, step), so a run that was stopped goes on
where it was. `micro_batch` divides a step among the micro-batches of one process, or among processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.config import ModelConfig

Ints = NDArray[np.int64]
IGNORE_INDEX = -100  # a target that no loss counts


@dataclass(frozen=True)
class Batch:
    """Tokens end to end: sequence s is tokens `starts[s]` up to `starts[s + 1]`. N tokens, S sequences, M masked."""

    ids: Tensor  # (N,)
    starts: Tensor  # (S + 1,) int32
    longest: int
    segments: Tensor | None = None  # (N,) 0 for the first text of a pair, 1 for the second
    targets: Tensor | None = None  # (N,) the next token, or (M,) the token that was masked
    masked: Tensor | None = None  # (M,) positions at which the masked tokens are predicted
    draws: Tensor | None = None  # (M,) from 0 to below 1: what a replacement of each masked token is sampled by
    text: Tensor | None = None  # (N,) True for tokens of the text, False for special ones and padding
    candidates: Tensor | None = None  # (C,) the words that the loss is taken over, in rising order; None: all words
    log_chance: Tensor | None = None  # (C,) logarithm of each one's chance to be among them
    labels: Tensor | None = None  # (S,) the class of each sequence
    rows: Tensor | None = None  # (S,) which example of the set each sequence is
    causal: bool = False  # no token attends to a later one; in a causal model none ever does

    def tensors(self) -> dict[str, Tensor]:
        """Those of its fields that are tensors and not None."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def to(self, device: torch.device | str) -> Batch:
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> Batch:
        """In pinned memory, which a GPU copies from while the CPU goes on."""
        return self._map(Tensor.pin_memory)

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in self.tensors().items()}
        return replace(self, **changed)


class Batches(Protocol):
    """What the training loop asks of its data."""

    def steps(self, epoch: int) -> int:
        """The number of steps in the epoch."""

    def batch(self, epoch: int, step: int) -> Batch:
        """The batch of one step."""


def micro_batch(batch: Batch, index: int, count: int) -> Batch | None:
    """One of `count` about equal parts of a batch, by tokens, no sequence cut; None if there is no sequence for it.

    Losses are sums, so those of the micro-batches add up to that of the batch, whichever process computes them.
    """
    if count == 1:
        return batch
    starts = batch.starts.numpy()
    first, last = np.searchsorted(starts[:-1], [len(batch.ids) * k / count for k in (index, index + 1)])
    if index == count - 1:
        last = len(starts) - 1  # with the empty sequences at the end, if there are any
    if first == last:
        return None
    low, high = int(starts[first]), int(starts[last])
    own_starts = batch.starts[first : last + 1] - low
    masked, targets, draws = batch.masked, batch.targets, batch.draws
    if masked is not None and targets is not None:
        inside = (masked >= low) & (masked < high)
        masked, targets = masked[inside] - low, targets[inside]
        draws = None if draws is None else draws[inside]
    elif targets is not None:
        targets = targets[low:high]
    return Batch(
        ids=batch.ids[low:high],
        starts=own_starts,
        longest=int(own_starts.diff().max()),
        segments=None if batch.segments is None else batch.segments[low:high],
        targets=targets,
        masked=masked,
        draws=draws,
        text=None if batch.text is None else batch.text[low:high],
        candidates=batch.candidates,
        log_chance=batch.log_chance,
        labels=None if batch.labels is None else batch.labels[first:last],
        rows=None if batch.rows is None else batch.rows[first:last],
        causal=batch.causal,
    )


def pad_batch(batch: Batch, window: int) -> Batch:
    """The batch with its tokens, sequences and masked positions padded to one of a few sizes: few CUDA graphs then
    serve a run. Padding is tokens that no other looks at and no loss counts: sequences of their own, none of them empty
    and none longer than the window.

    >>> starts = torch.tensor([0, 2, 3], dtype=torch.int32)
    >>> batch = Batch(torch.tensor([5, 6, 7]), starts, longest=2, labels=torch.tensor([1, 0]))
    >>> padded = pad_batch(batch, window=128)
    >>> len(padded.ids), padded.starts.tolist(), padded.labels.tolist()
    (64, [0, 2, 3, 64], [1, 0, -100])
    """
    tokens, sequences = len(batch.ids), len(batch.starts) - 1
    ragged = tokens != sequences * batch.longest  # windows of one length have a fixed size already
    multiple = min(window, 64 if tokens < 1024 else 128 if tokens < 8192 else 512)  # of tokens
    sequence_multiple = 1 << max(sequences // 6, 1).bit_length() - 1  # a power of two, about a sixth of them
    new_sequences = -sequences % sequence_multiple if ragged else 0
    if tokens % multiple:  # new tokens need a sequence to be in
        new_sequences = new_sequences or sequence_multiple
    new_tokens = new_sequences + -(tokens + new_sequences) % multiple
    new_masked = 0 if batch.masked is None else -len(batch.masked) % (128 if tokens < 8192 else 512)
    padding = {
        "ids": (new_tokens, 0),
        "segments": (new_tokens, 0),
        "labels": (new_sequences, IGNORE_INDEX),
        "rows": (new_sequences, 0),
        "masked": (new_masked, 0),
        "draws": (new_masked, 0),
        "text": (new_tokens, 0),
        "targets": (new_tokens if batch.masked is None else new_masked, IGNORE_INDEX),
    }
    changed: dict[str, Any] = {}
    if ragged or new_tokens:
        longest = max(batch.longest, new_tokens - new_sequences + 1)
        changed["longest"] = min(window, max(64, 1 << (longest - 1).bit_length()))
    if new_tokens:
        # All new sequences have one token, but for the last, which has the rest.
        lengths = np.append(np.ones(new_sequences - 1, dtype=np.int32), np.int32(new_tokens - new_sequences + 1))
        ends = batch.starts[-1:] + torch.from_numpy(np.cumsum(lengths, dtype=np.int32))
        changed["starts"] = torch.cat([batch.starts, ends])
    for name, tensor in batch.tensors().items():
        count, value = padding.get(name, (0, 0))
        if count:  # by numpy: torch would wake its threads for a few thousand numbers
            array = tensor.numpy()
            changed[name] = torch.from_numpy(np.concatenate([array, np.full(count, value, dtype=array.dtype)]))
    return replace(batch, **changed)


def pick_window(asked: int | None, config: ModelConfig) -> int:
    """The longest sequence of a batch, in tokens; an error where the model cannot be given so long a window."""
    config.with_window(asked)
    return asked or config.window


def packed(ids: NDArray[Any], starts: NDArray[Any]) -> dict[str, Any]:
    """The fields that every batch has, from tokens end to end and where each sequence begins."""
    return {
        "ids": torch.from_numpy(ids.astype(np.int64, copy=False)),
        "starts": torch.from_numpy(starts.astype(np.int32)),
        "longest": int(np.diff(starts).max()),
    }


def rng(*key: int) -> np.random.Generator:
    """A generator of random numbers that depends on the key alone."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))
