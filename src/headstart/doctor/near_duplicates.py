"""Near duplicates: MinHash sketches of word shingles, candidates from LSH bands, each checked by its true Jaccard.

The chance that two texts share one MinHash value is the Jaccard of their shingles, J. A candidate is a pair that
agrees on all 5 values of at least one of 25 bands, which a pair of J = 0.8 misses once in 20,000 times and a pair of
J = 0.3 meets 6 times in 100. Nothing is random: the same texts give the same pairs on every machine.

>>> near(sketch(["Nobody could put this book down!", "a comet", "nobody could put this book down, really"]))
[Near(left=0, right=2, jaccard=0.8)]
"""

from __future__ import annotations

import unicodedata
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

WIDTH = 3  # words in a shingle
BANDS, ROWS = 25, 5
THRESHOLD = 0.8
CROWD = 16  # how many members of one bucket a text is compared with: a set of one template stays linear

_UNSPACED = (  # scripts that put no space between words: each character counts as a word
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x3400, 0x9FFF),  # Chinese characters
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)


class _Plain(dict[int, str]):
    """The table for `str.translate`: what a character is worth once case and punctuation are gone."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        category = unicodedata.category(character)
        if category[0] in "PZC" or category in ("Sm", "Sc", "Sk"):
            plain = " "
        elif category == "So" or any(low <= code <= high for low, high in _UNSPACED):
            plain = f" {character} "  # a thumb up is not a thumb down: emoji are words
        else:
            plain = character
        self[code] = plain
        return plain


class _Numbers(dict[str, int]):
    """A 64-bit number for every word, the same on every machine."""

    def __missing__(self, word: str) -> int:
        digest = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        number = self[word] = int.from_bytes(digest, "little")
        return number


_PLAIN = _Plain()


def words(text: str) -> list[str]:
    """The words of a text without case, punctuation and the spelling variants of Unicode.

    A text of nothing but punctuation keeps it, so that ":)" and ":(" stay two texts.

    >>> words("L'été, ENFIN !"), words("很好"), words(" :( ")
    (['l', 'été', 'enfin'], ['很', '好'], [':('])
    """
    return unicodedata.normalize("NFKC", text).casefold().translate(_PLAIN).split() or text.split()


@dataclass(frozen=True)
class Sketches:
    """What is kept of S texts: their shingles as numbers, end to end, and their MinHash signatures."""

    shingles: NDArray[np.uint64]  # (N,) within a text distinct and ascending
    starts: NDArray[np.int64]  # (S + 1,)
    signatures: NDArray[np.uint32]  # (S, BANDS * ROWS)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def of(self, text: int) -> NDArray[np.uint64]:
        """The shingles of one text."""
        return self.shingles[self.starts[text] : self.starts[text + 1]]


@dataclass(frozen=True, order=True)
class Near:
    """Two texts that share at least `THRESHOLD` of their shingles."""

    left: int
    right: int
    jaccard: float


def sketch(texts: Iterable[str]) -> Sketches:
    """The sketches of some texts."""
    shingles, starts = _shingles(texts)
    return Sketches(shingles, starts, _signatures(shingles, starts))


def near(left: Sketches, right: Sketches | None = None, *, threshold: float = THRESHOLD) -> list[Near]:
    """Pairs (one from `left`, one from `right`; or left < right within `left`) of Jaccard ≥ `threshold`, sorted.

    Where more than `CROWD` texts fall into one bucket, each is compared with only that many of them: a text with a
    near duplicate is still found, though not every one of its partners.
    """
    other = left if right is None else right
    found: list[Near] = []
    for i, j in _candidates(left, right).tolist():
        one, two = left.of(i), other.of(j)
        if min(len(one), len(two)) < threshold * max(len(one), len(two)):
            continue  # too unequal in length, whatever they share
        value = _jaccard(one, two)
        if value >= threshold:
            found.append(Near(i, j, value))
    return found


def similarity(one: str, two: str) -> float:
    """The Jaccard of two texts, from their shingles.

    >>> similarity("the cat sat on the mat", "The cat sat on the hat.")  # 3 shingles of 5 in common
    0.6
    """
    shingles, starts = _shingles([one, two])
    return _jaccard(shingles[: starts[1]], shingles[starts[1] :])


def estimate(left: Sketches, i: int, right: Sketches, j: int) -> float:
    """The Jaccard of two texts as their signatures tell it, give or take 0.04."""
    return float(np.mean(left.signatures[i] == right.signatures[j]))


def _jaccard(one: NDArray[np.uint64], two: NDArray[np.uint64]) -> float:
    shared = len(np.intersect1d(one, two, assume_unique=True))
    return shared / max(1, len(one) + len(two) - shared)  # two empty texts share nothing


def _shingles(texts: Iterable[str]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Each text's distinct shingles (N,), and where each text begins (S + 1,).

    A text of fewer than `WIDTH` words is one shingle; an empty one has none.
    """
    words_of, word_starts = _numbered(texts)
    count = len(word_starts) - 1
    text_of = np.repeat(np.arange(count), np.diff(word_starts))  # (words,)
    last = max(0, len(words_of) - WIDTH + 1)
    shingles = words_of[:last]
    for step in range(1, WIDTH):
        shingles = _mix(shingles) + words_of[step : last + step]
    shingles = _mix(shingles)
    whole = text_of[:last] == text_of[WIDTH - 1 : last + WIDTH - 1]  # over the border of two texts there is none
    shingles, text_of = shingles[whole], text_of[:last][whole]
    order = np.lexsort((shingles, text_of))
    shingles, text_of = shingles[order], text_of[order]
    fresh = np.ones(len(shingles), dtype=bool)
    fresh[1:] = (shingles[1:] != shingles[:-1]) | (text_of[1:] != text_of[:-1])
    return shingles[fresh], np.searchsorted(text_of[fresh], np.arange(count + 1))


