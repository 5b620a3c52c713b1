"""Figures as vector graphics: lines with bands, dots with intervals, bars, a matrix, a reliability diagram.

Each function gives one `<svg>`. No colour is written here: an element has a class (`s0`, `band`, `grid`), and the
style of the page says what that looks like by day, by night and on paper. A figure is at most 360 units wide and its
text 10.5 high, so that it can be read on a phone, where a unit is a pixel. Lines differ in dash and mark as well as in
colour.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from headstart.report.axes import Axis, axis
from headstart.report.svg import LONGEST, TEXT, cut, px, tag, width_of

WIDTH = 360.0
ROW = 24.0  # from one row to the next
GAP = 13.0  # from one line of text to the next

COLOURS = 6
DASHES = ("", "7 3", "2 2.5", "9 3 2 3", "4 2")  # fewer than colours, so that a pair comes back after thirty
NEUTRAL_DASHES = ("1 3", "5 4")
MANY = 4  # bands; more of them are drawn lighter, or they would be mud
ROOM = 76.0  # for the name of a class in a matrix


@dataclass(frozen=True)
class Look:
    """What sets an arm apart in a figure: a colour, a dash and a mark. A baseline is neutral."""

    number: int
    neutral: bool = False

    @property
    def colour(self) -> str:
        return f"n{self.number % 2}" if self.neutral else f"s{self.number % COLOURS}"

    @property
    def dash(self) -> str:
        dashes = NEUTRAL_DASHES if self.neutral else DASHES
        return dashes[self.number % len(dashes)]

    def mark(self, x: float, y: float, title: str = "") -> Markup:
        """A circle, a square, a triangle, a diamond or a cross, with its numbers for whoever points at it."""
        r = 3.2
        shape = 4 if self.neutral else self.number % 5
        if shape == 0:
            drawn = tag("circle", cx=x, cy=y, r=r)
        elif shape == 4:
            drawn = tag(
                "path", d=f"M{px(x - r)} {px(y - r)}l{2 * r} {2 * r}m0 {-2 * r}l{-2 * r} {2 * r}", class_="cross"
            )
        else:
            corners = {
                1: ((-1, -1), (1, -1), (1, 1), (-1, 1)),
                2: ((0, -1.3), (1.2, 0.9), (-1.2, 0.9)),
                3: ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)),
            }[shape]
            drawn = tag("polygon", points=" ".join(f"{px(x + r * a)},{px(y + r * b)}" for a, b in corners))
        return tag("g", tag("title", title) if title else "", drawn, class_=f"mark {self.colour}")


@dataclass(frozen=True)
class Series:
    """A line, and around it a band of (x, low, high)."""

    name: str
    look: Look
    points: tuple[tuple[float, float], ...]
    band: tuple[tuple[float, float, float], ...] = ()
    marked: bool = True


@dataclass(frozen=True)
class Row:
    """A name with a number, as it is written, and its interval."""

    name: str
    look: Look
    value: float
    text: str
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True)
class Point:
    """A dot, its name where it has one, and what it says to whoever points at it."""

    x: float
    y: float
    title: str
    name: str = ""


# --- figures ---


@dataclass(frozen=True)
class Plot:
    """The area between two axes, and where it lies in the figure."""

    x: Axis
    y: Axis
    left: float
    right: float
    bottom: float = 184.0
    top: float = 24.0

    def at(self, x: float, y: float) -> tuple[float, float]:
        return self.x.place(x, self.left, self.right), self.y.place(y, self.bottom, self.top)

    def path(self, points: Iterable[tuple[float, float]]) -> str:
        return " ".join(f"{px(a)},{px(b)}" for a, b in (self.at(*point) for point in points))

    def axes(self) -> list[Markup]:
        """The y axis, its name above it and a thin line across at each tick; then the x axis."""
        drawn = [_label(self.y.label, 0, 10, "start", "axis")]
        for tick in self.y.ticks:
            height = self.y.place(tick, self.bottom, self.top)
            drawn.append(tag("line", x1=self.left, x2=self.right, y1=height, y2=height, class_="grid"))
            drawn.append(_label(self.y.show(tick), self.left - 6, height + 3.5, "end", "tick"))
        return [*drawn, *_x_axis(self.x, self.left, self.right, self.bottom)]


def lines(name: str, series: Sequence[Series], x: Axis, y: Axis) -> Markup:
    """Lines with bands, each named at its end."""
    named = max((width_of(cut(s.name)) for s in series if s.name), default=0.0)
    right = WIDTH - named - (22 if named else 8)
    plot = Plot(x, y, _margin(y), right, bottom=24.0 + max(160.0, GAP * len(series)))
    drawn = plot.axes()
    for s in series:
        if s.band:
            edge = [(a, b) for a, b, _ in s.band] + [(a, c) for a, _, c in reversed(s.band)]
            drawn.append(tag("polygon", points=plot.path(edge), class_=f"band {s.look.colour}"))
    drawn += [_line(plot, s.points, s.look) for s in series]
    for s in series:
        every = max(1, math.ceil(len(s.points) / 10))
        last = len(s.points) - 1
        for k, (a, b) in enumerate(s.points):
            if s.marked and (last - k) % every == 0:
                drawn.append(s.look.mark(*plot.at(a, b), f"{s.name}: {b:.4g} at {a:.4g}"))
    ends = [(s, *plot.at(*s.points[-1])) for s in series if s.name]
    places = spread([end for _, _, end in ends], GAP, plot.top, plot.bottom)
    for (s, at, end), place in zip(ends, places, strict=True):
        leader = f"M{px(at + 5)} {px(end)}L{px(right + 7)} {px(end)}L{px(right + 15)} {px(place)}"
        drawn.append(tag("path", d=leader, class_=f"leader {s.look.colour}"))
        drawn.append(_label(s.name, right + 18, place + 3.5))
    kind = "many" if sum(bool(s.band) for s in series) > MANY else ""
    return _figure(name, WIDTH, plot.bottom + 36, drawn, kind)


def scatter(
    name: str, points: Sequence[Point], best: Point | None, unscored: Sequence[Point], x: Axis, y: Axis
) -> Markup:
    """A dot for each point, the best one named; on the axis a cross for each that has no height."""
    plot = Plot(x, y, _margin(y), WIDTH - 12 - (width_of(best.name) + 14 if best else 0))
    drawn = plot.axes()
    drawn += [Look(0, neutral=True).mark(plot.at(p.x, y.low)[0], plot.bottom, p.title) for p in unscored]
    drawn += [Look(0).mark(*plot.at(p.x, p.y), p.title) for p in points if p != best]
    if best is not None:  # over all others
        look, (at, height) = Look(1), plot.at(best.x, best.y)
        leader = f"M{px(at + 5)} {px(height)}L{px(plot.right + 15)} {px(height)}"
        drawn.append(tag("path", d=leader, class_=f"leader {look.colour}"))
        drawn += [look.mark(at, height, best.title), _label(best.name, plot.right + 18, height + 3.5)]
    return _figure(name, WIDTH, plot.bottom + 36, drawn)


def dots(name: str, rows: Sequence[Row], x: Axis, *, zero: bool = False) -> Markup:
    """A row for each name: a dot, its interval, and the number at the end."""
    left, right, top, bottom = _frame(rows)
    drawn = _x_axis(x, left, right, bottom, top)
    if zero and x.low <= 0 <= x.high:
        at = x.place(0, left, right)
        drawn.append(tag("line", x1=at, x2=at, y1=top, y2=bottom, class_="zero"))
    for row, y in _beside(rows, left, drawn):
        low, high = (x.place(end, left, right) for end in (row.low, row.high))
        drawn.append(tag("line", x1=low, x2=high, y1=y, y2=y, class_=f"interval {row.look.colour}"))
        drawn.append(row.look.mark(x.place(row.value, left, right), y, f"{row.name}: {row.text}"))
    return _figure(name, WIDTH, bottom + 36, drawn)


def bars(name: str, rows: Sequence[Row], x: Axis) -> Markup:
    """A row for each name: a bar from zero, and the number at the end."""
    left, right, top, bottom = _frame(rows)
    drawn = _x_axis(x, left, right, bottom, top)
    for row, y in _beside(rows, left, drawn):
        width = max(x.place(row.value, left, right) - left, 0.5)
        drawn.append(tag("rect", x=left, y=y - 6, width=width, height=12, class_=f"bar {row.look.colour}"))
    return _figure(name, WIDTH, bottom + 36, drawn)


def _frame(rows: Sequence[Row]) -> tuple[float, float, float, float]:
    """Left, right, top and bottom of what is drawn between the names and the numbers."""
    left = 10 + max(width_of(cut(row.name)) for row in rows)
    right = WIDTH - 12 - max(width_of(row.text) for row in rows)
    return left, right, 8.0, 8.0 + ROW * len(rows)


def _beside(rows: Sequence[Row], left: float, drawn: list[Markup]) -> Iterator[tuple[Row, float]]:
    """Draw each row's name and number, and give the row and its height to draw the rest at."""
    for k, row in enumerate(rows):
        y = 8.0 + ROW * (k + 0.5)
        drawn.append(_label(row.name, left - 8, y + 3.5, "end"))
        drawn.append(_label(row.text, WIDTH, y + 3.5, "end", "number"))
        yield row, y


