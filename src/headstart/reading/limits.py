"""Limits: what reading holds in memory at most, whatever a file holds."""

from __future__ import annotations

from pathlib import Path

from headstart.errors import DataError
from headstart.reading.skipped import bad_row
from headstart.wording import size

MAX_LINE = 1 << 24  # bytes in one line, row or text: three thousand pages; a tokenizer takes 170 times as much memory
MAX_COLUMNS = 10_000


def row_too_long(path: Path, line: int, lines: int = 1) -> DataError:
    """The error for a row that begins on `line` and has no end within `MAX_LINE`."""
    problem = f"more than {size(MAX_LINE)} in one row, the most that is read"
    return bad_row(path, line, problem, "break it into several", lines)


def require_few_columns(path: Path, columns: int) -> None:
    """Each row is a mapping from columns to values, and thousands of rows are held."""
    if columns > MAX_COLUMNS:
        problem = f"{columns:,} columns, expected at most {MAX_COLUMNS:,}"
        raise DataError(path, problem, fix="keep the columns of texts and labels alone")
