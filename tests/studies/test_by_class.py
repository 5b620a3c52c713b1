from __future__ import annotations

import numpy as np
import pytest

from headstart.studies.by_class import class_differences
from headstart.studies.statistics import ArmPredictions

LABELS = np.repeat([0, 1, 2], [100, 60, 40])
NAMES = ("sport", "politics", "music", "never there")


def arm(right: dict[int, int], runs: int = 3) -> ArmPredictions:
    """Right on the first so many texts of each class, in every run; else it answers with the class after."""
    predicted = (LABELS + 1) % 4
    for k, count in right.items():
        predicted[np.flatnonzero(k == LABELS)[:count]] = k
    probabilities = np.full((len(LABELS), 4), 0.1)
    probabilities[np.arange(len(LABELS)), predicted] = 0.7
    return ArmPredictions(np.stack([probabilities] * runs), LABELS)


def test_recall_and_differences_of_each_class() -> None:
    found = class_differences(arm({0: 90, 1: 30, 2: 20}), arm({0: 50, 1: 30, 2: 22}), NAMES)
    assert [each.class_name for each in found] == ["sport", "politics", "music"]  # of the fourth there is no text
    assert [each.rows for each in found] == [100, 60, 40]
    assert [(each.one, each.other) for each in found] == [(0.9, 0.5), (0.5, 0.5), (0.5, 0.55)]
    assert [each.difference.value for each in found] == pytest.approx([0.4, 0.0, -0.05])


def test_intervals_agree_with_the_corrected_p() -> None:
    rng = np.random.default_rng(3)
    significant = 0
    for _ in range(40):
        one, other = ({k: int(rng.integers(10, 40)) for k in range(3)} for _ in range(2))
        for each in class_differences(arm(one), arm(other), NAMES):
            excludes_zero = each.difference.low > 0 or each.difference.high < 0
            assert excludes_zero == (each.holm < 0.05)
            significant += excludes_zero
    assert 20 < significant < 100


def test_classes_that_are_the_same_are_rarely_called_different() -> None:
    """By Holm, at most one of twenty studies of many classes finds a class that differs."""
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 8, 400)
    mistaken = 0
    for _ in range(60):
        predicted = np.where(rng.random((2, 3, 400)) < 0.7, labels, (labels + 1) % 8)
        one, other = (ArmPredictions(np.eye(8)[each], labels) for each in predicted)
        mistaken += any(each.holm < 0.05 for each in class_differences(one, other, tuple("abcdefgh")))
    assert mistaken <= 8
