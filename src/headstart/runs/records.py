"""Records on disk: JSON that is read back as a dataclass, every value of the type that its class says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from reprlib import repr  # a value that is shown in an error may be long
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from headstart.errors import DataError
from headstart.files import read_json

Record = TypeVar("Record")
PLAIN = {int, float, str, bool}


def read_record(path: Path, build: Callable[[Mapping[str, Any]], Record]) -> Record:
    """What `build` makes of a JSON file; a DataError where the file was damaged, or edited into something else."""
    values = read_json(path)
    try:
        record = build(values)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(path, f"it is no {path.stem} of this headstart ({error!r})") from None
    problem = unfit(record)
    if problem is not None:
        raise DataError(path, f"it is no {path.stem} of this headstart: {problem}")
    return record


def unfit(record: Any) -> str | None:
    """The first value in a dataclass that is not of the type that its class says.

    >>> from headstart.runs.events import Halved
    >>> unfit(Halved(1, 4)), unfit(Halved(1, "four"))
    (None, "shares is 'four', expected int")
    """
    kind: Any = type(record)
    for name, hint in _hints(kind):
        value = getattr(record, name)
        if type(value) is not hint or hint not in PLAIN:  # a run has thousands of events, most of them plain values
            problem = _unfit(name, value, hint)
            if problem is not None:
                return problem
    return None


@cache
def _hints(kind: Any) -> list[tuple[str, Any]]:
    hints = get_type_hints(kind)
    return [(f.name, hints[f.name]) for f in fields(kind)]


def _unfit(name: str, value: Any, hint: Any) -> str | None:
    if type(value) is hint or hint is Any or (hint is float and type(value) is int):
        return unfit(value) if is_dataclass(hint) else None
    origin, options = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        problems = [_unfit(name, value, option) for option in options if option is not type(None)]
        return None if (value is None and type(None) in options) or None in problems else problems[0]
    if origin is Literal and value in options:
        return None
    if origin in (dict, Mapping) and isinstance(value, dict):
        items = [(f"{name}[{key!r}]", item, options[1]) for key, item in value.items()]
    elif origin in (tuple, Sequence) and isinstance(value, list | tuple):
        items = [(f"{name}[{i}]", item, options[0]) for i, item in enumerate(value)]
    else:
        expected = hint.__name__ if origin is None else str(hint).rpartition("abc.")[2].removeprefix("typing.")
        return f"{name} is {repr(value)}, expected {expected}"
    return next((problem for item in items if (problem := _unfit(*item)) is not None), None)
