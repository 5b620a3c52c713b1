"""The pictures of docs/questions.md and docs/results.md, each an SVG file with its own style and background.

The colours follow the reader's light or dark theme, whatever page shows the picture.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from markupsafe import Markup

from headstart.model.attention import square_mask
from headstart.model.positions import sinusoidal
from headstart.report.axes import Axis, axis, log_axis
from headstart.report.charts import Look, Series, lines
from headstart.report.svg import tag

Matrix = Sequence[Sequence[float]]

STYLE = "\n" + (Path(__file__).parent / "pictures.css").read_text(encoding="utf-8")
MARGIN = 12.0
CELL = 15.0


def picture(label: str, width: float, height: float, drawn: Sequence[Markup], scale: float) -> str:
    """An SVG file; `label` is what a screen reader says."""
    wide, high = width + 2 * MARGIN, height + 2 * MARGIN
    box = f"{-MARGIN:g} {-MARGIN:g} {wide:g} {high:g}"
    paper = tag("rect", x=-MARGIN, y=-MARGIN, width=wide, height=high, rx=6.0, class_="paper")
    content = (tag("style", Markup(STYLE)), paper, *drawn)
    size = {"width": f"{wide * scale:.0f}", "height": f"{high * scale:.0f}"}
    svg = tag("svg", *content, xmlns="http://www.w3.org/2000/svg", viewBox=box, **size, role="img", aria_label=label)
    return f"{svg}\n"


# --- the mask ---------------------------------------------------------------------------------------------------------


def mask(tokens: Sequence[str], trained: Sequence[tuple[str, Matrix]]) -> str:
    """The square mask over the tokens of a sentence, and beside it the attention of trained models."""
    count = len(tokens)
    visible = (square_mask(count) == 0).float().tolist()
    left, top, gap = 34.0, 52.0, 26.0
    side = CELL * count
    drawn: list[Markup] = []
    panels = [("the square mask", visible), *trained]
    for number, (title, weights) in enumerate(panels):
        x = left + number * (side + left + gap)
        drawn.append(tag("text", title, x=x, y=4.0, class_="title"))
        drawn += _token_names(tokens, x, top)
        for i in range(count):
            for j in range(count):
                cell = {"x": x + CELL * j, "y": top + CELL * i, "width": CELL - 1, "height": CELL - 1}
                if weights is visible:
                    drawn.append(tag("rect", **cell, class_="heat" if visible[i][j] else "shut"))
                elif weights[i][j] >= 0.01:
                    drawn.append(tag("rect", **cell, class_="heat", fill_opacity=f"{weights[i][j]:.2f}"))
        drawn.append(tag("rect", x=x - 1, y=top - 1, width=side + 1, height=side + 1, class_="frame"))
    width = left + len(panels) * (side + left + gap) - left - gap
    return picture("The square mask, and where trained models look", width, top + side, drawn, 1.25)


def _token_names(tokens: Sequence[str], x: float, top: float) -> Iterator[Markup]:
    """Each row and each column is a token."""
    for k, token in enumerate(tokens):
        middle = CELL * (k + 0.5)
        yield tag("text", token, x=x - 5, y=top + middle + 3, text_anchor="end", class_="small")
        rotation = f"rotate(-60 {x + middle + 2:g} {top - 5:g})"
        yield tag("text", token, x=x + middle + 2, y=top - 5, transform=rotation, class_="small")


# --- positions --------------------------------------------------------------------------------------------------------

LEVELS = 6  # of colour, on either side of zero
ACROSS, DOWN = 5.0, 6.0  # a cell


def positions(length: int = 60, width: int = 64) -> str:
    """The sinusoidal positions: a column for each position, a row for each dimension of its vector."""
    table = sinusoidal(length, width)  # (L, D)
    left, top = 30.0, 40.0
    wide, high = ACROSS * length, DOWN * width / 2
    drawn = [tag("text", "dimension", x=0.0, y=8.0, class_="axis")]
    for number, title in enumerate(("even dimensions: sines", "odd dimensions: cosines")):
        x = left + number * (wide + left + 10)
        ends: dict[str, str | float] = {"x": x - 6, "text_anchor": "end", "class_": "tick"}
        below: dict[str, str | float] = {"y": top + high + 15, "text_anchor": "middle", "class_": "tick"}
        drawn += [
            tag("text", title, x=x, y=top - 8, class_="title"),
            tag("g", *_waves(table[:, number::2].T.tolist()), transform=f"translate({x:g} {top:g})"),
            tag("rect", x=x, y=top, width=wide, height=high, class_="frame"),
            *(tag("text", f"{2 * k + number}", y=top + DOWN * (k + 1), **ends) for k in range(0, width // 2, 8)),
            *(tag("text", f"{k}", x=x + ACROSS * (k + 0.5), **below) for k in range(0, length, 10)),
            tag("text", "position", x=x + wide / 2, y=top + high + 31, text_anchor="middle", class_="axis"),
        ]
    label = "Sinusoidal positions: waves that grow longer from the top down"
    return picture(label, 2 * (left + wide) + 10, top + high + 34, drawn, 1.25)


def _waves(rows: Matrix) -> Iterator[Markup]:
    """Cells in a few shades of two colours; neighbours of the same shade are drawn as one."""
    shades: dict[int, list[str]] = {}
    for row, values in enumerate(rows):
        start = 0
        for level, run in groupby(round(LEVELS * value) for value in values):
            end = start + len(list(run))
            path = f"M{start * ACROSS:g} {row * DOWN:g}H{end * ACROSS:g}v{DOWN:g}H{start * ACROSS:g}z"
            shades.setdefault(level, []).append(path)
            start = end
    for level, paths in sorted(shades.items()):
        if level:
            colour = "plus" if level > 0 else "minus"
            yield tag("path", d="".join(paths), class_=colour, fill_opacity=f"{abs(level) / LEVELS:.2f}")


# --- curves -----------------------------------------------------------------------------------------------------------


def losses(steps: Sequence[int], curves: Mapping[str, Sequence[float]]) -> str:
    """The training loss of each arm by step."""
    y = axis("loss, nats per token", [0.0, *(value for curve in curves.values() for value in curve)], count=5)
    rows = {name: [*zip(steps, curve, strict=True)] for name, curve in curves.items()}
    return _chart("The loss while training, with and without mask and positions", rows, axis("step", [0, steps[-1]]), y)


def by_budget(budgets: Sequence[float], curves: Mapping[str, Sequence[float]]) -> str:
    """Test accuracy by the number of labelled texts."""
    y = axis("test accuracy", [value for curve in curves.values() for value in curve])
    rows = {name: [*zip(budgets, curve, strict=True)] for name, curve in curves.items()}
    return _chart("Accuracy by the number of labels", rows, log_axis("labelled texts", budgets), y)


def by_epoch(curves: Mapping[str, Matrix]) -> str:
    """Accuracy on valid by epoch, the mean over seeds within a band; a row is (epoch, mean, lowest, highest)."""
    rows = [row for curve in curves.values() for row in curve]
    x = axis("epoch", [row[0] for row in rows], whole=True)
    y = axis("accuracy on valid", [value for row in rows for value in row[1:]])
    return _chart("Accuracy on valid by epoch", curves, x, y)


def _chart(label: str, curves: Mapping[str, Matrix], x: Axis, y: Axis) -> str:
    """A line chart of the report as a file; a row of a curve is (x, y) or (x, y, low, high)."""
    looks = [Look(0, neutral=True) if name == "TF-IDF" else Look(k) for k, name in enumerate(curves)]
    series = [
        Series(name, look, tuple((r[0], r[1]) for r in rows), tuple((r[0], r[2], r[3]) for r in rows if len(r) == 4))
        for look, (name, rows) in zip(looks, curves.items(), strict=True)
    ]
    opening, content = str(lines(label, series, x, y)).split(">", 1)
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', opening)
    assert box is not None
    return picture(label, float(box[1]), float(box[2]), [Markup(content.removesuffix("</svg>"))], 1.6)
