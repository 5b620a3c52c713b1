"""`headstart plan`: before anything trains, what a comparison of this size could show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headstart.cli import options
from headstart.cli.console import console, log, print_json, table

if TYPE_CHECKING:
    from rich.table import Table

    from headstart.studies.plan import StudyPlan
    from headstart.studies.settings import CompareSettings


def plan_command(
    path: Annotated[
        Path,
        typer.Argument(metavar="FILE|STUDY", help="Labelled texts, as for compare; or the folder of a comparison."),
    ],
    valid: Annotated[Path | None, typer.Option(help="Labelled texts to choose on.")] = None,
    test: Annotated[Path | None, typer.Option(help="Labelled texts that are scored once, at the end.")] = None,
    test_share: Annotated[
        float | None, typer.Option(help="Share of the data to keep aside as test, where no file is; by default 0.2.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Runs of each arm; auto: added until it is decided, 8 at most.")
    ] = None,
    matters: Annotated[float, typer.Option(help="The smallest difference that matters to you, in points.")] = 2.0,
    text: options.TextColumn = None,
    second: options.SecondColumn = None,
    label: options.LabelColumn = None,
    skip_bad: options.SkipBad = False,
    as_json: options.Json = False,
) -> None:
    """Say what a comparison could show, before anything trains: the smallest difference, and what a smaller one takes.

    A STUDY is a comparison that was made before, as a pilot: its test rows, and the variances that it measured.
    """
    from headstart.config import read_value
    from headstart.studies.recipes import read_settings
    from headstart.studies.settings import CompareSettings

    names = {"valid": valid, "test": test, "test_share": test_share, "text": text, "second": second, "label": label}
    given: dict[str, Any] = {name: _plain(value) for name, value in names.items() if value is not None}
    given |= {"skip_bad": skip_bad, "matters": matters} | ({} if seeds is None else {"seeds": read_value(seeds)})
    plan = _plan(read_settings(CompareSettings, None, given, [str(path)]), path)
    if as_json:
        print_json(plan.to_json())
        return
    screen = console()
    screen.print(f"{plan.rows:,} test rows; the smallest difference that shows in four of five studies, in points:", "")
    screen.print(plan_table(plan), "", sep="\n")
    screen.print(plan.assumptions, soft_wrap=not screen.is_terminal)


def _plan(settings: CompareSettings, path: Path) -> StudyPlan:
    from headstart.errors import ConfigError
    from headstart.runs.study import StudyFolder
    from headstart.studies.plan import plan_study
    from headstart.studies.splits import read_splits

    if not settings.matters:
        raise ConfigError("plan", ["matters is 0: name the smallest difference to plan for, as --matters 2"])
    matters = settings.matters / 100
    if StudyFolder(path).begun:
        pilot = StudyFolder(path).comparison()
        return plan_study(pilot.rows, settings.seeds, matters, pilot=pilot, name=str(path))
    splits = read_splits(settings, log)
    if "test" not in splits:
        raise ConfigError("plan", ["test is missing: name a file with --test, or a share with --test-share"])
    return plan_study(len(splits["test"].rows), settings.seeds, matters)


def plan_table(plan: StudyPlan) -> Table:
    """The questions, the smallest difference that would show with some numbers of seeds, and what `matters` takes."""
    points = f"{100 * plan.matters:g} points"
    seeds = list(plan.questions[0].detectable)
    rows = table(
        "question",
        *(f">{count} seeds" for count in seeds),
        f">rows for {points}, {plan.seeds} seeds",
        f">seeds for {points}, {plan.rows:,} rows",
        ">or both",
    )
    for each in plan.questions:
        shown = [f"{100 * size:.1f}" if size <= 1 else "none" for size in each.detectable.values()]
        needed = ["none suffice" if n is None else f"{n:,}" for n in (each.rows_needed, each.seeds_needed)]
        both = "none suffice" if each.both_needed is None else "{:,} rows, {} seeds".format(*each.both_needed)
        rows.add_row(f"{each.arm} - {each.reference}", *shown, *needed, both)
    return rows


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
