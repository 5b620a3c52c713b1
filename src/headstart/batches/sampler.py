"""Which items each step of an epoch holds: a pure function of (seed, epoch, step)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headstart.batches.batch import Ints, rng


def epoch_order(count: int, seed: int, epoch: int) -> Ints:
    """(count,): the order in which an epoch visits its items."""
    return rng(seed, epoch, 0).permutation(count)


def batch_boundaries(lengths: Ints, tokens: int) -> Ints:
    """(batches + 1,): where each batch begins, so that it holds the items that begin in its span of `tokens` tokens.

    >>> batch_boundaries(np.array([3, 3, 3, 3, 9, 1]), 6).tolist()
    [0, 2, 4, 5, 6]
    """
    before = np.cumsum(lengths) - lengths  # tokens before each item
    span = before // tokens
    return np.concatenate([[0], np.flatnonzero(np.diff(span)) + 1, [len(lengths)]])


@dataclass(frozen=True)
class RunLength:
    """How long a run is: so many epochs, or so many steps where that is given."""

    epochs: int = 1
    steps: int | None = None

    def progress(self, steps_of: Callable[[int], int], epoch: int, step: int) -> float:
        """How far through the run a step is, from 0, the first one, to 1, the last; `steps_of` says how many steps an
        epoch has.
        """
        number = step + sum(map(steps_of, range(epoch)))
        total = self.steps or sum(map(steps_of, range(self.epochs)))
        return min(number / max(total - 1, 1), 1.0)


@dataclass(frozen=True)
class Epoch:
    """The items of an epoch in their order, laid end to end."""

    order: Ints  # (items,)
    starts: Ints  # (items + 1,) tokens before each item, and in all
    boundaries: Ints  # (steps + 1,) where in `order` each step begins


class BatchSampler:
    """About `tokens` tokens a step. Items are shuffled anew each epoch; for evaluation they stay in file order."""

    def __init__(
        self, lengths: Ints, tokens: int, seed: int, *, evaluation: bool = False, run_length: RunLength | None = None
    ) -> None:
        self.lengths, self.tokens, self.seed, self.evaluation = lengths, tokens, seed, evaluation
        self.run_length = run_length or RunLength()
        self._steps: dict[int, int] = {}  # of each epoch that was asked for
        self._last: tuple[int, Epoch] | None = None  # a run asks for one epoch many times

    def epoch(self, epoch: int) -> Epoch:
        last = self._last
        if last is None or last[0] != epoch:
            order = self._order(epoch)
            lengths = self.lengths[order]
            starts = np.concatenate([[0], np.cumsum(lengths)])
            last = self._last = epoch, Epoch(order, starts, self._boundaries(lengths))
        return last[1]

    def _order(self, epoch: int) -> Ints:
        count = len(self.lengths)
        return np.arange(count) if self.evaluation else epoch_order(count, self.seed, epoch)

    def _boundaries(self, lengths: Ints) -> Ints:
        return batch_boundaries(lengths, self.tokens)

    def steps(self, epoch: int) -> int:
        if epoch not in self._steps:
            self._steps[epoch] = len(self.epoch(epoch).boundaries) - 1
        return self._steps[epoch]

    def progress(self, epoch: int, step: int) -> float:
        """How far through the run a step is, from 0 to 1; every evaluation is at the end."""
        return 1.0 if self.evaluation else self.run_length.progress(self.steps, epoch, step)

    def items(self, epoch: int, step: int) -> Ints:
        """The numbers of the items of a step."""
        plan = self.epoch(epoch)
        return plan.order[plan.boundaries[step] : plan.boundaries[step + 1]]

    def key(self, epoch: int) -> tuple[int, int]:
        """What masks and pairs are drawn from: new ones each epoch, but the same in every evaluation."""
        return (0, 0) if self.evaluation else (self.seed, epoch)


class ClassPairSampler(BatchSampler):
    """Items two by two, both of one class, so that each has another of its class in its batch.

    An epoch visits each item once; of a class with an odd number of items, one is there twice.
    """

    def __init__(self, lengths: Ints, tokens: int, seed: int, labels: Ints) -> None:
        super().__init__(lengths, tokens, seed)
        self.labels = labels

    def _order(self, epoch: int) -> Ints:
        pairs = class_pairs(self.labels, epoch_order(len(self.labels), self.seed, epoch))
        return pairs[rng(self.seed, epoch, 2).permutation(len(pairs))].reshape(-1)

    def _boundaries(self, lengths: Ints) -> Ints:
        return 2 * batch_boundaries(lengths.reshape(-1, 2).sum(1), self.tokens)


def class_pairs(labels: Ints, order: Ints) -> Ints:
    """(pairs, 2): the items in this order, each with the next of its class; the last of an odd number with the first.

    >>> class_pairs(np.array([0, 1, 0, 0, 1, 2]), np.arange(6)).tolist()
    [[0, 2], [3, 0], [1, 4], [5, 5]]
    """
    of_class = (order[labels[order] == k] for k in np.unique(labels))
    return np.concatenate([np.resize(items, len(items) + len(items) % 2).reshape(-1, 2) for items in of_class])
