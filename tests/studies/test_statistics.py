"""The statistics against libraries, against hand computation, and against simulated studies whose truth is known."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from sklearn.metrics import f1_score
from threadpoolctl import threadpool_limits

from headstart.errors import ModelError
from headstart.metrics import macro_f1
from headstart.studies import statistics
from headstart.studies.scores import METRICS, reliability, scores
from headstart.studies.statistics import ArmPredictions, difference, estimate

Floats = NDArray[np.float64]
STUDIES = 1000


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Simulations are thousands of small products, over which threads would only wait for one another."""
    with threadpool_limits(1):
        yield


# --- made-up arms ---


def predictions_of(
    right: NDArray[np.bool_], labels: NDArray[np.int64] | None = None, sure: float = 0.9
) -> ArmPredictions:
    """Two classes, from what each run got right, (R, I); every answer is given with the same probability."""
    labels = np.zeros(right.shape[1], np.int64) if labels is None else labels
    answers = np.where(right, labels, 1 - labels)
    return ArmPredictions(np.where(answers[..., None] == np.arange(2), sure, 1 - sure), labels)


def exact(accuracy: float, items: int = 1000, runs: int = 1) -> ArmPredictions:
    return predictions_of(np.tile(np.arange(items) < round(accuracy * items), (runs, 1)))


def simulated(
    rng: np.random.Generator, arms: list[float], runs: int, items: int, sd: ArrayLike, shared: float = 0.6
) -> list[ArmPredictions]:
    """One study: the predictions of an arm for each arm's true accuracy.

    A run's own accuracy is drawn around its arm's with the standard deviation `sd`, of all or of each. An item is as
    hard as it is for every run of every arm: that is a share of what decides whether a run gets it right, and its own
    luck is the rest.
    """
    hard = rng.normal(size=items)
    labels = rng.integers(2, size=items)
    found = []
    for accuracy, of_arm in zip(arms, np.broadcast_to(sd, len(arms)), strict=True):
        skill = stats.norm.ppf(np.clip(rng.normal(accuracy, of_arm, runs), 0.001, 0.999))[:, None]
        luck = rng.normal(size=(runs, items))
        right = skill + np.sqrt(shared) * hard + np.sqrt(1 - shared) * luck > 0
        sure = rng.uniform(0.5, 1, size=(runs, items))
        answers = np.where(right, labels, 1 - labels)
        found.append(
            ArmPredictions(np.where(answers[..., None] == np.arange(2), sure[..., None], 1 - sure[..., None]), labels)
        )
    return found


def coverage(runs: int, items: int, sd: float, *, shared: float = 0.6, seed: int = 0) -> tuple[float, float]:
    """In how many of 100 studies the interval holds the truth: of an arm at 0.80, and of one at 0.82 minus it."""
    rng = np.random.default_rng(seed)
    held = np.zeros(2)
    for _ in range(STUDIES):
        one, other = simulated(rng, [0.82, 0.80], runs, items, sd, shared)
        level = estimate(other)["accuracy"]
        apart = difference(one, other).scores["accuracy"]
        held += [level.low <= 0.80 <= level.high, apart.low <= 0.02 <= apart.high]
    return float(held[0] / STUDIES * 100), float(held[1] / STUDIES * 100)


def called_different(runs: int, items: int, sd: float) -> float:
    """The share of studies of two arms that are the same in truth in which p is below 0.05."""
    rng = np.random.default_rng(11)
    ps = [difference(*simulated(rng, [0.8, 0.8], runs, items, sd)).p for _ in range(STUDIES)]
    return float(np.mean(np.array(ps) < 0.05))


# --- scores ---

ANSWERS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40)


@given(ANSWERS)
def test_scores_are_those_of_training_and_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    labels, predicted = np.array(pairs).T
    found = scores(np.eye(4)[predicted], labels)
    assert tuple(found) == METRICS
    assert found["accuracy"] == pytest.approx((labels == predicted).mean())
    assert found["macro_f1"] == pytest.approx(macro_f1(predicted, labels, 4))
    assert found["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro", zero_division=0.0))
    assert found["calibration"] == pytest.approx((labels != predicted).mean())  # always sure: wrong by how often wrong


