"""How far a score can be trusted: confidence intervals over seeds and test items, paired differences, label worth.

An arm of a study was trained R times, once a seed, and every run predicted the same I test items. Its mean score varies
with which items the test set happens to hold and with which seeds were drawn. The interval covers both:

items   A bootstrap: the test items are resampled with replacement, 10,000 times, with the same samples for every run
        and every arm. Scores are functions of sums over items, so a bootstrap sample is a row of counts and all of them
        are one matrix product.
seeds   A bootstrap over three or five seeds would vary too little. Instead the standard deviation S of the runs' scores
        is measured (divided by R - 1, so that the variance is unbiased), and the mean's error is S / √R times a value
        of Student's distribution with R - 1 degrees of freedom. Where seeds are all that varies, that is a t-test.
both    S also holds the variation over items that the runs do not share. So that it is not counted twice, the items'
        part is shrunk to the variation that all runs share.

`docs/statistics.md` has the reasons, the limits, and how often the intervals held the truth in simulated studies.
Nothing here knows torch or opens a file, and the same inputs give the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from headstart.errors import ModelError
from headstart.metrics import Floats, macro_f1_from_counts
from headstart.runs.comparison import Estimate

METRICS = ("accuracy", "macro_f1", "calibration")
SAMPLES = 10_000  # of the bootstrap
BINS = 15  # of the calibration error
LEVEL = 0.95
POWER = 0.8
LEAST_SEED_VARIANCE = 0.05  # as a share of the item variance: runs whose scores agree beyond it do so by chance
SEED = 20_261_115  # of the bootstrap
CHUNK = 1 << 22  # item counts in memory at a time
DECIMALS = 12  # sums in another order must not make two equal samples differ


@dataclass(frozen=True, eq=False)
class ArmPredictions:
    """The predictions of R runs of an arm for I test items of C classes; R is 1 for a model that no seed changes."""

    probabilities: Floats  # (R, I, C)
    labels: NDArray[np.int64]  # (I,)
    _cache: dict[int, tuple[Floats, Floats]] = field(default_factory=dict, init=False, repr=False)

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

    def bootstrap(self, samples: int) -> tuple[Floats, Floats]:
        """Each metric of each run: on the test set, (metrics, R); on bootstrap samples of it, (metrics, samples, R)."""
        if samples not in self._cache:
            self._cache[samples] = _bootstrap(self, samples)
        return self._cache[samples]


@dataclass(frozen=True)
class Difference:
    """One arm minus another, in every metric; the other fields are of accuracy."""

    scores: dict[str, Estimate]
    better: float  # share of the samples in which the first is ahead, ties counted half
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
    values = _from_sums(_summands(run.probabilities[0], labels).sum(0), len(labels))
    return dict(zip(METRICS, map(float, values), strict=True))


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


def _summands(probabilities: Floats, labels: NDArray[np.int64]) -> Floats:
    """(I, C) → (I, 3 C + bins): what is summed over items to get the scores.

    Of each class whether it is predicted rightly, is predicted, is the label; of each bin confidence minus correctness.
    """
    classes = np.arange(probabilities.shape[1])
    prediction, confidence = probabilities.argmax(1), probabilities.max(1)
    predicted = prediction[:, None] == classes
    true = labels[:, None] == classes
    gaps = (confidence - (prediction == labels))[:, None] * (_bin(confidence, BINS)[:, None] == np.arange(BINS))
    return np.concatenate([predicted & true, predicted, true, gaps], axis=1, dtype=np.float64)


def _from_sums(sums: Floats, items: int) -> Floats:
    """(…, 3 C + bins) sums over items → (metrics, …)."""
    hits, predicted, true = np.split(sums[..., :-BINS], 3, axis=-1)  # (…, C) each
    f1 = macro_f1_from_counts(hits, predicted, true)
    return np.stack([hits.sum(-1) / items, f1, np.abs(sums[..., -BINS:]).sum(-1) / items])


# --- the sampling distribution of a mean over runs ---


def _bootstrap(arm: ArmPredictions, samples: int) -> tuple[Floats, Floats]:
    runs, items, _ = arm.probabilities.shape
    summands = np.stack([_summands(run, arm.labels) for run in arm.probabilities])  # (R, I, K)
    values = _from_sums(summands.sum(1), items)  # (metrics, R)
    flat = summands.transpose(1, 0, 2).reshape(items, -1)  # (I, R K)
    resampled = np.empty((len(METRICS), samples, runs))
    rng = np.random.default_rng(SEED)
    step = max(1, CHUNK // items)
    for start in range(0, samples, step):
        n = min(step, samples - start)
        drawn = rng.integers(items, size=(n, items)) + np.arange(n)[:, None] * items
        counts = np.bincount(drawn.ravel(), minlength=n * items).reshape(n, items)
        sums = (counts.astype(np.float64) @ flat).reshape(n, runs, -1)
        resampled[:, start : start + n] = _from_sums(sums, items)
    # Accuracy is a mean, and unbiased on bootstrap samples. The other two are not: with items drawn twice, bins look
    # worse calibrated than they are. What is wanted of the samples is their spread, so they are centred on the score.
    resampled[1:] -= (resampled[1:].mean(1) - values[1:])[:, None]
    return values, resampled


def _mean_over_runs(values: Floats, resampled: Floats) -> Floats:
    """(samples,) of the mean over runs, varying with items and seeds.

    From the runs' scores, (R,), and their scores on the bootstrap samples, (samples, R).
    """
    samples, runs = resampled.shape
    means: Floats = resampled.mean(1)  # (samples,)
    if runs == 1:
        return means.round(DECIMALS)
    value = values.mean()
    deviation = means - value
    # The variance of a run's score over items that the other runs do not share.
    own = (resampled - means[:, None]).var(0).sum() / (runs - 1)
    shared = np.sqrt(max(0.0, 1 - own / runs / max(deviation.var(), 1e-300)))
    spread = np.sqrt(max(values.var(ddof=1), LEAST_SEED_VARIANCE * own))
    both: Floats = value + shared * deviation + spread / np.sqrt(runs) * _student_t(values - value, samples)
    return both.round(DECIMALS)


def _student_t(deviations: Floats, samples: int) -> Floats:
    """(samples,) values of Student's distribution with R - 1 degrees of freedom, evenly spaced in probability.

    Their order is that of a random weighting of the runs, the same for every arm: a sample that favours seed 3 does so
    in all of them, and one arm minus another is the mirror image of the other minus the one.
    """
    runs = len(deviations)
    weights = np.random.default_rng(SEED + 1).standard_normal((runs, samples))
    values = stats.t.ppf((np.arange(samples) + 0.5) / samples, runs - 1)
    order = np.empty(samples, np.int64)
    order[np.argsort(deviations @ weights, kind="stable")] = np.arange(samples)
    return np.asarray(values[order], np.float64)


def _interval(samples: Floats) -> tuple[float, float]:
    """As many samples lie outside on each side as agree with the p of `_p_value`."""
    ordered = np.sort(samples)
    outside = int(np.ceil((1 - LEVEL) / 2 * (len(samples) + 1))) - 2
    return float(ordered[outside]), float(ordered[-1 - outside])


def _estimate(value: float, samples: Floats, least: float) -> Estimate:
    """The interval ends where scores end: nothing beyond can be true."""
    low, high = _interval(samples)
    return Estimate(round(float(value), DECIMALS), max(low, least), min(high, 1.0))


def _p_value(samples: Floats) -> float:
    beyond = min(int((samples <= 0).sum()), int((samples >= 0).sum()))
    return min(1.0, 2 * (beyond + 1) / (len(samples) + 1))


# --- what a study asks ---


def estimate(arm: ArmPredictions, *, samples: int = SAMPLES) -> dict[str, Estimate]:
    """The mean over runs of every metric, with its 95 % interval; with one run, over the test items alone."""
    values, resampled = arm.bootstrap(samples)
    return {
        name: _estimate(values[k].mean(), _mean_over_runs(values[k], resampled[k]), 0.0)
        for k, name in enumerate(METRICS)
    }


def difference(one: ArmPredictions, other: ArmPredictions, *, samples: int = SAMPLES) -> Difference:
    """`one` minus `other`, item by item and run by run; a single run is paired with each run of the other side."""
    if len(one) != len(other) and 1 not in (len(one), len(other)):
        raise ModelError(f"{len(one)} runs against {len(other)} cannot be paired: use the same seeds for both")
    if not np.array_equal(one.labels, other.labels):
        raise ModelError("two arms can be compared on the same test items alone: their labels differ")
    values, resampled = (a - b for a, b in zip(one.bootstrap(samples), other.bootstrap(samples), strict=True))
    means = [_mean_over_runs(values[k], resampled[k]) for k in range(len(METRICS))]
    accuracy = means[0]
    low, high = _interval(accuracy)
    below, above = np.quantile(accuracy, [1 - POWER, POWER])
    return Difference(
        scores={name: _estimate(values[k].mean(), means[k], -1.0) for k, name in enumerate(METRICS)},
        better=float((accuracy > 0).mean() + (accuracy == 0).mean() / 2),
        p=_p_value(accuracy),
        # To exclude 0 with this power, a true difference must exceed half the interval by such a quantile.
        detectable=round(float((high - low) / 2 + (above - below) / 2), DECIMALS),
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


def label_worth(
    curve: Sequence[tuple[int, ArmPredictions]], arm: ArmPredictions, *, samples: int = SAMPLES
) -> LabelWorth:
    """At how many labels the reference's learning curve reaches the arm's accuracy.

    `curve` holds the reference at each label budget, in rising order. It is the mean accuracy, made to rise (isotonic
    regression) and interpolated linearly over the logarithm of the budget; nothing is extrapolated beyond the last.
    """
    budgets = [budget for budget, _ in curve]
    if not budgets or budgets[0] < 1 or sorted(set(budgets)) != budgets:
        raise ModelError(f"a learning curve needs budgets of at least one label, each above the last: found {budgets}")
    bootstraps = [each.bootstrap(samples) for each in (*(predictions for _, predictions in curve), arm)]
    means = np.array([values[0].mean() for values, _ in bootstraps])  # (K + 1,)
    resampled = np.stack([_mean_over_runs(values[0], each[0]) for values, each in bootstraps], 1)  # (samples, K + 1)
    logs = np.log(budgets)
    value = float(_crossing(logs, means[:-1], means[-1:])[0])
    low, high = _interval(_crossing(logs, resampled[:, :-1], resampled[:, -1]))
    return LabelWorth(_from_log(value), _from_log(low), _from_log(high), at_most=bool(value == logs[0]))


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
