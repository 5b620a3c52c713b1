"""What a classifier predicts when words are hidden or deleted: weights by occlusion, and a test of any weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headstart.batches.batch import rng
from headstart.batches.examples import EncodedExamples
from headstart.metrics import Floats
from headstart.training.hardware import Precision
from headstart.training.inference import classify
from headstart.use.classifier import TextClassifier, calibrated
from headstart.use.explanation import Faithfulness
from headstart.use.words import TokenizedText

ORDERS = 12  # random orders of deletion
POINTS = 8  # points of a deletion curve


def occlusion(classifier: TextClassifier, text: TokenizedText, label: int) -> Floats:
    """(words,): by how much a label's logit falls when one word is masked, or deleted where there is no mask token."""
    mask = classifier.tokenizer.mask
    words = [text.word_of == number for number in range(len(text.words))]  # each (L,)
    if mask is None:
        predicted = predict_without(classifier, text, [np.zeros_like(text.word_of, dtype=bool), *words])
    else:
        rows = [text.ids, *(np.where(word, mask, text.ids) for word in words)]
        segments = None if text.segments is None else [text.segments] * len(rows)
        predicted = predict_ids(classifier, rows, segments)
    logits = log_odds(predicted, label)
    fall: Floats = logits[0] - logits[1:]
    return fall


def log_odds(log_probabilities: Floats, label: int) -> Floats:
    """(n, C) → (n,): a label's logit, log p / (1 - p).

    >>> log_odds(np.log([[0.25, 0.75], [0.5, 0.5]]), 1).round(3).tolist()  # log 3, log 1
    [1.099, 0.0]
    """
    others = np.delete(log_probabilities, label, axis=1)
    odds: Floats = log_probabilities[:, label] - np.logaddexp.reduce(others, axis=1)
    return odds


def faithfulness(
    classifier: TextClassifier,
    text: TokenizedText,
    label: int,
    weights: Floats,
    *,
    orders: int = ORDERS,
    seed: int = 0,
) -> Faithfulness | None:
    """Delete words by falling weight and see how fast the label's probability falls, compared with random orders.

    Of n words, k are deleted for each k from 1 to n - 1, or for `POINTS` numbers evenly between. The curves meet at
    k = 0 and k = n, so their mean distance is the area between them.
    """
    count = len(text.words)
    if count < 2:
        return None
    deleted = np.unique(np.linspace(1, count - 1, POINTS).round().astype(int))
    generator = rng(seed, count)
    ranked = [np.argsort(-weights, kind="stable"), *(generator.permutation(count) for _ in range(orders))]
    predicted = predict_without(
        classifier, text, [np.isin(text.word_of, order[:k]) for order in ranked for k in deleted]
    )
    probabilities = calibrated(predicted, classifier.temperature)[:, label]
    means = probabilities.reshape(len(ranked), -1).mean(1)  # (1 + orders,)
    std = float(means[1:].std(ddof=1)) if orders > 1 else 0.0
    return Faithfulness(float(means[0]), float(means[1:].mean()), std)


def predict_without(classifier: TextClassifier, text: TokenizedText, deleted: Sequence[NDArray[np.bool_]]) -> Floats:
    """(n, C) log-probabilities of a text without the tokens that each (L,) mask in `deleted` marks."""
    rows = [text.ids[~tokens] for tokens in deleted]
    if any(len(row) == 0 for row in rows):  # no special tokens, and every word deleted: as an empty text
        empty = classifier.encode([""]).ids.astype(np.int64)
        rows = [row if len(row) else empty for row in rows]
    segments = None if text.segments is None else [text.segments[~tokens] for tokens in deleted]
    return predict_ids(classifier, rows, segments)


def predict_ids(
    classifier: TextClassifier, rows: Sequence[NDArray[np.int64]], segments: Sequence[NDArray[np.int64]] | None
) -> Floats:
    """(n, C) log-probabilities of rows of ids, in float32."""
    return classify(classifier.model, EncodedExamples.from_rows(rows, segments), Precision())
