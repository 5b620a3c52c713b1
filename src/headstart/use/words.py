"""The words of a text, and which tokens of the model's reading belong to each.

    read(reviews, "An untender book.").words
    # (Word('An', 0, 2), Word('untender', 3, 11), Word('book', 12, 16), Word('.', 16, 17))

Words are those of the text and not of the tokenizer, so that two models can be asked about the same words.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from headstart.tokenizers.tokenizer import Tokenizer
from headstart.use.classifier import Text, TextClassifier

Span = tuple[int, int]


@dataclass(frozen=True)
class Word:
    """A word where it stands: `text[start:end]`, of the second text if it is of a pair's second."""

    text: str
    start: int
    end: int
    second: bool = False
    weight: float = 0.0


@dataclass(frozen=True)
class Reading:
    """A text as the model reads it: L tokens, and which word each belongs to."""

    ids: NDArray[np.int64]  # (L,)
    segments: NDArray[np.int64] | None  # (L,) where it is a pair
    words: tuple[Word, ...]
    owner: NDArray[np.int64]  # (L,) the number of a token's word; -1 for special tokens
    tokens: tuple[str, ...]  # (L,) what each stands for, to be shown
    cut: int  # tokens that were left out


def read(classifier: TextClassifier, text: Text) -> Reading:
    """Encode a text exactly as for a prediction, and find its words among the tokens."""
    encoded = classifier.encode([text])
    tokenizer = classifier.tokenizer
    parts = (text,) if isinstance(text, str) else text
    spans = [_spans(tokenizer, part) for part in parts]
    # Numbers below 0 in the place of ids come back where `wrap` puts the text: token n of both texts is -1 - n.
    edges = np.cumsum([0, *map(len, spans)]).tolist()
    numbers = [[-1 - n for n in range(*edge)] for edge in pairwise(edges)]
    placed = tokenizer.wrap(*numbers, window=classifier.window)[0]
    place = {-1 - value: where for where, value in enumerate(placed) if value < 0}
    owner = np.full(len(encoded.ids), -1)
    tokens = tokenizer.pieces(encoded.ids.tolist())
    words: list[Word] = []
    for second, (part, first, found) in enumerate(zip(parts, edges, spans, strict=False)):
        kept = [span for n, span in enumerate(found, start=first) if n in place]
        for group in group_words(part, kept):
            low, high = _around(part, [kept[n] for n in group])
            for n in group:
                owner[place[first + n]] = len(words)
                tokens[place[first + n]] = part[slice(*kept[n])].strip() or tokens[place[first + n]]
            words.append(Word(part[low:high], low, high, bool(second)))
    segments = None if encoded.segments is None else encoded.segments.astype(np.int64)
    return Reading(
        encoded.ids.astype(np.int64), segments, tuple(words), owner, tuple(tokens), cut=edges[-1] - len(place)
    )


def _spans(tokenizer: Tokenizer, text: str) -> list[Span]:
    """Where in the text each of its tokens stands."""
    found = tokenizer._tokenizer.encode(text, add_special_tokens=False).offsets
    return [(int(low), int(high)) for low, high in found]


def group_words(text: str, spans: Sequence[Span]) -> list[list[int]]:
    """Tokens, by their spans, as words: what stands together in the text without a space or a change of kind.

    The words are those of the text and not of the tokenizer: BERT's `tend ##er` and GPT-2's `Ġtender .` both give
    "tender". Chinese, Japanese, Thai and their like write no spaces between words, so there a token is a word.

    >>> group_words("untender books.", [(0, 2), (2, 8), (8, 14), (14, 15)])
    [[0, 1], [2], [3]]
    """
    groups: list[list[int]] = []
    waiting: list[int] = []  # tokens of nothing but space: the next word's
    end = -1
    for number, span in enumerate(spans):
        low, high = _trimmed(text, span)
        if low == high:
            waiting.append(number)
            continue
        if groups and (low < end or (low == end and not parted(text, low))):
            groups[-1] += [*waiting, number]
        else:
            groups.append([*waiting, number])
        waiting, end = [], max(high, end)
    if waiting and groups:
        groups[-1] += waiting
    elif waiting:
        groups.append(waiting)
    return groups


def _trimmed(text: str, span: Span) -> Span:
    """A span without the space at its ends, and with the accents that were written after it and read with it."""
    low, high = span
    inside = text[low:high]
    low += len(inside) - len(inside.lstrip())
    high = max(low, high - (len(inside) - len(inside.rstrip())))
    while low < high < len(text) and unicodedata.category(text[high])[0] == "M":
        high += 1
    return low, high


def _around(text: str, spans: Sequence[Span]) -> Span:
    """From the first to the last character of a word's tokens; of space alone, where that is all there is."""
    filled = [span for span in (_trimmed(text, span) for span in spans) if span[0] < span[1]] or spans
    return min(low for low, _ in filled), max(high for _, high in filled)


# Beginnings of the names that Unicode gives to the letters of scripts without spaces between words.
SPACELESS = ("CJK", "HIRAGANA", "KATAKANA", "IDEOGRAPHIC", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "BOPOMOFO")
APOSTROPHES = "'’"
JOINER = "\u200d"  # makes one picture of several emoji


def parted(text: str, at: int) -> bool:
    """Whether a word may end before `text[at]`, where no space is.

    >>> [parted(text, 1) for text in ("ab", "a.", "今日", "e\u0301")]  # the last is an e and its accent
    [False, True, True, False]
    """
    left, right = text[at - 1], text[at]
    if unicodedata.category(right)[0] == "M" or JOINER in (left, right) or "\U0001f3fb" <= right <= "\U0001f3ff":
        return False  # an accent, a joined emoji, the colour of its skin
    if all("\U0001f1e6" <= c <= "\U0001f1ff" for c in (left, right)):
        return False  # the two letters of a flag
    if _lettered(left) and _lettered(right):
        return _spaceless(left) or _spaceless(right)
    if right in APOSTROPHES:  # it's, l'art
        return not (_lettered(left) and _lettered(text[at + 1 : at + 2]))
    if left in APOSTROPHES:
        return not (_lettered(text[max(at - 2, 0) : at - 1]) and _lettered(right))
    return True


def _lettered(character: str) -> bool:
    return bool(character) and unicodedata.category(character)[0] in "LNM"


def _spaceless(character: str) -> bool:
    return unicodedata.name(character, "").startswith(SPACELESS)
