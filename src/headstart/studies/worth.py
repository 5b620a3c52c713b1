"""Label worth: how many labels a reference needs, at least, to do as well as another arm.

More labels do not make the reference worse. So if it is worse than the arm with n labels, it needs more than n, and the
budgets are tested from the smallest up until one is not significantly worse. The first test that could be wrong
is wrong in at most 5 of 100 studies, and so is the answer.

Between the last budget that is worse and the next, the learning curve over the logarithm of the labels is not known.
One that flattens lies below the line through the two budgets before (between the first two: through the two after), and
the arm must be significantly better than that line. One that gets steeper may rise anywhere in between: nothing is read
there.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

import numpy as np

from headstart.errors import ModelError
from headstart.studies.statistics import LEVEL, ArmPredictions, weighted_mean

LEAST_BUDGETS = 4  # that the curve is read between
STEPS = 64  # between two budgets
Curve = Sequence[tuple[int, ArmPredictions]]


def least_worth(curve: Curve, arm: ArmPredictions) -> float | None:
    """How many labels the reference needs at least to be as accurate as the arm, at 95 % (one-sided).

    `curve` holds the reference at each label budget, in rising order. None where it is not significantly worse with
    its smallest budget; the largest budget where it is worse with that.
    """
    budgets = [budget for budget, _ in curve]
    if not budgets or budgets[0] < 1 or sorted(set(budgets)) != budgets:
        raise ModelError(f"a learning curve needs budgets of at least one label, each above the last: found {budgets}")
    points = [each for _, each in curve]
    worse = [_is_better(arm, [(1.0, each)]) for each in points]
    last = (worse.index(False) if False in worse else len(worse)) - 1
    if last < 0:
        return None
    logs = [log(budget) for budget in budgets]
    if last == len(curve) - 1 or len(curve) < LEAST_BUDGETS or not _flattens(logs, points, last):
        return float(budgets[last])
    i, j = (last - 1, last) if last > 0 else (1, 2)
    low = logs[last]
    for x in np.linspace(logs[last], logs[last + 1], STEPS + 1)[1:-1]:
        share = float(x - logs[i]) / (logs[j] - logs[i])  # beyond 0 to 1: the line is extended
        if not _is_better(arm, [(1 - share, points[i]), (share, points[j])]):
            break
        low = float(x)
    return exp(low)


def _flattens(logs: Sequence[float], points: Sequence[ArmPredictions], last: int) -> bool:
    """Whether the curve is no steeper after the middle one of three points, two of them `last` and the next."""
    first = max(last - 1, 0)
    accuracies = [float(each.contributions[0].mean()) for each in points[first : first + 3]]
    before, after = np.diff(accuracies) / np.diff(logs[first : first + 3])
    return bool(after <= before)


def _is_better(arm: ArmPredictions, reference: Sequence[tuple[float, ArmPredictions]]) -> bool:
    """One-sided, at 95 %: the end of a two-sided interval at 90 %."""
    mean = weighted_mean([(1.0, arm), *((-weight, each) for weight, each in reference)])
    return mean.center > mean.half_width(2 * LEVEL - 1)
