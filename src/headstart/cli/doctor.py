"""`headstart doctor`: what is wrong with a labelled set, and a copy of it without the worst."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headstart.cli.console import console, log, print_json, skipped_rows, status_line, table
from headstart.cli.options import Json, LabelColumn, SecondColumn, SkipBad, TextColumn, said_if_local
from headstart.doctor.findings import SEVERITIES, Finding, Lengths, Report, RowReference, Summary, quote_label
from headstart.wording import plural

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from headstart.reading.examples import Examples

COLOURS = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}
FEW_LABELS = 5


def doctor(
    train: Annotated[Path, typer.Argument(help="The training split: any labelled set that headstart reads.")],
    valid: Annotated[Path | None, typer.Option(help="The split that choices are made on.")] = None,
    test: Annotated[Path | None, typer.Option(help="The split that is scored once, at the end.")] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="A tokenizer folder or file: finds rows that are cut, and unknown tokens.", callback=said_if_local
        ),
    ] = None,
    window: Annotated[int, typer.Option(min=1, help="The most tokens that the model sees of a row.")] = 512,
    text: TextColumn = None,
    second: SecondColumn = None,
    label: LabelColumn = None,
    skip_bad: SkipBad = False,
    as_json: Json = False,
    clean: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT",
            help="Write the splits to this new folder as jsonl, without leaks, duplicates, conflicting labels "
            "and empty rows.",
        ),
    ] = None,
) -> None:
    """Examine a labelled set: duplicates, leaks between splits, conflicting labels, damage, rows that are cut.

    Findings are no failure: the exit code is 0 whenever the set could be read.
    """
    from rich.console import Console

    from headstart.doctor import clean as cleaning
    from headstart.doctor.examine import examine
    from headstart.reading.examples import read_examples
    from headstart.tokenizers.tokenizer import Tokenizer

    if clean is not None:
        cleaning.check_writable(clean)
    loaded = None if tokenizer is None else Tokenizer.load(tokenizer)
    with skipped_rows(skip_bad) as skipped, status_line(Console(stderr=True), "reading and comparing rows"):
        splits = {
            name: read_examples(path, text=text, second=second, label=label, skipped=skipped)
            for name, path in (("train", train), ("valid", valid), ("test", test))
            if path is not None
        }
        report = examine(**splits, tokenizer=loaded, window=window)
    for name, examples in splits.items():
        for note in examples.notes:
            log(f"{name}: {note}")
    removed: dict[str, dict[str, int]] = {}
    if clean is not None:
        cleaned, removed = cleaning.clean(**splits)
        cleaning.write_splits(cleaned, clean)
    if as_json:
        print_json(report.to_json() | ({} if clean is None else {"removed": removed}))
        return
    screen = console()
    with screen.capture() as printed:
        _print_report(report, screen)
        if clean is not None:
            _print_removed(splits, removed, clean, screen)
    typer.echo("\n".join(line.rstrip() for line in printed.get().split("\n")), nl=False)  # rich fills lines up


def _print_report(report: Report, screen: Console) -> None:
    folder = _common_folder(report)
    where = f" Rows are named by file and line in {folder}." if folder else ""
    screen.print(_summary(report.splits), "")
    screen.print(f"Lengths of rows: the median, the 95th percentile, the longest.{where}", style="dim")
    for finding in report.findings:
        screen.print("", _entry(finding, folder), sep="\n")
    counts = Counter(finding.severity for finding in report.findings)
    total = ", ".join(plural(counts[severity], severity) for severity in SEVERITIES if counts[severity])
    screen.print(f"\n{total or 'nothing found wrong'}", style="bold")
    for unexamined in report.unexamined:
        screen.print(f"not examined: {unexamined}", style="dim")


def _common_folder(report: Report) -> str:
    """The folder that all files are in, printed once instead of on every line."""
    rows = [row for finding in report.findings for row in finding.examples]
    paths = {row.path for row in rows} | {row.partner.path for row in rows if row.partner}
    absolute = {Path(path).is_absolute() for path in paths}
    folder = os.path.commonpath([Path(path).parent for path in paths]) if len(absolute) == 1 else ""
    return folder if folder != "." else ""


def _summary(splits: tuple[Summary, ...]) -> Table:
    columns = ["split", ">rows", "labels", ">words", *([">tokens"] if any(split.tokens for split in splits) else [])]
    rows = [
        (split.name, f"{split.rows:,}", _balance(split), *(_lengths(n) for n in (split.words, split.tokens) if n))
        for split in splits
    ]
    return table(*columns, rows=rows)


def _balance(split: Summary) -> str:
    shares = [f"{quote_label(label)} {share:.1%}" for label, share in split.balance.items()]
    if len(shares) <= FEW_LABELS:
        return ", ".join(shares)
    ranked = sorted(split.balance.values())
    return f"{len(shares)} labels, from {ranked[0]:.1%} to {ranked[-1]:.1%} of the rows"


def _lengths(lengths: Lengths) -> str:
    return f"{lengths.median:.0f} / {lengths.most:.0f} / {lengths.longest}"


def _entry(finding: Finding, folder: str) -> Table:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=max(map(len, COLOURS)))
    grid.add_column(overflow="fold")
    grid.add_row(Text(finding.severity, style=COLOURS[finding.severity]), Text(finding.message, style="bold"))
    advice = finding.advice[0].upper() + finding.advice[1:]
    grid.add_row("", advice if advice.endswith("?") else f"{advice}.")
    for row in finding.examples:
        for line in _row_lines(row, folder):
            grid.add_row("", Text(line, style="dim", no_wrap=True, overflow="ellipsis"))
    return grid


def _row_lines(row: RowReference, folder: str) -> Iterator[str]:
    """The row and its partner: on one line where they read the same."""
    partner = row.partner
    if partner is None:
        yield f"{_location(row, folder)}  {row.excerpt}"
    elif (partner.excerpt, partner.label) == (row.excerpt, row.label):
        yield f"{_location(row, folder)} = {_location(partner, folder)}  {row.excerpt}"
    else:
        yield f"{_location(row, folder)}  {_labelled(row)}"
        yield f"  and {_location(partner, folder)}  {_labelled(partner)}"


def _location(row: RowReference, folder: str) -> str:
    path = Path(row.path).relative_to(folder) if folder else row.path
    return f"{path}:{row.line}"


def _labelled(row: RowReference) -> str:
    return row.excerpt if row.label is None else f"{quote_label(row.label)} {row.excerpt}"


def _print_removed(
    splits: Mapping[str, Examples], removed: Mapping[str, Mapping[str, int]], out: Path, screen: Console
) -> None:
    screen.print(f"\nwritten to {out}:", style="bold")
    for name, reasons in removed.items():
        total = sum(reasons.values())
        kept = plural(len(splits[name].rows) - total, "row")
        by_reason = ", ".join(f"{reason} {count}" for reason, count in reasons.items())
        screen.print(f"  {name}.jsonl  {kept}, {total} removed" + (f" ({by_reason})" if by_reason else ""))
