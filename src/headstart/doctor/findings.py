"""Findings: what the doctor reports, ready for JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")

EXCERPT = 80  # characters of a row


@dataclass(frozen=True)
class RowReference:
    """A row to look at, and the row it is paired with where the finding is about two."""

    split: str
    path: str
    line: int
    label: str | None
    excerpt: str
    partner: RowReference | None = None


@dataclass(frozen=True)
class Finding:
    """One problem: `count` rows out of `of`, by split in `rows`, and what to do about it."""

    kind: str
    severity: Severity
    count: int
    of: int
    message: str
    advice: str
    examples: tuple[RowReference, ...] = ()
    rows: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Lengths:
    """How long the rows of a split are."""

    mean: float
    median: float
    most: float  # the 95th percentile
    longest: int


@dataclass(frozen=True)
class Summary:
    """One split at a glance. `balance` is each label's share of the rows; `tokens` needs a tokenizer."""

    name: str
    rows: int
    labels: Mapping[str, int]
    balance: Mapping[str, float]
    words: Lengths
    tokens: Lengths | None


@dataclass(frozen=True)
class Report:
    """The findings of `examine`, and what it could not examine with what it was given."""

    splits: tuple[Summary, ...]
    findings: tuple[Finding, ...]
    unexamined: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers, ready for `json.dumps`."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain


def excerpt(text: str, at: int = 0) -> str:
    r"""At most 80 characters of a text, around the character `at`, safe to print.

    >>> excerpt("two\nlines and a bell \x07")
    'two lines and a bell \\x07'
    """
    start = at - 30 if at > 50 else 0
    window = text[start : start + 2 * EXCERPT]
    printable = "".join(
        c if c.isprintable() else " " if c.isspace() else c.encode("unicode_escape").decode() for c in window
    )
    printable = ("…" if start else "") + printable.strip()
    truncated = len(printable) > EXCERPT or start + len(window) < len(text)
    return printable[: EXCERPT - 1].rstrip() + "…" if truncated else printable


def quote_label(label: str) -> str:
    """A label in quotes, truncated where it is long: a column of texts may have been taken for the labels."""
    return repr(label if len(label) <= 30 else label[:29] + "…")


def list_labels(labels: Sequence[str], most: int = 5) -> str:
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return ", ".join(map(quote_label, labels[:most])) + more


def percent(count: int, of: int) -> str:
    """A share in percent, never rounded to zero.

    >>> percent(1, 3), percent(1, 4000), percent(1, 2_000_000)
    ('33.3%', '0.03%', 'under 0.01%')
    """
    share = 100 * count / max(1, of)
    if share < 0.01:
        return "under 0.01%"
    return f"{share:.1f}%" if share >= 0.1 else f"{share:.2f}%"