def _numbered(texts: Iterable[str]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The words of all texts as numbers, end to end, and where each text begins; short texts filled up with 0."""
    numbers, flat, starts = _Numbers(), array("Q"), array("q", [0])
    for text in texts:
        found = [numbers[word] for word in words(text)]
        if found:
            found += [0] * (WIDTH - len(found))
        flat.extend(found)
        starts.append(len(flat))
    return np.asarray(flat, dtype=np.uint64), np.asarray(starts, dtype=np.int64)


def _signatures(shingles: NDArray[np.uint64], starts: NDArray[np.int64]) -> NDArray[np.uint32]:
    """The least value of each text's shingles under each of the hash functions."""
    signatures = np.zeros((len(starts) - 1, BANDS * ROWS), dtype=np.uint32)
    full = np.diff(starts) > 0
    factors = _mix(np.arange(1, BANDS * ROWS + 1, dtype=np.uint64)) | np.uint64(1)
    for column, factor in enumerate(factors):
        hashed = (shingles * factor >> np.uint64(32)).astype(np.uint32)  # multiply-shift: shingles are mixed already
        signatures[full, column] = np.minimum.reduceat(hashed, starts[:-1][full])
    return signatures


def _candidates(left: Sketches, right: Sketches | None) -> NDArray[np.int64]:
    """Pairs that share a bucket in at least one band, (P, 2), each once and in order."""
    found = []
    for band in range(BANDS):
        rows, keys = _buckets(left, band)
        if right is None:
            for step in range(1, min(CROWD, len(keys) - 1) + 1):  # each with those before it
                same = np.flatnonzero(keys[step:] == keys[:-step])
                if not len(same):
                    break
                found.append(np.stack([rows[same], rows[same + step]], axis=1))
        else:
            others, wanted = _buckets(right, band)
            first, end = np.searchsorted(keys, wanted, "left"), np.searchsorted(keys, wanted, "right")
            for step in range(CROWD):
                same = np.flatnonzero(first + step < end)
                if not len(same):
                    break
                found.append(np.stack([rows[first[same] + step], others[same]], axis=1))
    if not found:
        return np.zeros((0, 2), dtype=np.int64)
    pairs: NDArray[np.int64] = np.unique(np.concatenate(found), axis=0)
    return pairs


def _buckets(sketches: Sketches, band: int) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """The texts that have shingles, sorted by their key in one band (then by row), and those keys."""
    rows = np.flatnonzero(np.diff(sketches.starts) > 0)
    keys = np.zeros(len(rows), dtype=np.uint64)
    for column in range(band * ROWS, (band + 1) * ROWS):
        keys = _mix(keys + sketches.signatures[rows, column].astype(np.uint64))
    order = np.argsort(keys, kind="stable")
    return rows[order], keys[order]


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit of x stirred into every other (the last steps of SplitMix64)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
