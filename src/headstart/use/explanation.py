"""What an explanation holds, as plain data (no torch): the weight of each word, and how far the weights can be trusted.

A weight is a change in the label's logit, log p / (1 - p) before the temperature: above 0 the word raises the
label's probability, below 0 it lowers it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.reading.examples import Text


@dataclass(frozen=True)
class Word:
    """A word and its position: `text[start:end]`, in the second text of a pair if `second`.

    `weight` lies between `left_out`, what the text loses without the word, and `alone`, what the word adds to a text
    without words. Where the two differ widely, what the word says depends on the words around it.
    """

    text: str
    start: int
    end: int
    second: bool = False
    weight: float = 0.0
    alone: float = 0.0
    left_out: float = 0.0


@dataclass(frozen=True)
class Completeness:
    """The sum of the weights beside the change of the logit, from a text without words to the text."""

    total: float  # sum of the weights
    baseline: float  # logit of the text without words
    logit: float  # logit of the text

    @property
    def change(self) -> float:
        return self.logit - self.baseline

    @property
    def remainder(self) -> float:
        """What the weights miss of the change: what several words say together, or each of them says again."""
        return self.change - self.total


@dataclass(frozen=True)
class Faithfulness:
    """The label's mean probability with the top words deleted (`top`), and with as many random words (`random`).

    `score` is the area between the two deletion curves, from -1 to 1; about 0 is no better than chance.
    """

    top: float
    random: float
    random_std: float  # standard deviation over the random orders

    @property
    def score(self) -> float:
        return self.random - self.top


@dataclass(frozen=True)
class AttentionMaps:
    """`weights[layer, head, i, j]` is how much token i attends to token j. Each row sums to 1."""

    tokens: tuple[str, ...]
    weights: NDArray[np.float32] = field(compare=False, repr=False)  # (layers, H, L, L)
    causal: bool  # everything above the diagonal is 0


@dataclass(frozen=True)
class Explanation:
    """A label, and the weight of each word for it, in the order of the text."""

    text: Text
    label: str
    probabilities: dict[str, float]
    words: tuple[Word, ...]
    completeness: Completeness
    faithfulness: Faithfulness | None  # None for fewer than two words
    truncated: int  # tokens at the end that did not fit into the model's window
    attention: AttentionMaps | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON: what the command line prints and the service answers."""
        is_pair = not isinstance(self.text, str)
        words = []
        for word in self.words:
            entry: dict[str, Any] = {"text": word.text, "start": word.start, "end": word.end}
            entry |= {name: round(getattr(word, name), 5) for name in ("weight", "alone", "left_out")}
            words.append({**entry, "second": word.second} if is_pair else entry)
        sums = self.completeness
        return {
            "label": self.label,
            "probabilities": self.probabilities,
            "words": words,
            "completeness": {name: round(getattr(sums, name), 5) for name in ("total", "change", "baseline", "logit")},
            "faithfulness": self.faithfulness and round(self.faithfulness.score, 4),
            "cut": self.truncated,
        }
