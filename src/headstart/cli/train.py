"""`headstart pretrain`, `finetune`, `evaluate`: the settings of a study are its options and the keys of its recipe."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from headstart.cli.console import console, print_json, remark, table
from headstart.cli.progress import reporter
from headstart.config import Settings, read_toml
from headstart.errors import ConfigError
from headstart.studies.settings import FinetuneSettings, PretrainSettings

MODES = ("full", "frozen", "scratch")  # a recipe may have a table for each, used in that mode alone


def study_command(kind: type[Settings], summary: str, run: Callable[..., dict[str, Any]]) -> Callable[..., None]:
    """A command with an option for every setting of a study; `run(settings, out, …)` does the work."""

    def command(recipe: Path | None, out: Path, resume: bool, quiet: bool, as_json: bool, **given: Any) -> None:
        settings = merge(kind, recipe, {name: value for name, value in given.items() if value not in (None, [])})
        with reporter(quiet) as listen:
            result = run(settings, out, resume=resume, listen=listen, remark=_silent if quiet else remark)
        if as_json:
            print_json(result)
        elif not quiet:
            show_scores(out, result)

    hints = get_type_hints(kind)
    parameters = [
        _parameter(
            "recipe", Path | None, typer.Argument(metavar="[RECIPE.toml]", help="Settings; an option overrides."), None
        ),
        _parameter("out", Path, typer.Option(help="The run folder to write."), MISSING),
        _parameter("resume", bool, typer.Option("--resume", help="Go on with a run that was stopped."), False),
        _parameter("quiet", bool, typer.Option("--quiet", help="Say nothing."), False),
        _parameter("as_json", bool, typer.Option("--json", help="Print the result as one JSON object."), False),
    ]
    parameters += [_option(f.name, hints[f.name], f.metadata["help"], f.default) for f in fields(kind)]  # type: ignore[arg-type]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__doc__ = summary
    return command


def _silent(text: str) -> None:
    pass


def _parameter(name: str, kind: Any, option: Any, default: Any) -> inspect.Parameter:
    empty = inspect.Parameter.empty if default is MISSING else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=empty, annotation=Annotated[kind, option])


def _option(name: str, hint: Any, text: str, default: Any) -> inspect.Parameter:
    """An option that is None unless it was given, so that a recipe's value can stand."""
    if get_origin(hint) is tuple:
        hint = list[get_args(hint)[0]]  # type: ignore[misc]
    elif type(None) not in get_args(hint):
        hint = hint | None
    flag = "--" + name.replace("_", "-")
    flags = [f"{flag}/--no-{flag[2:]}"] if hint == bool | None else [flag]
    shown = "" if default in (None, "", (), MISSING) else f" [default: {default}]"
    return _parameter(name, hint, typer.Option(*flags, help=text + shown, show_default=False), None)


def merge(kind: type[Settings], recipe: Path | None, given: dict[str, Any]) -> Any:
    """A recipe's settings with the given ones over them, and the table for the mode between the two."""
    found = {} if recipe is None else read_toml(recipe)
    found.pop("study", None)
    tables = {mode: found.pop(mode, {}) for mode in MODES if kind is FinetuneSettings}
    for mode, values in tables.items():
        if not isinstance(values, dict):
            raise ConfigError(str(recipe), [f"{mode} is {values!r}, and must be a table of settings"])
    mode = given.get("mode") or found.get("mode") or "full"
    return kind.from_mapping({**found, **tables.get(mode, {}), **given}, str(recipe or "options"))


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
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Score a classifier on labelled texts: accuracy, macro-F1 and loss."""
    from headstart.studies.finetune import evaluate

    scores, rows = evaluate(folder, data, text=text, second=second, label=label, remark=remark)
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
        verdict = verify_resume([found, str(recipe), *extra], Path(work), kills=kills, seed=seed, remark=remark)
    if as_json:
        print_json(asdict(verdict))
    elif verdict.identical:
        times = "once" if len(verdict.kills) == 1 else f"{len(verdict.kills)} times"
        typer.echo(f"identical: {verdict.steps} losses and all weights, bit for bit, though it was killed {times}")
    else:
        typer.echo(f"different: {verdict.difference}")
    if not verdict.identical:
        raise typer.Exit(1)
