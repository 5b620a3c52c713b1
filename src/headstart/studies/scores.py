"""Scores of a run on its test items: accuracy, macro-F1, expected calibration error, and what each item contributes.

M metrics, I items, C classes
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headstart.metrics import Floats

METRICS = ("accuracy", "macro_f1", "calibration")
BINS = 15  # of the calibration error


def scores(probabilities: Floats, labels: NDArray[np.int64], scaled: Floats | None = None) -> dict[str, float]:
    """Accuracy, macro-F1 and expected calibration error of one run, (I, C); the last of them of `scaled`.

    >>> probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.3, 0.7]])
    >>> {name: round(value, 3) for name, value in scores(probabilities, np.array([0, 1, 1, 1])).items()}
    {'accuracy': 0.75, 'macro_f1': 0.733, 'calibration': 0.3}
    """
    contributions = item_contributions(probabilities, probabilities if scaled is None else scaled, labels)
    return dict(zip(METRICS, map(float, contributions.mean(-1)), strict=True))


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


def item_contributions(probabilities: Floats, scaled: Floats, labels: NDArray[np.int64]) -> Floats:
    """(I, C) → (M, I): contributions whose means over items are accuracy, macro-F1 and calibration error.

    F1 of a class is 2 h / s, with h the share of items that are of it and predicted as it, s the shares that are of it
    and that are predicted as it, added. Linearised around what was found, an item contributes
    F1 + (2 · hit - F1 · (predicted + true)) / s, and the second term is 0 on average.
    """
    classes = np.arange(probabilities.shape[1])
    prediction, confidence = probabilities.argmax(1), scaled.max(1)
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
