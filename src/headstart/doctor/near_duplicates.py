"""Near duplicates: MinHash signatures of word shingles, candidates from LSH bands, each checked by its true Jaccard.

The probability that two texts share one MinHash value is the Jaccard similarity of their shingles, J. A candidate is a
pair that agrees on all 5 values of at least one of 25 bands: a pair of J = 0.8 is missed once in 20,000 times, a pair
of J = 0.3 is a candidate 6 times in 100. Nothing is random: the same texts give the same pairs on every machine.

>>> near_duplicates(sketch(["Nobody could put this book down!", "a comet", "nobody could put this book down, really"]))
[NearDuplicate(left=0, right=2, jaccard=0.8)]
"""

from __future__ import annotations

import unicodedata
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

SHINGLE_WORDS = 3
BANDS, BAND_VALUES = 25, 5  # bands of a signature, values in a band
THRESHOLD = 0.8
BUCKET_LIMIT = 16  # texts of one bucket that a text is compared with: linear even where all texts share a template

_UNSPACED = (  # scripts that put no space between words: each character counts as a word
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x3400, 0x9FFF),  # Chinese characters
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)


class _Separators(dict[int, str]):
    """A table for `str.translate`: punctuation becomes a space, a character that is a word gets spaces around it."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        category = unicodedata.category(character)
        if category[0] in "PZC" or category in ("Sm", "Sc", "Sk"):
            replacement = " "
        elif category == "So" or any(low <= code <= high for low, high in _UNSPACED):
            replacement = f" {character} "  # emoji are words: a thumb up is not a thumb down
        else:
            replacement = character
        self[code] = replacement
        return replacement


class _WordHashes(dict[str, int]):
    """A 64-bit hash of every word, the same on every machine."""

    def __missing__(self, word: str) -> int:
        digest = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        hashed = self[word] = int.from_bytes(digest, "little")
        return hashed


_SEPARATORS = _Separators()


def words(text: str) -> list[str]:
    """The words of a text without case, punctuation and the spelling variants of Unicode.

    A text of nothing but punctuation keeps it, so that ":)" and ":(" stay two texts.

    >>> words("L'été, ENFIN !"), words("很好"), words(" :( ")
    (['l', 'été', 'enfin'], ['很', '好'], [':('])
    """
    return unicodedata.normalize("NFKC", text).casefold().translate(_SEPARATORS).split() or text.split()


@dataclass(frozen=True)
class Sketches:
    """The hashed shingles of S texts, end to end, and their MinHash signatures."""

    shingles: NDArray[np.uint64]  # (N,) within a text distinct and ascending
    starts: NDArray[np.int64]  # (S + 1,)
    signatures: NDArray[np.uint32]  # (S, BANDS * BAND_VALUES)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def shingles_of(self, text: int) -> NDArray[np.uint64]:
        return self.shingles[self.starts[text] : self.starts[text + 1]]


@dataclass(frozen=True, order=True)
class NearDuplicate:
    """Two texts that share at least `THRESHOLD` of their shingles."""

    left: int
    right: int
    jaccard: float


def sketch(texts: Iterable[str]) -> Sketches:
    shingles, starts = _shingles(texts)
    return Sketches(shingles, starts, _signatures(shingles, starts))


def near_duplicates(
    left: Sketches, right: Sketches | None = None, *, threshold: float = THRESHOLD
) -> list[NearDuplicate]:
    """Pairs (one from `left`, one from `right`; or left < right within `left`) of Jaccard ≥ `threshold`, sorted.

    Where more than `BUCKET_LIMIT` texts are in one bucket, each is compared with that many of them only: a text with
    a near duplicate is still found, though not every one of its partners.
    """
    other = left if right is None else right
    pairs: list[NearDuplicate] = []
    for i, j in _candidates(left, right).tolist():
        one, two = left.shingles_of(i), other.shingles_of(j)
        if min(len(one), len(two)) < threshold * max(len(one), len(two)):
            continue  # too different in length, whatever they share
        jaccard = _jaccard(one, two)
        if jaccard >= threshold:
            pairs.append(NearDuplicate(i, j, jaccard))
    return pairs


def similarity(one: str, two: str) -> float:
    """The Jaccard similarity of two texts' shingles.

    >>> similarity("the cat sat on the mat", "The cat sat on the hat.")  # 3 shingles of 5 in common
    0.6
    """
    shingles, starts = _shingles([one, two])
    return _jaccard(shingles[: starts[1]], shingles[starts[1] :])


def _jaccard(one: NDArray[np.uint64], two: NDArray[np.uint64]) -> float:
    shared = len(np.intersect1d(one, two, assume_unique=True))
    return shared / max(1, len(one) + len(two) - shared)  # two empty texts share nothing


def _shingles(texts: Iterable[str]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Each text's distinct shingles (N,), and where each text begins (S + 1,).

    A text of fewer than `SHINGLE_WORDS` words is one shingle; an empty one has none.
    """
    hashes, word_starts = _word_hashes(texts)
    count = len(word_starts) - 1
    text_of = np.repeat(np.arange(count), np.diff(word_starts))  # (words,)
    end = max(0, len(hashes) - SHINGLE_WORDS + 1)
    shingles = hashes[:end]
    for step in range(1, SHINGLE_WORDS):
        shingles = _mix(shingles) + hashes[step : end + step]
    shingles = _mix(shingles)
    within = text_of[:end] == text_of[SHINGLE_WORDS - 1 : end + SHINGLE_WORDS - 1]  # not across the border of two texts
    shingles, text_of = shingles[within], text_of[:end][within]
    order = np.lexsort((shingles, text_of))
    shingles, text_of = shingles[order], text_of[order]
    distinct = np.ones(len(shingles), dtype=bool)
    distinct[1:] = (shingles[1:] != shingles[:-1]) | (text_of[1:] != text_of[:-1])
    return shingles[distinct], np.searchsorted(text_of[distinct], np.arange(count + 1))


