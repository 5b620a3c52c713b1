"""`headstart import` and `headstart export`: models in from other tools, and out to them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def import_model(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A `transformers` folder, a hub name, or the lab's .pt file.")
    ],
    out: Annotated[Path, typer.Argument(help="The model folder to write; it must not exist.")],
    heads: Annotated[
        int, typer.Option(help="Attention heads of the lab's file, which does not say; the lab has 2.")
    ] = 2,
) -> None:
    """Turn a BERT, RoBERTa, CamemBERT, DistilBERT, MPNet or GPT-2 model, or the lab's, into a headstart folder."""
    from headstart.checkpoints.exchange import open_model
    from headstart.checkpoints.folder import save

    checkpoint = open_model(source, heads=heads)
    save(checkpoint, out)
    model = checkpoint.model
    head = "no head" if model.head_config is None else f"a {model.head_config.kind} head"
    tokenizer = "its tokenizer" if checkpoint.tokenizer is not None else "no tokenizer (there was none)"
    parameters = sum(p.numel() for p in model.parameters())
    typer.echo(f"{out}: a {model.config.family} model with {head}, {parameters:,} parameters, {tokenizer}")


def export_model(
    source: Annotated[str, typer.Argument(metavar="FOLDER", help="A model folder, or a run folder.")],
    out: Annotated[Path, typer.Argument(help="The folder (or, for the lab, the .pt file) to write.")],
    to: Annotated[
        Literal["hf", "lab"], typer.Option(help="hf: a `transformers` folder; lab: the lab's .pt file.")
    ] = "hf",
) -> None:
    """Write a model in the form of another tool."""
    from headstart.checkpoints.exchange import open_model, write_published
    from headstart.checkpoints.lab import write_lab
    from headstart.errors import OutputError

    checkpoint = open_model(source)
    if to == "hf":
        family = write_published(checkpoint, out)
        typer.echo(f"{out}: {family.their_head(checkpoint.model.head_config)}, for transformers")
        return
    if out.exists():
        raise OutputError(f"{out} exists: name another file, or remove this one")
    write_lab(checkpoint.model, out)
    typer.echo(f"{out}: a state dict for the lab's classes")
