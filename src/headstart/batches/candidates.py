"""Sampled softmax: for each step the part of the vocabulary that its loss is taken over (Jean et al. 2015).

A loss over a vocabulary of 50,001 multiplies each vector by as many others; the targets of a step are some thousand
different words. Each of them is a candidate, and more are drawn at random from all other words. A word is then a
candidate with a chance that is known, the higher the more frequent the word, and its logit is lowered by the logarithm
of that chance (the logQ correction): of two words that are equally probable, the one that is rarely a candidate counts
for more where it is one. So the model learns the probabilities that the whole softmax would teach it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.batches.batch import IGNORE_INDEX, Batch, Batches, Ints, rng
from headstart.store.store import Documents

KIND = 5  # sets the draws of candidates apart from those of order, masks and dropout
MULTIPLE = 64  # of the number of candidates: a size that is multiplied fast
COUNTED = 2**22  # tokens that are counted at a time: a store does not fit into memory


class Candidates(NamedTuple):
    """C words of a vocabulary."""

    ids: Ints  # (C,) in rising order
    log_chance: NDArray[np.float32]  # (C,) logarithm of the chance of being one of them


class CandidateBatches:
    """Other batches, each with `size` candidates for its targets, or more where it has more targets than that."""

    def __init__(self, batches: Batches, size: int, frequencies: NDArray[np.float64], seed: int) -> None:
        self.batches, self.size, self.frequencies, self.seed = batches, size, frequencies, seed
        self.version = getattr(batches, "version", 1)

    def steps(self, epoch: int) -> int:
        return self.batches.steps(epoch)

    def batch(self, epoch: int, step: int) -> Batch:
        batch = self.batches.batch(epoch, step)
        assert batch.targets is not None
        targets = batch.targets.numpy()
        targets = targets[targets != IGNORE_INDEX]
        drawn = draw_candidates(targets, self.size, self.frequencies, rng(self.seed, epoch, step, KIND))
        ids, log_chance = (torch.from_numpy(array) for array in drawn)
        return replace(batch, candidates=ids, log_chance=log_chance)


def draw_candidates(
    targets: Ints, size: int, frequencies: NDArray[np.float64], generator: np.random.Generator
) -> Candidates:
    """All targets and others at random, `size` words in all; each word's frequency (V,) is its share of the targets of
    a run.

    >>> frequencies = np.full(1000, 1e-3)
    >>> ids, log_chance = draw_candidates(np.array([7, 7, 7]), 128, frequencies, np.random.default_rng(0))
    >>> len(ids), 7 in ids, round(float(np.exp(log_chance[0])), 2)  # about 127 / 999 + 3 / 1000
    (128, True, 0.13)
    """
    words = len(frequencies)
    is_target = np.zeros(words, dtype=bool)
    is_target[targets] = True
    others = np.flatnonzero(~is_target)
    found = words - len(others)
    # Some others always, or a rare target would have no chance; and few sizes in a run, each of them a CUDA graph.
    multiple = MULTIPLE * max(size // (8 * MULTIPLE), 1)
    size = -(-max(size, found + MULTIPLE) // multiple) * multiple
    drawn = generator.choice(others, min(size - found, len(others)), replace=False, shuffle=False)
    ids = np.union1d(np.flatnonzero(is_target), drawn)
    # A word is none where no target is this word, and it is not among those that are drawn from the others.
    no_target = np.exp(len(targets) * np.log1p(-frequencies[ids].clip(max=1 - 1e-9)))
    not_drawn = 1 - len(drawn) / max(len(others), 1)
    return Candidates(ids, np.log(1 - no_target * not_drawn).astype(np.float32))


def word_frequencies(documents: Documents, vocabulary: int, special: list[int]) -> NDArray[np.float64]:
    """(V,): the share of each word among the tokens of these documents and the `special` ones around each of them."""
    counts = np.zeros(vocabulary)
    for start in range(0, len(documents.ids), COUNTED):
        counts += np.bincount(documents.ids[start : start + COUNTED], minlength=vocabulary)
    counts[special] += len(documents)
    counts /= counts.sum()
    return counts