def test_calibration_by_hand() -> None:
    # Bins are fifteenths: 0.72 and 0.70 share (10/15, 11/15], 0.95 and 0.52 are alone in theirs.
    sure = np.array([0.72, 0.70, 0.95, 0.52])
    labels = np.array([0, 1, 0, 1])  # right, wrong, right, wrong: all answer 0
    probabilities = np.stack([sure, 1 - sure], axis=1)
    # |1.42 - 1| + |0.95 - 1| + |0.52 - 0|, over four items
    assert scores(probabilities, labels)["calibration"] == pytest.approx((0.42 + 0.05 + 0.52) / 4)
    expected = np.array([(0.52, 0.0, 1), (0.71, 0.5, 2), (0.95, 1.0, 1)])
    assert np.array(reliability(probabilities, labels)) == pytest.approx(expected)


def test_reliability_pools_runs_and_a_bin_holds_its_upper_edge() -> None:
    runs = np.array([[[0.6, 0.4], [0.61, 0.39]], [[0.55, 0.45], [1.0, 0.0]]])
    found = reliability(runs, np.array([0, 1]), bins=5)
    assert np.array(found) == pytest.approx(np.array([(0.575, 1.0, 2), (0.61, 0.0, 1), (1.0, 0.0, 1)]))


def test_calibration_error_is_what_the_diagram_shows() -> None:
    rng = np.random.default_rng(0)
    probabilities, labels = rng.dirichlet(np.ones(3), 200), rng.integers(3, size=200)
    by_bin = sum(abs(sure - right) * count for sure, right, count in reliability(probabilities, labels))
    assert scores(probabilities, labels)["calibration"] == pytest.approx(by_bin / 200)


# --- the predictions of an arm ---


