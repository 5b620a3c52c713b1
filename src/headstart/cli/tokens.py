"""`headstart tokens`: a corpus turned into a token store."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headstart.cli.console import log, print_json, size
from headstart.cli.options import BlankLines, Corpus, Json, SkipBad, TextColumn
from headstart.cli.torchrun import cores_per_process, process_group

if TYPE_CHECKING:
    from headstart.store.store import Store
    from headstart.store.writer import Progress as StoreProgress


def tokens(
    corpus: Corpus,
    tokenizer: Annotated[Path, typer.Option(help="A tokenizer folder or file.")],
    out: Annotated[Path, typer.Option(help="The store's folder; begun by an earlier run, it is finished.")],
    valid: Annotated[float, typer.Option(help="The share of documents held out, chosen by their text.")] = 0.01,
    workers: Annotated[int | None, typer.Option(help="Processes; all cores unless given.")] = None,
    column: TextColumn = None,
    blank_lines: BlankLines = False,
    skip_bad: SkipBad = False,
    repeat: Annotated[
        list[str] | None,
        typer.Option(
            help="How often a file counts, as reviews.txt=5: text of your kind among other text; several times."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Encode a corpus once, on all cores, into a store that training maps into memory.

    Interrupted and started again, it goes on where it stopped; the bytes are the same for any number of workers, and
    of processes that torchrun starts.
    """
    from headstart.store.write import write_store
    from headstart.tokenizers.tokenizer import Tokenizer

    loaded = Tokenizer.load(tokenizer)
    was_there = (out / "store.json").exists()
    began = time.monotonic()
    try:
        with process_group() as parallel, _ProgressBar(parallel.is_main) as bar:
            store = write_store(
                corpus,
                loaded,
                out,
                valid=valid,
                workers=cores_per_process() if workers is None else workers,
                column=column,
                blank_lines=blank_lines,
                skip_bad=skip_bad,
                repeat=_repeat_counts(repeat or []),
                on_progress=bar,
                parallel=parallel,
            )
    except KeyboardInterrupt:
        log(f"{out} is half-written: the same command goes on from there")
        raise
    if not parallel.is_main:
        return
    seconds = time.monotonic() - began
    if was_there:
        log(f"{out} already holds this store, whole and unchanged: nothing to do")
    elif bar.kept:
        log(f"{bar.kept:,} documents were there from an earlier run")
    result = _result(store, None if was_there else (bar.documents - bar.kept) / seconds)
    if as_json:
        print_json(result)
    else:
        _print_lines(result, store)


def _repeat_counts(pairs: list[str]) -> dict[str, int]:
    """
    >>> _repeat_counts(["reviews.txt=5"])
    {'reviews.txt': 5}
    """
    from headstart.errors import ConfigError

    counts = {name: count for name, _, count in (pair.rpartition("=") for pair in pairs)}
    wrong = [pair for pair in pairs if not pair.rpartition("=")[2].isdecimal()]
    if wrong or "" in counts:
        raise ConfigError(
            "repeat", [f"{pair!r} is no file and number: write it as reviews.txt=5" for pair in wrong or pairs]
        )
    return {name: int(count) for name, count in counts.items()}


class _ProgressBar:
    """Draws the progress of a store, where stderr is a terminal, and remembers what came last."""

    def __init__(self, wanted: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TimeElapsedColumn

        screen = Console(stderr=True)
        self._bar = Progress(
            BarColumn(),
            "{task.fields[documents]:,} documents",
            "{task.fields[rate]:,.0f} documents/s",
            "{task.fields[megabytes]:,.1f} MB",
            TimeElapsedColumn(),
            console=screen,
            transient=True,
            disable=not (wanted and screen.is_terminal),
        )
        self._task = self._bar.add_task("", total=None, documents=0, rate=0.0, megabytes=0.0)
        self._began = time.monotonic()
        self.documents = self.kept = 0

    def __enter__(self) -> _ProgressBar:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def __call__(self, progress: StoreProgress) -> None:
        self.documents, self.kept = progress.documents, progress.kept
        rate = (self.documents - self.kept) / max(time.monotonic() - self._began, 1e-9)
        fields: dict[str, Any] = {"documents": self.documents, "rate": rate, "megabytes": progress.bytes / 1e6}
        self._bar.update(self._task, completed=progress.bytes, total=progress.total, **fields)


def _result(store: Store, rate: float | None) -> dict[str, Any]:
    splits = {name: asdict(counts) for name, counts in store.counts.items()}
    total = {key: sum(counts[key] for counts in splits.values()) for key in ("documents", "tokens", "bytes")}
    return {
        "store": str(store.folder),
        **total,
        "tokens_per_byte": total["tokens"] / total["bytes"],
        "splits": splits,
        "tokenizer": store.tokenizer_fingerprint,
        "dtype": store.dtype,
        "size_on_disk": store.size,
        "documents_per_second": rate,  # None where nothing had to be done
        "left_out": store.manifest["left_out"],
    }


def _print_lines(result: dict[str, Any], store: Store) -> None:
    from headstart.reading.skipped import summary_lines

    for line in summary_lines(**store.manifest["left_out"]):
        log(line)
    train, valid = (store.counts[name].documents for name in ("train", "valid"))
    rate = result["documents_per_second"]
    lines = {
        "documents": f"{result['documents']:,} (train {train:,}, valid {valid:,})",
        "tokens": f"{result['tokens']:,}",
        "bytes": f"{result['bytes']:,}",
        "tokens per byte": f"{result['tokens_per_byte']:.4f}",
        "ids": result["dtype"],
        "size on disk": size(result["size_on_disk"]),
    }
    if rate is not None:
        lines["documents/s"] = f"{rate:,.0f}"
    for name, value in lines.items():
        typer.echo(f"{name:<16} {value}")
