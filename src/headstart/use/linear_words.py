"""What each word adds to the score of a label in the linear model: exact, since the score is a sum over n-grams.

    linear_words(model, "A tender, witty book.", "pos")
    # (Word('A', 0, 1, weight=-0.02), Word('tender', 2, 8, weight=1.31), …)

The score of a label is set against the mean score of the others; of two labels that is the logit of the label. What an
n-gram adds, weight times value, is shared evenly by its words, or by its characters if it is one of characters. With
the bias, the words add up to the score.
"""

from __future__ import annotations

import numpy as np

from headstart.metrics import Floats
from headstart.reading.examples import Example, Text
from headstart.studies.linear_model import LinearModel
from headstart.use.explanation import Word
from headstart.use.words import group_words


def content(text: Text) -> str:
    """A text, or a pair, as the linear model reads it."""
    first, second = (text, None) if isinstance(text, str) else text
    return Example(first, None, second, "", 0).content


def linear_words(model: LinearModel, text: Text, label: str) -> tuple[Word, ...]:
    """The words of a text, each with what it adds to the score of a label."""
    parts = (text,) if isinstance(text, str) else text
    whole = content(text)
    by_place = _by_place(model, whole, model.class_names.index(label))
    words, begin = [], 0
    for second, part in enumerate(parts):
        for group in group_words(part, [(place, place + 1) for place in range(len(part))]):
            places = [place for place in group if not part[place].isspace()]
            if places:
                start, end = places[0], places[-1] + 1
                weight = float(by_place[begin + start : begin + end].sum())
                words.append(Word(part[start:end], start, end, bool(second), weight))
        begin += len(part) + 1  # the line break between the two
    return tuple(words)


def against_others(model: LinearModel, label: int) -> tuple[Floats, float]:
    """(D,) and a number: weights and bias of a label's score minus the mean score of the others."""
    others = np.arange(len(model.bias)) != label
    weight: Floats = model.weight[label] - model.weight[others].mean(0)
    return weight, float(model.bias[label] - model.bias[others].mean())


def _by_place(model: LinearModel, text: str, label: int) -> Floats:
    """(characters,): what each character of a text adds to a label's score; spaces add nothing."""
    weight, _ = against_others(model, label)
    by_place = [0.0] * len(text)  # a list: single additions to an array take ten times as long
    for feature in model.features(text):
        share = weight[feature.column] * feature.value / len(feature.occurrences)
        for occurrence in feature.occurrences:
            parts = [part for part in occurrence.parts if not text[part[0]].isspace()]
            for part in parts:
                for place in part:
                    by_place[place] += share / len(parts) / len(part)
    return np.array(by_place)
