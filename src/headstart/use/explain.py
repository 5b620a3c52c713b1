"""Which words decided: the weight of each word of a text for a label, and how far the weights can be believed.

    explain(reviews, "A tender, witty book.")
    # Explanation(label='pos', words=(Word('A', 0, 1, weight=0.02), Word('tender', 2, 8, weight=1.71), …), …)

A weight is in the label's logit, log p / (1 - p) before the temperature: above 0 the word speaks for the label, below 0
against it. Two methods give weights:

    gradients   integrated gradients (Sundararajan, Taly & Yan 2017): every token goes along a straight line from the
                token that stands for no word to itself, and what the logit gains on the way is shared among tokens.
                The shares add up to the whole change of the logit, which is checked (`Completeness`).
    occlusion   what the logit loses when the word alone is hidden.

Neither can be taken on trust. So every explanation says how much faster the label's probability falls when the top
words are deleted than when as many random ones are (`Faithfulness`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from threading import get_ident
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headstart.batches.batch import rng
from headstart.batches.encoding import EncodedExamples
from headstart.errors import ConfigError, ModelError, did_you_mean
from headstart.metrics import Floats
from headstart.model.attention import Attention, plain_attention, square_mask
from headstart.model.layout import Flat
from headstart.model.positions import turn
from headstart.training.inference import classify, tokens_for
from headstart.training.precision import Precision
from headstart.use.classifier import Text, TextClassifier, calibrated
from headstart.use.words import Reading, Word, read

Method = Literal["gradients", "occlusion"]
Stretch = tuple[float, float]
NODES = 4  # points at which a stretch of the integral is measured
MOST_STEPS = 512  # points of the whole
TOLERANCE = 0.01  # of the logit's change, that the weights may miss it by
NOISE = 1e-4  # a change this small is float32's rounding
ORDERS = 12  # random orders of deletion
POINTS = 8  # how many words are deleted, in so many steps from few to nearly all


@dataclass(frozen=True)
class Completeness:
    """Whether integrated gradients are whole: the sum of all weights against the change of the logit."""

    total: float  # the sum of the weights
    blank: float  # the logit of as many tokens that say nothing
    logit: float  # that of the text
    steps: int  # places on the line at which the gradient was taken

    @property
    def change(self) -> float:
        return self.logit - self.blank

    @property
    def error(self) -> float:
        """How far the sum is off, as a share of the change."""
        return abs(self.total - self.change) / max(abs(self.change), NOISE)

    @property
    def allowed(self) -> float:
        """How far the sum may be off."""
        return max(TOLERANCE * abs(self.change), NOISE)

    @property
    def holds(self) -> bool:
        return abs(self.total - self.change) <= self.allowed


@dataclass(frozen=True)
class Faithfulness:
    """The label's probability with the top words deleted, and with as many random ones: means over how many.

    `score` is the area between the two curves, from -1 to 1; about 0 is no better than chance. `chance` is how far a
    single random order lies from the mean of them, typically.
    """

    top: float
    random: float
    chance: float

    @property
    def score(self) -> float:
        return self.random - self.top


@dataclass(frozen=True)
class Maps:
    """Attention: `weights[layer, head, i, j]` is how much token i takes from token j. Each row sums to 1."""

    tokens: tuple[str, ...]
    weights: NDArray[np.float32] = field(compare=False, repr=False)  # (layers, H, L, L)
    causal: bool  # no token looks ahead: all above the diagonal is 0


@dataclass(frozen=True)
class Explanation:
    """A label and the words that speak for and against it, in the order of the text."""

    text: Text
    label: str
    method: Method
    probabilities: dict[str, float]
    words: tuple[Word, ...]
    completeness: Completeness | None  # None for occlusion, whose weights are not meant to add up
    faithfulness: Faithfulness | None  # None where there are no two words to put in order
    cut: int  # tokens at the end that the model's window had no room for
    attention: Maps | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data, for programs and for a page; weights in the order of the text."""
        paired = not isinstance(self.text, str)
        whole, faithful = self.completeness, self.faithfulness
        words = []
        for word in self.words:
            found = {"text": word.text, "start": word.start, "end": word.end, "weight": round(word.weight, 5)}
            words.append({**found, "second": word.second} if paired else found)
        return {
            "label": self.label,
            "method": self.method,
            "probabilities": self.probabilities,
            "words": words,
            "completeness": whole
            and {
                "total": round(whole.total, 5),
                "change": round(whole.change, 5),
                "steps": whole.steps,
                "holds": whole.holds,
            },
            "faithfulness": faithful and round(faithful.score, 4),
            "cut": self.cut,
        }


