"""The page of an explanation: the text with its words in colour, their weights, and what every head looks at.

One HTML file that needs nothing beside itself and runs no script, like the page of a study; everything that comes from
the text is escaped. An attention map is an SVG grid with one path a shade, in runs along its rows, so that the 72 maps
of six layers with twelve heads stay well below 2 MB.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from jinja2 import Environment
from numpy.typing import NDArray

from headstart.report.html import environment, printable
from headstart.use.explanation import AttentionMaps, Explanation, Word
from headstart.version import __version__

SHADES = 8
SHOWN_TOKENS = 64  # of a map: more could not be distinguished
SHOWN_WORDS = 20  # of the table, before the rest is folded away
SLIGHT = 0.1  # of the greatest weight: a word below it has no colour


@dataclass(frozen=True)
class TextSpan:
    """A piece of the text: a word with its weight and how much of the greatest that is, or what lies between words."""

    text: str
    word: Word | None = None
    strength: float = 0.0


@dataclass(frozen=True)
class Map:
    """One head's map: paths of shades 1 to `SHADES`, the darkest last."""

    name: str
    title: str
    described: str
    paths: tuple[tuple[int, str], ...]


def render(explanation: Explanation) -> str:
    """The page as text. The explanation must have its attention maps."""
    maps = explanation.attention
    assert maps is not None
    length = min(len(maps.tokens), SHOWN_TOKENS)
    ranked = sorted(explanation.words, key=lambda word: -abs(word.weight))
    parts = (explanation.text,) if isinstance(explanation.text, str) else explanation.text
    return _templates().get_template("explanation.html").render(
        explanation=explanation,
        chances=sorted(explanation.probabilities.items(), key=lambda item: -item[1]),
        parts=[list(text_spans(explanation, number)) for number in range(len(parts))],
        most=greatest(explanation),
        words=(ranked[:SHOWN_WORDS], ranked[SHOWN_WORDS:]),
        notes=notes(explanation),
        layers=[list(_layer(maps, layer, length)) for layer in range(len(maps.weights))],
        names=[shortened(token) for token in maps.tokens[:length]],
        left_out=len(maps.tokens) - length,
        causal=maps.causal,
        shades=range(1, SHADES + 1),
        version=__version__,
    )  # fmt: skip


def notes(explanation: Explanation) -> list[str]:
    """What is to be known before the weights are believed, in sentences."""
    sentences = []
    if explanation.truncated:
        sentences.append(
            f"The text is longer than the model's window: {explanation.truncated:,} tokens at its end were not read "
            "and have no weight."
        )
    if not explanation.words:
        return [*sentences, "There is no word in the text to explain by."]
    sums, label = explanation.completeness, explanation.label
    sentences.append(
        f"The weights sum to {sums.total:+.2f}; the logit of {label} goes from {sums.baseline:+.2f} without words to "
        f"{sums.logit:+.2f}. The other {sums.remainder:+.2f} comes of words together: they may need each other, or "
        "repeat each other."
    )
    if sums.baseline > 0 and sums.change < sums.baseline:
        sentences.append(f"Without any word this model says {label} already: another label may tell more.")
    faithful = explanation.faithfulness
    if faithful is not None:
        sentences.append(
            f"Faithfulness {faithful.score:+.2f}: with the top words deleted {explanation.label} has probability "
            f"{faithful.top:.2f} on average, with as many random ones {faithful.random:.2f} (a random order is within "
            f"{faithful.random_std:.2f} of that, typically; about 0 is no better than chance)."
        )
    elif len(explanation.words) == 1:
        sentences.append("One word has no order, so there is no faithfulness score.")
    return sentences


def greatest(explanation: Explanation) -> float:
    """The greatest weight, whatever its sign: colours are shares of it."""
    return max((abs(word.weight) for word in explanation.words), default=0.0) or 1.0


def text_spans(explanation: Explanation, part: int) -> Iterator[TextSpan]:
    """One of the texts from its beginning to its end, in words and what lies between them."""
    text = explanation.text if isinstance(explanation.text, str) else explanation.text[part]
    most, at = greatest(explanation), 0
    for word in explanation.words:
        if word.second == bool(part):
            if at < word.start:
                yield TextSpan(printable(text[at : word.start]))
            yield TextSpan(printable(word.text), word, abs(word.weight) / most)
            at = word.end
    if at < len(text):
        yield TextSpan(printable(text[at:]))


def shortened(token: str, longest: int = 12) -> str:
    """A token as the name of a row.

    >>> shortened("Donaudampfschifffahrt")
    'Donaudampfs…'
    """
    shown = printable(token).replace("\n", "⏎").replace("\t", "⇥")
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def shades(weights: NDArray[np.float32], count: int = SHADES) -> NDArray[np.int64]:
    """Weights from 0 to 1 as shades from 0 to `count` - 1, by their square roots: small ones differ most.

    >>> shades(np.array([0.0, 0.03, 0.05, 0.3, 1.0]), 5).tolist()
    [0, 0, 1, 2, 4]
    """
    shade: NDArray[np.int64] = np.minimum(np.sqrt(weights) * count, count - 1).astype(np.int64)
    return shade


def _layer(maps: AttentionMaps, layer: int, length: int) -> Iterator[Map]:
    for head, weights in enumerate(maps.weights[layer, :, :length, :length]):
        i, j = np.unravel_index(int(weights.argmax()), weights.shape)
        strongest = f"“{maps.tokens[i]}” takes {weights[i, j]:.2f} from “{maps.tokens[j]}”"
        name = f"Layer {layer + 1}, head {head + 1}"
        yield Map(
            f"l{layer + 1}h{head + 1}",
            f"Head {head + 1}",
            f"{name}: at its darkest, {printable(strongest)}",
            tuple(paths(weights)),
        )


def paths(weights: NDArray[np.float32]) -> Iterator[tuple[int, str]]:
    """(L, L) → the path of each shade there is: strokes of width 1 along the rows, each from where the last one ended.

    >>> list(paths(np.array([[1.0, 0.0], [0.5, 0.5]], dtype=np.float32)))
    [(6, 'M0 0m0 1h2'), (8, 'M0 0m0 0h1')]
    """
    length = weights.shape[1]
    cells = np.zeros(
        (weights.shape[0], length + 1), dtype=np.int64
    )  # a column more, so that no run goes round a corner
    cells[:, :length] = np.where(weights > 0, shades(weights, SHADES) + 1, 0)
    cells[:, :length][weights < 1 / SHADES**2 / 4] = 0  # next to nothing
    for shade in range(1, SHADES + 1):
        edges = np.diff(np.concatenate([[0], (cells == shade).ravel().astype(np.int8)]))
        begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
        if not len(begins):
            continue
        drawn, x, y = ["M0 0"], 0, 0
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            row, column = divmod(begin, length + 1)
            drawn.append(f"m{column - x} {row - y}h{end - begin}")
            x, y = column + end - begin, row
        yield shade, "".join(drawn)


@cache
def _templates() -> Environment:
    templates = environment()
    templates.filters["signed"] = _signed
    templates.globals["SLIGHT"] = SLIGHT
    return templates


def _signed(number: float) -> str:
    """
    >>> _signed(0.5), _signed(-0.25) == "\u22120.25"
    ('+0.50', True)
    """
    return f"{number:+.2f}".replace("-", "\u2212")
