"""`headstart demo`: a comparison on what ships with the package, for a first look without a download."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from headstart import demo
from headstart.cli.compare import run_comparison
from headstart.cli.options import Json, Quiet
from headstart.errors import CheckpointError, HeadstartError
from headstart.studies.recipes import read_settings
from headstart.studies.settings import CompareSettings

OPENING = (
    "a classifier of French book reviews, trained from scratch, on a frozen base and with every weight of the base,\n"
    "three seeds each, beside two baselines: some minutes; Ctrl-C ends it, and the same command goes on from there"
)


def demo_command(
    out: Annotated[Path, typer.Option(help="The study folder: new, or that of an earlier demo.")] = Path(
        "headstart-demo"
    ),
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Compare scratch, frozen and full on book reviews in French, from a small French base; both ship with headstart.

    Three seeds of each, beside a linear model and the commonest class: some minutes on two CPU cores, and no network.
    In a folder where it was interrupted it goes on; in one where it is done it shows the answer.
    """
    files = {"data": "train.csv", "valid": "valid.csv", "test": "test.csv"}
    given = {name: str(demo.REVIEWS / file) for name, file in files.items()}
    given |= {"text": "text", "label": "label", "init": f"{demo.BASE.name}={demo.BASE}"}
    try:
        run_comparison(read_settings(CompareSettings, demo.RECIPE, given), out, quiet, as_json, OPENING)
    except HeadstartError as error:
        if str(demo.HERE) not in str(error):
            raise
        raise CheckpointError(f"{error} (it came with headstart: install that again)") from None
    if not quiet and not as_json:
        typer.echo(f"with your own texts and labels: {_next_command()}")


def _next_command() -> str:
    """The command that does the same with a user's own file, as it can be typed here."""
    program = Path(sys.argv[0])
    command = [_relative(program) if program.name == "headstart" else "headstart", "compare", "YOURS.csv"]
    return shlex.join([*command, _relative(demo.RECIPE), "--init", _relative(demo.BASE)])


def _relative(path: Path) -> str:
    """A path from the current folder, where it is inside of it."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
