"""The settings of a study as the options of its command and the keys of its recipe."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from headstart.config import Settings, read_toml
from headstart.errors import ConfigError
from headstart.studies.settings import FinetuneSettings

MODES = ("full", "frozen", "scratch")  # a recipe may have a table for each, used in that mode alone

RECIPE = ("recipe", Path | None, typer.Argument(metavar="[RECIPE.toml]", help="Settings; an option overrides."), None)
RESUME = ("resume", bool, typer.Option("--resume", help="Go on with a run that was stopped."), False)
QUIET = ("quiet", bool, typer.Option("--quiet", help="Say nothing."), False)
JSON = ("as_json", bool, typer.Option("--json", help="Print the result as one JSON object."), False)


def out(text: str) -> tuple[Any, ...]:
    return ("out", Path, typer.Option(help=text), MISSING)


def command(
    kind: type[Settings], summary: str, own: list[tuple[Any, ...]], body: Callable[..., None]
) -> Callable[..., None]:
    """A command with parameters of its `own`, and an option for every setting; `body(settings, …)` does the work."""

    def run(recipe: Path | None, **given: Any) -> None:
        mine = {name: given.pop(name) for name, *_ in own}
        settings = merge(kind, recipe, {name: value for name, value in given.items() if value not in (None, [])})
        body(settings, **mine)

    hints = get_type_hints(kind)
    parameters = [_parameter(*each) for each in (RECIPE, *own)]
    parameters += [_option(f.name, hints[f.name], f.metadata["help"], f.default) for f in fields(kind)]  # type: ignore[arg-type]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    run.__doc__ = summary
    return run


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
    """A recipe's settings with the given ones over them, and the table for the mode between the two.

    A study of several modes keeps the tables, as settings that are for one mode; and a fine-tuning recipe will do for
    it: the model to start from becomes the first of several, the mode is left aside.
    """
    found = {} if recipe is None else read_toml(recipe)
    found.pop("study", None)
    hints = get_type_hints(kind)
    several = set(MODES) <= hints.keys()
    tables = {mode: found.pop(mode) for mode in MODES if mode in found and (several or kind is FinetuneSettings)}
    for mode, values in tables.items():
        if not isinstance(values, dict | list if several else dict):
            raise ConfigError(str(recipe), [f"{mode} is {values!r}, and must be a table of settings"])
    if several:
        for mode, values in tables.items():
            given[mode] = [*(_pairs(values) if isinstance(values, dict) else values), *given.get(mode, [])]
        if "mode" not in hints:
            found.pop("mode", None)
        if get_origin(hints["init"]) is tuple and isinstance(found.get("init"), str):
            found["init"] = [found["init"]]
    else:
        found |= tables.get(given.get("mode") or found.get("mode") or "full", {})
    return kind.from_mapping({**found, **given}, str(recipe or "options"))


def _pairs(values: Mapping[str, Any]) -> list[str]:
    """A table as it would be typed.

    >>> _pairs({"lr": 1e-3, "balanced": True})
    ['lr=0.001', 'balanced=true']
    """
    return [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in values.items()]