def _word_hashes(texts: Iterable[str]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The hashed words of all texts, end to end, and where each text begins; short texts are padded with 0."""
    word_hashes, flat, starts = _WordHashes(), array("Q"), array("q", [0])
    for text in texts:
        hashes = [word_hashes[word] for word in words(text)]
        if hashes:
            hashes += [0] * (SHINGLE_WORDS - len(hashes))
        flat.extend(hashes)
        starts.append(len(flat))
    return np.asarray(flat, dtype=np.uint64), np.asarray(starts, dtype=np.int64)


def _signatures(shingles: NDArray[np.uint64], starts: NDArray[np.int64]) -> NDArray[np.uint32]:
    """The smallest value of each text's shingles under each of the hash functions."""
    signatures = np.zeros((len(starts) - 1, BANDS * BAND_VALUES), dtype=np.uint32)
    not_empty = np.diff(starts) > 0
    factors = _mix(np.arange(1, BANDS * BAND_VALUES + 1, dtype=np.uint64)) | np.uint64(1)
    for column, factor in enumerate(factors):
        hashed = (shingles * factor >> np.uint64(32)).astype(np.uint32)  # multiply-shift: shingles are mixed already
        signatures[not_empty, column] = np.minimum.reduceat(hashed, starts[:-1][not_empty])
    return signatures


def _candidates(left: Sketches, right: Sketches | None) -> NDArray[np.int64]:
    """Pairs that share a bucket in at least one band, (P, 2), each once and in order."""
    pairs = [np.zeros((0, 2), dtype=np.int64)]
    for band in range(BANDS):
        rows, keys = _buckets(left, band)
        others, wanted = (rows, keys) if right is None else _buckets(right, band)
        first, end = np.searchsorted(keys, wanted, "left"), np.searchsorted(keys, wanted, "right")
        if right is None:  # each with those before it
            end = np.arange(len(keys))
            first = np.maximum(first, end - BUCKET_LIMIT)
        for step in range(min(BUCKET_LIMIT, int((end - first).max(initial=0)))):
            same = np.flatnonzero(first + step < end)
            pairs.append(np.stack([rows[first[same] + step], others[same]], axis=1))
    unique: NDArray[np.int64] = np.unique(np.concatenate(pairs), axis=0)
    return unique


def _buckets(sketches: Sketches, band: int) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """The texts that have shingles, sorted by their key in one band (then by row), and those keys."""
    rows = np.flatnonzero(np.diff(sketches.starts) > 0)
    keys = np.zeros(len(rows), dtype=np.uint64)
    for column in range(band * BAND_VALUES, (band + 1) * BAND_VALUES):
        keys = _mix(keys + sketches.signatures[rows, column].astype(np.uint64))
    order = np.argsort(keys, kind="stable")
    return rows[order], keys[order]


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The mixing function of SplitMix64: every bit of x changes every other."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
