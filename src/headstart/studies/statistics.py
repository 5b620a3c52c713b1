"""How far a score can be trusted: intervals over seeds and test items, paired differences, and what labels are worth.

An arm of a study was trained R times, once a seed, and every run answered the same I test items. Two kinds of luck
are in its mean score: which items the test set happens to hold, and which seeds were drawn. The interval holds both:

items   The test items are drawn again with replacement, 10,000 times, the same draws for every run and every arm.
        Scores are functions of sums over items, so a draw is a row of counts and all of them are one matrix product.
seeds   Three or five seeds drawn again with replacement would vary too little. Instead the spread S of the runs'
        scores is measured (divided by R - 1, so that it is unbiased), and the mean's luck is S / √R times a value of
        Student's distribution with R - 1 degrees of freedom. Where seeds are all the luck there is, that is a t-test.
both    S also holds the items' luck that strikes one run and spares another. So that it is not counted twice, the
        items' part is shrunk to the luck that all runs share.

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
DRAWS = 10_000
BINS = 15  # of the calibration error
LEVEL = 0.95
POWER = 0.8
LEAST_SPREAD = 0.05  # share of the items' luck (as a variance) below which runs agree by chance alone
SEED = 20_261_115  # of the draws
ROOM = 1 << 22  # counts that are held at a time
FINE = 12  # decimals: sums in another order shall not tell two equal draws apart


@dataclass(frozen=True, eq=False)
class ArmPredictions:
    """What R runs of an arm said about I test items of C classes; R is 1 for a model that no seed changes."""

    probabilities: Floats  # (R, I, C)
    labels: NDArray[np.int64]  # (I,)
    _kept: dict[int, tuple[Floats, Floats]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        shape, labels = self.probabilities.shape, self.labels
        if len(shape) != 3 or 0 in shape or labels.shape != shape[1:2]:
            raise ModelError(
                f"an outcome has probabilities of shape (runs, items, classes) and a label for each item: "
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

    def resampled(self, draws: int) -> tuple[Floats, Floats]:
        """Each metric of each run: on the items as they are, (metrics, R); on drawn items, (metrics, draws, R)."""
        if draws not in self._kept:
            self._kept[draws] = _resample(self, draws)
        return self._kept[draws]


@dataclass(frozen=True)
class Difference:
    """One arm minus another, in every metric; what follows is of accuracy."""

    scores: dict[str, Estimate]
    better: float  # share of the draws in which the first is ahead, ties counted half
    p: float  # two-sided; below 0.05 exactly where the interval leaves 0 out
    detectable: float  # the smallest true difference that such a study shows four times in five


@dataclass(frozen=True)
class Worth:
    """How many labels bring the reference to an arm's accuracy; None is more than there are.

    `at_most`: it is there with its smallest budget already, so `value` is that budget and the truth may be less.
    """

    value: float | None
    low: float | None
    high: float | None
    at_most: bool


# --- scores ---


def scores(probabilities: Floats, labels: NDArray[np.int64]) -> dict[str, float]:
    """Accuracy, macro-F1 and calibration error of one run, (I, C).

    >>> sure = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.3, 0.7]])
    >>> {name: round(value, 3) for name, value in scores(sure, np.array([0, 1, 1, 1])).items()}
    {'accuracy': 0.75, 'macro_f1': 0.733, 'calibration': 0.3}
    """
    outcome = ArmPredictions(probabilities[None], labels)
    found = _from_sums(_columns(outcome.probabilities[0], labels).sum(0), len(labels))
    return dict(zip(METRICS, map(float, found), strict=True))


def calibration_error(probabilities: Floats, labels: NDArray[np.int64]) -> float:
    """How far the probability of the answer is from how often such answers are right: the mean over (I, C).

    Answers are put in 15 bins of equal width by their probability; a bin's error is the distance between its mean
    probability and its accuracy, and bins count by how many answers they hold.
    """
    return scores(probabilities, labels)["calibration"]


def reliability(
    probabilities: Floats, labels: NDArray[np.int64], bins: int = BINS
) -> tuple[tuple[float, float, int], ...]:
    """Mean probability, accuracy and number of the answers in each bin that has any, over (…, I, C).

    >>> reliability(np.array([[0.9, 0.1], [0.7, 0.3], [0.3, 0.7]]), np.array([0, 0, 0]), bins=2)
    ((0.766..., 0.666..., 3),)
    """
    sure = probabilities.max(-1)
    right = probabilities.argmax(-1) == labels
    bin_of = _bin(sure, bins)
    found = []
    for k in range(bins):
        inside = bin_of == k
        if inside.any():
            found.append((float(sure[inside].mean()), float(right[inside].mean()), int(inside.sum())))
    return tuple(found)


def _bin(sure: Floats, bins: int) -> NDArray[np.int64]:
    """Bin k holds what is above k / bins, up to (k + 1) / bins."""
    bin_of: NDArray[np.int64] = np.clip(np.ceil(sure * bins) - 1, 0, bins - 1).astype(np.int64)
    return bin_of


def _columns(probabilities: Floats, labels: NDArray[np.int64]) -> Floats:
    """(I, 3 C + bins): what is summed over items. Hits, answers and labels of each class; a gap for each bin."""
    classes = np.arange(probabilities.shape[1])
    answer, sure = probabilities.argmax(1), probabilities.max(1)
    answers = answer[:, None] == classes
    truth = labels[:, None] == classes
    gaps = (sure - (answer == labels))[:, None] * (_bin(sure, BINS)[:, None] == np.arange(BINS))
    return np.concatenate([answers & truth, answers, truth, gaps], axis=1, dtype=np.float64)


def _from_sums(sums: Floats, items: int) -> Floats:
    """(metrics, …) from the sums (…, 3 C + bins) of the columns."""
    hits, answers, truth = np.split(sums[..., :-BINS], 3, axis=-1)  # (…, C) each
    f1 = macro_f1_from_counts(hits, answers, truth)
    return np.stack([hits.sum(-1) / items, f1, np.abs(sums[..., -BINS:]).sum(-1) / items])


# --- luck ---


def _resample(outcome: ArmPredictions, draws: int) -> tuple[Floats, Floats]:
    runs, items, _ = outcome.probabilities.shape
    columns = np.stack([_columns(run, outcome.labels) for run in outcome.probabilities])  # (R, I, K)
    found = _from_sums(columns.sum(1), items)  # (metrics, R)
    flat = columns.transpose(1, 0, 2).reshape(items, -1)  # (I, R K)
    resampled = np.empty((len(METRICS), draws, runs))
    random = np.random.default_rng(SEED)
    step = max(1, ROOM // items)
    for start in range(0, draws, step):
        n = min(step, draws - start)
        drawn = random.integers(items, size=(n, items)) + np.arange(n)[:, None] * items
        counts = np.bincount(drawn.ravel(), minlength=n * items).reshape(n, items)
        sums = (counts.astype(np.float64) @ flat).reshape(n, runs, -1)
        resampled[:, start : start + n] = _from_sums(sums, items)
    # Accuracy is a mean, and its draws lie around it. The other two are not: with items drawn twice, bins look worse
    # calibrated than they are. What is wanted of the draws is their spread, so they are moved to where the score is.
    resampled[1:] -= (resampled[1:].mean(1) - found[1:])[:, None]
    return found, resampled


def _draws(found: Floats, resampled: Floats) -> Floats:
    """(draws,) values that the mean over runs might have had; from the scores, (R,), and on drawn items, (draws, R)."""
    draws, runs = resampled.shape
    mean: Floats = resampled.mean(1)  # (draws,)
    if runs == 1:
        return mean.round(FINE)
    value = found.mean()
    luck = mean - value
    # The variance that a run's score owes to luck with the items that the other runs do not share.
    own = (resampled - mean[:, None]).var(0).sum() / (runs - 1)
    shared = np.sqrt(max(0.0, 1 - own / runs / max(luck.var(), 1e-300)))
    spread = np.sqrt(max(found.var(ddof=1), LEAST_SPREAD * own))
    both: Floats = value + shared * luck + spread / np.sqrt(runs) * _student(found - value, draws)
    return both.round(FINE)


def _student(apart: Floats, draws: int) -> Floats:
    """(draws,) values of Student's distribution with R - 1 degrees of freedom, evenly spaced in probability.

    Their order is that of a random weighting of the runs, the same for every arm: where a draw favours seed 3, it does
    so in all of them, and one arm minus another is the mirror image of the other minus the one.
    """
    runs = len(apart)
    weights = np.random.default_rng(SEED + 1).standard_normal((runs, draws))
    values = stats.t.ppf((np.arange(draws) + 0.5) / draws, runs - 1)
    order = np.empty(draws, np.int64)
    order[np.argsort(apart @ weights, kind="stable")] = np.arange(draws)
    return np.asarray(values[order], np.float64)


def _rank(draws: int) -> int:
    """How many of the draws lie outside the interval on each side: it agrees with the p of `_p_value`."""
    return int(np.ceil((1 - LEVEL) / 2 * (draws + 1))) - 2


def _interval(draws: Floats) -> tuple[float, float]:
    ordered = np.sort(draws)
    rank = _rank(len(draws))
    return float(ordered[rank]), float(ordered[-1 - rank])


def _estimate(value: float, draws: Floats, least: float) -> Estimate:
    """The interval is cut where no score can be: that leaves out nothing that could be true."""
    low, high = _interval(draws)
    return Estimate(round(float(value), FINE), max(low, least), min(high, 1.0))


def _p_value(draws: Floats) -> float:
    beyond = min(int((draws <= 0).sum()), int((draws >= 0).sum()))
    return min(1.0, 2 * (beyond + 1) / (len(draws) + 1))


# --- what a study asks ---


def estimate(outcome: ArmPredictions, *, draws: int = DRAWS) -> dict[str, Estimate]:
    """The mean over runs of every metric, with its 95 % interval; with one run, over the test items alone."""
    found, resampled = outcome.resampled(draws)
    return {name: _estimate(found[k].mean(), _draws(found[k], resampled[k]), 0.0) for k, name in enumerate(METRICS)}


def difference(one: ArmPredictions, other: ArmPredictions, *, draws: int = DRAWS) -> Difference:
    """`one` minus `other`, item by item and run by run; a single run stands against each run of the other side."""
    if len(one) != len(other) and 1 not in (len(one), len(other)):
        raise ModelError(f"{len(one)} runs against {len(other)} cannot be paired: use the same seeds for both")
    if not np.array_equal(one.labels, other.labels):
        raise ModelError("two arms can be compared on the same test items alone: their labels differ")
    found, resampled = (a - b for a, b in zip(one.resampled(draws), other.resampled(draws), strict=True))
    luck = [_draws(found[k], resampled[k]) for k in range(len(METRICS))]
    estimates = {name: _estimate(found[k].mean(), luck[k], -1.0) for k, name in enumerate(METRICS)}
    low, high = _interval(luck[0])
    below, above = np.quantile(luck[0], [1 - POWER, POWER])
    return Difference(
        scores=estimates,
        better=float((luck[0] > 0).mean() + (luck[0] == 0).mean() / 2),
        p=_p_value(luck[0]),
        # To leave 0 out with so much power, a difference must exceed half the interval by the luck of such a share.
        detectable=round(float((high - low) / 2 + (above - below) / 2), FINE),
    )


def mcnemar(one: ArrayLike, other: ArrayLike) -> float:
    """The chance that two models that are equally good part ways as unevenly, by the items that only one got right.

    >>> mcnemar([True, True, True, False], [True, False, False, False])
    0.5
    """
    a, b = np.asarray(one, bool), np.asarray(other, bool)
    only_one, only_other = int((a & ~b).sum()), int((b & ~a).sum())
    return min(1.0, 2 * float(stats.binom.cdf(min(only_one, only_other), only_one + only_other, 0.5)))


def beside_the_best(best: ArrayLike, others: Sequence[ArrayLike]) -> tuple[float, ...]:
    """For each of the others the chance to part as unevenly from the best of them all, were all equally good.

    The best was picked for its score, so that any two of them might have been compared: a chance counts as often as
    there are pairs. By Holm alone, one of 24 equally good runs seems worse than the best in a fifth of all tables.

    >>> beside_the_best([True] * 9, [[True] * 9, [False] * 9])
    (1.0, 0.01171875)
    """
    pairs = len(others) * (len(others) + 1) // 2
    return tuple(min(1.0, pairs * mcnemar(best, other)) for other in others)


def holm(ps: Sequence[float]) -> tuple[float, ...]:
    """P-values for several comparisons at once: with all true differences 0, one in twenty studies errs anywhere.

    >>> holm([0.01, 0.04, 0.03])
    (0.03, 0.06, 0.06)
    """
    adjusted = [0.0] * len(ps)
    most = 0.0
    for place, k in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        most = max(most, min(1.0, (len(ps) - place) * ps[k]))
        adjusted[k] = most
    return tuple(adjusted)


def worth(reference: Sequence[tuple[int, ArmPredictions]], arm: ArmPredictions, *, draws: int = DRAWS) -> Worth:
    """At how many labels the reference's learning curve reaches the arm's accuracy.

    `reference` holds each budget's labels, rising, with what came of them. The curve is the mean accuracy, made to
    rise (isotonic regression) and drawn in straight lines over the logarithm of the labels; beyond the last budget
    nothing is guessed.
    """
    budgets = [labels for labels, _ in reference]
    if not budgets or budgets[0] < 1 or sorted(set(budgets)) != budgets:
        raise ModelError(f"a learning curve needs budgets of at least one label, each above the last: found {budgets}")
    sides = [*(outcome for _, outcome in reference), arm]
    found = [side.resampled(draws) for side in sides]
    values = np.array([score[0].mean() for score, _ in found])  # (K + 1,)
    luck = np.stack([_draws(score[0], resampled[0]) for score, resampled in found], axis=1)  # (draws, K + 1)
    logs = np.log(budgets)
    value = float(_reach(logs, values[:-1], values[-1:])[0])
    low, high = _interval(_reach(logs, luck[:, :-1], luck[:, -1]))
    return Worth(_labels(value), _labels(low), _labels(high), at_most=bool(value == logs[0]))


def _labels(log: float) -> float | None:
    return None if np.isinf(log) else round(float(np.exp(log)), 6)


def _reach(logs: Floats, curves: Floats, targets: Floats) -> Floats:
    """(n,) where each curve (n, K) first comes up to its target (n,); infinite where it does not."""
    curves = np.atleast_2d(np.round(_rising(curves), FINE))
    targets = np.round(targets, FINE)
    there = curves >= targets[:, None]
    after = there.argmax(1)
    before = np.maximum(after - 1, 0)
    rows = np.arange(len(curves))
    step = curves[rows, after] - curves[rows, before]
    share = (targets - curves[rows, before]) / np.where(step > 0, step, 1.0)
    between = logs[before] + share * (logs[after] - logs[before])
    return np.where(there.any(1), np.where(after == 0, logs[0], between), np.inf)


def _rising(curves: Floats) -> Floats:
    """The nearest curves that never fall, (…, K): isotonic regression, as a maximum of minima of means."""
    points = curves.shape[-1]
    sums = np.concatenate([np.zeros_like(curves[..., :1]), curves.cumsum(-1)], axis=-1)
    means = np.full((*curves.shape, points), np.inf)
    for i in range(points):
        for j in range(i, points):
            means[..., i, j] = (sums[..., j + 1] - sums[..., i]) / (j + 1 - i)
    rising: list[Any] = [means[..., : k + 1, k:].min(-1).max(-1) for k in range(points)]
    return np.stack(rising, axis=-1)
