"""`headstart compare`: arms × seeds × label budgets on one data set, and a verdict in words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from headstart.cli import options
from headstart.cli.console import console, log, print_json, silent, table
from headstart.studies.recipes import default_folder
from headstart.studies.settings import CompareSettings

if TYPE_CHECKING:
    from rich.table import Table

    from headstart.runs.comparison import Comparison


def run_comparison(settings: CompareSettings, out: Path, quiet: bool, as_json: bool, opening: str = "") -> None:
    """Do the runs that are not done yet; then print the tables and the verdict, and write the report."""
    from headstart.cli.study_progress import study_progress
    from headstart.report.page import write_report
    from headstart.studies.compare import open_study, run_study
    from headstart.studies.workers import start_fork_server

    say = silent if quiet else log
    if settings.jobs > 1 and not (out / "comparison.json").is_file():
        start_fork_server()  # it is ready by the time that the data are read
    study = open_study(settings, out, log=say)
    if opening and not any(run.done for run in study.runs):
        say(opening)
    try:
        with study_progress(study, quiet):
            run_study(study)
    except KeyboardInterrupt:
        say(f"interrupted: what is done is in {out}, and the same command goes on from there")
        raise
    comparison = study.conclude()
    write_report([out], out / "report.html")
    if as_json:
        print_json(comparison.to_json())
    elif not quiet:
        show(comparison)
        typer.echo(f"\nreport: {out / 'report.html'}")


def _compare(settings: CompareSettings, out: Path | None, quiet: bool, as_json: bool) -> None:
    """Compare scratch, frozen and full, base by base, over several seeds, with baselines, intervals and a verdict."""
    run_comparison(settings, out or default_folder(settings), quiet, as_json)


_OUT = options.out("The study folder: new, or one of the same data to go on in.", CompareSettings)
compare_command = options.command(
    CompareSettings,
    options.LABELLED,
    [_OUT, options.QUIET, options.JSON],
    _compare,
)


def show(comparison: Comparison) -> None:
    """The table and the verdict."""
    screen = console()
    tables = [
        scores_table(comparison),
        differences_table(comparison),
        budgets_table(comparison) if comparison.curves else None,
    ]
    for rows in tables:
        if rows is not None and rows.rows:
            screen.print(rows, highlight=False)
            screen.print()
    for sentence in comparison.verdict:
        screen.print(sentence, highlight=False, soft_wrap=not screen.is_terminal)


def scores_table(comparison: Comparison) -> Table:
    """Each arm on test, the best first, its accuracy with the 95 % interval."""
    (name, *columns), *arms = comparison.table()
    rows = table(name, *(f">{column}" for column in columns))
    for cells in arms:
        rows.add_row(*cells)
    return rows


def differences_table(comparison: Comparison) -> Table:
    """Each arm minus the reference, in points of accuracy."""
    rows = table(f"against {comparison.reference}", ">points", "", ">better", ">p (Holm)", ">could show")
    for difference in comparison.differences:
        if difference.reference == comparison.reference:
            points = difference.scores["accuracy"]
            rows.add_row(
                difference.arm,
                f"{100 * points.value:+.1f}",
                f"{100 * points.low:+.1f} to {100 * points.high:+.1f}",
                f"{100 * difference.better:.0f} %",
                f"{difference.holm:.3f}",
                difference.detectable_points,
            )
    return rows


def budgets_table(comparison: Comparison) -> Table:
    """Accuracy on test by the number of labels."""
    budgets = sorted({arm.budget for arm in comparison.curves})
    rows = table("test, by labels", *(f">{budget:,}" for budget in budgets))
    for name in dict.fromkeys(arm.name for arm in comparison.curves):
        points = {arm.budget: arm.scores["accuracy"].value for arm in comparison.curves if arm.name == name}
        rows.add_row(name, *(f"{points[budget]:.4f}" if budget in points else "" for budget in budgets))
    return rows
