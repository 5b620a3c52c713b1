"""`headstart sweep`: a grid or a search over settings, as a table with the best marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from headstart.cli import options
from headstart.cli.console import console, log, print_json, silent, table
from headstart.cli.imports import heavy_imports
from headstart.cli.progress import run_progress
from headstart.studies.recipes import default_folder
from headstart.studies.settings import SweepSettings
from headstart.wording import size

if TYPE_CHECKING:
    from rich.table import Table

    from headstart.runs.sweep import Sweep, Trial

GAP = 2  # blanks between two columns of a table


def _sweep(settings: SweepSettings, out: Path | None, resume: bool, quiet: bool, as_json: bool) -> None:
    """Fine-tune with every combination of a grid, or search over settings; a table with the best on valid marked."""
    with heavy_imports():
        from headstart.runs.sweep import Sweep
        from headstart.studies.sweep import sweep

    say = silent if quiet else log
    if out is None:
        out, resume = default_folder(settings), True
    with run_progress(quiet) as on_event:
        result = sweep(settings, out, resume=resume, on_event=on_event, log=say)
    from headstart.report.page import write_report

    write_report([out], out / "report.html")
    if as_json:
        print_json(result)
    elif not quiet:
        show(Sweep.from_json(result), out)


sweep_command = options.command(
    SweepSettings,
    options.LABELLED,
    [options.out("The study folder to write.", SweepSettings), options.RESUME, options.QUIET, options.JSON],
    _sweep,
)


def show(record: Sweep, out: Path) -> None:
    """The table, what went wrong in which trial, and where the best one lies."""
    screen = console()
    for block in tables(record, screen.width):
        screen.print(block, "", sep="\n")
    for number, trial in enumerate(record.trials, start=1):
        if trial.error:
            typer.echo(f"trial {number} failed: {trial.error}")
    if record.best is None:
        typer.echo("no trial has a score on valid")
    else:
        number = 1 + record.trials.index(record.best)
        typer.echo(f"best on valid: trial {number}, {out / record.best.run}")
        if record.significance is not None:
            typer.echo(record.significance)
    typer.echo(f"report: {out / 'report.html'}")


def tables(record: Sweep, width: int) -> Iterator[Table]:
    """One column a trial, in as many blocks as it takes for them to fit the width."""
    columns = [_column(record, trial, number) for number, trial in enumerate(record.trials, start=1)]
    for block in _blocks(columns, width - max(len(name) for column in columns for name in column)):
        names = [name for name in block[0] if any(column[name] for column in block)]
        rows = [[name, *(column[name] for column in block)] for name in names[1:]]
        yield table(names[0], *(f">{column[names[0]]}" for column in block), rows=rows)


def _blocks(columns: Sequence[dict[str, str]], width: int) -> Iterator[list[dict[str, str]]]:
    block: list[dict[str, str]] = []
    left = width
    for column in columns:
        needed = GAP + max(map(len, column.values()))
        if block and needed > left:
            yield block
            block, left = [], width
        block.append(column)
        left -= needed
    yield block


def _column(record: Sweep, trial: Trial, number: int) -> dict[str, str]:
    """What the table says of a trial, under the names of its rows."""
    from headstart.runs.sweep import plain, shown

    words = {"lr": "learning rate"}
    return {
        "trial": f"{number} best" if trial.best else str(number),
        **{words.get(name, plain(name)): shown(trial.settings.get(name, "")) for name in record.settings},
        "valid accuracy": "" if trial.valid is None else f"{trial.valid['accuracy']:.4f}",
        "test accuracy": "" if trial.test is None else f"{trial.test['accuracy']:.4f}",
        "time": "" if trial.seconds is None else duration(trial.seconds),
        "peak memory": "" if trial.memory is None else size(trial.memory),
        "ended": _ended(trial),
    }


def _ended(trial: Trial) -> str:
    """How a run ended that has no scores; nothing for one that has them."""
    if trial.error:
        return "failed"
    if trial.pruned:
        return f"pruned at epoch {trial.pruned}"
    return "" if trial.valid else "not done yet"


def duration(seconds: float) -> str:
    """
    >>> duration(4.21), duration(95), duration(7500)
    ('4.2 s', '1 min 35 s', '2 h 05 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
