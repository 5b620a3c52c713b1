"""Axes of figures: what they measure, from where to where, and which round numbers they name."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from headstart.runs.comparison import Estimate

FEW = 8  # values of a setting that are all named


@dataclass(frozen=True)
class Axis:
    """What an axis measures, from where to where, and the values it names."""

    label: str
    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False
    signed: bool = False

    def place(self, value: float, begin: float, end: float) -> float:
        """Where a value stands between two ends of the picture."""
        low, high, value = map(math.log, (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        return begin + (end - begin) * (value - low) / (high - low)

    def show(self, tick: float) -> str:
        step = min((b - a for a, b in zip(self.ticks, self.ticks[1:], strict=False)), default=1.0)
        digits = 0 if self.log else max(0, -math.floor(math.log10(step) + 1e-9))
        if digits > 4 or (self.log and (tick != round(tick) or tick >= 1e7)):
            return f"{tick:.3g}"
        if digits and abs(step * 10**digits - round(step * 10**digits)) > 1e-6:
            digits += 1  # steps of 0.25
        return f"{tick:{'+' if self.signed and tick else ''},.{digits}f}".replace("-", "−")


def axis(label: str, values: Iterable[float], *, count: int = 5, whole: bool = False, signed: bool = False) -> Axis:
    """An axis that holds all the values, with about `count` round numbers on it.

    >>> axis("accuracy", [0.71, 0.868]).ticks
    (0.7, 0.75, 0.8, 0.85, 0.9)
    >>> axis("epoch", [1, 15], whole=True).ticks
    (0.0, 5.0, 10.0, 15.0)
    """
    values = list(values)
    low, high = min(values), max(values)
    if high - low < 1e-9:
        low, high = low - (0.5 if whole else 0.05), high + (0.5 if whole else 0.05)
    size = 10.0 ** math.floor(math.log10((high - low) / count))
    steps = [factor * size for factor in (1, 2, 2.5, 5, 10, 20) if not whole or factor * size == int(factor * size)]
    step = next((s for s in steps if _steps(low, high, s) <= count), steps[-1] if steps else 1.0)
    first = math.floor(low / step + 1e-9)
    ticks = tuple(round(step * (first + k), 10) for k in range(_steps(low, high, step) + 1))
    return Axis(label, ticks[0], ticks[-1], ticks, signed=signed)


def _steps(low: float, high: float, step: float) -> int:
    return math.ceil(high / step - 1e-9) - math.floor(low / step + 1e-9)


def log_axis(label: str, values: Iterable[float]) -> Axis:
    """A logarithmic axis, with the values themselves as its ticks."""
    distinct = tuple(sorted(set(values)))
    low, high = (distinct[0], distinct[-1]) if len(distinct) > 1 else (distinct[0] / 2, distinct[0] * 2)
    return Axis(label, low, high, distinct, log=True)


def decade_axis(label: str, values: Iterable[float]) -> Axis:
    """A logarithmic axis with powers of ten as its ticks.

    >>> decade_axis("seconds", [3.2, 140.0]).ticks
    (1.0, 10.0, 100.0, 1000.0)
    """
    values = list(values)
    first, last = math.floor(math.log10(min(values)) + 1e-9), math.ceil(math.log10(max(values)) - 1e-9)
    ticks = tuple(float(f"1e{power}") for power in range(first, max(last, first + 1) + 1))
    return Axis(label, ticks[0], ticks[-1], ticks, log=True)


def setting_axis(label: str, values: Iterable[float]) -> Axis:
    """An axis for a setting: its values themselves where they are few, on a logarithmic scale where they span tenfold.

    >>> [axis.show(tick) for axis in [setting_axis("lr", [1e-5, 1e-4, 1e-3])] for tick in axis.ticks]
    ['1e-05', '0.0001', '0.001']
    """
    distinct = tuple(sorted(set(values)))
    low, high = distinct[0], distinct[-1]
    log = low > 0 and high / low >= 10
    if len(distinct) > FEW and not log:
        return axis(label, distinct)
    if len(distinct) > FEW:
        return decade_axis(label, distinct)
    pad = (high / low) ** 0.05 if log else (high - low) * 0.05 or abs(high) / 2 or 1.0
    return Axis(label, low / pad if log else low - pad, high * pad if log else high + pad, distinct, log=log)


def interval_axis(label: str, estimates: Iterable[Estimate], *, signed: bool = False) -> Axis:
    """An axis that holds every interval; where it is signed, zero too."""
    values = [value for each in estimates for value in (each.value, each.low, each.high)]
    return axis(label, [*values, *([0.0] if signed else [])], count=4, signed=signed)
