"""Printing: tables on a terminal, plain text in a pipe, JSON for programs, log lines on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import typer

from headstart.redaction import redacted

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.status import Status
    from rich.table import Table

    from headstart.reading.skipped import SkippedRows


def console() -> Console:
    """Standard output, with text as it is (no markup); wide enough in a pipe that no table is folded."""
    from rich.console import Console

    width, colors = (None, "auto") if sys.stdout.isatty() else (140, None)
    return Console(width=width, color_system=colors, markup=False, emoji=False, highlight=False)  # type: ignore[arg-type]


def table(*columns: str, rows: Iterable[Iterable[RenderableType]] = (), title: str | None = None) -> Table:
    """A table; a column whose name begins with `>` is right-aligned, as numbers are."""
    from rich.table import Table

    result = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name in columns:
        result.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left")
    for cells in rows:
        result.add_row(*cells)
    return result


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def log(text: str) -> None:
    """A line on standard error: it is no part of the result."""
    typer.echo(redacted(text), err=True)


def silent(text: str) -> None:
    """`log` with --quiet."""


@contextmanager
def status_line(screen: Console, text: str) -> Iterator[Status]:
    """A line that can be changed, on a terminal. Elsewhere nothing is shown, and no thread is started to show it."""
    status = screen.status(text)
    with status if screen.is_terminal else nullcontext():
        yield status


@contextmanager
def skipped_rows(skip_bad: bool, log: Callable[[str], None] = log) -> Iterator[SkippedRows | None]:
    """Where --skip-bad collects the rows that cannot be read; at the end they are listed."""
    from headstart.reading.skipped import SkippedRows, summary_lines

    skipped = SkippedRows() if skip_bad else None
    try:
        yield skipped
    finally:  # where nothing is left, they say why
        for line in summary_lines(skipped.count, skipped.lines) if skipped else ():
            log(line)