def matrix(name: str, labels: Sequence[str], counts: Sequence[Sequence[int]]) -> Markup:
    """Rows are what is true, columns what was predicted; a cell is as dark as its share of the row."""
    named = max(width_of(cut(label, ROOM)) for label in labels)
    left = 8 + named
    wide = min(52.0, max(40.0, named + 4), (WIDTH - 16 - left) / len(labels))
    high = min(wide, 36.0)
    upright = named > wide - 2  # names that would be cut to two letters stand on end
    top = 32.0 + (named - TEXT if upright else 0)
    unit = " %" if wide >= 36 else ""
    drawn = [
        _label("predicted", left + wide * len(labels) / 2, 10, "middle", "axis"),
        _label("true", left - 6, top - 6, "end", "axis"),
    ]
    for k, label in enumerate(labels):
        centre = left + wide * (k + 0.5)
        if upright:
            turned = f"translate({px(centre + 3.5)} {px(top - 5)}) rotate(-90)"
            drawn.append(tag("g", _label(label, 0, 0, room=ROOM), transform=turned))
        else:
            drawn.append(_label(label, centre, top - 6, "middle", room=wide - 2))
        drawn.append(_label(label, left - 6, top + high * (k + 0.5) + 3.5, "end", room=ROOM))
    for i, row in enumerate(counts):
        for j, count in enumerate(row):
            share = count / max(1, sum(row))
            title = tag("title", f"{labels[i]} taken for {labels[j]}: {count:,} of {sum(row):,}")
            place = {"x": left + wide * j, "y": top + high * i, "width": wide - 1, "height": high - 1}
            drawn.append(tag("rect", title, **place, class_="cell", fill_opacity=f"{share:.2f}"))
            kind = "number over" if share > 0.55 else "number"
            middle = left + wide * (j + 0.5), top + high * (i + 0.5) + 3.5
            drawn.append(_label(f"{100 * share:.0f}{unit}", *middle, "middle", kind))
    return _figure(name, left + wide * len(labels) + 2, top + high * len(labels) + 4, drawn)


