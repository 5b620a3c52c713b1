"""How good answers are: accuracy, macro-F1, mean loss, and the temperature that calibrates. In numpy, without torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Scores = dict[str, float]


def score(log_probabilities: Floats, labels: NDArray[np.int64]) -> Scores:
    """Accuracy, macro-F1 and mean loss of (n, C) log-probabilities.

    >>> log_probabilities = np.log([[0.9, 0.1], [0.6, 0.4]])
    >>> {name: round(value, 3) for name, value in score(log_probabilities, np.array([0, 1])).items()}
    {'accuracy': 0.5, 'macro_f1': 0.333, 'loss': 0.511}
    """
    predicted = log_probabilities.argmax(1)
    return {
        "accuracy": float((predicted == labels).mean()),
        "macro_f1": macro_f1(predicted, labels, log_probabilities.shape[1]),
        "loss": float(-log_probabilities[np.arange(len(labels)), labels].mean()),
    }


def macro_f1(predicted: NDArray[np.int64], labels: NDArray[np.int64], classes: int) -> float:
    """The mean over classes of F1; a class that is neither there nor predicted is left out."""
    counts = (np.bincount(ids, minlength=classes) for ids in (labels[predicted == labels], predicted, labels))
    return float(macro_f1_from_counts(*counts))


def macro_f1_from_counts(hits: ArrayLike, predicted: ArrayLike, labels: ArrayLike) -> Floats:
    """(…, C) → (…): macro-F1 from how often each class was predicted rightly, was predicted, and is there."""
    either = np.add(predicted, labels)
    there = either > 0
    f1 = 2 * np.asarray(hits) / np.where(there, either, 1)
    return np.asarray(f1.sum(-1) / there.sum(-1))


def softmax(logits: Floats) -> Floats:
    """(n, C) → (n, C): scipy's `softmax(logits, axis=1)`, whose import takes longer than a prediction.

    >>> softmax(np.log([[1.0, 3.0]])).round(2).tolist()
    [[0.25, 0.75]]
    """
    powers = np.exp(logits - logits.max(1, keepdims=True))
    result: Floats = powers / powers.sum(1, keepdims=True)
    return result


def fit_temperature(log_probabilities: Floats, labels: NDArray[np.int64]) -> float:
    """What to divide logits by so that the loss is least on these rows.

    Each right class counts as almost certain, short of it by one row in n + 2: a set without a mistake would ask for
    a temperature of zero.

    >>> rows = np.log([[0.99, 0.01]] * 3 + [[0.01, 0.99]])
    >>> round(fit_temperature(rows, np.array([0, 0, 0, 0])), 1)  # three right of four, and 99 % sure of each
    5.2
    """
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax

    count, classes = log_probabilities.shape
    targets = np.full((count, classes), 1 / (count + 2) / classes)
    targets[np.arange(count), labels] += 1 - 1 / (count + 2)

    def loss(log_temperature: float) -> float:
        return float(-(targets * log_softmax(log_probabilities / np.exp(log_temperature), axis=1)).sum())

    bounds = np.log([0.001, 50])  # a linear model with a strong penalty needs a hundredth
    return float(np.exp(minimize_scalar(loss, bounds=bounds, method="bounded").x))


def temperature_scaled(probabilities: Floats, valid: Floats, labels: NDArray[np.int64]) -> Floats:
    """Probabilities (n, C) after temperature scaling, with the temperature that fits the probabilities on valid.

    >>> sure = np.array([[0.99, 0.01]] * 3 + [[0.01, 0.99]])
    >>> float(temperature_scaled(sure, sure, np.array([0, 0, 0, 0])).max().round(2))  # three right of four
    0.71
    """
    test_logs, valid_logs = (np.log(np.maximum(each.astype(np.float64), 1e-12)) for each in (probabilities, valid))
    return softmax(test_logs / fit_temperature(valid_logs, labels))