def explain(
    classifier: TextClassifier,
    text: Text,
    *,
    label: str | None = None,
    method: Method = "gradients",
    attention: bool = False,
    orders: int = ORDERS,
) -> Explanation:
    """The weights of a text's words for its likeliest label, or for the `label` asked for.

    `attention` brings the attention maps of every layer and head. `orders` is the number of random orders that the
    faithfulness score compares with; 0 leaves it out, where an answer must come at once.
    """
    if label is not None and label not in classifier.labels:
        raise ConfigError("explain", [f"label is {label!r}: {did_you_mean(label, classifier.labels)}"])
    if method not in ("gradients", "occlusion"):
        raise ConfigError("explain", [f"method is {method!r}: {did_you_mean(method, ('gradients', 'occlusion'))}"])
    if orders < 0:
        raise ConfigError("explain", [f"orders is {orders}, and must be at least 0"])
    reading = read(classifier, text)
    [chances] = calibrated(_log_probabilities(classifier, [reading.ids], reading.segments), classifier.temperature)
    if not np.isfinite(chances).all():
        raise ModelError("the model's scores are no finite numbers: its weights are damaged, or its training diverged")
    number = int(chances.argmax()) if label is None else classifier.labels.index(label)
    completeness = None
    if method == "gradients":
        weights, completeness = gradients(classifier, reading, number)
    else:
        weights = occlusion(classifier, reading, number)
    return Explanation(
        text=text,
        label=classifier.labels[number],
        method=method,
        probabilities=dict(zip(classifier.labels, map(float, chances), strict=True)),
        words=tuple(replace(word, weight=float(w)) for word, w in zip(reading.words, weights, strict=True)),
        completeness=completeness,
        faithfulness=faithfulness(classifier, reading, number, weights, orders=orders) if orders else None,
        cut=reading.cut,
        attention=attention_maps(classifier, reading) if attention else None,
    )


