"""How far a score can be trusted: confidence intervals over test items and seeds, of arms and of their differences.

An arm of a study was trained R times, once a seed, and every run predicted the same I test items. Another study would
have had other items and other seeds, so the variance of the mean over runs has two kinds of components:

items   The variance over items of the mean over runs, divided by I. For a difference it is that of the item-by-item
        difference of the two arms: what is hard for both drops out.
seeds   The variance S² of the runs' scores, less the sampling error of the items that runs do not share, divided by R;
        one component for each arm. Arms are paired by seed only where the seed drew the label subset of both.

The half-width of an interval is the root of the sum of squares of the components' own half-widths (Graybill and Wang
1980) where one arm has seeds. Where both have, that is too long; then it is the mean of it and of Satterthwaite's,
which takes one Student distribution for the sum of the components. In simulated studies such intervals cover the truth
in 93 to 98 of 100 (`docs/statistics.md`, `tools/simulate.py`).

Accuracy has pseudo-items, without which a model that makes no mistake would have an interval without width: two right
and two wrong for an arm (Agresti and Coull 1998), one in favour of each arm for a difference (Bonett and Price 2012).
Macro-F1 and the calibration error are no means over items. They are linearised (`scores.py`): each item has a
contribution.

Nothing here knows torch or opens a file, and the same inputs give the same numbers.

    M metrics, R runs, I items, C classes
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headstart.errors import ModelError
from headstart.metrics import Floats
from headstart.runs.comparison import ALPHA, Components, Estimate
from headstart.studies.scores import METRICS, item_contributions

LEVEL = 1 - ALPHA
POWER = 0.8
SMALLEST_P = 1e-9  # below it a p-value says nothing more
DECIMALS = 12  # sums in another order must not make two equal numbers differ


@dataclass(frozen=True, eq=False)
class ArmPredictions:
    """The predictions of R runs of an arm for I test items of C classes; R is 1 for a model that no seed changes."""

    probabilities: Floats  # (R, I, C)
    labels: NDArray[np.int64]  # (I,)
    scaled: Floats | None = None  # (R, I, C) after temperature scaling, which the calibration error is of

    def __post_init__(self) -> None:
        shape, labels = self.probabilities.shape, self.labels
        if len(shape) != 3 or 0 in shape or labels.shape != shape[1:2]:
            raise ModelError(
                f"predictions of an arm are probabilities of shape (runs, items, classes) with a label for each item: "
                f"found {shape} and {labels.shape}"
            )
        if labels.min() < 0 or labels.max() >= shape[2]:
            raise ModelError(f"labels are 0 to {shape[2] - 1}: found {labels.min()} to {labels.max()}")
        if not np.isfinite(self.probabilities).all():
            raise ModelError("a probability is no number: score the run again")

    def __len__(self) -> int:
        """How many runs."""
        return len(self.probabilities)

    def without(self, items: ArrayLike) -> ArmPredictions:
        """The same runs on the test set without these items."""
        kept = np.delete(np.arange(len(self.labels)), np.asarray(items, np.int64))
        scaled = None if self.scaled is None else self.scaled[:, kept]
        return ArmPredictions(self.probabilities[:, kept], self.labels[kept], scaled)

    @cached_property
    def contributions(self) -> Floats:
        """(M, R, I): what each item contributes to each run's score, which is their mean."""
        scaled = self.probabilities if self.scaled is None else self.scaled
        runs = zip(self.probabilities, scaled, strict=True)
        return np.stack([item_contributions(*run, self.labels) for run in runs], axis=1)


@dataclass(frozen=True)
class SeedVariance:
    """How much of the variance of an arm's mean the seeds explain, and how well that is known."""

    excess: float  # max(0, S² - own) / R
    raw: float  # S² / R
    own: float  # own / R, the sampling error of the items that runs do not share
    df: int  # R - 1


@dataclass(frozen=True)
class Mean:
    """A mean over items and runs, with the components of its variance."""

    value: float
    center: float  # of the interval: the mean with its pseudo-items
    items: float  # the items' component of the variance
    items_df: int
    seeds: tuple[SeedVariance, ...]

    @property
    def variance(self) -> float:
        return self.items + sum(part.excess for part in self.seeds)

    def half_width(self, level: float = LEVEL) -> float:
        """Half of the interval that holds the truth in `level` of all studies."""
        if self.variance == 0:
            return 0.0
        tail = (1 + level) / 2
        squares = student_quantile(self.items_df, tail) ** 2 * self.items
        squares += sum(student_quantile(part.df, tail) ** 2 * part.excess for part in self.seeds)
        if len(self.seeds) < 2:
            return float(np.sqrt(squares))
        df = self.variance**2 / (self.items**2 / self.items_df + sum(part.raw**2 / part.df for part in self.seeds))
        satterthwaite = student_quantile(df, tail) * np.sqrt(self.variance)
        return float(satterthwaite + np.sqrt(squares)) / 2

    def estimate(self, least: float, level: float = LEVEL) -> Estimate:
        """The interval ends where scores end, at `least` and 1: nothing beyond can be true."""
        half = self.half_width(level)
        low, high = max(self.center - half, least), min(self.center + half, 1.0)
        value = round(self.value, DECIMALS)
        return Estimate(value, min(low, value), max(high, value))

    @property
    def p(self) -> float:
        """Two-sided p of the hypothesis that the truth is 0: the interval at the level 1 - p ends at 0."""
        if self.half_width(1 - SMALLEST_P) <= abs(self.center):
            return 1.0 if self.center == 0 else SMALLEST_P
        from scipy.optimize import brentq

        return float(brentq(lambda p: self.half_width(1 - p) - abs(self.center), SMALLEST_P, 1.0))

    def detectable(self, level: float = LEVEL) -> float:
        """The smallest true value whose interval excludes 0 in four of five such studies."""
        return self.half_width(level) + self.half_width(2 * POWER - 1)

    @property
    def components(self) -> Components:
        """What the variance would be made of with other numbers of items and runs."""
        items = self.items_df + 1
        return Components(
            items=max(0.0, self.items - sum(part.own for part in self.seeds)) * items,
            seeds=tuple(part.excess * (part.df + 1) for part in self.seeds),
            unshared=tuple(part.own * (part.df + 1) * items for part in self.seeds),
        )


