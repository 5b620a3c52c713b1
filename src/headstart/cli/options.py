"""The settings of a study as the options of its command: those of every day in --help, all in --help-all."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from headstart.bases import note_local
from headstart.cli.console import log
from headstart.config import Settings, read_value
from headstart.errors import ConfigError
from headstart.studies.recipes import STUDIES, read_settings
from headstart.training.settings import TrainingSettings


def said_if_local(folder: Path | None) -> Path | None:
    """The folder; a line where it is taken although a base that ships has its name."""
    note_local(folder, log)
    return folder


LABELLED = "Labelled texts: csv, tsv, jsonl, parquet, `label ||| text`, or a folder"

# Options that several verbs have.
ModelFolder = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER",
        help="A run folder, a model folder, or the name of a base that ships (`headstart bases`).",
        callback=said_if_local,
    ),
]
TextColumn = Annotated[str | None, typer.Option(help="The column of the text, where the guess is wrong.")]
SecondColumn = Annotated[str | None, typer.Option(help="The column of the second text of a pair.")]
LabelColumn = Annotated[str | None, typer.Option(help="The column of the label, where the guess is wrong.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out what cannot be read, and list it.")]
Corpus = Annotated[
    list[str], typer.Argument(help="Files, folders or globs: txt, jsonl, csv, tsv, parquet, plain or gz, xz, zst.")
]
BlankLines = Annotated[bool, typer.Option("--blank-lines", help="In .txt files blank lines part documents.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.meta["help_all"] = True
        typer.echo(context.get_help())
        raise typer.Exit


def _flag(name: str, text: str, **more: Any) -> tuple[Any, ...]:
    return (name.replace("-", "_"), bool, typer.Option(f"--{name}", help=text, **more), False)


RESUME = _flag("resume", "Go on with a run that was stopped.")
QUIET = ("quiet", *get_args(Quiet), False)
JSON = ("as_json", *get_args(Json), False)
HELP_ALL = _flag("help-all", "Show every option, by group, and exit.", is_eager=True, callback=_show_all)


def out(text: str, kind: type[Settings]) -> tuple[Any, ...]:
    return ("out", Path | None, typer.Option(help=f"{text} [default: runs/{STUDIES[kind]}-DATA]"), None)


def command(
    kind: type[Settings], data: str, own: list[tuple[Any, ...]], body: Callable[..., None]
) -> Callable[..., None]:
    """A command that takes data and a recipe, parameters of its `own`, and an option for every setting.

    `body(settings, …)` does the work; `data` says in the help what the data may be.
    """

    def run(inputs: list[str] | None, help_all: bool, **given: Any) -> None:
        recipes = [Path(path) for path in inputs or () if path.lower().endswith(".toml")]
        if len(recipes) > 1:
            raise ConfigError(STUDIES[kind], [f"two recipes are named, {recipes[0]} and {recipes[1]}: name one"])
        own_values = {name: given.pop(name) for name, *_ in own}
        given = {name: _read(value, hints[name]) for name, value in given.items() if value not in (None, [])}
        paths = [path for path in inputs or () if not path.lower().endswith(".toml")]
        body(read_settings(kind, recipes[0] if recipes else None, given, paths), **own_values)

    hints = get_type_hints(kind)
    text = f"{data}; and a recipe, which ends in .toml: an option overrides it."
    inputs = ("inputs", list[str] | None, typer.Argument(metavar="DATA|RECIPE.toml", help=text), None)
    parameters = [_parameter(*inputs)]
    shared = {f.name for f in fields(TrainingSettings)}
    for f in sorted(fields(kind), key=lambda f: f.name in shared):  # type: ignore[arg-type]
        group = None if f.metadata["everyday"] else f.metadata["group"]
        parameters.append(_option(f.name, hints[f.name], f.metadata["help"], f.default, group))
    parameters += [_parameter(*each) for each in (*own, HELP_ALL)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    run.__doc__ = body.__doc__
    return run


def _parameter(name: str, kind: Any, option: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


def _option(name: str, hint: Any, text: str, default: Any, group: str | None) -> inspect.Parameter:
    """An option that is None unless it was given, so that a recipe's value can stand."""
    several = next((kind for kind in (hint, *get_args(hint)) if get_origin(kind) is tuple), None)
    if several is not None:
        hint = list[get_args(several)[0]]  # type: ignore[misc]
    elif _mixed(hint):
        hint = str | None
    elif type(None) not in get_args(hint):
        hint = hint | None
    flag = "--" + name.replace("_", "-")
    flags = [f"{flag}/--no-{flag[2:]}"] if hint == bool | None else [flag]
    shown = "" if default in (None, "", (), MISSING) or default is False else f" [default: {default}]"
    option = typer.Option(*flags, help=text + shown, show_default=False, rich_help_panel=group)
    return _parameter(name, hint, option, None)


def _mixed(hint: Any) -> bool:
    """Whether it takes a number or a word, as `int | Literal["auto"]` does."""
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    return len(kinds) > 1 and get_origin(hint) in (Union, UnionType)


def _read(value: Any, hint: Any) -> Any:
    return read_value(value) if _mixed(hint) else value


class GroupedCommand(TyperCommand):
    """A command whose options may stand in groups, by `rich_help_panel`; those in none are the everyday ones."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        rows: dict[str | None, list[tuple[str, str]]] = defaultdict(list)
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                argument = parameter.param_type_name == "argument"
                rows["arguments" if argument else getattr(parameter, "rich_help_panel", None)].append(record)
        for group, records in rows.items():
            if group in ("arguments", None) or ctx.meta.get("help_all"):
                with formatter.section((group or "options").capitalize()):
                    formatter.write_dl(records)
        hidden = sum(len(records) for group, records in rows.items() if group not in ("arguments", None))
        if hidden and not ctx.meta.get("help_all"):
            formatter.write_paragraph()
            formatter.write_text(f"{hidden} more options: {ctx.command_path} --help-all")
