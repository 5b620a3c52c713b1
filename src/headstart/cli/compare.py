"""`headstart compare`: arms × seeds × label budgets on one data set, and a verdict in words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from headstart.cli import options
from headstart.cli.console import console, log, print_json, silent, table
from headstart.studies.settings import CompareSettings

if TYPE_CHECKING:
    from rich.table import Table

    from headstart.runs.comparison import Comparison


def run_comparison(settings: CompareSettings, out: Path, quiet: bool, as_json: bool, opening: str = "") -> None:
    """Do what is not done yet; then print the table and the verdict, and write the page. `opening` is said at first."""
    from headstart.cli.board import board
    from headstart.files import write_text
    from headstart.report.page import render
    from headstart.report.records import read
    from headstart.studies.compare import open_study, run_study, workshop

    say = silent if quiet else log
    if settings.jobs > 1 and not (out / "comparison.json").is_file():
        workshop()  # which is ready by the time that the data is read
    study = open_study(settings, out, log=say)
    if opening and not any(run.done for run in study.plan):
        say(opening)
    try:
        with board(study, quiet):
            run_study(study)
    except KeyboardInterrupt:
        say(f"interrupted: what is done is in {out}, and the same command goes on from there")
        raise
    found = study.conclude()
    write_text(out / "report.html", render(read([out])))
    if as_json:
        print_json(found.to_json())
    elif not quiet:
        show(found)
        typer.echo(f"\nreport: {out / 'report.html'}")


compare_command = options.command(
    CompareSettings,
    "Compare scratch, frozen and full, base by base, over several seeds, with baselines, intervals and a verdict.",
    [options.out("The study folder: new, or one of the same data to go on in."), options.QUIET, options.JSON],
    run_comparison,
)


def show(found: Comparison) -> None:
    """The table and the verdict."""
    screen = console()
    tables = [scores_table(found), differences_table(found), budgets_table(found) if found.curves else None]
    for each in tables:
        if each is not None and each.rows:
            screen.print(each, highlight=False)
            screen.print()
    for sentence in found.verdict:
        screen.print(sentence, highlight=False, soft_wrap=not screen.is_terminal)


def scores_table(found: Comparison) -> Table:
    """Each arm on test, the best first, its accuracy with the 95 % interval."""
    columns = ["test", ">runs", ">accuracy", "", ">macro-F1", ">calibration"]
    made = table(*columns, *([">leak-free"] if found.leaked else []))
    for arm in sorted(found.arms, key=lambda arm: -arm.scores["accuracy"].value):
        accuracy = arm.scores["accuracy"]
        cells = [arm.name, str(len(arm.runs)), f"{accuracy.value:.4f}", f"{accuracy.low:.3f} to {accuracy.high:.3f}"]
        cells += [f"{arm.scores[name].value:.4f}" for name in ("macro_f1", "calibration")]
        cells += [] if arm.leak_free is None else [f"{arm.leak_free['accuracy'].value:.4f}"]
        made.add_row(*cells)
    return made


def differences_table(found: Comparison) -> Table:
    """Each arm minus the reference, in points of accuracy."""
    made = table(f"against {found.reference}", ">points", "", ">better", ">p (Holm)", ">could show")
    for each in found.differences:
        if each.reference == found.reference:
            points = each.scores["accuracy"]
            made.add_row(
                each.arm,
                f"{100 * points.value:+.1f}",
                f"{100 * points.low:+.1f} to {100 * points.high:+.1f}",
                f"{100 * each.better:.0f} %",
                f"{each.holm:.3f}",
                each.could_show,
            )
    return made


def budgets_table(found: Comparison) -> Table:
    """Accuracy on test by the number of labels."""
    budgets = sorted({arm.labels for arm in found.curves})
    made = table("test, by labels", *(f">{budget:,}" for budget in budgets))
    for name in dict.fromkeys(arm.name for arm in found.curves):
        points = {arm.labels: arm.scores["accuracy"].value for arm in found.curves if arm.name == name}
        made.add_row(name, *(f"{points[budget]:.4f}" if budget in points else "" for budget in budgets))
    return made
