"""Texts encoded word by word, each different word once.

Arrow splits the texts of a chunk at spaces and numbers their words; the ids of a word come from a cache, or from the
tokenizer, many new words at a time; and the ids of the chunk are gathered in one step.

A word's key is the word without the space before it; the first word of a text, which has none, gets one instead:

    "the cat sat"  →  keys " the", "cat", "sat"  →  encode("the") + encode(" cat") + encode(" sat")
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headstart.store.store import Counts, Ids
from headstart.store.word_rules import LETTERS, closing_punctuation, first_tokens
from headstart.tokenizers.tokenizer import Tokenizer

CACHE_SIZE = 1 << 17  # words in one generation of the cache, about 25 MB with their ids
BATCH = 100  # words that are encoded as one text

# A text is split before a single space that follows a letter, digit or usual punctuation mark. Other characters are
# left out because normalisation may remove them, or turn them into something that ends in a space.
_PLAIN = r"[\w!-/:-@\[-`{-~«»‘’“”…–—]"
_stands_alone = re.compile(rf"(?=[\S ])(?s:.*){_PLAIN}").fullmatch
_ends_plainly = re.compile(rf"(?s:.*){_PLAIN}").fullmatch
_is_letter = re.compile(LETTERS).fullmatch
_begins_with_text = re.compile(r"\S").match
_is_plain = re.compile(rf"{_PLAIN}{{1,64}}").fullmatch


class WordEncoder:
    """A tokenizer for which `splits_at_spaces` holds, with a cache of words."""

    def __init__(self, tokenizer: Tokenizer, description: dict[str, Any], dtype: str) -> None:
        self._tokenizer = tokenizer
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._cache = _WordCache()
        self._begins = np.zeros(tokenizer.size, bool)
        self._begins[list(first_tokens(description))] = True
        self._closing = {mark: self._pack([number]) for mark, number in closing_punctuation(description).items()}

    def encode(self, texts: Sequence[str]) -> tuple[Ids, Counts]:
        """(N,) the ids of the texts, end to end; and (texts,) how many each has."""
        keys, words, borders = _split(texts)
        encoded = list(map(self._cache.__getitem__, keys))
        unparted = [n for n, ids in enumerate(encoded) if ids is None and not _stands_alone(keys[n])]
        if unparted:
            groups = _join(keys, words, borders, unparted)
            encoded[unparted[0]] = b""
            keys += groups
            encoded += map(self._cache.__getitem__, groups)
        used = np.flatnonzero(np.bincount(words))  # some keys were only of words that are first, or joined now
        missing = [n for n in used.tolist() if encoded[n] is None]
        for n, ids in zip(missing, self._encode_words([keys[n] for n in missing]), strict=True):
            encoded[n] = ids
        if len(self._cache) > CACHE_SIZE:
            self._cache.start_generation()
        gathered = pa.array(encoded, pa.large_binary()).take(pa.array(words))
        offsets = np.frombuffer(gathered.buffers()[1], np.int64)[borders] // self._dtype.itemsize
        return np.frombuffer(gathered.buffers()[2] or b"", self._dtype, count=offsets[-1]), np.diff(offsets)

    def _encode_words(self, keys: Sequence[str]) -> list[bytes]:
        """The ids of words that are not in the cache, and into the cache with them."""
        # "cat," is looked up as "cat": of the different words of a text a quarter end in punctuation.
        stems = [key[:-1] if key[-1:] in self._closing and _is_letter(key[-2:-1]) else key for key in keys]
        known = {stem: self._cache[stem] for stem in stems}
        new = [stem for stem, ids in known.items() if ids is None]
        found = {stem: ids for stem, ids in known.items() if ids is not None}
        found.update(zip(new, self._encode_new(new), strict=True))
        for key, stem in zip(keys, stems, strict=True):
            if key != stem:
                found[key] = found[stem] + self._closing[key[-1]]
        self._cache.update((key, ids) for key, ids in found.items() if len(key) <= 64)  # a longer one is no word
        return [found[key] for key in keys]

    def _encode_new(self, keys: Sequence[str]) -> list[bytes]:
        """The ids of words, by the tokenizer: a hundred of them as one text where their tokens can be told apart."""
        joined = [key for key in keys if _is_plain(key)] if self._begins.any() else []
        batches = [joined[k : k + BATCH] for k in range(0, len(joined), BATCH)]
        encoded: dict[str, bytes] = {}
        texts = ["".join(f" {key}" for key in batch) for batch in batches]
        for batch, ids in zip(batches, self._tokenizer.encode_batch(texts), strict=True):
            starts = np.flatnonzero(self._begins[ids])
            if len(starts) == len(batch):  # one for each word, which has one at least
                packed = self._pack(ids)
                ends = [*(starts * self._dtype.itemsize).tolist(), len(packed)]
                encoded.update(zip(batch, (packed[low:high] for low, high in pairwise(ends)), strict=True))
        rest = [key for key in keys if key not in encoded]
        alone = self._tokenizer.encode_batch([key[1:] if key.startswith(" ") else f" {key}" for key in rest])
        encoded.update(zip(rest, map(self._pack, alone), strict=True))
        return [encoded[key] for key in keys]

    def _pack(self, ids: Sequence[int]) -> bytes:
        return np.array(ids, self._dtype).tobytes()


class _WordCache(dict[str, bytes | None]):
    """The ids of words, None for one that is not here. Words not used for a whole generation are dropped."""

    def __init__(self) -> None:
        self._older: dict[str, bytes | None] = {}

    def __missing__(self, key: str) -> bytes | None:
        ids = self._older.get(key)
        if ids is not None:
            self[key] = ids
        return ids

    def start_generation(self) -> None:
        self._older = dict(self)
        self.clear()


def _split(texts: Sequence[str]) -> tuple[list[str], NDArray[np.int32], NDArray[np.int32]]:
    """The different keys, (words,) the number of each word's key, and (texts + 1,) where the words of a text begin."""
    lists = pc.split_pattern(pa.array(texts, pa.large_string()), " ")
    pieces = lists.flatten().dictionary_encode()
    keys: list[str] = pieces.dictionary.to_pylist()
    words = pieces.indices.to_numpy().copy()
    borders = lists.offsets.to_numpy()
    firsts, words_of_firsts = np.unique(words[borders[:-1]], return_inverse=True)
    words[borders[:-1]] = len(keys) + words_of_firsts
    return keys + [f" {keys[n]}" for n in firsts], words, borders


