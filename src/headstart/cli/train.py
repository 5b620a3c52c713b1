"""`headstart pretrain`, `finetune` and `verify-resume`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from headstart.cli import options
from headstart.cli.console import console, log, print_json, silent, table
from headstart.cli.imports import heavy_imports
from headstart.cli.progress import run_progress
from headstart.cli.torchrun import cores_per_process, process_group
from headstart.config import Settings, read_toml
from headstart.errors import ConfigError
from headstart.studies.recipes import default_folder
from headstart.studies.settings import FinetuneSettings, PretrainSettings


def _train(
    study: Callable[..., dict[str, Any]], settings: Settings, out: Path | None, resume: bool, quiet: bool, as_json: bool
) -> None:
    """Run a study, in the default folder where none is named, and print its scores."""
    with process_group() as parallel:
        quiet = quiet or not parallel.is_main
        say = silent if quiet else log
        if out is None:
            out, resume = parallel.broadcast(default_folder(settings)), True
        with run_progress(quiet) as on_event:
            result = study(settings, out, resume=resume, on_event=on_event, log=say, parallel=parallel)
    if not parallel.is_main:
        return
    if as_json:
        print_json(result)
    elif not quiet:
        _show_scores(out, result)


def _show_scores(out: Path, result: dict[str, Any]) -> None:
    names = [name for name in ("valid", "test") if result.get(name)]
    if names:
        columns = list(result[names[0]])
        rows = [(name, *(f"{result[name][column]:.4f}" for column in columns)) for name in names]
        console().print(table("", *(f">{name.replace('_', ' ')}" for name in columns), rows=rows))
    typer.echo(f"run folder: {out}")


def _finetune(settings: FinetuneSettings, **arguments: Any) -> None:
    """Train a classifier: a pretrained model under a new head, frozen or not, or from scratch."""
    with heavy_imports():
        from headstart.studies.finetune import finetune

    _train(finetune, settings, **arguments)


def _pretrain(settings: PretrainSettings, **arguments: Any) -> None:
    """Train a model on text or a token store: causal, masked, both in one, masked and next sentence, or replaced.

    Text is turned into a token store first, beside the run folder, by a tokenizer that is trained on it unless
    --tokenizer or --init brings one.
    """
    with heavy_imports():
        from headstart.studies.pretrain import pretrain

    _train(partial(pretrain, workers=cores_per_process()), settings, **arguments)


def _training_command(kind: type[Settings], data: str, body: Callable[..., None]) -> Callable[..., None]:
    own = [options.out("The run folder to write.", kind), options.RESUME, options.QUIET, options.JSON]
    return options.command(kind, data, own, body)


finetune_command = _training_command(FinetuneSettings, options.LABELLED, _finetune)
pretrain_command = _training_command(
    PretrainSettings, "Text (txt, jsonl, csv, tsv, parquet, plain or as gz, xz, zst), or a token store", _pretrain
)


def verify_command(
    recipe: Annotated[Path, typer.Argument(metavar="RUN.toml", help="A recipe, or the run.toml of a run.")],
    study: Annotated[str | None, typer.Option(help="pretrain or finetune, where the recipe does not say.")] = None,
    kills: Annotated[int, typer.Option(min=1, help="How often to kill it.")] = 3,
    seed: Annotated[int, typer.Option(help="Decides when.")] = 0,
    steps: Annotated[int | None, typer.Option(min=2, help="Steps to run, instead of what the recipe says.")] = None,
    as_json: options.Json = False,
) -> None:
    """Kill a run at random steps, resume it, and compare it bit for bit with one that was never stopped."""
    from headstart.studies.verify import verify_resume

    study = study or read_toml(recipe).get("study")
    if study not in ("pretrain", "finetune"):
        raise ConfigError(str(recipe), ["it does not say which study it is: add --study pretrain or --study finetune"])
    extra = [] if steps is None else ["--steps", str(steps)]
    with tempfile.TemporaryDirectory(prefix="headstart-verify-") as work:
        verdict = verify_resume([study, str(recipe), *extra], Path(work), kills=kills, seed=seed, log=log)
    if as_json:
        print_json(asdict(verdict))
    elif verdict.identical:
        times = "once" if len(verdict.kills) == 1 else f"{len(verdict.kills)} times"
        typer.echo(f"identical: {verdict.steps} losses and all weights, bit for bit, though it was killed {times}")
    else:
        typer.echo(f"different: {verdict.difference}")
    if not verdict.identical:
        raise typer.Exit(1)
