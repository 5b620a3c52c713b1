"""Padding: batches of a few fixed sizes, so that few CUDA graphs serve a run.

Padding is tokens that no other looks at and no loss counts: they make sequences of their own.

    >>> starts = torch.tensor([0, 2, 3], dtype=torch.int32)
    >>> batch = Batch(torch.tensor([5, 6, 7]), starts, longest=2, labels=torch.tensor([1, 0]))
    >>> padded = pad_batch(batch, window=128)
    >>> len(padded.ids), padded.starts.tolist(), padded.labels.tolist()
    (64, [0, 2, 3, 64], [1, 0, -100])
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headstart.batches.batch import IGNORE_INDEX, Batch


def pad_batch(batch: Batch, window: int) -> Batch:
    """The batch with its tokens, sequences and masked positions padded to one of a few sizes.

    No sequence of padding is empty, none longer than the window.
    """
    tokens, sequences = len(batch.ids), len(batch.starts) - 1
    ragged = tokens != sequences * batch.longest  # windows of one length have a fixed size already
    multiple = min(window, 64 if tokens < 1024 else 128 if tokens < 8192 else 512)  # of tokens
    new_sequences = -sequences % _sequence_multiple(sequences) if ragged else 0
    if tokens % multiple:  # new tokens need a sequence to be in
        new_sequences = new_sequences or _sequence_multiple(sequences)
    new_tokens = new_sequences + -(tokens + new_sequences) % multiple
    changed: dict[str, Any] = {}
    if ragged or new_tokens:
        longest = max(batch.longest, new_tokens - new_sequences + 1)
        changed["longest"] = min(window, max(64, 1 << (longest - 1).bit_length()))
    if new_tokens:
        # All new sequences have one token, but for the last, which has the rest.
        lengths = np.append(np.ones(new_sequences - 1, dtype=np.int32), np.int32(new_tokens - new_sequences + 1))
        ends = batch.starts[-1:] + torch.from_numpy(np.cumsum(lengths, dtype=np.int32))
        changed |= {"ids": _extend(batch.ids, new_tokens, 0), "starts": torch.cat([batch.starts, ends])}
        if batch.segments is not None:
            changed["segments"] = _extend(batch.segments, new_tokens, 0)
        if batch.labels is not None:
            changed["labels"] = _extend(batch.labels, new_sequences, IGNORE_INDEX)
        if batch.rows is not None:
            changed["rows"] = _extend(batch.rows, new_sequences, 0)
        if batch.targets is not None and batch.masked is None:
            changed["targets"] = _extend(batch.targets, new_tokens, IGNORE_INDEX)
    if batch.masked is not None and batch.targets is not None:
        new_masked = -len(batch.masked) % (128 if tokens < 8192 else 512)
        changed["masked"] = _extend(batch.masked, new_masked, 0)
        changed["targets"] = _extend(batch.targets, new_masked, IGNORE_INDEX)
    return replace(batch, **changed)


def _sequence_multiple(count: int) -> int:
    """A power of two, about a sixth of the count: numbers of sequences are multiples of it.

    >>> [_sequence_multiple(count) for count in (1, 8, 100, 200)]
    [1, 1, 16, 32]
    """
    return 1 << max(count // 6, 1).bit_length() - 1


def _extend(x: Tensor, count: int, value: int) -> Tensor:
    """By numpy: torch would wake its threads for a few thousand numbers."""
    return torch.from_numpy(np.concatenate([x.numpy(), np.full(count, value, dtype=x.numpy().dtype)]))
