"""Families of questions: the difference of each pair of arms, at the level at which Holm's procedure decides it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headstart.runs.comparison import ALPHA, Decision, DifferenceResult, Estimate
from headstart.studies import statistics
from headstart.studies.contrasts import Contrasts, Pair
from headstart.studies.corrections import holm, holm_levels, mcnemar
from headstart.studies.statistics import ArmPredictions, Difference


def compare_pairs(
    contrasts: Contrasts,
    predictions: Mapping[str, ArmPredictions],
    leak_free: Mapping[str, ArmPredictions],
    subsets: Mapping[str, Sequence[int]],
    alpha: float = ALPHA,
    matters: float = 0.0,
) -> tuple[DifferenceResult, ...]:
    """The primary differences, then the secondary ones, each family with Holm's correction of its own.

    `leak_free` is empty where no test row stands in train or valid. `subsets` are, for each arm, the seeds that drew
    its labelled texts: two arms with the same ones are paired. `alpha` is the error rate of a family.
    """
    results: list[DifferenceResult] = []
    for pairs in (contrasts.primary, contrasts.secondary):
        all_rows = _decide(pairs, predictions, subsets, alpha)
        without_leaks = _decide(pairs, leak_free, subsets, alpha) if leak_free else [None] * len(pairs)
        for (arm, reference), (difference, corrected), free in zip(pairs, all_rows, without_leaks, strict=True):
            one, other = predictions[arm], predictions[reference]
            results.append(
                DifferenceResult(
                    arm=arm,
                    reference=reference,
                    scores=difference.scores,
                    better=difference.better,
                    p=difference.p,
                    holm=corrected,
                    detectable=difference.detectable,
                    mcnemar=mcnemar(_correct(one), _correct(other)) if len(one) == len(other) == 1 else None,
                    leak_free=free and free[0].scores,
                    primary=pairs is contrasts.primary,
                    level=difference.level,
                    decision=decide(difference.scores["accuracy"], matters),
                    leak_free_p=free and free[1],
                    leak_free_level=free and free[0].level,
                    components=difference.accuracy.components,
                )
            )
    return tuple(results)


def decide(difference: Estimate, matters: float = 0.0) -> Decision:
    """What the interval of a difference says; `matters` is the smallest difference that counts.

    >>> [decide(Estimate(0.01, low, 0.03), matters=0.02) for low in (-0.01, 0.005)]
    ['undecided', 'better']
    >>> [decide(Estimate(0.01, low, 0.015), matters=0.02) for low in (-0.01, 0.005)]
    ['equivalent', 'equivalent']
    """
    if -matters < difference.low and difference.high < matters:
        return "equivalent"
    if difference.low > 0:
        return "better"
    return "worse" if difference.high < 0 else "undecided"


def _decide(
    pairs: Sequence[Pair],
    predictions: Mapping[str, ArmPredictions],
    subsets: Mapping[str, Sequence[int]],
    alpha: float,
) -> list[tuple[Difference, float]]:
    """The differences of a family, each at its level, with its corrected p: below 0.05 where they are significant."""
    differences = [
        statistics.difference(
            predictions[arm],
            predictions[reference],
            paired=bool(subsets[arm]) and subsets[arm] == subsets[reference],  # they learned from the same texts
        )
        for arm, reference in pairs
    ]
    ps = [difference.p for difference in differences]
    levels, corrected = holm_levels(ps, alpha), holm(ps)
    return [
        (replace(difference, level=level), min(1.0, p * ALPHA / alpha))
        for difference, level, p in zip(differences, levels, corrected, strict=True)
    ]


def _correct(predictions: ArmPredictions) -> NDArray[np.bool_]:
    correct: NDArray[np.bool_] = predictions.probabilities[0].argmax(1) == predictions.labels
    return correct
