"""What a sweep varies, as it is written: `lr=1e-5,1e-4` is a choice, `lr=1e-6..1e-3` a range."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from headstart.config import read_value
from headstart.errors import did_you_mean


@dataclass(frozen=True)
class Axis:
    """A setting and its values; of a range, the two ends."""

    name: str
    values: tuple[Any, ...]
    is_range: bool = False

    @property
    def logarithmic(self) -> bool:
        """Whether a range is sampled on a logarithmic scale: where it spans more than a factor of ten."""
        low, high = self.values
        return isinstance(low, float) and low > 0 and high / low > 10


def read_axes(texts: Iterable[str], types: Mapping[str, Any], option: str) -> tuple[tuple[Axis, ...], list[str]]:
    """The axes, and what is wrong with them.

    `types` has the type of each setting; None for one that a sweep may not vary.

    >>> read_axes(["lr=1e-6..1e-3", "epochs=8,16,8"], {"lr": float, "epochs": int}, "search")
    ((Axis(name='lr', values=(1e-06, 0.001), is_range=True), Axis(name='epochs', values=(8, 16), is_range=False)), [])
    >>> read_axes(["lr=1e-6..1e-3", "batchsize=8"], {"lr": float, "batch_size": int}, "grid")[1]
    ... # doctest: +NORMALIZE_WHITESPACE
    ['grid lr=1e-6..1e-3 is a range, and a grid takes values: write it as lr=1e-6,1e-3, or draw from it with
      --search lr=1e-6..1e-3', "grid batchsize=8: unknown setting 'batchsize': did you mean 'batch_size'?"]
    """
    axes: dict[str, Axis] = {}
    problems: list[str] = []
    for text in texts:
        axis = _read_axis(text, types, option)
        if isinstance(axis, str):
            problems.append(axis)
        elif axis.name in axes:
            problems.append(f"{option} {text}: {axis.name} is given twice: write all its values in one --{option}")
        else:
            axes[axis.name] = axis
    return tuple(axes.values()), problems


def _read_axis(text: str, types: Mapping[str, Any], option: str) -> Axis | str:
    """The axis, or what is wrong with it."""
    name, _, values = (part.strip() for part in text.partition("="))
    parts = [part.strip() for part in values.split(",")]
    if not name or not all(parts):
        return f"{option} {text!r} is no choice of values: write it as lr=1e-5,1e-4"
    if name not in types:
        return f"{option} {text}: unknown setting {name!r}: {did_you_mean(name, types)}"
    if types[name] is None:
        return f"{option} {text}: {name} is the same for all runs, which are held against each other on the same texts"
    type_ = next((member for member in get_args(types[name]) if member in (int, float, str)), types[name])
    ends = [end.strip() for end in values.split("..")]
    if type_ is str or len(ends) != 2 or not all(ends):
        return Axis(name, tuple(dict.fromkeys(_read_value(part, type_) for part in parts)))
    low, high = (_read_value(end, type_) for end in ends)
    if type_ not in (int, float) or isinstance(low, str) or isinstance(high, str):
        return f"{option} {text} is no range of numbers: write the values of {name} one by one, as {name}=a,b"
    if option == "grid":
        return (
            f"grid {text} is a range, and a grid takes values: write it as {name}={ends[0]},{ends[1]}, "
            f"or draw from it with --search {text}"
        )
    if not -math.inf < low < high < math.inf:
        return f"{option} {text}: the first end of a range must be below the second, and both must be finite"
    return Axis(name, (low, high), is_range=True)


def _read_value(text: str, type_: Any) -> Any:
    """A value as the setting takes it: 1 is 1.0 for a learning rate, and 2024 is a name for a folder."""
    if type_ is str:
        return text
    value = read_value(text)
    return float(value) if type_ is float and type(value) is int else value
