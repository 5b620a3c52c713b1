"""How far a score can be trusted: confidence intervals over test items and seeds, differences of arms, label worth.

An arm of a study was trained R times, once a seed, and every run predicted the same I test items. Another study would
have had other items and other seeds, so the variance of the mean over runs has two kinds of components:

items   The variance over items of the mean over runs, divided by I. For a difference it is that of the item-by-item
        difference of the two arms: what is hard for both drops out.
seeds   The variance S² of the runs' scores, less the sampling error of the items that runs do not share, divided by R;
        one component for each arm. Arms are paired by seed only where the seed drew the label subset of both.

The half-width of an interval is the mean of two. Satterthwaite's takes one Student distribution for the sum of the
components; it is too short where a few seeds of one arm carry most of the variance. The other is the root of the sum of
squares of the components' own half-widths (Graybill and Wang 1980); it is too long elsewhere. In simulated
studies their mean covers the truth in 93 to 98 of 100 (`docs/statistics.md`, `tools/simulate.py`).

Accuracy has pseudo-items, without which a model that makes no mistake would have an interval without width: two right
and two wrong for an arm (Agresti and Coull 1998), one in favour of each arm for a difference (Bonett and Price 2012).
Macro-F1 and the calibration error are no means over items. They are linearised: each item has a contribution.

Nothing here knows torch or opens a file, and the same inputs give the same numbers.

    M metrics, R runs, I items, C classes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats
from scipy.special import stdtrit as student_quantile

from headstart.errors import ModelError
from headstart.metrics import Floats
from headstart.runs.comparison import ALPHA, Estimate

METRICS = ("accuracy", "macro_f1", "calibration")
BINS = 15  # of the calibration error
LEVEL = 1 - ALPHA
POWER = 0.8
SMALLEST_P = 1e-9  # below it a p-value says nothing more
SAMPLES = 10_000  # of the sampling distribution of a learning curve
SEED = 20_261_115  # of these samples
DECIMALS = 12  # sums in another order must not make two equal numbers differ


@dataclass(frozen=True, eq=False)
class ArmPredictions:
    """The predictions of R runs of an arm for I test items of C classes; R is 1 for a model that no seed changes."""

    probabilities: Floats  # (R, I, C)
    labels: NDArray[np.int64]  # (I,)

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
        return ArmPredictions(self.probabilities[:, kept], self.labels[kept])

    @cached_property
    def contributions(self) -> Floats:
        """(M, R, I): what each item contributes to each run's score, which is their mean."""
        return np.stack([_contributions(run, self.labels) for run in self.probabilities], axis=1)


@dataclass(frozen=True)
class SeedVariance:
    """How much of the variance of an arm's mean the seeds explain, and how well that is known."""

    excess: float  # max(0, S² - own) / R, where `own` is the item sampling error that runs do not share
    raw: float  # S² / R
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
        df = self.variance**2 / (self.items**2 / self.items_df + sum(part.raw**2 / part.df for part in self.seeds))
        satterthwaite = student_quantile(df, tail) * np.sqrt(self.variance)
        squares = student_quantile(self.items_df, tail) ** 2 * self.items
        squares += sum(student_quantile(part.df, tail) ** 2 * part.excess for part in self.seeds)
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
        return float(optimize.brentq(lambda p: self.half_width(1 - p) - abs(self.center), SMALLEST_P, 1.0))

    def detectable(self, level: float = LEVEL) -> float:
        """The smallest true value whose interval excludes 0 in four of five such studies."""
        return self.half_width(level) + self.half_width(2 * POWER - 1)


@dataclass(frozen=True)
class Difference:
    """One arm minus another, in every metric; the other fields are of accuracy."""

    scores: dict[str, Estimate]
    better: float  # the probability that the first is the better, by the same distribution as p
    p: float  # two-sided; below 0.05 exactly where the interval excludes 0
    detectable: float  # the smallest true difference that such a study finds with a power of 80 %


@dataclass(frozen=True)
class LabelWorth:
    """How many labels bring the reference to an arm's accuracy; None is more than there are.

    `at_most`: it is there with its smallest budget already, so `value` is that budget and the truth may be less.
    """

    value: float | None
    low: float | None
    high: float | None
    at_most: bool


# --- scores ---


