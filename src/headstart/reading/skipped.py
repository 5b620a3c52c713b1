"""Skipped: what cannot be read and is left out, noted here so that reading goes on; without it, reading stops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headstart.errors import DataError

SKIP = "leave such rows out with --skip-bad"


@dataclass
class SkippedRows:
    """What was left out instead of stopping: how many, and the first twenty in full.

    >>> skipped = SkippedRows()
    >>> skipped.add(DataError("reviews.txt", "not UTF-8", line=812))
    >>> skipped.count, str(skipped.first[0])
    (1, 'reviews.txt, line 812: not UTF-8')
    """

    count: int = 0
    first: list[DataError] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        """A line for each of the first, without the advice to leave it out."""
        return [str(DataError(error.path, error.problem, line=error.line)) for error in self.first]

    def add(self, error: DataError) -> None:
        self.count += 1
        if len(self.first) < 20:
            # The traceback would keep the reader's frames, and with them the open file, alive.
            self.first.append(error.with_traceback(None))


def raise_or_skip(error: DataError, skipped: SkippedRows | None) -> None:
    """Raise the error, or note it where the caller collects what is left out."""
    if skipped is None:
        raise error
    skipped.add(error)


def summary_lines(count: int, first: Sequence[str]) -> Iterator[str]:
    """What a person is told of what was left out: how many, and the first of them.

    >>> list(summary_lines(3, ["a.csv, line 2: no label"]))
    ['left out 3, the first 1:', '  a.csv, line 2: no label']
    """
    if count:
        yield f"left out {count:,}, {'these' if len(first) == count else f'the first {len(first)}'}:"
        yield from (f"  {line}" for line in first)
