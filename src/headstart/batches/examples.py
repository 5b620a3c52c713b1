"""Labelled examples as token ids, and batches of them: a number of examples a step, or a budget of tokens."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.batches.batch import Batch, Ints, packed, rng
from headstart.batches.ragged import Piece, concatenate
from headstart.batches.sampler import BatchSampler, ClassPairSampler, batch_boundaries
from headstart.errors import DataError, listed_names, shown
from headstart.reading.examples import Example, Examples
from headstart.tokenizers.tokenizer import Tokenizer

Row = NDArray[Any] | list[int]


@dataclass(frozen=True)
class EncodedExamples:
    """A labelled set as ids: row r is `ids[starts[r]:starts[r + 1]]`, in special tokens and truncated to a window."""

    ids: NDArray[np.int32]
    starts: Ints
    segments: NDArray[np.int8] | None  # None where no row is a pair
    labels: Ints  # -1 where a row has none
    truncated: int  # rows that were longer than the window

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Ints:
        return np.diff(self.starts)

    @classmethod
    def of(cls, examples: Examples, tokenizer: Tokenizer, class_names: Sequence[str], window: int) -> EncodedExamples:
        """Encode a set; a label that is not among the class names is an error that names the row."""
        rows = examples.rows
        labels = _class_ids(rows, class_names)
        texts = tokenizer.encode_batch([row.text for row in rows])
        seconds = tokenizer.encode_batch([row.second or "" for row in rows])
        ids: list[list[int]] = []
        segments: list[list[int]] = []
        truncated = 0
        for row, first, second in zip(rows, texts, seconds, strict=True):
            pair = (first,) if row.second is None else (first, second)
            row_ids, row_segments = tokenizer.wrap(*pair, window=window)
            truncated += len(tokenizer.wrap(*pair)[0]) > len(row_ids)
            if not row_ids:  # an empty text without special tokens: no model takes an empty sequence
                row_ids, row_segments = [next(t for t in (tokenizer.end, tokenizer.unknown, 0) if t is not None)], [0]
            ids.append(row_ids)
            segments.append(row_segments)
        paired = any(row.second is not None for row in rows)
        return cls.from_rows(ids, segments if paired else None, labels, truncated)

    @classmethod
    def from_rows(
        cls, ids: Sequence[Row], segments: Sequence[Row] | None = None, labels: Ints | None = None, truncated: int = 0
    ) -> EncodedExamples:
        return cls(
            np.concatenate([np.zeros(0, np.int32), *ids]).astype(np.int32),
            np.cumsum([0, *map(len, ids)], dtype=np.int64),
            None if segments is None else np.concatenate(segments).astype(np.int8),
            np.full(len(ids), -1) if labels is None else labels,
            truncated,
        )

    @classmethod
    def joined(cls, parts: Sequence[EncodedExamples]) -> EncodedExamples:
        """The rows of several sets, one set after the other."""
        segments = None
        if any(part.segments is not None for part in parts):  # a single text is all segment 0
            segments = [np.zeros_like(part.ids, np.int8) if part.segments is None else part.segments for part in parts]
        return cls(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([[0], np.cumsum(np.concatenate([part.lengths for part in parts]))]),
            None if segments is None else np.concatenate(segments),
            np.concatenate([part.labels for part in parts]),
            sum(part.truncated for part in parts),
        )

    def take(self, rows: Ints) -> EncodedExamples:
        """These rows as a set of their own, in this order; `truncated` is not counted for them."""
        ids, starts, segments = self._gathered(rows)
        narrow = None if segments is None else segments.astype(np.int8)
        return EncodedExamples(ids.astype(np.int32), starts, narrow, self.labels[rows], 0)

    def batch(self, rows: Ints) -> Batch:
        """These rows as one batch, in this order."""
        ids, starts, segments = self._gathered(rows)
        return Batch(
            **packed(ids, starts),
            segments=None if segments is None else torch.from_numpy(segments),
            labels=torch.from_numpy(self.labels[rows]),
            rows=torch.from_numpy(np.array(rows, dtype=np.int64)),
        )

    def _gathered(self, rows: Ints) -> tuple[Ints, Ints, Ints | None]:
        """(N,), (S + 1,), (N,): tokens of these rows end to end, where each begins, and segments."""
        start, length = self.starts[rows], self.starts[rows + 1] - self.starts[rows]
        ids, starts = concatenate([Piece(self.ids, start, length)])
        segments = None if self.segments is None else concatenate([Piece(self.segments, start, length)])[0]
        return ids, starts, segments


class EncodingCache:
    """Encodes sets, and keeps those that are asked for again: a study has many runs on the same texts.

    A set is known by its identity, and the last few are kept: the splits of a study, not its draws of few labels.
    """

    def __init__(self, keep: int = 0) -> None:
        self.keep = keep
        self._kept: dict[tuple[Any, ...], tuple[Examples, EncodedExamples, float]] = {}

    def __call__(
        self, examples: Examples, tokenizer: Tokenizer, class_names: Sequence[str], window: int
    ) -> tuple[EncodedExamples, float]:
        """The set as ids, and the seconds that it took to encode, then or now."""
        key = (id(examples), tokenizer.fingerprint, tuple(class_names), window)
        if key not in self._kept:
            began = time.perf_counter()
            encoded = EncodedExamples.of(examples, tokenizer, class_names, window)
            self._kept[key] = examples, encoded, time.perf_counter() - began
        _, encoded, seconds = self._kept[key] = self._kept.pop(key)  # now the last
        while len(self._kept) > self.keep:
            del self._kept[next(iter(self._kept))]
        return encoded, seconds


def _class_ids(rows: Sequence[Example], class_names: Sequence[str]) -> Ints:
    number = {name: i for i, name in enumerate(class_names)}
    unknown = next((row for row in rows if row.label is not None and row.label not in number), None)
    if unknown is not None:
        raise DataError(
            unknown.path,
            f"label {shown(unknown.label)} is not one of {listed_names(class_names)}, which the model or the "
            "training set has",
            line=unknown.line,
            fix="mend the label, or train on data that has this class",
        )
    return np.array([-1 if row.label is None else number[row.label] for row in rows], dtype=np.int64)


def length_sorted_batches(data: EncodedExamples, tokens: int) -> list[Ints]:
    """The rows of each batch of about `tokens` tokens, sorted by length: for scoring, where order does not matter."""
    if len(data) == 0:
        return []
    rows = np.argsort(data.lengths, kind="stable")
    boundaries = batch_boundaries(data.lengths[rows], tokens)
    return [rows[a:b] for a, b in pairwise(boundaries)]


@dataclass
class ExampleBatches:
    """`batch_size` examples a step; or, where `tokens` is given, about so many tokens a step.

    Batches are not sorted by length: without padding nothing is gained by it. With `token_dropout` each text loses that
    share of its tokens, others each epoch; `never_dropped` are ids that always stay, as special tokens do. With
    `class_pairs` each example of a batch has another of its class there, which a contrastive loss needs.
    """

    data: EncodedExamples
    seed: int
    batch_size: int = 8
    tokens: int | None = None
    token_dropout: float = 0.0
    never_dropped: Sequence[int] = ()
    class_pairs: bool = False
    sampler: BatchSampler = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.data) == 0:
            raise DataError("examples", "there are no rows to train on")
        lengths, tokens = self.data.lengths, self.tokens
        if tokens is None:  # a step of `batch_size` items, each of which counts as one
            lengths, tokens = np.ones(len(self.data), np.int64), self.batch_size
        if self.class_pairs:
            self.sampler = ClassPairSampler(lengths, tokens, self.seed, self.data.labels)
        else:
            self.sampler = BatchSampler(lengths, tokens, self.seed)

    def steps(self, epoch: int) -> int:
        return self.sampler.steps(epoch)

    def batch(self, epoch: int, step: int) -> Batch:
        batch = self.data.batch(self.sampler.items(epoch, step))
        if not self.token_dropout:
            return batch
        kept = rng(self.seed, epoch, 1, step).random(len(batch.ids)) >= self.token_dropout
        return drop_tokens(batch, kept | np.isin(batch.ids.numpy(), self.never_dropped))


def drop_tokens(batch: Batch, kept: NDArray[np.bool_]) -> Batch:
    """The batch with only those of its tokens (N,) that are kept; a text that would lose all keeps its first.

    >>> batch = Batch(torch.tensor([5, 6, 7, 8]), torch.tensor([0, 3, 4], dtype=torch.int32), longest=3)
    >>> fewer = drop_tokens(batch, np.array([False, True, True, False]))
    >>> fewer.ids.tolist(), fewer.starts.tolist(), fewer.longest
    ([6, 7, 8], [0, 2, 3], 2)
    """
    old_starts = batch.starts.numpy()
    starts = np.concatenate([[0], np.cumsum(kept)])[old_starts]
    emptied = np.flatnonzero(np.diff(starts) == 0)
    kept = kept.copy()
    kept[old_starts[emptied]] = True
    starts = np.concatenate([[0], np.cumsum(kept)])[old_starts].astype(np.int32)
    return replace(
        batch,
        ids=batch.ids[kept],
        starts=torch.from_numpy(starts),
        longest=int(np.diff(starts).max()),
        segments=None if batch.segments is None else batch.segments[kept],
    )
