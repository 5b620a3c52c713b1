"""Which arm to use: of those that no other is significantly better than, the cheapest to train; a dearer one, where it
is probably better, though that is not significant after correction.

An arm that is not shown to do better than always giving the most frequent label is not among them, unless none is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headstart.runs.comparison import ArmResult, Comparison, valid_accuracy
from headstart.studies.contrasts import PRETRAINED, STUDENTS

SAME_COST = 1.5  # times as long to train is no difference: another machine, or another day, may turn it round
LIKELY = 0.95  # the probability of being better from which an arm is taken though it costs more
# Of cost, where it was not measured.
ORDER = {
    "baseline": 0,
    "frozen": 1,
    "scratch": 2,
    "full": 2,
    "contrastive": 2,
    "ensemble": 3,
    **dict.fromkeys(STUDENTS, 3),
}


@dataclass(frozen=True)
class Recommendation:
    """The arm to use, and the ones to name beside it."""

    arm: ArmResult
    rival: ArmResult | None  # the best of the others, if possible one that it was tested against
    further: ArmResult | None  # one more that a reader would ask about
    beats_majority: bool


def recommend(comparison: Comparison) -> Recommendation | None:
    """None where there is nothing but the most frequent label."""
    arms = [arm for arm in comparison.arms if arm.name != "majority"]
    if not arms:
        return None
    not_worse = [arm for arm in arms if not any(_is_worse(comparison, arm, other) for other in arms)]
    useful = [arm for arm in not_worse if _beats_majority(comparison, arm)]
    eligible = useful or not_worse
    by_cost = _comparable_costs(eligible)
    cheapest = min(by_cost.values())
    best = max((arm for arm in eligible if by_cost[arm.name] <= SAME_COST * cheapest), key=valid_accuracy)
    best = _probably_better(comparison, best, eligible)
    others = _others(arms, best)
    rival = _rival(comparison, best, [arm for arm in others if arm in eligible], others)
    return Recommendation(best, rival, _further(best, rival, others), bool(useful))


def cost_ratio(arm: ArmResult, other: ArmResult) -> float:
    """How many times as long the other takes to train; where that was not measured, by the kind of the arms."""
    costs = _comparable_costs([arm, other])
    return costs[other.name] / costs[arm.name]


def _comparable_costs(arms: Sequence[ArmResult]) -> dict[str, float]:
    """Seconds to train; where they are not known of all, a number that grows with the kind of the arm."""
    seconds = {arm.name: arm.cost.seconds for arm in arms}
    if all(seconds.values()):
        return {name: value for name, value in seconds.items() if value}
    return {arm.name: 10.0 ** ORDER[arm.mode] for arm in arms}


def _is_worse(comparison: Comparison, arm: ArmResult, other: ArmResult) -> bool:
    """By the test of their difference; two that were not tested differ where their intervals do not overlap."""
    difference = comparison.difference(arm.name, other.name)
    if difference is not None:
        return difference.decision == "worse"
    return arm.scores["accuracy"].high < other.scores["accuracy"].low


def _probably_better(comparison: Comparison, best: ArmResult, eligible: Sequence[ArmResult]) -> ArmResult:
    """The one that is most likely better than the cheapest, if it is likely enough and matters."""
    likely = []
    for arm in eligible:
        difference = comparison.difference(arm.name, best.name)
        if difference is not None and difference.decision == "undecided" and difference.better >= LIKELY:
            likely.append((difference.scores["accuracy"].value, arm))
    return max(likely, key=lambda each: each[0], default=(0.0, best))[1]


def _others(arms: Sequence[ArmResult], best: ArmResult) -> list[ArmResult]:
    """What to name beside the best: of a pretrained arm not scratch, which has a paragraph of its own, if possible."""
    others = [arm for arm in arms if arm is not best]
    return [arm for arm in others if best.mode not in (*PRETRAINED, *STUDENTS) or arm.mode != "scratch"] or others


def _rival(
    comparison: Comparison, best: ArmResult, eligible: Sequence[ArmResult], others: Sequence[ArmResult]
) -> ArmResult | None:
    """The most accurate of those that may be as good; else of those that are worse; tested ones first."""
    for pool in (eligible, others):
        tested = [arm for arm in pool if comparison.difference(best.name, arm.name) is not None]
        if tested:
            return max(tested, key=_accuracy)
    majority = [arm for arm in comparison.arms if arm.name == "majority"]
    return max(others or majority, key=_accuracy, default=None)


def _further(best: ArmResult, rival: ArmResult | None, others: Sequence[ArmResult]) -> ArmResult | None:
    """An arm with a higher accuracy than the rival's; else, beside two networks, the linear model."""
    if rival is None:
        return None
    rest = [arm for arm in others if arm is not rival]
    higher = max((arm for arm in rest if _accuracy(arm) > _accuracy(rival)), key=_accuracy, default=None)
    return higher or next((arm for arm in rest if arm.name == "tfidf"), None)


def _accuracy(arm: ArmResult) -> float:
    return arm.scores["accuracy"].value


def _beats_majority(comparison: Comparison, arm: ArmResult) -> bool:
    """Whether the interval of its accuracy lies above what always giving the most frequent label reaches."""
    majority = next((arm for arm in comparison.arms if arm.name == "majority"), None)
    return majority is None or arm.scores["accuracy"].low > _accuracy(majority)
