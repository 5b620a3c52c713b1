"""`headstart tokenizer` and `tokens`: train a tokenizer, look at its pieces, turn a corpus into a token store."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headstart.cli.console import console, log, print_json, skipped_rows, status_line, table
from headstart.cli.options import BlankLines, Corpus, Json, SkipBad, TextColumn, said_if_local
from headstart.cli.torchrun import cores_per_process, process_group
from headstart.errors import ConfigError, TokenizerError
from headstart.wording import plural, size

if TYPE_CHECKING:
    from rich.status import Status

    from headstart.reading.documents import Document
    from headstart.store.store import Store
    from headstart.store.writer import Progress

tokenizer_app = typer.Typer(help="Train a tokenizer on text, or look at one.", no_args_is_help=True)


@tokenizer_app.command("train")
def train(
    corpus: Corpus,
    size: Annotated[int, typer.Option(help="The number of tokens, special ones included.")],
    out: Annotated[Path, typer.Option(help="The folder that gets tokenizer.json.")],
    kind: Annotated[
        str,
        typer.Option(
            help="unigram (SentencePiece's: for any language, nothing is unknown, and masked models learn most from "
            "it), bpe (GPT-2's: decodes to exactly the text) or wordpiece (BERT's)."
        ),
    ] = "unigram",
    lower: Annotated[bool, typer.Option("--lower", help="Lower-case all text; accents stay.")] = False,
    column: TextColumn = None,
    blank_lines: BlankLines = False,
    skip_bad: SkipBad = False,
) -> None:
    """Train a tokenizer on a corpus.

    The same text gives the same tokenizer.json each time, byte for byte.
    """
    from rich.console import Console

    from headstart.reading.documents import read_documents
    from headstart.tokenizers.load import FILE
    from headstart.tokenizers.tokenizer import Tokenizer

    if (out / FILE).exists():  # another model may depend on it
        raise TokenizerError(f"{out / FILE} is there already. Choose another folder, or remove the file first")
    with skipped_rows(skip_bad) as skipped, status_line(Console(stderr=True), "reading") as status:
        documents = read_documents(corpus, column=column, blank_lines=blank_lines, skipped=skipped)
        tokenizer = Tokenizer.train(_texts(documents, status), kind=kind, size=size, lower=lower)
    tokenizer.save(out)
    if tokenizer.size < size:
        log(f"the corpus gives no more than {tokenizer.size:,} tokens; {size:,} were asked for")
    typer.echo(f"{out / FILE}: {kind}, {tokenizer.size:,} tokens, fingerprint {tokenizer.fingerprint[:12]}")


@tokenizer_app.command("show")
def show(
    path: Annotated[
        Path, typer.Argument(help="A tokenizer: a folder or a file.", metavar="DIR", callback=said_if_local)
    ],
    text: Annotated[str, typer.Argument(help="The text to cut into pieces.")],
    as_json: Json = False,
) -> None:
    """Show the pieces and ids of a text."""
    from headstart.tokenizers.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(path)
    ids = tokenizer.encode(text)
    pieces = tokenizer.pieces(ids)
    unknown = 0 if tokenizer.unknown is None else ids.count(tokenizer.unknown)
    if as_json:
        print_json({"text": text, "pieces": pieces, "ids": ids, "unknown": unknown, "size": tokenizer.size})
        return
    shown = (piece if piece.isprintable() else ascii(piece)[1:-1] for piece in pieces)
    if ids:
        console().print(table("piece", ">id", rows=zip(shown, map(str, ids), strict=True)))
    typer.echo(f"{plural(len(ids), 'token')} of a vocabulary of {tokenizer.size:,}, {unknown:,} unknown")


def _texts(documents: Iterable[Document], status: Status) -> Iterator[str]:
    """The texts of documents; the status line says how many there have been."""
    number = 0
    for number, document in enumerate(documents, start=1):
        if number % 1000 == 0:
            status.update(f"reading: {number:,} documents")
        yield document.text
    status.update(f"{number:,} documents read, learning their pieces")


def tokens(
    corpus: Corpus,
    tokenizer: Annotated[Path, typer.Option(help="A tokenizer folder or file.", callback=said_if_local)],
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
        with process_group() as parallel, (progress := _ProgressBar(parallel.is_main)).bar:
            reading: dict[str, Any] = {"column": column, "blank_lines": blank_lines, "skip_bad": skip_bad}
            workers = cores_per_process() if workers is None else workers
            store = write_store(
                corpus, loaded, out, valid=valid, workers=workers, repeat=_repeat_counts(repeat or []),
                on_progress=progress, parallel=parallel, **reading,
            )  # fmt: skip
    except KeyboardInterrupt:
        log(f"{out} is half-written: the same command goes on from there")
        raise
    if not parallel.is_main:
        return
    seconds = time.monotonic() - began
    if was_there:
        log(f"{out} already holds this store, whole and unchanged: nothing to do")
    elif progress.kept:
        log(f"{progress.kept:,} documents were there from an earlier run")
    result = _result(store, None if was_there else (progress.documents - progress.kept) / seconds)
    if as_json:
        print_json(result)
    else:
        _print_lines(result)


def _repeat_counts(pairs: list[str]) -> dict[str, int]:
    """
    >>> _repeat_counts(["reviews.txt=5"])
    {'reviews.txt': 5}
    """
    counts = {name: count for name, _, count in (pair.rpartition("=") for pair in pairs)}
    wrong = [pair for pair in pairs if not pair.rpartition("=")[2].isdecimal()]
    if wrong or "" in counts:
        raise ConfigError(
            "repeat", [f"{pair!r} is no file and number: write it as reviews.txt=5" for pair in wrong or pairs]
        )
    return {name: int(count) for name, count in counts.items()}


class _ProgressBar:
    """Draws the progress of a store, where it is wanted and stderr is a terminal, and remembers what came last."""

    def __init__(self, wanted: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        screen, columns = Console(stderr=True), (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self.bar = Progress(*columns, console=screen, transient=True, disable=not (wanted and screen.is_terminal))
        self.task, self.began = self.bar.add_task("", total=None), time.monotonic()
        self.documents = self.kept = 0

    def __call__(self, progress: Progress) -> None:
        self.documents, self.kept = progress.documents, progress.kept
        rate = (self.documents - self.kept) / max(time.monotonic() - self.began, 1e-9)
        line = f"{self.documents:,} documents {rate:,.0f} documents/s {progress.bytes / 1e6:,.1f} MB"
        self.bar.update(self.task, completed=progress.bytes, total=progress.total, description=line)


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


def _print_lines(result: dict[str, Any]) -> None:
    from headstart.reading.skipped import summary_lines

    for line in summary_lines(**result["left_out"]):
        log(line)
    train, valid = (result["splits"][name]["documents"] for name in ("train", "valid"))
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