def reliability(name: str, look: Look, bins: Sequence[tuple[float, float, int]], least: float) -> Markup:
    """Dots of (confidence, accuracy), as large as their share of the answers; on the diagonal, the two are one."""
    x = axis("confidence", [least, 1.0], count=2 if least else 4)
    y = axis("accuracy", [0.0, 1.0], count=4)
    plot = Plot(x, y, left=30.0, right=154.0, bottom=144.0)
    drawn = plot.axes()
    ends = {"y1": y.place(max(least, 0), plot.bottom, plot.top), "y2": y.place(1, plot.bottom, plot.top)}
    drawn.append(tag("line", x1=plot.left, x2=plot.right, **ends, class_="diagonal"))
    drawn.append(_line(plot, [(a, b) for a, b, _ in bins], look))
    total = sum(count for _, _, count in bins)
    for a, b, count in bins:
        title = tag("title", f"confidence {a:.3f}, accuracy {b:.3f}, {count:,} answers")
        cx, cy = plot.at(a, b)
        radius = 2 + 7 * math.sqrt(count / total)
        drawn.append(tag("circle", title, cx=cx, cy=cy, r=radius, class_=f"bubble {look.colour}"))
    return _figure(name, 168.0, plot.bottom + 36, drawn)


# --- parts of figures ---