def expected_mean(components: Components, items: int, runs: int) -> Mean:
    """The mean of a study with so many test items, and so many runs of each arm that has a seed; its value is 0."""
    seeds = tuple(
        SeedVariance(seed / runs, (seed + unshared / items) / runs, unshared / items / runs, runs - 1)
        for seed, unshared in zip(components.seeds, components.unshared, strict=True)
    )
    variance = (components.items + sum(components.unshared) / runs) / items
    return Mean(0.0, 0.0, variance, max(items - 1, 1), seeds if runs > 1 else ())


@dataclass(frozen=True)
class Difference:
    """One arm minus another: the mean of every metric. The properties but for `scores` are of accuracy."""

    means: Mapping[str, Mean]
    level: float = LEVEL  # of the intervals

    @property
    def accuracy(self) -> Mean:
        return self.means["accuracy"]

    @property
    def scores(self) -> dict[str, Estimate]:
        return {name: mean.estimate(least=-1.0, level=self.level) for name, mean in self.means.items()}

    @cached_property
    def p(self) -> float:
        """Two-sided; below 1 - level exactly where the interval excludes 0."""
        return self.accuracy.p

    @property
    def better(self) -> float:
        """The probability that the first is the better, by the same distribution as p."""
        return 1 - self.p / 2 if self.accuracy.center > 0 else self.p / 2

    @property
    def detectable(self) -> float:
        """The smallest true difference that such a study finds with a power of 80 %."""
        return round(self.accuracy.detectable(self.level), DECIMALS)


def student_quantile(df: float, probability: float) -> float:
    """The quantile of Student's distribution with `df` degrees of freedom.

    >>> print(round(student_quantile(2, 0.975), 3))
    4.303
    """
    from scipy.special import stdtrit  # here, because no command needs it when it starts

    quantile: float = stdtrit(df, probability)
    return quantile


# --- means over items and runs ---


def _seed_variance(contributions: Floats) -> tuple[SeedVariance, ...]:
    """Of contributions (R, I); a single run has none that could be known."""
    runs, items = contributions.shape
    if runs == 1:
        return ()
    values = contributions.mean(1)  # (R,)
    variance = float(values.var(ddof=1))
    residuals = contributions - contributions.mean(0) - (values - values.mean())[:, None]
    own = float((residuals**2).sum()) / ((runs - 1) * max(items - 1, 1)) / items
    return (SeedVariance(max(0.0, variance - own) / runs, variance / runs, own / runs, runs - 1),)


def _mean(items: Floats, pseudo_items: Sequence[float], seeds: tuple[SeedVariance, ...]) -> Mean:
    """From the mean over runs of each item, (I,)."""
    counted = np.append(items, pseudo_items)
    variance = float(counted.var(ddof=1)) / len(counted) if len(counted) > 1 else 0.0
    return Mean(float(items.mean()), float(counted.mean()), variance, max(len(counted) - 1, 1), seeds)


def weighted_mean(arms: Sequence[tuple[float, ArmPredictions]]) -> Mean:
    """The weighted sum of the accuracies of several arms, as 1 and -1 for a difference; runs are not paired."""
    correct = [(weight, arm.contributions[0]) for weight, arm in arms]
    seeds = tuple(
        SeedVariance(weight**2 * part.excess, weight**2 * part.raw, weight**2 * part.own, part.df)
        for weight, each in correct
        for part in _seed_variance(each)
    )
    items: Floats = np.sum([weight * each.mean(0) for weight, each in correct], axis=0)
    size = 1 / min(len(each) for _, each in correct)
    return _mean(items, (size, -size), seeds)


def _arm_mean(contributions: Floats, metric: str) -> Mean:
    pseudo_items = (1.0, 1.0, 0.0, 0.0) if metric == "accuracy" else ()
    return _mean(contributions.mean(0), pseudo_items, _seed_variance(contributions))


def _difference_mean(one: Floats, other: Floats, metric: str, *, paired: bool) -> Mean:
    seeds = _seed_variance(one - other) if paired else _seed_variance(one) + _seed_variance(other)
    size = 1 / min(len(one), len(other))  # about the least difference that means over so many runs can have on an item
    return _mean(one.mean(0) - other.mean(0), (size, -size) if metric == "accuracy" else (), seeds)


# --- what a study asks ---


def estimate(arm: ArmPredictions) -> dict[str, Estimate]:
    """The mean over runs of every metric, with its 95 % interval; with one run, over the test items alone."""
    return {name: _arm_mean(arm.contributions[k], name).estimate(least=0.0) for k, name in enumerate(METRICS)}


def difference(one: ArmPredictions, other: ArmPredictions, *, paired: bool = False, level: float = LEVEL) -> Difference:
    """`one` minus `other`, item by item. `paired`: the k-th runs of both learned from the same subset of labels."""
    if paired and len(one) != len(other):
        raise ModelError(f"{len(one)} runs against {len(other)} cannot be paired: use the same seeds for both")
    if not np.array_equal(one.labels, other.labels):
        raise ModelError("two arms can be compared on the same test items alone: their labels differ")
    means = {
        name: _difference_mean(one.contributions[k], other.contributions[k], name, paired=paired)
        for k, name in enumerate(METRICS)
    }
    return Difference(means, level)
