"""Tests of two single models, and corrections for the number of tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike


def mcnemar(one: ArrayLike, other: ArrayLike) -> float:
    """The exact p of McNemar's test of two models, by the items that only one of them got right.

    >>> mcnemar([True, True, True, False], [True, False, False, False])
    0.5
    """
    from scipy.special import bdtr as binomial_cdf  # scipy.stats has it too, and takes most of a second to import

    a, b = np.asarray(one, bool), np.asarray(other, bool)
    only_one, only_other = int((a & ~b).sum()), int((b & ~a).sum())
    return min(1.0, 2 * float(binomial_cdf(min(only_one, only_other), only_one + only_other, 0.5)))


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


def holm_levels(ps: Sequence[float], alpha: float) -> tuple[float, ...]:
    """The level at which Holm's procedure decides each: an interval at it excludes 0 exactly where it rejects.

    The k-th smallest of m p-values is tested at alpha / (m - k + 1). The first that is not rejected ends the
    procedure, and all after it stay at its level.

    >>> holm_levels([0.01, 0.04, 0.03], 0.06)  # 0.01 at 0.02, 0.03 at 0.03: no longer below, so it ends
    (0.98, 0.97, 0.97)
    """
    levels = [0.0] * len(ps)
    going_on, tested_at = True, alpha
    for rank, k in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        if going_on:
            tested_at = alpha / (len(ps) - rank)
            going_on = ps[k] < tested_at
        levels[k] = 1 - tested_at
    return tuple(levels)
