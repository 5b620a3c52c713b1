"""`headstart predict`: a file of texts in, a file of labels out."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from headstart.cli.console import log, log_skipped, print_json, silent
from headstart.cli.options import Json, ModelFolder, Quiet, SecondColumn, SkipBad, TextColumn
from headstart.cli.torchrun import process_group, require_files

EVERY = 5.0  # seconds between plain lines


def predict(
    folder: ModelFolder,
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="Texts: csv, tsv, jsonl, parquet, txt; - is standard input.")
    ],
    out: Annotated[
        str, typer.Option(help="csv, tsv, jsonl, parquet, or txt for the labels alone; - is standard output, as jsonl.")
    ] = "-",
    text: TextColumn = None,
    second: SecondColumn = None,
    abstain_below: Annotated[
        float | None, typer.Option(min=0, max=1, help="Give no label where the model is less sure than this.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    skip_bad: SkipBad = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Label the texts of a file; its columns are kept, the label and the probability of each class are added."""
    from headstart.reading.skipped import SkippedRows
    from headstart.use.classifier import TextClassifier
    from headstart.use.predict import predict_file

    require_files(source, out)
    skipped = SkippedRows() if skip_bad else None
    with process_group() as parallel:
        quiet = quiet or not parallel.is_main
        say = silent if quiet else log
        classifier = TextClassifier.load(folder, device, parallel)
        began = time.monotonic()
        with _progress(quiet) as progress:
            counts = predict_file(
                classifier, source, out, text=text, second=second, abstain_below=abstain_below,
                skipped=skipped, log=say, progress=progress, write=parallel.is_main,
            )  # fmt: skip
        seconds = time.monotonic() - began
    if not parallel.is_main:
        return
    log_skipped(skipped)
    if as_json:
        print_json(
            {"rows": counts.rows, "labels": {name or "": n for name, n in counts.labels.items()}, "seconds": seconds}
        )
        return
    labels = ", ".join(f"{name or 'no label'} {count:,}" for name, count in sorted(counts.labels.items(), key=str))
    texts = "text" if counts.rows == 1 else "texts"
    say(f"{counts.rows:,} {texts} in {seconds:.1f} s ({counts.rows / max(seconds, 1e-9):,.0f} a second): {labels}")


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[int], None]]:
    """A counter on a terminal, a line every few seconds elsewhere."""
    if quiet:
        yield lambda rows: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.status import Status

        with Status("reading", console=Console(stderr=True)) as status:
            yield lambda rows: status.update(f"{rows:,} texts")
    else:
        last = time.monotonic()

        def report(rows: int) -> None:
            nonlocal last
            if time.monotonic() - last >= EVERY:
                last = time.monotonic()
                log(f"{rows:,} texts")

        yield report