def scores(probabilities: Floats, labels: NDArray[np.int64]) -> dict[str, float]:
    """Accuracy, macro-F1 and expected calibration error of one run, (I, C).

    >>> probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.3, 0.7]])
    >>> {name: round(value, 3) for name, value in scores(probabilities, np.array([0, 1, 1, 1])).items()}
    {'accuracy': 0.75, 'macro_f1': 0.733, 'calibration': 0.3}
    """
    run = ArmPredictions(probabilities[None], labels)
    return dict(zip(METRICS, map(float, run.contributions[:, 0].mean(-1)), strict=True))


def reliability(
    probabilities: Floats, labels: NDArray[np.int64], bins: int = BINS
) -> tuple[tuple[float, float, int], ...]:
    """Mean confidence, accuracy and number of the predictions in each bin that has any, over (…, I, C).

    >>> reliability(np.array([[0.9, 0.1], [0.7, 0.3], [0.3, 0.7]]), np.array([0, 0, 0]), bins=2)
    ((0.766..., 0.666..., 3),)
    """
    confidence = probabilities.max(-1)
    correct = probabilities.argmax(-1) == labels
    bin_of = _bin(confidence, bins)
    inside = [bin_of == k for k in range(bins)]
    return tuple(
        (float(confidence[each].mean()), float(correct[each].mean()), int(each.sum())) for each in inside if each.any()
    )


def _bin(confidence: Floats, bins: int) -> NDArray[np.int64]:
    """Bin k holds what is above k / bins, up to (k + 1) / bins."""
    bin_of: NDArray[np.int64] = np.clip(np.ceil(confidence * bins) - 1, 0, bins - 1).astype(np.int64)
    return bin_of


def _contributions(probabilities: Floats, labels: NDArray[np.int64]) -> Floats:
    """(I, C) → (M, I): contributions whose means over items are accuracy, macro-F1 and calibration error.

    F1 of a class is 2 h / s, with h the share of items that are of it and predicted as it, s the shares that are of it
    and that are predicted as it, added. Linearised around what was found, an item contributes
    F1 + (2 · hit - F1 · (predicted + true)) / s, and the second term is 0 on average.
    """
    classes = np.arange(probabilities.shape[1])
    prediction, confidence = probabilities.argmax(1), probabilities.max(1)
    correct = prediction == labels
    predicted, true = prediction[:, None] == classes, labels[:, None] == classes  # (I, C)
    hits, either = (predicted & true).astype(float), predicted.astype(float) + true
    share = either.mean(0)  # (C,)
    there = share > 0  # a class that is neither predicted nor there has no F1
    hits, either, share = hits[:, there], either[:, there], share[there]
    f1 = 2 * hits.mean(0) / share
    gaps = confidence - correct
    bin_of = _bin(confidence, BINS)
    signs = np.sign(np.bincount(bin_of, weights=gaps, minlength=BINS))  # of each bin's mean gap
    return np.stack([correct, (f1 + (2 * hits - f1 * either) / share).mean(1), signs[bin_of] * gaps])


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
    return (SeedVariance(max(0.0, variance - own) / runs, variance / runs, runs - 1),)


def _mean(items: Floats, pseudo_items: Sequence[float], seeds: tuple[SeedVariance, ...]) -> Mean:
    """From the mean over runs of each item, (I,)."""
    counted = np.append(items, pseudo_items)
    variance = float(counted.var(ddof=1)) / len(counted) if len(counted) > 1 else 0.0
    return Mean(float(items.mean()), float(counted.mean()), variance, max(len(counted) - 1, 1), seeds)


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
    accuracy = means["accuracy"]
    p = accuracy.p
    return Difference(
        scores={name: mean.estimate(least=-1.0, level=level) for name, mean in means.items()},
        better=1 - p / 2 if accuracy.center > 0 else p / 2,
        p=p,
        detectable=round(accuracy.detectable(level), DECIMALS),
    )


def mcnemar(one: ArrayLike, other: ArrayLike) -> float:
    """The exact p of McNemar's test of two models, by the items that only one of them got right.

    >>> mcnemar([True, True, True, False], [True, False, False, False])
    0.5
    """
    a, b = np.asarray(one, bool), np.asarray(other, bool)
    only_one, only_other = int((a & ~b).sum()), int((b & ~a).sum())
    return min(1.0, 2 * float(stats.binom.cdf(min(only_one, only_other), only_one + only_other, 0.5)))


