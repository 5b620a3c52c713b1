"""`headstart import`, `export` and `params`: models in from other tools, out to them, and counted."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headstart.bases import find, note_local, shipped
from headstart.cli.console import console, log, print_json, skipped_rows, table
from headstart.cli.imports import heavy_imports
from headstart.cli.options import Json, LabelColumn, ModelFolder, SecondColumn, SkipBad, TextColumn
from headstart.config import ModelConfig, ReplacedConfig
from headstart.errors import CheckpointError, ConfigError, did_you_mean
from headstart.wording import size

if TYPE_CHECKING:
    from rich.table import Table

    from headstart.config import HeadConfig
    from headstart.model.count import Count


def import_model(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="A `transformers` folder, OWNER/NAME on the hub, or the lab's .pt file."),
    ],
    out: Annotated[Path, typer.Argument(help="The model folder to write; it must not exist.")],
    heads: Annotated[
        int, typer.Option(help="Attention heads of the lab's file, which does not say; the lab has 2.")
    ] = 2,
) -> None:
    """Turn a BERT, RoBERTa, CamemBERT, DistilBERT, MPNet or GPT-2 model, or the lab's, into a headstart folder."""
    with heavy_imports():
        from headstart.checkpoints.exchange import open_model
        from headstart.checkpoints.folder import save

    note_local(source, log)
    checkpoint = open_model(source, heads=heads)
    save(checkpoint, out)
    model = checkpoint.model
    head = "no head" if model.head_config is None else f"a {model.head_config.kind} head"
    tokenizer = "its tokenizer" if checkpoint.tokenizer is not None else "no tokenizer (there was none)"
    parameters = sum(p.numel() for p in model.parameters())
    typer.echo(f"{out}: a {model.config.family} model with {head}, {parameters:,} parameters, {tokenizer}")


def export_model(
    source: ModelFolder,
    out: Annotated[Path, typer.Argument(help="The folder (or, for the lab, the .pt file) to write.")],
    to: Annotated[
        Literal["onnx", "onnx-int8", "hf", "lab", "base"],
        typer.Option(
            help="onnx: for onnxruntime; onnx-int8: the same, smaller and faster; hf: a `transformers` folder; "
            "lab: the lab's .pt file; base: a headstart folder to start from, in bf16."
        ),
    ] = "hf",
    valid: Annotated[
        Path | None, typer.Option(help="Labelled texts to compare on; by default those that the run was chosen on.")
    ] = None,
    text: TextColumn = None,
    second: SecondColumn = None,
    label: LabelColumn = None,
    skip_bad: SkipBad = False,
    tolerance: Annotated[
        float, typer.Option(help="How far accuracy on valid may fall in int8; 0.01 is one point.")
    ] = 0.01,
    as_json: Json = False,
) -> None:
    """Write a model in the form of another tool, and keep it only if it answers as the original does."""
    with heavy_imports():
        from headstart.reading.examples import read_examples
        from headstart.use.export import export

    texts = None
    if valid is None and (text or second or label or skip_bad):
        raise ConfigError("export", ["--text, --second, --label and --skip-bad say how --valid is read: give it too"])
    if valid is not None:
        with skipped_rows(skip_bad) as skipped:
            texts = read_examples(valid, text=text, second=second, label=label, skipped=skipped)
    exported = export(source, out, to, valid=texts, tolerance=tolerance, log=log)
    comparison = exported.comparison
    if as_json:
        print_json({"out": str(out), "to": exported.form, "comparison": comparison and asdict(comparison)})
        return
    if comparison is not None:
        rows = table("", ">size", ">accuracy", ">agreement", ">largest difference", ">one text", ">in bulk")
        agreement = [f"{comparison.agreement:.4f}", f"{comparison.difference:.1e}"]
        for name, model, cells in (
            ("original", comparison.original, ["", ""]),
            (exported.form, comparison.export, agreement),
        ):
            costs = [f"{model.milliseconds:.1f} ms", f"{model.texts_per_second:,.0f}/s"]
            rows.add_row(name, size(model.size), f"{model.accuracy:.4f}", *cells, *costs)
        console().print(rows)
    same = "every tensor read back the same" + (", rounded to bf16" if exported.form == "base" else "")
    checked = same if comparison is None else f"compared on {comparison.texts:,} valid texts"
    typer.echo(f"{out}: {exported.what}; {checked}")


def params(
    model: Annotated[
        str,
        typer.Argument(metavar="PRESET|FOLDER", help="A preset, such as lab; a model folder; a base that ships."),
    ],
    head: Annotated[
        str | None,
        typer.Option(
            help="next-token, masked, causal+masked, replaced, next-sentence, masked+next-sentence, classifier or none."
        ),
    ] = None,
    classes: Annotated[int, typer.Option(help="Classes of a classifier head.")] = 2,
    frozen: Annotated[bool, typer.Option("--frozen", help="Count the backbone as fixed.")] = False,
    precision: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="The type that weights, gradients and moments are kept in.")
    ] = "float32",
    as_json: Json = False,
) -> None:
    """Count every parameter of a model, block by block, by formula and by the real tensors."""
    with heavy_imports():
        from headstart.model.count import count, count_tensors
        from headstart.model.model import Model
        from headstart.model.presets import GENERATOR, usual_head

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
    kind = "no head" if own_head is None else f"a {own_head.kind} head"
    agree = "agree" if tensors.agrees(counted) else f"DIFFER: {tensors.blocks}"
    console().print(
        f"{model} with {kind}\n",
        _blocks_table(counted),
        f"\ntrainable {counted.trainable:,}, frozen {counted.total - counted.trainable:,}; the real tensors {agree}\n"
        f"in {precision}: weights {size(memory['weights'])}, gradients {size(memory['gradients'])}, "
        f"AdamW's moments {size(memory['optimizer'])}",
        sep="\n",
    )
    if isinstance(own_head, ReplacedConfig) and own_head.generator is None:
        generator = count(config, ReplacedConfig(generator=GENERATOR)).total - counted.total
        typer.echo(f"pretraining adds a generator of {generator:,} parameters by default, which is dropped at the end")


def _blocks_table(counted: Count) -> Table:
    rows = table("block", "formula", ">each", ">×", ">parameters")
    for block in counted.blocks:
        number = "shared" if block.shared else f"{block.number:,}"
        rows.add_row(block.name, block.formula, f"{block.each:,}", str(block.copies), number)
    rows.add_section()
    rows.add_row("total", "", "", "", f"{counted.total:,}", style="bold")
    return rows


def _find(name: str) -> tuple[ModelConfig, HeadConfig | None]:
    from headstart.checkpoints.folder import load
    from headstart.model.presets import PRESETS

    if name in PRESETS:
        return PRESETS[name], None
    if find(name).is_dir():
        note_local(name, log)
        loaded = load(name).model
        return loaded.config, loaded.head_config
    hint = did_you_mean(name, {*PRESETS, *shipped()})
    raise CheckpointError(f"{name!r} is no preset, no folder and no base that ships: {hint}")
