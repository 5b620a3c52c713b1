"""`headstart compare`, arms × seeds × label budgets and a verdict in words; `report`, a page of it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headstart.cli import options
from headstart.cli.console import console, log, print_json, silent, table
from headstart.cli.imports import heavy_imports
from headstart.parallel import cores
from headstart.studies.recipes import default_folder
from headstart.studies.settings import CompareSettings
from headstart.wording import parts_of, two_digits

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from headstart.runs.comparison import Comparison
    from headstart.studies.gpu_sharing import Sharing
    from headstart.studies.study import Study


def run_comparison(
    settings: CompareSettings,
    out: Path,
    quiet: bool,
    as_json: bool,
    opened: Callable[[Study], AbstractContextManager[object]] = nullcontext,
) -> None:
    """Do the runs that are not done yet; then print the tables and the verdict, and write the report.

    `opened` gets the study before anything is trained, and is a context for the rest.
    """
    from headstart.studies.gpu_sharing import starting_to_share
    from headstart.studies.workers import default_jobs, start_fork_server

    several = (settings.jobs or cores()) > 1 and not (out / "comparison.json").is_file()
    if several:
        start_fork_server()  # it is ready by the time that the data are read
    say = silent if quiet else log
    with starting_to_share(wanted=several and settings.device != "cpu") as sharing:
        with heavy_imports():
            from headstart.studies.compare import open_study

        settings = replace(settings, jobs=settings.jobs or default_jobs(settings.device))
        study = open_study(settings, out, log=say)
        with opened(study):
            comparison = _run_and_report(study, sharing, quiet)
    if as_json:
        print_json(comparison.to_json())
    elif not quiet:
        show(comparison)
        typer.echo(f"\nreport: {out / 'report.html'}")
        say(f"to see what each arm says of a text of yours: headstart serve {shlex.quote(str(out))}")


def _run_and_report(study: Study, sharing: Sharing, quiet: bool) -> Comparison:
    """Every run that is not done, then the comparison and its page."""
    from headstart.cli.progress import study_progress
    from headstart.studies.compare import run_study

    try:
        with study_progress(study, quiet):
            run_study(study, sharing)
    except KeyboardInterrupt:
        if not quiet:
            log(f"interrupted: what is done is in {study.folder}, and the same command goes on from there")
        raise
    comparison = study.conclude()
    from headstart.report.page import write_report

    write_report([study.folder], study.folder / "report.html")
    return comparison


def _compare(settings: CompareSettings, out: Path | None, quiet: bool, as_json: bool) -> None:
    """Compare scratch, frozen and full, base by base, over several seeds, with baselines, intervals and a verdict."""
    run_comparison(settings, out or default_folder(settings), quiet, as_json)


_OUT = options.out("The study folder: new, or one of the same data to go on in.", CompareSettings)
compare_command = options.command(CompareSettings, options.LABELLED, [_OUT, options.QUIET, options.JSON], _compare)


def show(comparison: Comparison) -> None:
    """The tables and the verdict."""
    screen = console()
    tables = (budgets_table(comparison), scores_table(comparison, screen.width), differences_table(comparison))
    for rows in (*tables, tuning_table(comparison)):
        if rows.rows:
            screen.print(rows, "", sep="\n")
    print_paragraphs([*comparison.verdict, *comparison.notes])


def print_paragraphs(paragraphs: Sequence[str]) -> None:
    """With an empty line between two; a terminal wraps them, and a pipe gets each as one line."""
    from rich.text import Text

    screen = console()
    screen.print(Text("\n\n").join(map(_emphasised, paragraphs)), soft_wrap=not screen.is_terminal)


def _emphasised(paragraph: str) -> Text:
    """A paragraph of the verdict, with what is emphasised in bold; without a terminal it is plain."""
    from rich.text import Text

    return Text.assemble(*((part, "bold" if strong else "") for part, strong in parts_of(paragraph)))


def scores_table(comparison: Comparison, width: int) -> Table:
    """Each arm on test, the best first, with what it costs; where it is too wide, accuracy and costs alone."""
    rows = comparison.table()
    if comparison.curves:
        rows[0][0] = f"test, {max(arm.budget for arm in comparison.arms):,} labels"
    if _width(rows) > width:
        kept = [k for k, name in enumerate(rows[0]) if name not in ("macro-F1", "calibration")]
        rows = [[row[k] for k in kept] for row in rows]
    if _width(rows) > width:
        rows[0][0] = "test"
    (name, *columns), *arms = rows
    return table(name, *(f">{column}" for column in columns), rows=arms)


def _width(rows: Sequence[Sequence[str]]) -> int:
    """Of a table of these cells, with two spaces between columns."""
    return sum(max(map(len, column)) + 2 for column in zip(*rows, strict=True)) - 2


def differences_table(comparison: Comparison) -> Table:
    """Each arm minus the reference, and what the comparison was made for first, in points of accuracy."""
    from headstart.report.blocks import p_value, probability
    from headstart.studies.words import end

    rows = table("difference", ">points", "", ">better", ">p (Holm)", ">could show")
    for difference in comparison.differences:
        if difference.primary or difference.reference == comparison.reference:
            points = difference.scores["accuracy"]
            rows.add_row(
                f"{difference.arm} - {difference.reference}",
                f"{100 * points.value:+.1f}",
                f"{end(points.low, '+')} to {end(points.high, '+')}",
                probability(difference.better),
                p_value(difference.holm),
                difference.detectable_points,
            )
    return rows


def tuning_table(comparison: Comparison) -> Table:
    """What was tried for each arm, how long that took, and what was chosen."""
    from headstart.report.tuning import settings_in_words

    rows = table("tuned", ">tried", ">s", "chosen on held-out texts")
    for arm in comparison.arms:
        if arm.tuning is not None:
            tried, seconds = f"{len(arm.tuning.tried):,}", two_digits(arm.tuning.seconds)
            rows.add_row(arm.name, tried, seconds, settings_in_words(arm.tuning.chosen))
    return rows


def budgets_table(comparison: Comparison) -> Table:
    """Accuracy on test by the number of labels, the best with the fewest first."""
    budgets = sorted({arm.budget for arm in comparison.curves})
    rows = table("test, by labels", *(f">{budget:,}" for budget in budgets))
    points: dict[str, dict[int, float]] = {arm.name: {} for arm in comparison.curves}
    for arm in comparison.curves:
        points[arm.name][arm.budget] = arm.scores["accuracy"].value
    for name, own in sorted(points.items(), key=lambda each: [-each[1].get(budget, 0.0) for budget in budgets]):
        rows.add_row(name, *(f"{own[budget]:.4f}" if budget in own else "" for budget in budgets))
    return rows


def report_command(
    paths: Annotated[
        list[Path], typer.Argument(metavar="FOLDER…", help="Study folders of compare and sweep, and run folders.")
    ],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
) -> None:
    """Make one HTML page from studies and runs: figures, tables, mistakes, settings; it needs no network."""
    from headstart.report.page import write_report

    write_report(paths, out)
    typer.echo(f"page: {out}")
