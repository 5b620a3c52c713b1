"""What a section is made of, and how numbers are written in it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from markupsafe import Markup

from headstart.report.answers import Mistake
from headstart.runs.comparison import Estimate
from headstart.runs.sweep import plain, shown

METRICS = {"accuracy": "accuracy", "macro_f1": "macro-F1", "calibration": "calibration error"}
MOST_ROWS = 60  # of the table under a long line


# --- blocks; `kind` names the macro that draws one ---


class Aside(NamedTuple):
    """A number, and its interval in smaller type."""

    value: str
    aside: str


Cell = str | Aside


@dataclass(frozen=True)
class Words:
    kind: ClassVar[str] = "words"
    text: str


@dataclass(frozen=True)
class Table:
    """A column whose name begins with `>` is flush right, as numbers are; one with `~` has words that may wrap.

    `folded` is the line to open it with.
    """

    kind: ClassVar[str] = "table"
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    folded: str = ""


@dataclass(frozen=True)
class Figure:
    kind: ClassVar[str] = "figure"
    svg: Markup
    caption: str = ""
    table: Table | None = None


@dataclass(frozen=True)
class Beside:
    """A figure, and where there is room, words or a table beside it."""

    kind: ClassVar[str] = "beside"
    figure: Figure
    blocks: tuple[Words | Table, ...]


@dataclass(frozen=True)
class Columns:
    """Words and tables side by side where there is room, else below each other."""

    kind: ClassVar[str] = "columns"
    columns: tuple[tuple[Words | Table, ...], ...]


@dataclass(frozen=True)
class Gallery:
    kind: ClassVar[str] = "gallery"
    figures: tuple[Figure, ...]
    small: bool = False


@dataclass(frozen=True)
class Mistakes:
    kind: ClassVar[str] = "mistakes"
    items: tuple[Mistake, ...]


@dataclass(frozen=True)
class Findings:
    kind: ClassVar[str] = "findings"
    items: tuple[Mapping[str, Any], ...]
    unexamined: tuple[str, ...]


@dataclass(frozen=True)
class Code:
    kind: ClassVar[str] = "code"
    text: str
    folded: str = ""


Block = Words | Table | Figure | Beside | Columns | Gallery | Mistakes | Findings | Code


@dataclass(frozen=True)
class Section:
    title: str
    blocks: tuple[Block, ...]


# --- values as words ---


def distinct_values(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys("–" if value is None else as_text(value) for value in values))


def as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def setting_name(name: str) -> str:
    """
    >>> setting_name("lr"), setting_name("batch_size")
    ('learning rate', 'batch size')
    """
    return {"lr": "learning rate"}.get(name, plain(name))


def setting_value(value: object) -> str:
    return distinct_values([value]) if value is None or isinstance(value, bool) else shown(value)


def command(verb: str, recipe: str, out: str) -> str:
    return f"headstart {verb} {shlex.quote(recipe)} --out {shlex.quote(out)}"


# --- numbers as words ---


def estimate(score: Estimate | None) -> Cell:
    return "" if score is None else Aside(f"{score.value:.3f}", f"{score.low:.3f}–{score.high:.3f}")


def in_points(difference: Estimate | None) -> Cell:
    if difference is None:
        return ""
    points = times_100(difference)
    return Aside(signed(points.value), f"{signed(points.low)} to {signed(points.high)}")


def times_100(share: Estimate) -> Estimate:
    return Estimate(100 * share.value, 100 * share.low, 100 * share.high)


def signed(value: float) -> str:
    """With its sign, and a minus as long as the plus.

    >>> signed(6.24), signed(-0.31), signed(-0.04)
    ('+6.2', '−0.3', '0.0')
    """
    text = f"{value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def probability(value: float) -> str:
    """
    >>> probability(0.5), probability(0.99996), probability(0.0)
    ('50 %', 'over 99.9 %', 'under 0.1 %')
    """
    if value > 0.999:
        return "over 99.9 %"
    if value < 0.001:
        return "under 0.1 %"
    return f"{100 * value:.1f} %".replace(".0 ", " ")


def p_value(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def three_digits(value: float | None) -> str:
    """
    >>> three_digits(12345.6), three_digits(42.31), three_digits(3.456), three_digits(None)
    ('12,346', '42.3', '3.46', '–')
    """
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def memory_unit(values: Iterable[float]) -> tuple[float, str]:
    """The unit that fits these numbers of bytes: its size and its name."""
    return (2.0**30, "GiB") if max(values, default=0) > 4 * 2**30 else (2.0**20, "MiB")


def thinned(items: Sequence[Any]) -> Sequence[Any]:
    """At most MOST_ROWS of them, evenly, the last among them."""
    every = -(-len(items) // MOST_ROWS)
    return items[(len(items) - 1) % every :: every] if items else items
