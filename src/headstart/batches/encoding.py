"""A labelled set as token ids, ready to be batched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.batches.batch import Batch, Ints, flat, token_edges
from headstart.errors import DataError
from headstart.reading.examples import Examples
from headstart.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Encoded:
    """A labelled set as ids: row r is `ids[starts[r]:starts[r + 1]]`, in its special tokens and cut to a window."""

    ids: NDArray[np.int32]
    starts: Ints
    segments: NDArray[np.int8] | None  # None where no row is a pair
    labels: Ints  # -1 where a row has none
    cut: int  # rows that were longer than the window

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Ints:
        return np.diff(self.starts)

    @classmethod
    def of(cls, examples: Examples, tokenizer: Tokenizer, labels: Sequence[str], window: int) -> Encoded:
        """Encode a set; a label that is not in the table is an error that names the row."""
        number = {label: i for i, label in enumerate(labels)}
        first = tokenizer.encode_batch([row.text for row in examples.rows])
        paired = any(row.second is not None for row in examples.rows)
        second = tokenizer.encode_batch([row.second or "" for row in examples.rows]) if paired else None
        ids: list[NDArray[np.int32]] = []
        segments: list[NDArray[np.int8]] = []
        classes: list[int] = []
        cut = 0
        for i, row in enumerate(examples.rows):
            if row.label is not None and row.label not in number:
                raise DataError(
                    row.path,
                    f"label {row.label!r} is not one of {', '.join(labels)}, which the model or the training set has",
                    line=row.line,
                    fix="mend the label, or train on data that has this class",
                )
            mate = second[i] if second is not None and row.second is not None else None
            wrapped, parts = tokenizer.wrap(first[i], mate, window=window)
            whole = tokenizer.wrap(first[i], mate)[0]
            cut += len(whole) > len(wrapped)
            if not wrapped:  # an empty text, and a form that puts nothing around it: something must stand there
                wrapped, parts = [next(t for t in (tokenizer.end, tokenizer.unknown, 0) if t is not None)], [0]
            ids.append(np.array(wrapped, dtype=np.int32))
            segments.append(np.array(parts, dtype=np.int8))
            classes.append(-1 if row.label is None else number[row.label])
        starts = np.concatenate([[0], np.cumsum([len(row) for row in ids])]).astype(np.int64)
        return cls(
            np.concatenate(ids) if ids else np.zeros(0, np.int32),
            starts,
            np.concatenate(segments) if paired else None,
            np.array(classes, dtype=np.int64),
            cut,
        )

    def batch(self, rows: Ints) -> Batch:
        """These rows as one batch, in this order."""
        spans = [slice(self.starts[r], self.starts[r + 1]) for r in rows]
        segments = None
        if self.segments is not None:
            segments = torch.from_numpy(np.concatenate([self.segments[s] for s in spans]).astype(np.int64))
        return Batch(
            **flat([self.ids[s] for s in spans]),
            segments=segments,
            labels=torch.from_numpy(self.labels[rows]),
            rows=torch.from_numpy(np.array(rows, dtype=np.int64)),
        )


def in_order(data: Encoded, tokens: int) -> list[Ints]:
    """The rows of a set in batches of about `tokens` tokens, rows of like length together: for scoring alone."""
    if len(data) == 0:
        return []
    rows = np.argsort(data.lengths, kind="stable")
    edges = token_edges(data.lengths[rows], tokens)
    return [rows[a:b] for a, b in pairwise(edges)]