# --- weights --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Line:
    """The straight line from a text that says nothing to the text, in token embeddings: L tokens of width D."""

    classifier: TextClassifier
    reading: Reading
    label: int
    begin: Tensor  # (L, D)
    way: Tensor  # (L, D) from there to the text

    @classmethod
    def to(cls, classifier: TextClassifier, reading: Reading, label: int) -> _Line:
        ids = torch.from_numpy(reading.ids).to(classifier.device)
        inside = torch.from_numpy(reading.owner >= 0).to(classifier.device)
        table = classifier.model.backbone.embeddings.tokens.weight.detach()
        blank = next((i for i in (classifier.tokenizer.mask, classifier.tokenizer.pad) if i is not None), None)
        nothing = torch.zeros_like(table[0]) if blank is None else table[blank]
        way = torch.where(inside[:, None], table[ids] - nothing, 0.0)
        return cls(classifier, reading, label, table[ids] - way, way)

    @torch.no_grad()
    def heights(self, places: Iterable[float]) -> dict[float, float]:
        """The logit at places on the line, 0 being its beginning and 1 its end."""
        found: dict[float, float] = {}
        for some in self._batches(places):
            found |= dict(zip(some, self._logits(self._points(some)).tolist(), strict=True))
        return found

    @torch.enable_grad()
    def slopes(self, places: Iterable[float]) -> Floats:
        """(n, L): how fast the logit rises at places on the line, along each token's way."""
        found = []
        for some in self._batches(places):
            points = self._points(some).requires_grad_()
            [slope] = torch.autograd.grad(self._logits(points).sum(), points)
            found.append((slope * self.way).sum(-1).double().cpu().numpy())
        return np.concatenate(found)

    def _batches(self, places: Iterable[float]) -> Iterator[list[float]]:
        rest = iter(places)
        while some := list(islice(rest, max(1, tokens_for(self.classifier.device) // len(self.way)))):
            yield some

    def _points(self, places: Sequence[float]) -> Tensor:
        """(n, L, D)"""
        return self.begin + torch.tensor(places).to(self.way)[:, None, None] * self.way

    def _logits(self, points: Tensor) -> Tensor:
        """(n, L, D) → (n,): the label's logit with these vectors in the place of the text's token embeddings."""
        count, length, _ = points.shape
        ids, segments = (None if x is None else np.tile(x, count) for x in (self.reading.ids, self.reading.segments))
        model = self.classifier.model
        with model.backbone.embeddings.tokens.register_forward_hook(_here_alone(lambda *_: points.flatten(0, 1))):
            logits: Tensor = model(
                torch.from_numpy(ids).to(points.device),
                Flat.of([length] * count, points.device),
                None if segments is None else torch.from_numpy(segments).to(points.device),
            ).float()  # (n, C)
        others = torch.arange(logits.shape[1], device=logits.device) != self.label
        return logits[:, self.label] - logits[:, others].logsumexp(1)


def gradients(
    classifier: TextClassifier, reading: Reading, label: int, *, most: int = MOST_STEPS
) -> tuple[Floats, Completeness]:
    """Integrated gradients of a label's logit by word, and whether they are whole.

    The line runs through token embeddings: positions, segments and special tokens stay as they are. It begins at the
    mask token, which stands for a word without saying which; where the tokenizer has none, at padding, else at 0.

    A classifier's logit often climbs in one short stretch of the line. So the line is taken in stretches, each by a
    few Gauss-Legendre points; the parts of a stretch must sum to what the logit gains on it, and a stretch where they
    don't is halved, until all stretches together are off by 1 % of the whole at most, or `most` points are used up.
    """
    line = _Line.to(classifier, reading, label)
    x, share = np.polynomial.legendre.leggauss(NODES)
    x, share = (x + 1) / 2, share / 2  # from 0 to 1
    height = line.heights([0.0, 1.0])
    stretches: list[Stretch] = [(0.0, 1.0)]  # to be measured
    done: dict[Stretch, Floats] = {}  # (L,) each token's part in what the logit gains on a stretch
    steps = 0
    while True:
        slopes = line.slopes(low + (high - low) * at for low, high in stretches for at in x)
        for (low, high), slope in zip(stretches, slopes.reshape(len(stretches), NODES, -1), strict=True):
            done[low, high] = (high - low) * share @ slope
        steps += len(slopes)
        by_token: Floats = np.sum(list(done.values()), axis=0)
        completeness = Completeness(float(by_token.sum()), height[0.0], height[1.0], steps)
        off = {(low, high): abs(height[high] - height[low] - part.sum()) for (low, high), part in done.items()}
        if sum(off.values()) <= completeness.allowed or steps >= most:
            break
        halved = {
            stretch: sum(stretch) / 2 for stretch, gap in off.items() if gap > completeness.allowed / 2 / len(off)
        }
        height |= line.heights(halved.values())
        stretches = [half for (low, high), middle in halved.items() for half in ((low, middle), (middle, high))]
        done = {stretch: part for stretch, part in done.items() if stretch not in halved}
    return _by_word(reading, by_token), completeness


def _by_word(reading: Reading, by_token: Floats) -> Floats:
    """(L,) → (words,): the sum over each word's tokens."""
    found = np.zeros(len(reading.words))
    inside = reading.owner >= 0
    np.add.at(found, reading.owner[inside], by_token[inside])
    return found


def occlusion(classifier: TextClassifier, reading: Reading, label: int) -> Floats:
    """What a label's logit loses when each word is hidden: behind the mask token, else by leaving it out."""
    mask = classifier.tokenizer.mask
    hidden = [reading.owner == number for number in range(len(reading.words))]
    if mask is None:
        found = _without(classifier, reading, [np.zeros_like(reading.owner, dtype=bool), *hidden])
    else:
        rows = [reading.ids, *(np.where(word, mask, reading.ids) for word in hidden)]
        segments = None if reading.segments is None else np.tile(reading.segments, len(rows))
        found = _log_probabilities(classifier, rows, segments)
    logits = log_odds(found, label)
    lost: Floats = logits[0] - logits[1:]
    return lost


def log_odds(log_probabilities: Floats, label: int) -> Floats:
    """(n, C) → (n,): a label's logit, log p / (1 - p).

    >>> log_odds(np.log([[0.25, 0.75], [0.5, 0.5]]), 1).round(3).tolist()  # log 3, log 1
    [1.099, 0.0]
    """
    others = np.delete(log_probabilities, label, axis=1)
    found: Floats = log_probabilities[:, label] - np.logaddexp.reduce(others, axis=1)
    return found


def _log_probabilities(
    classifier: TextClassifier, rows: Sequence[NDArray[np.int64]], segments: NDArray[np.int64] | None
) -> Floats:
    """(n, C) for rows of ids, in float32 throughout; the segments of all rows end to end."""
    data = EncodedExamples(
        np.concatenate(rows).astype(np.int32),
        np.cumsum([0, *map(len, rows)], dtype=np.int64),
        None if segments is None else segments.astype(np.int8),
        np.full(len(rows), -1),
        truncated=0,
    )
    return classify(classifier.model, data, Precision())


def _without(classifier: TextClassifier, reading: Reading, left_out: Sequence[NDArray[np.bool_]]) -> Floats:
    """(n, C) log-probabilities of a text without some of its tokens, for each choice of (L,) tokens to leave out."""
    kept = [~out for out in left_out]
    rows = [reading.ids[keep] for keep in kept]
    if any(len(row) == 0 for row in rows):  # no special token, and the last word gone: what stands for an empty text
        empty = classifier.encode([""]).ids.astype(np.int64)
        rows = [row if len(row) else empty for row in rows]
    segments = None if reading.segments is None else np.concatenate([reading.segments[keep] for keep in kept])
    return _log_probabilities(classifier, rows, segments)


# --- faithfulness ---------------------------------------------------------------------------------------------------


def faithfulness(
    classifier: TextClassifier,
    reading: Reading,
    label: int,
    weights: Floats,
    *,
    orders: int = ORDERS,
    seed: int = 0,
) -> Faithfulness | None:
    """Delete words, the weightiest first, and see how fast the label's probability falls; the same in random orders.

    Of n words, k are deleted for each k from 1 to n - 1, or for `POINTS` numbers evenly between. The two curves meet
    where none is deleted and where all are, so the mean of their distance over k is the area between them.
    """
    count = len(reading.words)
    if count < 2:
        return None
    deleted = np.unique(np.linspace(1, count - 1, POINTS).round().astype(int))  # (K,)
    draw = rng(seed, count)
    ranked = [np.argsort(-weights, kind="stable"), *(draw.permutation(count) for _ in range(orders))]
    without = _without(classifier, reading, [np.isin(reading.owner, order[:k]) for order in ranked for k in deleted])
    chances = calibrated(without, classifier.temperature)[:, label].reshape(len(ranked), -1).mean(1)  # (1 + orders,)
    spread = float(chances[1:].std(ddof=1)) if orders > 1 else 0.0
    return Faithfulness(float(chances[0]), float(chances[1:].mean()), spread)


# --- attention ------------------------------------------------------------------------------------------------------


def attention_maps(classifier: TextClassifier, reading: Reading) -> Maps:
    """What each head of each layer looks at, in the plain form; the fast one never has these numbers."""
    found: list[Tensor] = []

    def look(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        assert isinstance(module, Attention)
        x, _, angles, bias, _ = inputs
        q, k, v = module.qkv(x).unflatten(-1, (3, module.heads, module.head_width)).unbind(-3)  # each (L, H, K)
        if angles is not None:
            q, k = turn(q, angles), turn(k, angles)
        mask = square_mask(len(x), x.device) if module.causal else None
        if bias is not None:
            mask = bias if mask is None else bias + mask
        _, weights = plain_attention(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), mask)  # (H, L, L)
        found.append(weights)

    ids = torch.from_numpy(reading.ids).to(classifier.device)
    segments = None if reading.segments is None else torch.from_numpy(reading.segments).to(classifier.device)
    with torch.no_grad(), ExitStack() as hooks:
        for module in classifier.model.backbone.modules():
            if isinstance(module, Attention):
                hooks.enter_context(module.register_forward_pre_hook(_here_alone(look)))
        classifier.model.backbone(ids, Flat.of([len(ids)], ids.device), segments)
    weights = torch.stack(found).float().cpu().numpy()
    return Maps(reading.tokens, weights, causal=classifier.model.config.direction == "causal")


def _here_alone(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that acts in this thread alone: in another, the same model may be at work on a prediction."""
    here = get_ident()
    return lambda *given: hook(*given) if get_ident() == here else None
