"""The settings of a study from what a user gives: a data file, a recipe, options; and the folder it goes to by default.

The command line and `headstart.pretrain`, `finetune`, `compare` in Python both read their settings here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeVar, get_origin, get_type_hints

from headstart.config import Settings, read_toml
from headstart.errors import ConfigError
from headstart.files import holds_something
from headstart.studies.settings import DATA, MODES, CompareSettings, FinetuneSettings, PretrainSettings, SweepSettings

STUDIES: dict[type[Settings], str] = {
    FinetuneSettings: "finetune",
    CompareSettings: "compare",
    PretrainSettings: "pretrain",
    SweepSettings: "sweep",
}
# Of a comparison by a recipe for one run: its settings are compared as they are.
BY_HAND: dict[str, Any] = {"tune": "none", "frozen_head": "trained", "seeds": 5}
RUNS = Path("runs")  # where a study goes that was given no folder
Kind = TypeVar("Kind", bound=Settings)


def read_settings(kind: type[Kind], recipe: Path | None, given: Mapping[str, Any], data: Sequence[str] = ()) -> Kind:
    """A recipe's settings, over them the recipe's table for the mode, and over both what is given.

    A study of several modes keeps the tables, as settings for one mode. A fine-tuning recipe also serves for it: the
    model to start from becomes the first of several, the mode is dropped, and a comparison tunes nothing.
    """
    given = {**given, **name_data(kind, data, given)}
    values = {} if recipe is None else read_toml(recipe)
    if values.pop("study", None) == "finetune" and kind is CompareSettings:
        values = {**BY_HAND, **values}
    hints = get_type_hints(kind)
    several = set(MODES) <= hints.keys()
    tables = {mode: values.pop(mode) for mode in MODES if mode in values and (several or kind is FinetuneSettings)}
    for mode, table in tables.items():
        if not isinstance(table, dict | list if several else dict):
            raise ConfigError(str(recipe), [f"{mode} is {table!r}, and must be a table of settings"])
    if several:
        for mode in MODES:
            pairs = [*_pairs(tables.get(mode, ())), *_pairs(given.get(mode, ()))]
            given |= {mode: pairs} if pairs else {}
        if "mode" not in hints:
            values.pop("mode", None)
    else:
        mode = given.get("mode") or values.get("mode") or "full"
        values |= tables.get(mode, {}) if isinstance(mode, str) else {}  # what is no text, the settings refuse
    if "store" in given:  # instead of the recipe's corpus, or the other way round
        values.pop("corpus", None)
    if "corpus" in given:
        values.pop("store", None)
    merged = {**values, **given}
    for name in ("init", "pile"):  # one of several, given as it is
        if get_origin(hints.get(name)) is tuple and isinstance(merged.get(name), str):
            merged[name] = [merged[name]]
    return kind.from_mapping(merged, str(recipe or STUDIES[kind]))


def _pairs(values: Any) -> list[str]:
    """A table as it would be typed.

    >>> _pairs({"lr": 1e-3, "balanced": True})
    ['lr=0.001', 'balanced=true']
    """
    if not isinstance(values, Mapping):
        return list(values)
    return [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in values.items()]


def name_data(kind: type[Settings], data: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """The setting that data given without a name stand for: a store folder and text are told apart.

    >>> name_data(FinetuneSettings, ["reviews.csv"], {})
    {'data': 'reviews.csv'}
    """
    if not data:
        return {}
    if kind is PretrainSettings:
        stores = [path for path in data if (Path(path) / "store.json").is_file()]
        name = "store" if stores == list(data) and len(data) == 1 else "corpus"
        if stores and name == "corpus":
            raise ConfigError("pretrain", [f"{stores[0]} is a token store: name one store, or text alone"])
        value: Any = data[0] if name == "store" else list(data)
    else:
        name, value = "data", data[0]
        if len(data) > 1:
            problem = f"{len(data)} data files are named ({', '.join(data)}): name the one to train on"
            raise ConfigError(STUDIES[kind], [f"{problem}, others with --valid and --test"])
    if given.get(name) not in (None, "", value):
        raise ConfigError(STUDIES[kind], [f"the data are named twice, {data[0]} and --{name} {given[name]}: name one"])
    return {name: value}


def default_folder(settings: Settings) -> Path:
    """`runs/STUDY-DATA`: the folder in which these settings were run before, else the first that is free.

    A comparison may go on with other settings on the same data, so that only the data must agree.
    """
    study = STUDIES[type(settings)]
    values = {"study": study, **settings.to_mapping()}
    data = values.get("data") or values.get("store") or values["corpus"][0]
    keys = {"study", *DATA} if study == "compare" else None
    for number in count(1):
        folder = RUNS / (f"{study}-{_stem(data)}" + (f"-{number}" if number > 1 else ""))
        if not folder.exists() or (folder.is_dir() and not holds_something(folder)):
            return folder
        if _holds(folder, values, keys):
            return folder
    raise AssertionError("unreachable")


def _stem(path: str) -> str:
    """A file's name without its endings, a folder's name.

    >>> [_stem(path) for path in ("my data/reviews.csv.gz", "texts/*.txt", "../store/")]
    ['reviews', 'texts', 'store']
    """
    for part in reversed(Path(path).parts):
        if stem := re.sub(r"[^\w-]+", "-", part.split(".")[0]).strip("-"):
            return stem
    return "data"


def _holds(folder: Path, values: Mapping[str, Any], keys: Collection[str] | None) -> bool:
    for file in (folder / "run.toml", folder / "study.toml"):
        if file.is_file():
            found = read_toml(file)
            return all(found.get(key) == values.get(key) for key in keys or found.keys() | values.keys())
    return False
