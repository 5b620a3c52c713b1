"""The words of a text, and which of the model's tokens belong to each.

    tokenize(reviews, "An untender book.").words
    # (Word('An', 0, 2), Word('untender', 3, 11), Word('book', 12, 16), Word('.', 16, 17))

Words are those of the text, not of the tokenizer, so that two models can be asked about the same words.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from headstart.reading.examples import Text
from headstart.use.classifier import TextClassifier
from headstart.use.explanation import Word

Span = tuple[int, int]


@dataclass(frozen=True)
class TokenizedText:
    """A text as the model reads it: L tokens, and which word each belongs to."""

    ids: NDArray[np.int64]  # (L,)
    segments: NDArray[np.int64] | None  # (L,) for a pair
    words: tuple[Word, ...]
    word_of: NDArray[np.int64]  # (L,) index of a token's word; -1 for special tokens
    tokens: tuple[str, ...]  # (L,) to be shown
    truncated: int  # tokens that did not fit into the window


def tokenize(classifier: TextClassifier, text: Text) -> TokenizedText:
    """Encode a text exactly as for a prediction, and find its words among the tokens."""
    encoded = classifier.encode([text])
    tokenizer = classifier.tokenizer
    parts = (text,) if isinstance(text, str) else text
    spans = [tokenizer.offsets(part) for part in parts]
    # Negative numbers instead of ids show where `wrap` puts each token of the text: token n of both texts is -1 - n.
    edges = np.cumsum([0, *map(len, spans)]).tolist()
    numbers = [[-1 - n for n in range(*edge)] for edge in pairwise(edges)]
    wrapped = tokenizer.wrap(*numbers, window=classifier.window)[0]
    position = {-1 - value: i for i, value in enumerate(wrapped) if value < 0}
    word_of = np.full(len(encoded.ids), -1)
    tokens = tokenizer.pieces(encoded.ids.tolist())
    words: list[Word] = []
    for second, (part, first, part_spans) in enumerate(zip(parts, edges, spans, strict=False)):
        kept = [span for n, span in enumerate(part_spans, start=first) if n in position]
        for group in group_words(part, kept):
            start, end = _enclosing(part, [kept[n] for n in group])
            for n in group:
                i = position[first + n]
                word_of[i] = len(words)
                tokens[i] = part[slice(*kept[n])].strip() or tokens[i]
            words.append(Word(part[start:end], start, end, bool(second)))
    segments = None if encoded.segments is None else encoded.segments.astype(np.int64)
    ids = encoded.ids.astype(np.int64)
    return TokenizedText(ids, segments, tuple(words), word_of, tuple(tokens), truncated=edges[-1] - len(position))


def group_words(text: str, spans: Sequence[Span]) -> list[list[int]]:
    """Tokens, by their spans, grouped into words: a word ends at a space or where the kind of character changes.

    The words are those of the text and not of the tokenizer: BERT's `tend ##er` and GPT-2's `Ġtender .` both give
    "tender". Chinese, Japanese, Thai and others write no spaces between words, so there a token is a word.

    >>> group_words("untender books.", [(0, 2), (2, 8), (8, 14), (14, 15)])
    [[0, 1], [2], [3]]
    """
    groups: list[list[int]] = []
    spaces: list[int] = []  # tokens that cover only space: they join the next word
    word_end = -1
    for number, span in enumerate(spans):
        start, end = _trimmed(text, span)
        if start == end:
            spaces.append(number)
            continue
        if groups and (start < word_end or (start == word_end and not is_boundary(text, start))):
            groups[-1] += [*spaces, number]
        else:
            groups.append([*spaces, number])
        spaces, word_end = [], max(end, word_end)
    if spaces and groups:
        groups[-1] += spaces
    elif spaces:
        groups.append(spaces)
    return groups


def _trimmed(text: str, span: Span) -> Span:
    """A span without the space at its ends, and with the combining marks that follow it."""
    start, end = span
    inside = text[start:end]
    start += len(inside) - len(inside.lstrip())
    end = max(start, end - (len(inside) - len(inside.rstrip())))
    while start < end < len(text) and unicodedata.category(text[end])[0] == "M":
        end += 1
    return start, end


def _enclosing(text: str, spans: Sequence[Span]) -> Span:
    """From the first to the last character of a word's tokens."""
    filled = [span for span in (_trimmed(text, span) for span in spans) if span[0] < span[1]] or spans
    return min(start for start, _ in filled), max(end for _, end in filled)


# How the Unicode names of letters begin in scripts without spaces between words.
SPACELESS = ("CJK", "HIRAGANA", "KATAKANA", "IDEOGRAPHIC", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "BOPOMOFO")
APOSTROPHES = "'’"
JOINER = "\u200d"  # joins several emoji into one picture


def is_boundary(text: str, at: int) -> bool:
    """Whether a word may end before `text[at]` although there is no space.

    >>> [is_boundary(text, 1) for text in ("ab", "a.", "今日", "e\u0301")]  # the last is an e and its accent
    [False, True, True, False]
    """
    left, right = text[at - 1], text[at]
    if unicodedata.category(right)[0] == "M" or JOINER in (left, right) or "\U0001f3fb" <= right <= "\U0001f3ff":
        return False  # an accent, joined emoji, a skin tone
    if all("\U0001f1e6" <= c <= "\U0001f1ff" for c in (left, right)):
        return False  # the two letters of a flag
    if _is_letter(left) and _is_letter(right):
        return _is_spaceless(left) or _is_spaceless(right)
    if right in APOSTROPHES:  # it's, l'art
        return not (_is_letter(left) and _is_letter(text[at + 1 : at + 2]))
    if left in APOSTROPHES:
        return not (_is_letter(text[max(at - 2, 0) : at - 1]) and _is_letter(right))
    return True


def _is_letter(character: str) -> bool:
    return bool(character) and unicodedata.category(character)[0] in "LNM"


def _is_spaceless(character: str) -> bool:
    return unicodedata.name(character, "").startswith(SPACELESS)
