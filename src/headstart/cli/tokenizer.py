"""`headstart tokenizer`: train a tokenizer on your text, and look at what one makes of a text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.status import Status
from rich.text import Text

from headstart.cli.console import console, log, log_skipped, print_json, table
from headstart.cli.options import BlankLines, Corpus, Json, SkipBad, TextColumn
from headstart.errors import TokenizerError

if TYPE_CHECKING:
    from headstart.reading.documents import Document

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
    from headstart.reading.documents import read_documents
    from headstart.reading.skipped import SkippedRows
    from headstart.tokenizers.load import FILE
    from headstart.tokenizers.tokenizer import Tokenizer

    if (out / FILE).exists():  # another model may depend on it
        raise TokenizerError(f"{out / FILE} is there already. Choose another folder, or remove the file first")
    with Console(stderr=True).status("reading") as status:  # shows nothing where stderr is no terminal
        skipped = SkippedRows() if skip_bad else None
        documents = read_documents(corpus, column=column, blank_lines=blank_lines, skipped=skipped)
        texts = _texts(documents, status)
        tokenizer = Tokenizer.train(texts, kind=kind, size=size, lower=lower)
    tokenizer.save(out)
    log_skipped(skipped)
    if tokenizer.size < size:
        log(f"the corpus gives no more than {tokenizer.size:,} tokens; {size:,} were asked for")
    typer.echo(f"{out / FILE}: {kind}, {tokenizer.size:,} tokens, fingerprint {tokenizer.fingerprint[:12]}")


@tokenizer_app.command("show")
def show(
    path: Annotated[Path, typer.Argument(help="A tokenizer: a folder or a file.", metavar="DIR")],
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
    shown = table("piece", ">id")
    for piece, number in zip(pieces, ids, strict=True):
        shown.add_row(Text(piece if piece.isprintable() else ascii(piece)[1:-1]), str(number))
    if ids:
        console().print(shown)
    tokens = "1 token" if len(ids) == 1 else f"{len(ids):,} tokens"
    typer.echo(f"{tokens} of a vocabulary of {tokenizer.size:,}, {unknown:,} unknown")


def _texts(documents: Iterable[Document], status: Status) -> Iterator[str]:
    """The texts of documents; the status line says how many there have been."""
    number = 0
    for number, document in enumerate(documents, start=1):
        if number % 1000 == 0:
            status.update(f"reading: {number:,} documents")
        yield document.text
    status.update(f"{number:,} documents read, learning their pieces")