def _join(
    keys: Sequence[str], words: NDArray[np.int32], borders: NDArray[np.int32], unparted: Sequence[int]
) -> list[str]:
    """Join words that cannot be parted at the space between them; return the keys of what they become.

    The first of the words gets the number of the new key, the others that of `unparted[0]`, which no text has any more.
    """
    positions = np.flatnonzero(np.isin(words, unparted))
    ends = borders[np.searchsorted(borders, positions, side="right")]
    begins = borders[np.searchsorted(borders, positions, side="right") - 1]
    spans: dict[tuple[int, int], str] = {}
    done = -1

    def parted(position: int) -> bool:
        left, right = keys[words[position]], keys[words[position + 1]]
        return bool(_ends_plainly(left) and _begins_with_text(right))

    for position, begin, end in zip(positions.tolist(), begins.tolist(), ends.tolist(), strict=True):
        if position < done:
            continue
        low, done = position, position + 1
        while low > begin and not parted(low - 1):
            low -= 1
        while done < end and not parted(done - 1):
            done += 1
        spans[low, done] = " ".join(keys[n] for n in words[low:done])
    groups = {key: len(keys) + n for n, key in enumerate(dict.fromkeys(spans.values()))}
    for (low, high), key in spans.items():
        words[low:high] = unparted[0]
        words[low] = groups[key]
    return list(groups)
