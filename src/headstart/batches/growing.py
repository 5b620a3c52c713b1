"""Sequences that are short in the first half of a run: a model learns which words stand together before it learns what
lies far apart, and attends to less meanwhile.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from headstart.batches.batch import Batch, Batches
from headstart.batches.sampler import RunLength

SHORT_UNTIL = 0.5  # of the run


class GrowingBatches:
    """Other batches, whose sequences are cut into pieces of at most `window` tokens until half of the run is over.

    Tokens, masks and targets of a step stay what they are; attention and positions begin anew with each piece. So a
    step is a function of (seed, epoch, step) still, and an epoch has as many of them.
    """

    def __init__(self, batches: Batches, window: int, run_length: RunLength) -> None:
        self.batches, self.window, self.run_length = batches, window, run_length
        self.version = getattr(batches, "version", 1)

    def steps(self, epoch: int) -> int:
        return self.batches.steps(epoch)

    def batch(self, epoch: int, step: int) -> Batch:
        batch = self.batches.batch(epoch, step)
        short = self.run_length.progress(self.batches.steps, epoch, step) < SHORT_UNTIL
        return cut(batch, self.window) if short else batch


def cut(batch: Batch, window: int) -> Batch:
    """The same tokens in sequences of at most `window`, each as many pieces of nearly equal length as it takes.

    >>> batch = Batch(torch.arange(9), torch.tensor([0, 7, 9], dtype=torch.int32), longest=7)
    >>> short = cut(batch, 4)
    >>> short.starts.tolist(), short.longest
    ([0, 4, 7, 9], 4)
    """
    starts = batch.starts.numpy().astype(np.int64)
    lengths = np.diff(starts)
    pieces = -(-lengths // window)  # of each sequence
    number = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)  # of each piece in its sequence
    ends = np.repeat(starts[:-1], pieces) + -(-np.repeat(lengths, pieces) * (number + 1) // np.repeat(pieces, pieces))
    new = np.concatenate([starts[:1], ends])
    return replace(batch, starts=torch.from_numpy(new.astype(np.int32)), longest=int(np.diff(new).max()))
