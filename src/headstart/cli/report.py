"""`headstart report`: a page from the folders of studies and runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report_command(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER…", help="Study folders of compare and sweep, and run folders.", show_default=False
        ),
    ],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
) -> None:
    """Make one HTML page from studies and runs: figures, tables, mistakes, settings; it needs no network."""
    from headstart.report.page import write_report

    write_report(paths, out)
    typer.echo(f"page: {out}")