@pytest.mark.parametrize(
    ("probabilities", "labels", "words"),
    [
        (np.ones((3, 2)), np.zeros(3, int), r"shape \(runs, items, classes\).*found \(3, 2\) and \(3,\)"),
        (np.ones((1, 3, 2)), np.zeros(4, int), r"found \(1, 3, 2\) and \(4,\)"),
        (np.ones((0, 3, 2)), np.zeros(3, int), r"found \(0, 3, 2\)"),
        (np.ones((1, 3, 2)), np.array([0, 1, 2]), "labels are 0 to 1: found 0 to 2"),
        (np.ones((1, 3, 2)), np.array([0, -1, 1]), "labels are 0 to 1: found -1 to 1"),
        (np.full((1, 3, 2), np.nan), np.zeros(3, int), "a probability is no number"),
    ],
)
def test_predictions_of_the_wrong_shape_are_refused(
    probabilities: Floats, labels: NDArray[np.int64], words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        ArmPredictions(probabilities, labels)


def test_without_items() -> None:
    arm = predictions_of(np.array([[True, False, True, False]]))
    assert estimate(arm.without([1, 3]))["accuracy"].value == 1
    assert estimate(arm.without([]))["accuracy"].value == 0.5


# --- an estimate ---


def test_the_value_is_the_mean_over_runs_of_each_score() -> None:
    (arm,) = simulated(np.random.default_rng(1), [0.7], runs=3, items=50, sd=0.05)
    by_run = [scores(run, arm.labels) for run in arm.probabilities]
    for name, found in estimate(arm).items():
        assert found.value == pytest.approx(np.mean([run[name] for run in by_run]))
        assert found.low < found.value < found.high


def test_the_same_inputs_give_the_same_numbers() -> None:
    first, again = (simulated(np.random.default_rng(2), [0.8, 0.7], 3, 60, 0.02) for _ in range(2))
    assert estimate(first[0]) == estimate(again[0])
    assert difference(*first) == difference(*again)


@given(st.integers(1, 80), st.floats(0, 1))
def test_one_run_is_the_interval_of_agresti_and_coull(items: int, share: float) -> None:
    """That of a mean of items and pseudo-items, with Student's quantile for the normal one."""
    right = np.arange(items) < round(share * items)
    mean = (right.sum() + 2) / (items + 4)
    half = stats.t.ppf(0.975, items + 3) * np.sqrt(mean * (1 - mean) / (items + 3))
    found = estimate(predictions_of(right[None]))["accuracy"]
    assert found.value == pytest.approx(right.mean())
    assert (found.low, found.high) == pytest.approx((max(mean - half, 0), min(mean + half, 1)))


@pytest.mark.parametrize("accuracy", [0.0, 1.0])
def test_a_run_without_a_mistake_has_an_interval_with_width(accuracy: float) -> None:
    found = estimate(exact(accuracy, items=60))["accuracy"]
    assert found.value == accuracy
    assert 0.05 < found.high - found.low < 0.15
    assert 0 <= found.low <= found.value <= found.high <= 1


def test_macro_f1_is_scipys_bootstrap_over_items() -> None:
    rng = np.random.default_rng(5)
    labels = rng.integers(3, size=300)
    predicted = np.where(rng.random(300) < 0.7, labels, rng.integers(3, size=300))
    found = estimate(ArmPredictions(np.eye(3)[predicted][None], labels))["macro_f1"]
    theirs = stats.bootstrap(
        (predicted, labels),
        lambda p, t: macro_f1(p, t, 3),
        n_resamples=2000,
        paired=True,
        vectorized=False,
        method="percentile",
        rng=0,
    )
    assert found.low == pytest.approx(theirs.confidence_interval.low, abs=0.2 * theirs.standard_error)
    assert found.high == pytest.approx(theirs.confidence_interval.high, abs=0.2 * theirs.standard_error)


@pytest.mark.parametrize("runs", [2, 3, 5, 10])
def test_where_only_the_seeds_of_one_arm_vary_it_is_students_interval(runs: int) -> None:
    """20,000 items that every run gets right in the same order of difficulty, and runs that are far apart."""
    accuracies, items = np.linspace(0.3, 0.7, runs), 20_000
    right = np.arange(items) < (accuracies * items).round()[:, None]
    theirs = stats.ttest_1samp(accuracies, 0.5).confidence_interval(0.95)
    found = estimate(predictions_of(right))["accuracy"]
    assert (found.low, found.high) == pytest.approx((max(theirs.low, 0), min(theirs.high, 1)), abs=0.03)


def test_an_interval_ends_where_scores_end() -> None:
    found = estimate(predictions_of(np.arange(50) < np.array([[50], [30]])))["accuracy"]
    assert (found.low, found.high) == (0.0, 1.0)  # two seeds, far apart: Student's distribution has no bounds


# --- a difference ---


def test_identical_arms_do_not_differ() -> None:
    (arm,) = simulated(np.random.default_rng(6), [0.8], runs=5, items=100, sd=0.02)
    found = difference(arm, arm)
    assert all(each.value == 0 and each.low <= 0 <= each.high for each in found.scores.values())
    assert (found.p, found.better) == (1.0, 0.5)


def test_a_difference_of_single_runs_is_that_of_bonett_and_price() -> None:
    one, other = simulated(np.random.default_rng(8), [0.8, 0.75], runs=1, items=200, sd=0)
    right, wrong = (arm.probabilities[0].argmax(1) == arm.labels for arm in (one, other))
    only_one, only_other = ((right & ~wrong).sum() + 1) / 202, ((wrong & ~right).sum() + 1) / 202
    half = stats.t.ppf(0.975, 201) * np.sqrt((only_one + only_other - (only_one - only_other) ** 2) / 201)
    found = difference(one, other).scores["accuracy"]
    assert (found.low, found.high) == pytest.approx((only_one - only_other - half, only_one - only_other + half))


def test_arms_may_have_other_numbers_of_runs_unless_they_are_paired() -> None:
    one, two, three = (simulated(np.random.default_rng(9), [0.8], runs, 20, 0)[0] for runs in (1, 2, 3))
    assert difference(three, two).scores["accuracy"].low < 0
    with pytest.raises(ModelError, match="3 runs against 2 cannot be paired"):
        difference(three, two, paired=True)
    with pytest.raises(ModelError, match="on the same test items alone"):
        difference(one, ArmPredictions(one.probabilities, 1 - one.labels))


def test_runs_that_rise_and_fall_together_are_worth_pairing() -> None:
    """The k-th runs of both arms learned from the same few labels: some were better than others."""
    rng = np.random.default_rng(10)
    level = np.linspace(0.55, 0.85, 5)
    arms = [np.stack([rng.random(2000) < each + gap for each in level]) for gap in (0.05, 0.0)]
    one, other = map(predictions_of, arms)
    apart, together = (difference(one, other, paired=paired).scores["accuracy"] for paired in (False, True))
    assert together.high - together.low < 0.5 * (apart.high - apart.low)
    assert together.low < 0.05 < together.high


def test_detectable_over_items_is_the_textbooks() -> None:
    """(1.96 + 0.84) standard errors of the paired difference, for two single models."""
    one, other = simulated(np.random.default_rng(10), [0.8, 0.78], runs=1, items=2000, sd=0)
    right = [(arm.probabilities[0].argmax(1) == arm.labels).astype(float) for arm in (one, other)]
    error = (right[0] - right[1]).std() / np.sqrt(2000)
    expected = (NormalDist().inv_cdf(0.975) + NormalDist().inv_cdf(0.8)) * error
    assert difference(one, other).detectable == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("level", [0.9, 0.99])
def test_an_interval_at_another_level(level: float) -> None:
    one, other = simulated(np.random.default_rng(12), [0.8, 0.7], runs=3, items=300, sd=0.01)
    at_level, usual = (difference(one, other, level=each).scores["accuracy"] for each in (level, 0.95))
    assert (at_level.high - at_level.low > usual.high - usual.low) == (level > 0.95)


def test_a_difference_is_the_mirror_of_its_opposite() -> None:
    one, other = simulated(np.random.default_rng(7), [0.8, 0.77], runs=3, items=200, sd=0.02)
    there, back = difference(one, other), difference(other, one)
    for name in METRICS:
        assert there.scores[name].value == pytest.approx(-back.scores[name].value)
        assert there.scores[name].low == pytest.approx(-back.scores[name].high)
    assert there.better == pytest.approx(1 - back.better)
    assert there.p == back.p
    assert there.detectable == pytest.approx(back.detectable)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from([5, 20, 100]))
