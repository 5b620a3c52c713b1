"""Skipped rows: with --skip-bad, rows that cannot be read are collected here; without it, the first one raises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from headstart.errors import DataError

LISTED = 20  # errors that are kept and shown

Value = TypeVar("Value")
Parsed = TypeVar("Parsed")


@dataclass
class SkippedRows:
    """The rows that were skipped: how many (lines, where one mistake spoils several), and the first twenty errors.

    >>> skipped = SkippedRows()
    >>> skipped.add(DataError("reviews.txt", "not UTF-8", line=812))
    >>> skipped.count, str(skipped.first[0])
    (1, 'reviews.txt, line 812: not UTF-8')
    """

    count: int = 0
    first: list[DataError] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        """A line for each of the first, without the advice to skip it."""
        return [str(DataError(error.path, error.problem, line=error.line)) for error in self.first]

    def add(self, error: DataError) -> None:
        self.count += error.lines
        if len(self.first) < LISTED:
            # The traceback would keep the reader's frames, and with them the open file, alive.
            self.first.append(error.with_traceback(None))


def bad_row(path: str | Path, line: int, problem: str, fix: str, lines: int = 1) -> DataError:
    """The error for one row, which can be fixed or skipped; `lines` is how many it spans."""
    return DataError(path, problem, line=line, fix=f"{fix}, or leave such rows out with --skip-bad", lines=lines)


def raise_or_skip(error: DataError, skipped: SkippedRows | None) -> None:
    """Raise the error, or add it to the skipped rows where the caller collects them."""
    if skipped is None:
        raise error
    skipped.add(error)


def parse_rows(
    parse: Callable[[int, Value], Parsed], rows: Iterable[tuple[int, Value]], skipped: SkippedRows | None
) -> Iterator[Parsed]:
    """`parse(line, value)` of each row; a row for which it raises `DataError` is skipped, or stops the reading."""
    for line, value in rows:
        try:
            parsed = parse(line, value)
        except DataError as error:
            raise_or_skip(error, skipped)
        else:
            yield parsed


def summary_lines(count: int, first: Sequence[str]) -> Iterator[str]:
    """What the user is told about skipped rows: how many, and the first of them.

    >>> list(summary_lines(3, ["a.csv, line 2: a quote is not closed"]))
    ['left out 3, these:', '  a.csv, line 2: a quote is not closed']
    """
    if count:
        yield f"left out {count:,}, {'these' if len(first) < LISTED else f'the first {len(first)}'}:"
        yield from (f"  {line}" for line in first)
