"""Weights by deletion: what a word says alone, and what the text loses without it.

    alone      the label's logit for the word alone, less that for a text without words
    left_out   the label's logit for the text, less that for the text without the word

A word's weight is a quarter of the first and three quarters of the second: `left_out` misses words that repeat each
other (without one the other still says it), and `alone` misses what words say together. They are the first and the
last term of a Shapley value, which averages over all sets of other words. Words are taken out of the text, so no token
has to stand for "no word". docs/explain.md has how faithful this is, beside other methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from headstart.batches.batch import Ints
from headstart.batches.examples import EncodedExamples
from headstart.metrics import Floats
from headstart.training.inference import classify
from headstart.use.classifier import TextClassifier
from headstart.use.words import TokenizedText

ALONE = 0.25  # share of `alone` in a weight: a text of one word is far from the texts that the model was trained on
TOKENS = 65_536  # read to leave words out: what bounds the time for a long text


@dataclass(frozen=True)
class DeletionWeights:
    """(words,) `alone` and `left_out`, and the label's logit of a text without words and of the text."""

    alone: Floats
    left_out: Floats
    empty: float
    whole: float

    @property
    def weights(self) -> Floats:
        mixed: Floats = ALONE * self.alone + (1 - ALONE) * self.left_out
        return mixed


def deletion_weights(
    classifier: TextClassifier, text: TokenizedText, label: int, *, tokens: int = TOKENS
) -> DeletionWeights:
    """The weights of the words of a text for a label.

    Where leaving out each word in turn would read more than `tokens` tokens, words are left out in groups of
    neighbours, which share what the text loses.
    """
    count = len(text.words)
    groups = max(1, min(count, tokens // len(text.ids)))
    group = np.arange(count) * groups // max(1, count)  # (words,)
    special, by_word = _tokens_by_word(text)
    kept = [np.arange(len(text.ids)), special]  # the text, and the text without words
    kept += [np.sort(np.concatenate([special, own])) for own in by_word]
    group_of = np.append(group, -1)[text.word_of]  # (L,); a special token's word is -1, so it takes the last
    kept += [np.flatnonzero(group_of != number) for number in range(groups)]
    logits = log_odds(predict_kept(classifier, text, kept), label)
    whole, empty, alone, without = logits[0], logits[1], logits[2 : 2 + count], logits[2 + count :]
    alone = alone - empty
    left_out = ((whole - without) / np.maximum(1, np.bincount(group, minlength=groups)))[group]
    return DeletionWeights(alone, left_out, float(empty), float(whole))


def _tokens_by_word(text: TokenizedText) -> tuple[Ints, list[Ints]]:
    """The positions of the special tokens, and of the tokens of each word."""
    order = np.argsort(text.word_of, kind="stable")
    special, *by_word = np.split(order, np.searchsorted(text.word_of[order], np.arange(len(text.words))))
    return special, by_word


def log_odds(log_probabilities: Floats, label: int) -> Floats:
    """(n, C) → (n,): a label's logit, log p / (1 - p).

    >>> log_odds(np.log([[0.25, 0.75], [0.5, 0.5]]), 1).round(3).tolist()  # log 3, log 1
    [1.099, 0.0]
    """
    others = np.delete(log_probabilities, label, axis=1)
    odds: Floats = log_probabilities[:, label] - np.logaddexp.reduce(others, axis=1)
    return odds


def predict_kept(classifier: TextClassifier, text: TokenizedText, kept: Sequence[Ints]) -> Floats:
    """(n, C) log-probabilities, in float32, of a text of which these tokens alone are kept."""
    rows = [text.ids[tokens] for tokens in kept]
    segments = None if text.segments is None else [text.segments[tokens] for tokens in kept]
    if not all(map(len, rows)):  # no word is kept and there are no special tokens: as an empty text
        empty = classifier.encode([""]).ids.astype(np.int64)
        rows = [row if len(row) else empty for row in rows]
        segments = segments and [part if len(part) else np.zeros_like(empty) for part in segments]
    return classify(classifier.model, EncodedExamples.from_rows(rows, segments), torch.float32)
