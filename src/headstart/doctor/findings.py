"""What the doctor finds and what it finds it in: findings, splits with what several checks ask of them, and words."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from headstart.doctor.near_duplicates import Sketches, sketch, words
from headstart.reading.content import content_hash
from headstart.reading.examples import Example, Examples

if TYPE_CHECKING:
    from headstart.tokenizers.tokenizer import Tokenizer

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")

SHOWN = 5  # rows to look at, for each finding
EXCERPT = 80  # characters of a row


@dataclass(frozen=True)
class Place:
    """A row to look at, and the one it is paired with where the finding is about two."""

    split: str
    path: str
    line: int
    label: str | None
    excerpt: str
    partner: Place | None = None


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: `count` rows out of `of`, by split in `rows`, and what to do about it."""

    kind: str
    severity: Severity
    count: int
    of: int
    message: str
    advice: str
    examples: tuple[Place, ...] = ()
    rows: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Lengths:
    """How long the rows of a split are."""

    mean: float
    median: float
    most: float  # 95 rows of 100 are no longer than this
    longest: int


@dataclass(frozen=True)
class Summary:
    """One split at a glance. `balance` is each label's share of the rows; `tokens` wants a tokenizer."""

    name: str
    rows: int
    labels: Mapping[str, int]
    balance: Mapping[str, float]
    words: Lengths
    tokens: Lengths | None


@dataclass(frozen=True)
class Report:
    """What `examine` found, and what it could not look at with what it was given."""

    splits: tuple[Summary, ...]
    findings: tuple[Finding, ...]
    unexamined: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers, ready for `json.dumps`."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain


# --- what is worked out once for each split ---


@dataclass(frozen=True)
class Part:
    """A split under its name, with what several checks ask of it."""

    name: str
    examples: Examples

    @property
    def rows(self) -> tuple[Example, ...]:
        return self.examples.rows

    @cached_property
    def keys(self) -> list[int | None]:
        """What makes two rows the same; None for an empty row, which is the same as nothing."""
        return [key_of(row) for row in self.rows]

    @cached_property
    def places(self) -> dict[int, list[int]]:
        """The rows of each key, in order."""
        places: dict[int, list[int]] = defaultdict(list)
        for row, key in enumerate(self.keys):
            if key is not None:
                places[key].append(row)
        return dict(places)

    @cached_property
    def firsts(self) -> list[int]:
        """The first row of each key: near duplicates are sought among these."""
        return [rows[0] for rows in self.places.values()]

    @cached_property
    def sketches(self) -> Sketches:
        return sketch(self.rows[row].content for row in self.firsts)

    @cached_property
    def words(self) -> NDArray[np.int64]:
        """The number of words in each row."""
        return np.array([len(words(row.content)) for row in self.rows], np.int64)

    @cached_property
    def labels(self) -> Counter[str]:
        """How often each label is given, in the order of the label table."""
        counts = Counter(row.label for row in self.rows)
        return Counter({label: counts[label] for label in self.examples.class_names})

    def labels_of(self, key: int) -> set[str | None]:
        return {self.rows[row].label for row in self.places[key]}

    def twins(self, row: int, other: Part) -> list[int]:
        """The rows of another split (or of this one) that are the same as a row of this one."""
        key = self.keys[row]
        return [] if key is None else other.places.get(key, [])

    def place(self, row: int, *, at: int = 0, partner: Place | None = None) -> Place:
        """The row as it is shown: from its beginning, or around the character `at`."""
        example = self.rows[row]
        return Place(self.name, example.path, example.line, example.label, excerpt(shown_text(example), at), partner)


def splits_of(train: Examples, valid: Examples | None, test: Examples | None) -> list[Part]:
    given = {"train": train, "valid": valid, "test": test}
    return [Part(name, examples) for name, examples in given.items() if examples is not None]


def key_of(row: Example) -> int | None:
    if _blank(row.text) or (row.second is not None and _blank(row.second)):
        return None
    return content_hash(row.content)


def _blank(text: str) -> bool:
    return all(character.isspace() or not character.isprintable() for character in text)


def shown_text(row: Example) -> str:
    return " | ".join(side for side in (row.text, row.second) if side is not None)


def excerpt(text: str, at: int = 0) -> str:
    r"""At most 80 characters of a text, around the character `at`, safe to print.

    >>> excerpt("two\nlines and a bell \x07")
    'two lines and a bell \\x07'
    """
    start = at - 30 if at > 50 else 0
    piece = text[start : start + 2 * EXCERPT]
    shown = "".join(
        c if c.isprintable() else " " if c.isspace() else c.encode("unicode_escape").decode() for c in piece
    )
    shown = ("…" if start else "") + shown.strip()
    cut = len(shown) > EXCERPT or start + len(piece) < len(text)
    return shown[: EXCERPT - 1].rstrip() + "…" if cut else shown


def quoted(label: str) -> str:
    """A label between quotes, cut where it is long: a column of texts may have been taken for the labels."""
    return repr(label if len(label) <= 30 else label[:29] + "…")


@dataclass(frozen=True)
class Tokens:
    """The tokens of a split: each row's length as the model would see it, and its unknown pieces."""

    lengths: NDArray[np.int64]  # (rows,) with the special tokens
    unknown: NDArray[np.int64]  # (rows,)
    pieces: int  # in all, without the special tokens


def count_tokens(part: Part, tokenizer: Tokenizer, batch: int = 1000) -> Tokens:
    lengths, unknown, pieces = [], [], 0
    for begin in range(0, len(part.rows), batch):
        rows = part.rows[begin : begin + batch]
        seconds = tokenizer.encode_batch([row.second or "" for row in rows])
        for row, ids, more in zip(rows, tokenizer.encode_batch([row.text for row in rows]), seconds, strict=True):
            lengths.append(len(tokenizer.wrap(ids, None if row.second is None else more)[0]))
            unknown.append(0 if tokenizer.unknown is None else (ids + more).count(tokenizer.unknown))
            pieces += len(ids) + len(more)
    return Tokens(np.array(lengths, np.int64), np.array(unknown, np.int64), pieces)


def summary(part: Part, tokens: Tokens | None) -> Summary:
    labels = dict(part.labels)
    balance = {label: count / part.labels.total() for label, count in labels.items()}
    return Summary(
        part.name,
        len(part.rows),
        labels,
        balance,
        _lengths(part.words),
        None if tokens is None else _lengths(tokens.lengths),
    )


def _lengths(values: NDArray[np.int64]) -> Lengths:
    if not len(values):
        return Lengths(0.0, 0.0, 0.0, 0)
    median, most = np.percentile(values, [50, 95], method="inverted_cdf")
    return Lengths(float(values.mean()), float(median), float(most), int(values.max()))


# --- words ---


def number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def rows_of(rows: Sequence[int], part: Part) -> str:
    return f"{len(rows)} of {len(part.rows)} {part.name} rows"


def verb(rows: Sequence[int], one: str, many: str) -> str:
    return one if len(rows) == 1 else many


def percent(count: int, of: int) -> str:
    """A share as a reader wants it, never rounded to nothing.

    >>> percent(1, 3), percent(1, 4000), percent(1, 2_000_000)
    ('33.3%', '0.03%', 'under 0.01%')
    """
    share = 100 * count / max(1, of)
    if share < 0.01:
        return "under 0.01%"
    return f"{share:.1f}%" if share >= 0.1 else f"{share:.2f}%"


def some(labels: Sequence[str], most: int = 5) -> str:
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return ", ".join(map(quoted, labels[:most])) + more
