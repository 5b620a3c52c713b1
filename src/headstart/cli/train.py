"""`headstart pretrain`, `finetune`, `evaluate`: the settings of a study are its options and the keys of its recipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from headstart.cli import options
from headstart.cli.console import console, left_out, log, print_json, silent, table
from headstart.cli.progress import reporter
from headstart.cli.together import joined
from headstart.config import Settings, read_toml
from headstart.errors import ConfigError
from headstart.studies.settings import FinetuneSettings, PretrainSettings


def study_command(
    kind: type[Settings],
    summary: str,
    run: Callable[..., dict[str, Any]],
    show: Callable[[Path, dict[str, Any]], None] | None = None,
) -> Callable[..., None]:
    """A command for a study: `run(settings, out, …)` does the work, `show(out, result)` says what came of it."""

    def body(settings: Any, out: Path, resume: bool, quiet: bool, as_json: bool) -> None:
        with joined() as parallel:
            quiet = quiet or not parallel.is_main
            with reporter(quiet) as on_event:
                result = run(settings, out, resume=resume, on_event=on_event, log=silent if quiet else log)
        if not parallel.is_main:
            return
        if as_json:
            print_json(result)
        elif not quiet:
            (show or show_scores)(out, result)

    own = [options.out("The run folder to write."), options.RESUME, options.QUIET, options.JSON]
    return options.command(kind, summary, own, body)


def show_scores(out: Path, result: dict[str, Any]) -> None:
    names = [name for name in ("valid", "test") if result.get(name)]
    if names:
        columns = list(result[names[0]])
        rows = table("", *(f">{name.replace('_', ' ')}" for name in columns))
        for name in names:
            rows.add_row(name, *(f"{result[name][column]:.4f}" for column in columns))
        console().print(rows, highlight=False)
    typer.echo(f"run folder: {out}")


def _finetune(*arguments: Any, **options: Any) -> dict[str, Any]:
    from headstart.studies.finetune import finetune

    return finetune(*arguments, **options)


def _pretrain(*arguments: Any, **options: Any) -> dict[str, Any]:
    from headstart.studies.pretrain import pretrain

    return pretrain(*arguments, **options)


finetune_command = study_command(
    FinetuneSettings,
    "Train a classifier: a pretrained model under a new head, frozen or not, or from scratch.",
    _finetune,
)
pretrain_command = study_command(
    PretrainSettings, "Train a language model on a token store: causal, masked, or masked and next sentence.", _pretrain
)


def evaluate_command(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A run folder, or the folder of a classifier.")],
    data: Annotated[str, typer.Argument(help="Labelled texts.")],
    text: Annotated[str | None, typer.Option(help="Name of the column with the text.")] = None,
    second: Annotated[str | None, typer.Option(help="Name of the column with the second text of a pair.")] = None,
    label: Annotated[str | None, typer.Option(help="Name of the column with the label.")] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave rows out that cannot be read, and list them.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Score a classifier on labelled texts: accuracy, macro-F1 and loss."""
    from headstart.reading.skipped import SkippedRows
    from headstart.use.evaluate import evaluate

    skipped = SkippedRows() if skip_bad else None
    with joined() as parallel:
        say = log if parallel.is_main else silent
        scores, rows = evaluate(folder, data, text=text, second=second, label=label, skipped=skipped, log=say)
    if not parallel.is_main:
        return
    if skipped is not None:
        left_out(skipped.count, skipped.lines)
    if as_json:
        print_json({"rows": rows, **scores})
        return
    shown = table(">rows", *(f">{name.replace('_', ' ')}" for name in scores))
    shown.add_row(str(rows), *(f"{value:.4f}" for value in scores.values()))
    console().print(shown, highlight=False)


def verify_command(
    recipe: Annotated[Path, typer.Argument(metavar="RUN.toml", help="A recipe, or the run.toml of a run.")],
    study: Annotated[str | None, typer.Option(help="pretrain or finetune, where the recipe does not say.")] = None,
    kills: Annotated[int, typer.Option(min=1, help="How often to kill it.")] = 3,
    seed: Annotated[int, typer.Option(help="Decides when.")] = 0,
    steps: Annotated[int | None, typer.Option(min=2, help="Steps to run, instead of what the recipe says.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Kill a run at random steps, resume it, and compare it bit for bit with one that was never stopped."""
    import tempfile
    from dataclasses import asdict

    from headstart.studies.verify import verify_resume

    found = study or read_toml(recipe).get("study")
    if found not in ("pretrain", "finetune"):
        raise ConfigError(str(recipe), ["it does not say which study it is: add --study pretrain or --study finetune"])
    extra = [] if steps is None else ["--steps", str(steps)]
    with tempfile.TemporaryDirectory(prefix="headstart-verify-") as work:
        verdict = verify_resume([found, str(recipe), *extra], Path(work), kills=kills, seed=seed, log=log)
    if as_json:
        print_json(asdict(verdict))
    elif verdict.identical:
        times = "once" if len(verdict.kills) == 1 else f"{len(verdict.kills)} times"
        typer.echo(f"identical: {verdict.steps} losses and all weights, bit for bit, though it was killed {times}")
    else:
        typer.echo(f"different: {verdict.difference}")
    if not verdict.identical:
        raise typer.Exit(1)
