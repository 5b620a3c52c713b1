"""Limits: what reading holds in memory at most, whatever a file holds."""

from __future__ import annotations

from pathlib import Path

from headstart.errors import DataError
from headstart.reading.skipped import bad_row
from headstart.wording import size

MAX_LINE = 1 << 24  # bytes in one line, row or text: three thousand pages; a tokenizer takes 170 times as much memory
MAX_COLUMNS = 10_000
MAX_EXPANSION = 200  # times its size on the disk that a file may unpack to; text compresses to a third or a tenth
ALWAYS_ALLOWED = 1 << 26  # bytes that any file may unpack to


def row_too_long(path: Path, line: int, lines: int = 1) -> DataError:
    """The error for a row that begins on `line` and has no end within `MAX_LINE`."""
    problem = f"more than {size(MAX_LINE)} in one row, the most that is read"
    return bad_row(path, line, problem, "break it into several", lines)


def require_few_columns(path: Path, columns: int) -> None:
    """Each row is a mapping from columns to values, and thousands of rows are held."""
    if columns > MAX_COLUMNS:
        problem = f"{columns:,} columns, expected at most {MAX_COLUMNS:,}"
        raise DataError(path, problem, fix="keep the columns of texts and labels alone")


def expansion_limit(size_on_disk: int) -> int:
    """The most bytes that a file may unpack to: a few hundred bytes can be made to hold gigabytes.

    >>> expansion_limit(500), expansion_limit(10**9)
    (67108864, 200000000000)
    """
    return max(ALWAYS_ALLOWED, MAX_EXPANSION * size_on_disk)


def too_large(path: Path, limit: int) -> DataError:
    """The error for a file that unpacks to more than its limit."""
    problem = f"it unpacks to more than {size(limit)}, the most that a file of its size may hold"
    return DataError(path, problem, fix="if you trust it, unpack it and give its texts as they are")