def _figure(name: str, width: float, height: float, drawn: Sequence[Markup], kind: str = "") -> Markup:
    style = f"--natural:{px(width)}px"
    box = f"0 0 {px(width)} {px(height)}"
    return tag("svg", *drawn, viewBox=box, role="img", aria_label=name, style=style, class_=kind)


def _margin(y: Axis) -> float:
    """What the numbers of a y axis take up."""
    return 7 + max(width_of(y.show(tick)) for tick in y.ticks)


def _line(plot: Plot, points: Iterable[tuple[float, float]], look: Look) -> Markup:
    return tag("polyline", points=plot.path(points), class_=f"line {look.colour}", stroke_dasharray=look.dash)


def _x_axis(x: Axis, left: float, right: float, bottom: float, top: float | None = None) -> list[Markup]:
    """Its ticks, or where there is a `top` lines up to it; ticks whose labels would overlap are not labelled."""
    drawn = []
    taken: list[tuple[float, float]] = []
    for tick in (x.ticks[-1], *x.ticks[:-1]):  # the last one has its label whatever the others do
        at = x.place(tick, left, right)
        text = x.show(tick)
        begin, end = at - width_of(text) / 2 - 3, at + width_of(text) / 2 + 3
        if all(end < other or begin > over for other, over in taken):
            taken.append((begin, end))
            drawn.append(_label(text, at, bottom + 15, "middle", "tick"))
        start, stop, kind = (bottom, bottom + 4, "tickmark") if top is None else (top, bottom, "grid")
        drawn.append(tag("line", x1=at, x2=at, y1=start, y2=stop, class_=kind))
    drawn.append(tag("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="base"))
    drawn.append(_label(x.label, (left + right) / 2, bottom + 31, "middle", "axis"))
    return drawn


def _label(text: str, x: float, y: float, anchor: str = "start", kind: str = "", room: float = LONGEST) -> Markup:
    shown = text if kind in ("axis", "tick", "number") else cut(text, room)
    full = tag("title", text) if shown != text else ""
    return tag("text", full, shown, x=x, y=y, text_anchor=anchor, class_=f"label {kind}".strip())


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """The places nearest to the wanted ones that are a gap apart and between two ends, in their order.

    Take k gaps from the k-th of the sorted places: then they must only not fall, which is isotonic regression.
    Neighbours that would fall are pooled at their mean.

    >>> spread([50, 50, 90], 10, 0, 100), spread([99, 99], 10, 0, 100)
    ([45.0, 55.0, 90.0], [90.0, 100.0])
    """
    order = sorted(range(len(wanted)), key=lambda k: wanted[k])
    pools: list[tuple[float, int]] = []  # sum, number
    for rank, k in enumerate(order):
        total, number = wanted[k] - gap * rank, 1
        while pools and pools[-1][0] / pools[-1][1] > total / number:
            total, number = total + pools[-1][0], number + pools[-1][1]
            pools.pop()
        pools.append((total, number))
    most = high - gap * (len(wanted) - 1)
    level = [min(max(total / number, low), most) for total, number in pools for _ in range(number)]
    places = dict(zip(order, (value + gap * rank for rank, value in enumerate(level)), strict=True))
    return [float(places[k]) for k in range(len(wanted))]
