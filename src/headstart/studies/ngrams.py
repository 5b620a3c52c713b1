"""The n-grams of texts, counted in whole arrays: the same n-grams and counts as scikit-learn's `CountVectorizer`.

    vocabulary = NgramVocabulary.of("words", ["a dull tale", "a dull, dull book"])
    vocabulary.count(["a dull tale"])  # (1, F), sparse; column k counts vocabulary.names[k]

A text is a sequence of symbols, its words or its characters. An n-gram is the (n-1)-gram that it begins with and one
more symbol: two numbers, which one integer holds. So the n-grams of all texts are an array of integers for each n.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

WORD = re.compile(r"\w+|[^\w\s]")  # a punctuation mark is a word
SPACES = re.compile(r"\s\s+")
LENGTHS = {"words": (1, 2), "characters": (2, 5)}  # of the shortest and of the longest n-gram
BETWEEN = {"words": " ", "characters": ""}
CHUNK = 2**22  # symbols that are counted at a time, so that memory is bounded
UNKNOWN = -1


def split_words(text: str) -> list[str]:
    """
    >>> split_words("Dull, DULL.")
    ['dull', ',', 'dull', '.']
    """
    return WORD.findall(text.lower())


def split_characters(text: str) -> str:
    """
    >>> split_characters("A  b")  # space after space is one space
    'a b'
    """
    return SPACES.sub(" ", text.lower())


SPLIT: Mapping[str, Callable[[str], Sequence[str]]] = {"words": split_words, "characters": split_characters}


def split_ngram(kind: str, ngram: str) -> Sequence[str]:
    """The symbols of an n-gram.

    >>> split_ngram("words", "dull tale")
    ['dull', 'tale']
    """
    return ngram.split(" ") if kind == "words" else ngram


@dataclass(frozen=True, eq=False)
class NgramVocabulary:
    """F n-grams of words or of characters: the shorter ones first, those of a length in the order of their symbols."""

    kind: str
    symbols: tuple[str, ...]  # sorted
    keys: tuple[Ints, ...]  # sorted: for n = 2, 3, …, the number of each n-gram's first n - 1 symbols, and of its last

    @classmethod
    def of(cls, kind: str, texts: Sequence[str]) -> NgramVocabulary:
        """All n-grams of some texts."""
        return cls._of_sequences(kind, [SPLIT[kind](text) for text in texts])

    @classmethod
    def containing(cls, kind: str, ngrams: Sequence[str]) -> NgramVocabulary:
        """These n-grams, and those that are a part of one."""
        return cls._of_sequences(kind, [split_ngram(kind, ngram) for ngram in ngrams])

    @classmethod
    def _of_sequences(cls, kind: str, sequences: Sequence[Sequence[str]]) -> NgramVocabulary:
        symbols = tuple(sorted(set(chain.from_iterable(sequences))))
        corpus = _Corpus.of(sequences, symbols)
        keys: list[Ints] = []
        numbers = corpus.symbols
        for _ in range(LENGTHS[kind][1] - 1):
            found = corpus.append_symbol(numbers, len(symbols))
            keys.append(np.unique(found[found != UNKNOWN]))
            numbers = _look_up(keys[-1], found)
        return cls(kind, symbols, tuple(keys))

    def __len__(self) -> int:
        return self._firsts[-1]

    @cached_property
    def _firsts(self) -> list[int]:
        """The first column of each length, from the shortest on, and the number of columns."""
        sizes = [len(self.symbols), *map(len, self.keys)][LENGTHS[self.kind][0] - 1 :]
        return [0, *np.cumsum(sizes).tolist()]

    @property
    def names(self) -> NDArray[np.object_]:
        """(F,): the n-grams themselves."""
        symbols = np.array(self.symbols, object)
        lengths = [symbols]
        for keys in self.keys:
            beginning, last = np.divmod(keys, max(1, len(symbols)))
            lengths.append(lengths[-1][beginning] + BETWEEN[self.kind] + symbols[last])
        return np.concatenate(lengths[LENGTHS[self.kind][0] - 1 :])

    def count(self, texts: Sequence[str]) -> Any:
        """(n, F): how often each text has each n-gram, a sparse matrix of float32."""
        from scipy.sparse import csr_matrix, vstack

        sequences = [SPLIT[self.kind](text) for text in texts]
        parts = []
        for chunk in _chunks(sequences):
            found = [corpus_row * len(self) + column for corpus_row, column in self._columns(chunk)]
            pairs, counts = np.unique(np.concatenate(found), return_counts=True)
            rows, columns = np.divmod(pairs, max(1, len(self)))
            ends = np.searchsorted(rows, np.arange(len(chunk) + 1))
            parts.append(csr_matrix((counts.astype(np.float32), columns, ends), shape=(len(chunk), len(self))))
        return vstack(parts, format="csr") if parts else csr_matrix((0, len(self)), dtype=np.float32)

    def find(self, ngrams: Sequence[str]) -> Ints:
        """The column of each n-gram; -1 for one that is not there."""
        sequences = [split_ngram(self.kind, ngram) for ngram in ngrams]
        lengths = np.array([len(sequence) for sequence in sequences], np.int64)
        columns = np.full(len(ngrams), UNKNOWN)
        for n, (rows, found) in enumerate(self._columns(sequences), LENGTHS[self.kind][0]):
            whole = lengths[rows] == n  # the n-gram of a sequence of n symbols is that sequence
            columns[rows[whole]] = found[whole]
        return columns

    def _columns(self, sequences: Sequence[Sequence[str]]) -> Iterator[tuple[Ints, Ints]]:
        """For each length, from the shortest on: every n-gram that is known, as its sequence and its column."""
        corpus = _Corpus.of(sequences, self.symbols)
        numbers = corpus.symbols
        shortest = LENGTHS[self.kind][0]
        for n in range(1, len(self.keys) + 2):
            if n > 1:
                numbers = _look_up(self.keys[n - 2], corpus.append_symbol(numbers, len(self.symbols)))
            if n >= shortest:
                known = np.flatnonzero(numbers != UNKNOWN)
                yield corpus.sequence[known], numbers[known] + self._firsts[n - shortest]


@dataclass(frozen=True)
class _Corpus:
    """The symbols of N places, sequence after sequence."""

    symbols: Ints  # (N,): numbers, UNKNOWN for a symbol that has none
    sequence: Ints  # (N,): which sequence a place belongs to

    @classmethod
    def of(cls, sequences: Sequence[Sequence[str]], symbols: Sequence[str]) -> _Corpus:
        number = {symbol: k for k, symbol in enumerate(symbols)}
        lengths = np.array([len(sequence) for sequence in sequences], np.int64)
        numbers = map(number.get, chain.from_iterable(sequences), repeat(UNKNOWN))
        return cls(
            np.fromiter(numbers, np.int64, count=int(lengths.sum())), np.repeat(np.arange(len(sequences)), lengths)
        )

    def append_symbol(self, numbers: Ints, size: int) -> Ints:
        """From the (n-1)-grams that begin at each place to the keys of the n-grams; UNKNOWN where there is none."""
        n = len(self.symbols) - len(numbers) + 2
        last = self.symbols[n - 1 :]
        beginning = numbers[: len(last)]
        within = self.sequence[: len(last)] == self.sequence[n - 1 :]
        return np.where(within & (beginning != UNKNOWN) & (last != UNKNOWN), beginning * size + last, UNKNOWN)


def _look_up(keys: Ints, wanted: Ints) -> Ints:
    """The place of each wanted key among the sorted ones; UNKNOWN for one that is not there."""
    if not len(keys):
        return np.full(len(wanted), UNKNOWN)
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, places, UNKNOWN)


def _chunks(sequences: Sequence[Sequence[str]]) -> Iterator[Sequence[Sequence[str]]]:
    """Runs of sequences with about CHUNK symbols each."""
    begin = size = 0
    for end, sequence in enumerate(sequences, 1):
        size += len(sequence)
        if size >= CHUNK or end == len(sequences):
            yield sequences[begin:end]
            begin, size = end, 0
