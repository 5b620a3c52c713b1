"""`headstart import` and `headstart export`: models in from other tools, and out to them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from headstart.cli.console import console, log, log_skipped, print_json, size, table
from headstart.cli.options import Json, LabelColumn, SecondColumn, SkipBad, TextColumn
from headstart.errors import ConfigError


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
        Literal["onnx", "onnx-int8", "hf", "lab", "base"],
        typer.Option(
            help="onnx: for onnxruntime; onnx-int8: the same, smaller and faster; hf: a `transformers` folder; "
            "lab: the lab's .pt file; base: a headstart folder to start from, without its head and in bf16."
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
    from headstart.reading.examples import read_examples
    from headstart.reading.skipped import SkippedRows
    from headstart.use.export import export

    skipped = SkippedRows() if skip_bad else None
    texts = None
    if valid is None and (text or second or label or skip_bad):
        raise ConfigError("export", ["--text, --second, --label and --skip-bad say how --valid is read: give it too"])
    if valid is not None:
        texts = read_examples(valid, text=text, second=second, label=label, skipped=skipped)
    exported = export(source, out, to, valid=texts, tolerance=tolerance, log=log)
    log_skipped(skipped)
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
        console().print(rows, highlight=False)
    same = "every tensor read back the same" + (", rounded to bf16" if exported.form == "base" else "")
    checked = same if comparison is None else f"compared on {comparison.texts:,} valid texts"
    typer.echo(f"{out}: {exported.what}; {checked}")
