"""What an explanation holds, as plain data (no torch): the weight of each word, and how far the weights can be trusted.

A weight is a change in the label's logit, log p / (1 - p) before the temperature: above 0 the word raises the
label's probability, below 0 it lowers it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from headstart.reading.examples import Text

Method = Literal["gradients", "occlusion"]
METHODS: tuple[Method, ...] = get_args(Method)
TOLERANCE = 0.01  # largest relative error allowed between the sum of the weights and the change of the logit
ROUNDING = 1e-4  # a change of the logit below this is float32 rounding


@dataclass(frozen=True)
class Word:
    """A word and its position: `text[start:end]`, in the second text of a pair if `second`."""

    text: str
    start: int
    end: int
    second: bool = False
    weight: float = 0.0


@dataclass(frozen=True)
class Completeness:
    """The check of integrated gradients: the weights must sum to the change of the logit from baseline to text."""

    total: float  # sum of the weights
    baseline: float  # logit where every word is replaced by the baseline token
    logit: float  # logit of the text
    steps: int  # points of the path at which the gradient was taken

    @property
    def change(self) -> float:
        return self.logit - self.baseline

    @property
    def error(self) -> float:
        """The error of the sum, relative to the change."""
        return abs(self.total - self.change) / max(abs(self.change), ROUNDING)

    @property
    def allowed(self) -> float:
        """The largest absolute error allowed."""
        return max(TOLERANCE * abs(self.change), ROUNDING)

    @property
    def holds(self) -> bool:
        return abs(self.total - self.change) <= self.allowed


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
    method: Method
    probabilities: dict[str, float]
    words: tuple[Word, ...]
    completeness: Completeness | None  # None for occlusion, whose weights need not sum to anything
    faithfulness: Faithfulness | None  # None for fewer than two words
    truncated: int  # tokens at the end that did not fit into the model's window
    attention: AttentionMaps | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON: what the command line prints and the service answers."""
        is_pair = not isinstance(self.text, str)
        words = []
        for word in self.words:
            entry = {"text": word.text, "start": word.start, "end": word.end, "weight": round(word.weight, 5)}
            words.append({**entry, "second": word.second} if is_pair else entry)
        completeness = None
        if (check := self.completeness) is not None:
            sums = {"total": round(check.total, 5), "change": round(check.change, 5)}
            completeness = {**sums, "steps": check.steps, "holds": check.holds}
        return {
            "label": self.label,
            "method": self.method,
            "probabilities": self.probabilities,
            "words": words,
            "completeness": completeness,
            "faithfulness": self.faithfulness and round(self.faithfulness.score, 4),
            "cut": self.truncated,
        }
