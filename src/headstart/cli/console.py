"""Printing: tables on a terminal, plain text in a pipe, JSON for programs, log lines on standard error."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from headstart.reading.skipped import SkippedRows


def console() -> Console:
    """Standard output; wide enough in a pipe that no table is folded."""
    return Console() if sys.stdout.isatty() else Console(width=140, color_system=None)


def table(*columns: str, title: str | None = None) -> Table:
    """A table; a column whose name begins with `>` is right-aligned, as numbers are."""
    rows = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name in columns:
        rows.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left")
    return rows


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def log(text: str) -> None:
    """A line on standard error: it is no part of the result."""
    typer.echo(text, err=True)


def silent(text: str) -> None:
    """`log` with --quiet."""


def log_skipped(skipped: SkippedRows | None) -> None:
    """How many rows --skip-bad skipped, and the first of them."""
    from headstart.reading.skipped import summary_lines

    for line in summary_lines(skipped.count, skipped.lines) if skipped else ():
        log(line)


def size(number: int) -> str:
    """Bytes in the largest unit that fits.

    >>> size(84073604)
    '80.2 MiB'
    """
    amount = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
