"""Columns: which columns of a table hold the text, the second text of a pair and the label: named, or guessed."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headstart.errors import DataError, shown
from headstart.reading.lines import base_suffix
from headstart.reading.tables import Table

TEXT_NAMES = ("text", "content", "body", "review", "sentence", "document", "comment", "message", "article", "tweet")
LABEL_NAMES = (
    "label", "labels", "class", "category", "target", "sentiment", "polarity", "stars", "rating", "score", "intent",
    "topic", "gold_label",
)  # fmt: skip
PAIR_NAMES = (
    ("text", "second"),
    ("sentence1", "sentence2"),
    ("sentence_a", "sentence_b"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
)


@dataclass(frozen=True)
class Columns:
    """The columns to read, and a note about those that were guessed."""

    text: str
    second: str | None
    label: str | None
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        return [name for name in (self.text, self.second, self.label) if name is not None]


def choose_columns(table: Table, text: str | None, second: str | None, label: str | None, *, labelled: bool) -> Columns:
    """The columns to read: those named, which must exist, and a guess for the others."""
    given = {"text": text, "second text": second, "label": label}
    for name in given.values():
        if name is not None:
            table.require(name)
    if text is None:
        text, second = _find_pair(table, second)
    if label is None:
        label = find_label(table, exclude=(text, second))
    if text is None:
        text = guess_text_column(table, exclude=(second, label))
    if labelled and label is None:
        others = _candidates(table, exclude=(text, second))
        if len(others) != 1:
            raise _unclear(table, "label", "--label")
        label = others[0]
    label = table.require(label) if labelled and label is not None else None
    chosen = {"text": text, "second text": second, "label": label}
    guesses = [
        f"{role} column {shown(name)}" for role, name in chosen.items() if name is not None and given[role] is None
    ]
    columns = Columns(text, second, label, (f"guessed: {', '.join(guesses)}",) if guesses else ())
    if len(set(columns.names)) < len(columns.names):
        problem = f"one column was named for two things: {', '.join(map(shown, columns.names))}"
        raise DataError(table.path, problem, fix="name a column of its own for each of text, second and label")
    return columns


def find_label(table: Table, exclude: Sequence[str | None] = ()) -> str | None:
    """The column with a usual name of a label."""
    return _find_column(table, LABEL_NAMES, exclude)


def guess_text_column(table: Table, exclude: Sequence[str | None] = (), option: str = "--text") -> str:
    """The column of text: one with a usual name, or the only one that holds text; `option` is the one that names it."""
    usual = _find_column(table, TEXT_NAMES, exclude)
    if usual is not None:
        return table.require(usual)
    names = _candidates(table, exclude)
    if len(names) != 1:
        text_columns = set(table.text_columns)
        names = [name for name in names if name in text_columns]
    if len(names) != 1:
        raise _unclear(table, "text", option)
    return table.require(names[0])


def _find_pair(table: Table, second: str | None) -> tuple[str | None, str | None]:
    """Two columns with the usual names of a pair, if they exist (and the second is the one that was named)."""
    for names in PAIR_NAMES:
        pair = (_find_column(table, names[:1]), _find_column(table, names[1:]))
        if None not in pair and second in (None, pair[1]):
            return pair
    return None, second


def _find_column(table: Table, names: Iterable[str], exclude: Sequence[str | None] = ()) -> str | None:
    """The column with the first of the usual names, whatever its case."""
    columns = {column.casefold(): column for column in table.columns if column not in exclude}
    return next((columns[name] for name in names if name in columns), None)


def _candidates(table: Table, exclude: Sequence[str | None] = ()) -> list[str]:
    """The columns that a guess may choose: not one without a name, under which row numbers are often saved."""
    return [name for name in table.columns if name and name not in exclude]


def _unclear(table: Table, role: str, option: str) -> DataError:
    names = ", ".join(reprlib.repr(name) for name in table.columns[:12])
    more = ", …" if len(table.columns) > 12 else ""
    fix = f"name the column of the {role} with {option}"
    if base_suffix(table.path) in (".csv", ".tsv"):
        fix += "; where the first row is no header, write one above it"
    return DataError(table.path, f"which column is the {role}? There are: {names}{more}", fix=fix)