def test_p_is_below_5_percent_exactly_where_the_interval_leaves_0_out(seed: int, runs: int, items: int) -> None:
    one, other = simulated(np.random.default_rng(seed), [0.85, 0.7], runs, items, 0.02)
    found = difference(one, other)
    apart = found.scores["accuracy"]
    assert (found.p < 0.05) == (apart.low > 0 or apart.high < 0)
    assert 0 < found.p <= 1
    assert 0 <= found.better <= 1
    assert apart.low <= apart.value <= apart.high


def test_half_widths_by_hand() -> None:
    """Student's 95 % point is 1.96 for the items and 4.30 for three seeds."""
    seeds = statistics.SeedVariance(excess=1e-4, raw=1e-4, own=0.0, df=2)
    one = statistics.Mean(0.0, 0.0, items=4e-4, items_df=10**6, seeds=(seeds,))
    assert one.half_width() == pytest.approx((1.96**2 * 4e-4 + 4.303**2 * 1e-4) ** 0.5, rel=1e-3)
    two = statistics.Mean(0.0, 0.0, items=4e-4, items_df=10**6, seeds=(seeds, seeds))
    satterthwaite = stats.t.ppf(0.975, 6e-4**2 / 1e-8) * 6e-4**0.5  # of (4 + 1 + 1)² / (1² / 2 + 1² / 2) degrees
    squares = (1.96**2 * 4e-4 + 2 * 4.303**2 * 1e-4) ** 0.5
    assert two.half_width() == pytest.approx((satterthwaite + squares) / 2, rel=1e-3)


# --- studies of other sizes ---


