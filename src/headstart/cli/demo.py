"""`headstart demo`: a comparison of what ships, told from the beginning."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headstart import demo
from headstart.bases import installed
from headstart.cli import options
from headstart.cli.compare import print_paragraphs, run_comparison
from headstart.errors import OutputError
from headstart.files import LOCK, locked
from headstart.studies.recipes import read_settings
from headstart.studies.settings import CompareSettings
from headstart.wording import listed, plural

if TYPE_CHECKING:
    from headstart.studies.study import Study

ELSEWHERE = "--out FOLDER puts the demo elsewhere"


def demo_command(
    out: Annotated[Path, typer.Option(help="The study folder: new, or that of an earlier demo.")] = Path(
        "headstart-demo"
    ),
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """See what pretraining buys: a comparison on real answers in French, from a base that has read many more of them.

    Labelled answers and base ship with headstart: some minutes on two CPU cores, and no network. In a folder where it
    was interrupted it goes on; in one where it is done it shows the answer.
    """
    splits = demo.labelled_files()
    given = {"data": str(splits["train"]), "valid": str(splits["valid"]), "test": str(splits["test"])}
    given |= {"text": "text", "label": "label", "init": f"{demo.BASE}={installed(demo.BASE)}"}
    settings = read_settings(CompareSettings, demo.recipe(), given)
    try:
        run_comparison(settings, out, quiet, as_json, partial(_opened, told=not quiet and not as_json))
    except OutputError as error:
        raise OutputError(f"{error} ({ELSEWHERE})") from None
    if not quiet and not as_json:
        typer.echo(f"with your own texts and labels: {next_command(Path(sys.argv[0]))}")


@contextmanager
def _opened(study: Study, told: bool) -> Iterator[None]:
    """The story up to the answer; and no second demo in the same folder until it is found."""
    lock = study.folder / LOCK
    with locked(lock) as ours:
        if not ours:
            raise OutputError(f"{_holder(lock)} runs a demo in {study.folder}: wait for its end")
        if told:
            print_paragraphs(list(_story(study)))
            typer.echo()
        yield
        lock.unlink(missing_ok=True)


def _holder(lock: Path) -> str:
    try:
        return lock.read_text(encoding="utf-8") or "another process"
    except OSError:  # it has just ended
        return "another process"


def _story(study: Study) -> Iterator[str]:
    """What the base has read, what the labels are, what is compared: a paragraph each."""
    (base,) = study.bases.values()
    parameters = sum(parameter.numel() for parameter in base.model.parameters())
    yield (
        f"**What does pretraining buy?** `{demo.BASE}`, a network of {parameters / 1e6:.1f} million parameters, has "
        "read hundreds of thousands of answers that citizens of France gave in the Grand Débat national of 2019, and "
        "has learned to guess words that were hidden in them. Nobody had to label anything for that."
    )
    train, valid, test = (study.splits[name] for name in ("train", "valid", "test"))
    example = next(row for row in train.rows if len(row.text) < 80)
    yield (
        f"**The labels** say which question an answer answers, one of {len(train.class_names)}: "
        f"{listed(train.class_names)}. « {example.text} » is {example.label}."
    )
    budgets = listed([f"{budget:,}" for budget in study.budgets])
    seeds = "several seeds" if study.settings.seeds == "auto" else plural(study.settings.seeds, "seed")
    yield (
        f"**The comparison.** Classifiers learn from {budgets} labelled answers: full fine-tunes every weight of "
        f"`{demo.BASE}`, frozen is a linear model on its vectors, scratch is the same network without the pretraining, "
        "tfidf is a linear model on counts of words and letters, and majority always gives the most frequent label. "
        f"Their settings are chosen on {len(valid.rows):,} answers. Then each is trained with {seeds} and scored on "
        f"{len(test.rows):,} answers, none of which the base has read."
    )


def next_command(program: Path) -> str:
    """The command that does the same with a user's own file, as it can be typed here."""
    found = shutil.which("headstart")
    if program.name != "headstart" or (found is not None and Path(found).resolve() == program.resolve()):
        typed = "headstart"
    else:
        typed = os.path.relpath(program) if program.is_relative_to(Path.cwd()) else str(program)
    return shlex.join([typed, "compare", "YOURS.csv"])
