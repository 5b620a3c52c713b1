"""Splits: the rows of train, valid or test with what several checks need, and the hits that a check finds in them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby, islice, zip_longest
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headstart.doctor.findings import Finding, Lengths, RowReference, Severity, Summary, excerpt
from headstart.doctor.near_duplicates import Sketches, sketch, words
from headstart.reading.examples import Example, Examples
from headstart.reading.split import content_hash

if TYPE_CHECKING:
    from headstart.tokenizers.tokenizer import Tokenizer

SHOWN = 5  # rows to look at, for each finding
TOKENIZER_BATCH = 1000  # rows


@dataclass(frozen=True)
class Split:
    """A split under its name. Two rows are the same when their keys are equal."""

    name: str
    examples: Examples
    tokenizer: Tokenizer | None = None

    @property
    def rows(self) -> tuple[Example, ...]:
        return self.examples.rows

    @cached_property
    def keys(self) -> list[int | None]:
        """The content hash of each row; None for an empty row, which is the same as no other."""
        return [None if _is_empty(row) else content_hash(row.content) for row in self.rows]

    @cached_property
    def rows_by_key(self) -> dict[int | None, list[int]]:
        """The rows of each key, in order; empty rows have none."""
        rows: dict[int | None, list[int]] = defaultdict(list)
        for row, key in enumerate(self.keys):
            if key is not None:
                rows[key].append(row)
        return dict(rows)

    @cached_property
    def first_rows(self) -> list[int]:
        """The first row of each key: near duplicates are searched among these."""
        return [rows[0] for rows in self.rows_by_key.values()]

    @cached_property
    def sketches(self) -> Sketches:
        return sketch(self.rows[row].content for row in self.first_rows)

    @cached_property
    def word_counts(self) -> NDArray[np.int64]:
        return np.array([len(words(row.content)) for row in self.rows], np.int64)

    @cached_property
    def label_counts(self) -> Counter[str]:
        """How often each label occurs, in the order of the class names."""
        counts = Counter(row.label for row in self.rows)
        return Counter({label: counts[label] for label in self.examples.class_names})

    @cached_property
    def tokens(self) -> Tokens:
        counts = [] if self.tokenizer is None else list(_count_tokens(self.rows, self.tokenizer))
        return Tokens(*np.array(counts, np.int64).reshape(-1, 3).T)

    def summary(self) -> Summary:
        balance = {label: count / self.label_counts.total() for label, count in self.label_counts.items()}
        words, tokens = _lengths(self.word_counts), None if self.tokenizer is None else _lengths(self.tokens.lengths)
        return Summary(self.name, len(self.rows), dict(self.label_counts), balance, words, tokens)


def named_splits(
    train: Examples, valid: Examples | None, test: Examples | None, tokenizer: Tokenizer | None = None
) -> list[Split]:
    given = {"train": train, "valid": valid, "test": test}
    return [Split(name, examples, tokenizer) for name, examples in given.items() if examples is not None]


def _is_empty(row: Example) -> bool:
    """Whether a text, or one of a pair, has no character that can be seen."""
    texts = (row.text,) if row.second is None else (row.text, row.second)
    return any(all(c.isspace() or not c.isprintable() for c in text) for text in texts)


def shown_text(row: Example) -> str:
    return row.text if row.second is None else f"{row.text} | {row.second}"


def _lengths(values: NDArray[np.int64]) -> Lengths:
    if not len(values):
        return Lengths(0.0, 0.0, 0.0, 0)
    median, most = np.percentile(values, [50, 95], method="inverted_cdf")
    return Lengths(float(values.mean()), float(median), float(most), int(values.max()))


# Tokens


@dataclass(frozen=True)
class Tokens:
    """How many tokens each row has."""

    lengths: NDArray[np.int64]  # (rows,) with the special tokens
    content: NDArray[np.int64]  # (rows,) without them
    unknown: NDArray[np.int64]  # (rows,)


def _count_tokens(rows: Sequence[Example], tokenizer: Tokenizer) -> Iterator[tuple[int, int, int]]:
    """The fields of `Tokens` for each row."""
    for begin in range(0, len(rows), TOKENIZER_BATCH):
        batch = rows[begin : begin + TOKENIZER_BATCH]
        first = tokenizer.encode_batch([row.text for row in batch])
        second = tokenizer.encode_batch([row.second or "" for row in batch])
        for row, ids, second_ids in zip(batch, first, second, strict=True):
            length = len(tokenizer.wrap(ids, None if row.second is None else second_ids)[0])
            unknown = 0 if tokenizer.unknown is None else (ids + second_ids).count(tokenizer.unknown)
            yield length, len(ids) + len(second_ids), unknown


# Hits


@dataclass(frozen=True)
class Hit:
    """A row that a check found, the hit it is paired with, and the character to show it from."""

    split: Split
    row: int
    partner: Hit | None = None
    at: int = 0

    def reference(self) -> RowReference:
        example = self.split.rows[self.row]
        partner = None if self.partner is None else self.partner.reference()
        shown = excerpt(shown_text(example), self.at)
        return RowReference(self.split.name, example.path, example.line, example.label, shown, partner)


def rows_finding(
    kind: str,
    severity: Severity,
    splits: Sequence[Split],
    hits: Sequence[Hit],
    problem: str,
    advice: str,
    other_rows: Mapping[str, int] | None = None,
) -> Iterator[Finding]:
    """One finding about the rows hit in the splits, or none. `problem` begins with its verb, as in "has|have no text".

    `hits` are in the order of the splits; `other_rows` counts rows of other splits that the finding is about.
    """
    if not hits:
        return
    total = sum(len(split.rows) for split in splits)
    by_split = Counter(hit.split.name for hit in hits)
    counts = ", ".join(f"{name} {count}" for name, count in by_split.items())
    subject = f"rows ({counts})" if len(splits) > 1 else f"{splits[0].name} rows"
    verbs, _, rest = problem.partition(" ")
    message = f"{len(hits)} of {total} {subject} {verbs.split('|')[len(hits) > 1]} {rest}"
    first = [list(islice(group, SHOWN)) for _, group in groupby(hits, key=lambda hit: hit.split.name)]
    turns = chain.from_iterable(zip_longest(*first))  # the first of each split, the second of each, and so on
    references = tuple(hit.reference() for hit in islice(filter(None, turns), SHOWN))
    yield Finding(kind, severity, len(hits), total, message, advice, references, {**by_split, **(other_rows or {})})


def split_finding(
    kind: str, severity: Severity, split: Split, count: int, message: str, advice: str, shown: Sequence[Hit] = ()
) -> Finding:
    """A finding about one split with a message of its own."""
    references = tuple(hit.reference() for hit in shown[:SHOWN])
    return Finding(kind, severity, count, len(split.rows), message, advice, references, {split.name: count})
