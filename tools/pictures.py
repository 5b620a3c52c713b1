"""The pictures of docs/questions.md, as SVG that stands alone.

A picture has its own paper, by day and by night: whatever page shows it, its ink can be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from markupsafe import Markup

from headstart.model.attention import square_mask
from headstart.model.positions import sinusoidal
from headstart.report.charts import Look, Series, axis, lines, log_axis, tag

STYLE = """
svg { --paper: #fff; --ink: #1b1b1a; --soft: #5c5c58; --rule: #d9d8d3; --heat: #0072b2;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #c0609a; --n0: #77766f; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #14161a; --ink: #e8e6e1; --soft: #a3a29c; --rule: #363a41; --heat: #4aa3df;
    --c0: #4aa3df; --c1: #f2844b; --c2: #35c79c; --c3: #e39bc8; --n0: #a09f98; }
}
.paper { fill: var(--paper); }
text { fill: var(--ink);
  font: 10.5px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", Arial, sans-serif; }
.tick, .axis { fill: var(--soft); }
.small { font-size: 8.5px; }
.title { font-weight: 600; }
.grid { stroke: var(--rule); stroke-width: .7; }
.base, .tickmark { stroke: var(--soft); stroke-width: .8; }
.s0 { --c: var(--c0); } .s1 { --c: var(--c1); } .s2 { --c: var(--c2); } .s3 { --c: var(--c3); } .n0 { --c: var(--n0); }
.line { fill: none; stroke: var(--c); stroke-width: 1.8; stroke-linejoin: round; }
.leader { fill: none; stroke: var(--c); stroke-width: .8; }
.mark { fill: var(--c); stroke: var(--paper); stroke-width: .8; }
.cross { fill: none; stroke: var(--c); stroke-width: 1.8; }
.frame { fill: none; stroke: var(--soft); stroke-width: .8; }
.heat { fill: var(--heat); }
.shut { fill: var(--rule); }
.plus { fill: var(--c0); } .minus { fill: var(--c1); } .plus, .minus { shape-rendering: crispEdges; }
"""
MARGIN = 12.0
CELL = 15.0


def alone(drawn: Markup, scale: float = 1.6) -> str:
    """A chart of the report as a file: with its style, its paper and a margin."""
    opening, inside = str(drawn).split(">", 1)
    name = re.search(r'aria-label="([^"]*)"', opening)
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', opening)
    assert name and box
    return picture(name[1], float(box[1]), float(box[2]), [Markup(inside.removesuffix("</svg>"))], scale)


def picture(name: str, width: float, height: float, drawn: Sequence[Markup], scale: float = 1.0) -> str:
    """An SVG file; `name` is what a reader hears who does not see it."""
    wide, high = width + 2 * MARGIN, height + 2 * MARGIN
    box = f"{-MARGIN:g} {-MARGIN:g} {wide:g} {high:g}"
    paper = tag("rect", x=-MARGIN, y=-MARGIN, width=wide, height=high, rx=6.0, class_="paper")
    inside = (tag("style", Markup(STYLE)), paper, *drawn)
    sizes = {"width": f"{wide * scale:.0f}", "height": f"{high * scale:.0f}"}
    whole = tag("svg", *inside, xmlns="http://www.w3.org/2000/svg", viewBox=box, **sizes, role="img", aria_label=name)
    return f"{whole}\n"


# --- the mask ---------------------------------------------------------------------------------------------------------


def mask(pieces: Sequence[str], trained: Sequence[tuple[str, Sequence[Sequence[float]]]]) -> str:
    """The square mask over the pieces of a sentence, and beside it what trained models look at."""
    count = len(pieces)
    open_ = square_mask(count) == 0
    left, top, gap = 34.0, 52.0, 26.0
    side = CELL * count
    drawn: list[Markup] = []
    panels = [("the square mask", None), *trained]
    for number, (title, weights) in enumerate(panels):
        x = left + number * (side + left + gap)
        drawn.append(tag("text", title, x=x, y=4.0, class_="title"))
        drawn += _names(pieces, x, top)
        for i in range(count):
            for j in range(count):
                place = {"x": x + CELL * j, "y": top + CELL * i, "width": CELL - 1, "height": CELL - 1}
                if weights is None:
                    drawn.append(tag("rect", **place, class_="heat" if open_[i, j] else "shut"))
                elif weights[i][j] >= 0.01:
                    drawn.append(tag("rect", **place, class_="heat", fill_opacity=f"{weights[i][j]:.2f}"))
        drawn.append(tag("rect", x=x - 1, y=top - 1, width=side + 1, height=side + 1, class_="frame"))
    width = left + len(panels) * (side + left + gap) - left - gap
    return picture("The square mask, and where trained models look", width, top + side, drawn, 1.25)


def _names(pieces: Sequence[str], x: float, top: float) -> Iterator[Markup]:
    """Each row and each column is a piece."""
    for k, piece in enumerate(pieces):
        middle = CELL * (k + 0.5)
        yield tag("text", piece, x=x - 5, y=top + middle + 3, text_anchor="end", class_="small")
        turned = f"rotate(-60 {x + middle + 2:g} {top - 5:g})"
        yield tag("text", piece, x=x + middle + 2, y=top - 5, transform=turned, class_="small")


# --- positions --------------------------------------------------------------------------------------------------------

LEVELS = 6  # of colour, on either side of zero
ACROSS, DOWN = 5.0, 6.0  # a cell


def positions(places: int = 60, width: int = 64) -> str:
    """The sinusoidal positions: a column for each place in the text, a row for each number of its vector."""
    table = sinusoidal(places, width)  # (L, D)
    left, top = 30.0, 40.0
    wide, high = ACROSS * places, DOWN * width / 2
    drawn = [tag("text", "number of the vector", x=0.0, y=8.0, class_="axis")]
    for number, title in enumerate(("the even ones: sines", "the odd ones: cosines")):
        x = left + number * (wide + left + 10)
        ends: dict[str, str | float] = {"x": x - 6, "text_anchor": "end", "class_": "tick"}
        below: dict[str, str | float] = {"y": top + high + 15, "text_anchor": "middle", "class_": "tick"}
        drawn += [
            tag("text", title, x=x, y=top - 8, class_="title"),
            tag("g", *_waves(table[:, number::2].T.tolist()), transform=f"translate({x:g} {top:g})"),
            tag("rect", x=x, y=top, width=wide, height=high, class_="frame"),
            *(tag("text", f"{2 * k + number}", y=top + DOWN * (k + 1), **ends) for k in range(0, width // 2, 8)),
            *(tag("text", f"{k}", x=x + ACROSS * (k + 0.5), **below) for k in range(0, places, 10)),
            tag("text", "place in the text", x=x + wide / 2, y=top + high + 31, text_anchor="middle", class_="axis"),
        ]
    name = "Sinusoidal positions: waves that grow longer from the top down"
    return picture(name, 2 * (left + wide) + 10, top + high + 34, drawn, 1.25)


def _waves(rows: Sequence[Sequence[float]]) -> Iterator[Markup]:
    """Cells in so many shades of two colours; neighbours of one shade are one."""
    shades: dict[int, list[str]] = {}
    for row, values in enumerate(rows):
        at = 0
        for level, run in groupby(round(LEVELS * value) for value in values):
            end = at + len(list(run))
            shades.setdefault(level, []).append(
                f"M{at * ACROSS:g} {row * DOWN:g}H{end * ACROSS:g}v{DOWN:g}H{at * ACROSS:g}z"
            )
            at = end
    for level, found in sorted(shades.items()):
        if level:
            kind = "plus" if level > 0 else "minus"
            yield tag("path", d="".join(found), class_=kind, fill_opacity=f"{abs(level) / LEVELS:.2f}")


# --- curves -----------------------------------------------------------------------------------------------------------


def losses(points: Sequence[int], curves: dict[str, Sequence[float]]) -> str:
    """The training loss of each arm, step by step."""
    series = [
        Series(name, Look(number), tuple(zip(points, curve, strict=True)))
        for number, (name, curve) in enumerate(curves.items())
    ]
    every = [value for curve in curves.values() for value in curve]
    y = axis("loss, nats a piece", [0.0, *every], count=5)
    return alone(
        lines("The loss while training, with and without mask and positions", series, axis("step", [0, points[-1]]), y)
    )


def labels(budgets: Sequence[float], curves: Mapping[str, Sequence[float]]) -> str:
    """Accuracy by the number of labels."""
    series = [
        Series(
            name, Look(0, neutral=True) if name == "TF-IDF" else Look(number), tuple(zip(budgets, curve, strict=True))
        )
        for number, (name, curve) in enumerate(curves.items())
    ]
    y = axis("test accuracy", [value for curve in curves.values() for value in curve])
    return alone(lines("Accuracy by the number of labels", series, log_axis("labelled texts", budgets), y))