def p_values_against_best(best: ArrayLike, others: Sequence[ArrayLike]) -> tuple[float, ...]:
    """McNemar's p of each of the others against the best of them all, by which items each got right.

    The best was picked for its score, so that any two of them might have been compared: the correction is Bonferroni's
    over all pairs. By Holm over the others, one of 24 equally good runs seems worse than the best in a fifth of tables.

    >>> p_values_against_best([True] * 9, [[True] * 9, [False] * 9])
    (1.0, 0.01171875)
    """
    pairs = len(others) * (len(others) + 1) // 2
    return tuple(min(1.0, pairs * mcnemar(best, other)) for other in others)


def holm(ps: Sequence[float]) -> tuple[float, ...]:
    """P-values by Holm's correction: with no true difference at all, one study in twenty finds one.

    >>> holm([0.01, 0.04, 0.03])
    (0.03, 0.06, 0.06)
    """
    corrected = [0.0] * len(ps)
    largest = 0.0
    for rank, k in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[k]))
        corrected[k] = largest
    return tuple(corrected)


def label_worth(curve: Sequence[tuple[int, ArmPredictions]], arm: ArmPredictions) -> LabelWorth:
    """At how many labels the reference's learning curve reaches the arm's accuracy.

    `curve` holds the reference at each label budget, in rising order. It is the mean accuracy, made to rise (isotonic
    regression) and interpolated linearly over the logarithm of the budget; nothing is extrapolated beyond the last.
    """
    budgets = [budget for budget, _ in curve]
    if not budgets or budgets[0] < 1 or sorted(set(budgets)) != budgets:
        raise ModelError(f"a learning curve needs budgets of at least one label, each above the last: found {budgets}")
    accuracies = [each.contributions[0] for each in (*(predictions for _, predictions in curve), arm)]
    samples = _joint_samples(accuracies)  # (samples, K + 1)
    logs = np.log(budgets)
    means = np.array([each.mean() for each in accuracies])
    value = float(_crossing(logs, means[:-1], means[-1:])[0])
    crossings = np.sort(_crossing(logs, samples[:, :-1], samples[:, -1]))
    low, high = (float(crossings[round(tail * (SAMPLES - 1))]) for tail in (ALPHA / 2, 1 - ALPHA / 2))
    return LabelWorth(_from_log(value), _from_log(low), _from_log(high), at_most=bool(value == logs[0]))


def _joint_samples(arms: Sequence[Floats]) -> Floats:
    """(samples, K): accuracies that K arms, each (R, I), might have had on other items and with other seeds.

    Items are shared by all arms, so their part is a multivariate normal; each arm's seeds bring a Student's t.
    """
    rng = np.random.default_rng(SEED)
    items = np.stack([arm.mean(0) for arm in arms])  # (K, I)
    covariance = np.atleast_2d(np.cov(items)) / items.shape[1]
    samples = rng.multivariate_normal(items.mean(1), covariance, SAMPLES, check_valid="ignore")
    for k, arm in enumerate(arms):
        for part in _seed_variance(arm):
            samples[:, k] += np.sqrt(part.excess) * rng.standard_t(part.df, SAMPLES)
    return samples


def _from_log(log_budget: float) -> float | None:
    return None if np.isinf(log_budget) else round(float(np.exp(log_budget)), 6)


def _crossing(logs: Floats, curves: Floats, targets: Floats) -> Floats:
    """(n,) where each curve (n, K) first reaches its target (n,); infinite where it does not."""
    curves = np.atleast_2d(np.round(_isotonic(curves), DECIMALS))
    targets = np.round(targets, DECIMALS)
    reached = curves >= targets[:, None]
    after = reached.argmax(1)
    before = np.maximum(after - 1, 0)
    rows = np.arange(len(curves))
    rise = curves[rows, after] - curves[rows, before]
    share = (targets - curves[rows, before]) / np.where(rise > 0, rise, 1.0)
    between = logs[before] + share * (logs[after] - logs[before])
    return np.where(reached.any(1), np.where(after == 0, logs[0], between), np.inf)


def _isotonic(curves: Floats) -> Floats:
    """Isotonic regression of all curves (…, K) at once, as a maximum of minima of means."""
    points = curves.shape[-1]
    sums = np.concatenate([np.zeros_like(curves[..., :1]), curves.cumsum(-1)], axis=-1)
    means = np.full((*curves.shape, points), np.inf)
    for i in range(points):
        for j in range(i, points):
            means[..., i, j] = (sums[..., j + 1] - sums[..., i]) / (j + 1 - i)
    fitted: list[Any] = [means[..., : k + 1, k:].min(-1).max(-1) for k in range(points)]
    return np.stack(fitted, axis=-1)