@pytest.mark.parametrize(("runs", "other_runs"), [(5, 5), (4, 1)])
def test_the_components_give_back_the_variance(runs: int, other_runs: int) -> None:
    """Of the study that they were taken from: expected_mean with its own size is its own interval."""
    rng = np.random.default_rng(15)
    (one,), (other,) = (simulated(rng, [0.8], count, 400, 0.02) for count in (runs, other_runs))
    other = ArmPredictions(other.probabilities, one.labels)
    mean = difference(one, other).accuracy
    again = statistics.expected_mean(mean.components, 402, runs)  # with the two pseudo-items
    assert again.variance == pytest.approx(mean.variance)
    assert again.half_width() == pytest.approx(mean.half_width(), rel=0.01)  # whose S² may be below what is expected


def test_the_components_foretell_a_larger_study() -> None:
    rng = np.random.default_rng(16)
    pilots = [difference(*simulated(rng, [0.8, 0.8], 5, 400, 0.02)).accuracy.components for _ in range(100)]
    foretold = np.mean([statistics.expected_mean(each, 1600, 10).variance for each in pilots])
    larger = [difference(*simulated(rng, [0.8, 0.8], 10, 1600, 0.02)).scores["accuracy"].value for _ in range(400)]
    assert foretold == pytest.approx(np.var(larger), rel=0.25)


# --- simulated studies, whose truth is known ---


@pytest.mark.parametrize(("runs", "items", "sd"), [(3, 100, 0.03), (5, 200, 0.01)])
def test_intervals_hold_the_truth(runs: int, items: int, sd: float) -> None:
    for held in coverage(runs, items, sd):
        assert 92 <= held <= 99


@pytest.mark.slow
@pytest.mark.parametrize(("runs", "sd", "items"), [*product([3, 5, 10], [0.0, 0.01, 0.03], [100, 400, 2000])])
def test_intervals_hold_the_truth_everywhere(runs: int, sd: float, items: int) -> None:
    """With `-s` it prints a row for each."""
    level, apart = coverage(runs, items, sd)
    print(f"\n| {runs} | {sd * 100:.0f} | {items:,} | {level:.1f} | {apart:.1f} |")  # noqa: T201
    assert 92 <= level <= 99
    assert 92 <= apart <= 99


@pytest.mark.slow
@pytest.mark.parametrize("shared", [0.3, 0.9])
def test_intervals_hold_the_truth_whether_runs_agree_or_not(shared: float) -> None:
    for held in coverage(5, 400, 0.01, shared=shared):
        assert 92 <= held <= 99


@pytest.mark.slow
def test_intervals_of_the_other_scores_hold_what_is_measured_on_average() -> None:
    rng = np.random.default_rng(12)
    found = [estimate(*simulated(rng, [0.8], 5, 400, 0.01)) for _ in range(STUDIES)]
    for name in ("macro_f1", "calibration"):
        truth = np.mean([study[name].value for study in found])
        assert 92 <= np.mean([study[name].low <= truth <= study[name].high for study in found]) * 100 <= 98


@pytest.mark.parametrize(("runs", "items", "sd"), [(3, 100, 0.0), (5, 100, 0.03)])
def test_arms_that_are_the_same_in_truth_are_called_different_in_at_most_5_of_100(
    runs: int, items: int, sd: float
) -> None:
    assert 0.005 < called_different(runs, items, sd) <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize(("runs", "items", "sd"), [(1, 400, 0.0), (3, 2000, 0.0), (5, 400, 0.01), (10, 2000, 0.03)])
def test_arms_that_are_the_same_in_truth_are_seldom_called_different_elsewhere(
    runs: int, items: int, sd: float
) -> None:
    assert 0.005 < called_different(runs, items, sd) <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize(("runs", "items", "sd"), [(1, 1000, 0.0), (5, 400, 0.01), (5, 2000, 0.03)])
def test_a_difference_that_is_called_detectable_is_seen_four_times_in_five(runs: int, items: int, sd: float) -> None:
    rng = np.random.default_rng(13)
    sizes = [difference(*simulated(rng, [0.8, 0.8], runs, items, sd)).detectable for _ in range(300)]
    arms = [0.8 + float(np.mean(sizes)), 0.8]
    seen = [difference(*simulated(rng, arms, runs, items, sd)).p < 0.05 for _ in range(STUDIES)]
    assert 0.72 <= np.mean(seen) <= 0.9
