"""What every verb needs to speak: tables on a terminal, plain text in a pipe, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table


def console() -> Console:
    """Standard output; wide enough in a pipe that no table is folded."""
    return Console() if sys.stdout.isatty() else Console(width=140, color_system=None)


def table(*columns: str, title: str | None = None) -> Table:
    """A table; a column whose name begins with `>` is flush right, as numbers are."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name in columns:
        made.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left")
    return made


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def log(text: str) -> None:
    """A line for the person at the terminal, which is no part of the result."""
    typer.echo(text, err=True)


def silent(text: str) -> None:
    """Where --quiet was said, instead of `log`."""


def left_out(count: int, first: Sequence[str]) -> None:
    """What --skip-bad left out: how many, and the first of them."""
    from headstart.reading.skipped import summary_lines

    for line in summary_lines(count, first):
        log(line)


def size(number: int) -> str:
    """Bytes as a person says them.

    >>> size(84073604)
    '80.2 MiB'
    """
    amount = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
