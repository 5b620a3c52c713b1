"""`headstart params`: every parameter counted, formula beside number."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headstart.cli.console import console, print_json, size, table
from headstart.cli.options import Json
from headstart.errors import CheckpointError, did_you_mean

if TYPE_CHECKING:
    from headstart.config import HeadConfig, ModelConfig


def params(
    model: Annotated[str, typer.Argument(metavar="PRESET|FOLDER", help="A preset, such as lab, or a model folder.")],
    head: Annotated[
        str | None,
        typer.Option(help="next-token, masked, next-sentence, masked+next-sentence, classifier or none."),
    ] = None,
    classes: Annotated[int, typer.Option(help="Classes of a classifier head.")] = 2,
    frozen: Annotated[bool, typer.Option("--frozen", help="Count the backbone as fixed.")] = False,
    precision: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="The type that weights, gradients and moments are kept in.")
    ] = "float32",
    as_json: Json = False,
) -> None:
    """Count every parameter of a model, block by block, by formula and by the real tensors."""
    from headstart.model.count import count, count_tensors
    from headstart.model.model import Model
    from headstart.model.presets import usual_head

    config, own_head = _find(model)
    if head is not None:
        own_head = None if head == "none" else usual_head(config, head, classes)
    counted = count(config, own_head, frozen=frozen)
    empty = Model.empty(config, own_head)
    tensors = count_tensors(empty.freeze() if frozen else empty)
    memory = counted.memory(precision)
    if as_json:
        blocks = [{**asdict(block), "number": block.number} for block in counted.blocks]
        print_json(
            {
                "model": model,
                "head": None if own_head is None else own_head.to_mapping(),
                "total": counted.total,
                "trainable": counted.trainable,
                "frozen": counted.total - counted.trainable,
                "tensors": asdict(tensors),
                "blocks": blocks,
                "memory": {"precision": precision, **memory},
                "config": config.to_mapping(),
            }
        )
        return
    screen = console()
    rows = table("block", "formula", ">each", ">×", ">parameters")
    for block in counted.blocks:
        number = "shared" if block.shared else f"{block.number:,}"
        rows.add_row(block.name, block.formula, f"{block.each:,}", str(block.copies), number)
    rows.add_section()
    rows.add_row("total", "", "", "", f"{counted.total:,}", style="bold")
    kind = "no head" if own_head is None else f"a {own_head.kind} head"
    screen.print(f"{model} with {kind}\n", highlight=False)
    screen.print(rows, highlight=False)
    agree = "agree" if tensors.agrees(counted) else f"DIFFER: {tensors.blocks}"
    screen.print(
        f"\ntrainable {counted.trainable:,}, frozen {counted.total - counted.trainable:,}; the real tensors {agree}\n"
        f"in {precision}: weights {size(memory['weights'])}, gradients {size(memory['gradients'])}, "
        f"AdamW's moments {size(memory['optimizer'])}",
        highlight=False,
    )


def _find(name: str) -> tuple[ModelConfig, HeadConfig | None]:
    from headstart.checkpoints.folder import load
    from headstart.model.presets import PRESETS

    if name in PRESETS:
        return PRESETS[name], None
    if Path(name).is_dir():
        found = load(name).model
        return found.config, found.head_config
    raise CheckpointError(f"{name!r} is no preset and no folder: {did_you_mean(name, PRESETS)}")
