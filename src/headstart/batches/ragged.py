"""Sequences of different lengths, gathered from arrays and laid end to end by operations on whole arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.batches.batch import Ints


class Piece(NamedTuple):
    """A piece of each of S sequences: `length[s]` tokens of `source` from `start[s]` on."""

    source: NDArray[Any]
    start: Ints  # (S,)
    length: Ints  # (S,)

    @classmethod
    def same(cls, token: int, sequences: int) -> Piece:
        """One token that every sequence has."""
        return cls(np.array([token]), np.zeros(sequences, np.int64), np.ones(sequences, np.int64))


def concatenate(pieces: Sequence[Piece]) -> tuple[Ints, Ints]:
    """(N,) and (S + 1,): sequences that are their pieces one after the other, end to end; and where each begins.

    >>> tokens = np.array([10, 11, 12, 13])
    >>> text = Piece(tokens, start=np.array([2, 0]), length=np.array([2, 1]))
    >>> ids, starts = concatenate([Piece.same(7, 2), text])
    >>> ids.tolist(), starts.tolist()
    ([7, 12, 13, 7, 10], [0, 3, 5])
    """
    lengths = np.stack([piece.length for piece in pieces], axis=1)  # (S, pieces)
    ends = np.cumsum(lengths).reshape(lengths.shape)
    ids = np.empty(lengths.sum(), dtype=np.int64)
    for piece, begin in zip(pieces, (ends - lengths).T, strict=True):
        if (piece.length == 1).all():
            ids[begin] = piece.source[piece.start]
        else:
            inside = positions(piece.length)
            ids[np.repeat(begin, piece.length) + inside] = piece.source[np.repeat(piece.start, piece.length) + inside]
    return ids, np.append(0, ends[:, -1])


def positions(lengths: Ints) -> Ints:
    """(N,): the position of each token in its sequence.

    >>> positions(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    before = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) - np.repeat(before, lengths)
