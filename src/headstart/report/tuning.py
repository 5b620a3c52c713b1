"""What the page says about how the settings of each arm were chosen: what was tried, what it cost, how flat it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headstart.report import charts
from headstart.report.axes import axis, setting_axis
from headstart.report.blocks import (
    Block,
    Cell,
    Figure,
    Gallery,
    Section,
    Table,
    Words,
    setting_name,
    setting_value,
    three_digits,
)
from headstart.report.charts import Point
from headstart.report.records import Study
from headstart.runs.tuning import ArmTuning, Tried
from headstart.wording import plural

MOST_ROWS = 40  # of the table of one arm; the rest, which scored lower, is counted


def tuning(study: Study) -> Section | None:
    """A line for each arm, its best trials folded away, and where learning rates were searched a figure of them."""
    arms = {arm.result.name: arm.result.tuning for arm in study.arms if arm.result.tuning is not None}
    if not arms:
        return None
    words = (
        "The settings of each arm were chosen by its accuracy on texts that were held out of training, before test was "
        "read. “As good” counts the other settings that are not significantly worse than the chosen ones: where they "
        "are many, the choice matters little."
    )
    if any(len({each.rows for each in tuning.tried}) > 1 for tuning in arms.values()):
        words += (
            " Many combinations were tried on some of these texts, and the best of them on more, by which they were "
            "chosen: scores on different numbers of texts cannot be compared."
        )
    head = ("arm", "~chosen", ">held-out accuracy", ">tried", ">as good", ">seconds", "~notes")
    rows = tuple(_summary(name, each) for name, each in arms.items())
    noted = len(head) if any(each.notes for each in arms.values()) else len(head) - 1
    summary = Table(head[:noted], tuple(row[:noted] for row in rows))
    figures = tuple(_figure(name, each) for name, each in arms.items() if len(_learning_rates(each)) > 1)
    blocks: list[Block] = [Words(words), summary, *([Gallery(figures)] if figures else [])]
    return Section("What was tuned", (*blocks, *(_trials(name, each) for name, each in arms.items() if each.tried)))


def _summary(name: str, tuning: ArmTuning) -> tuple[Cell, ...]:
    best = tuning.best
    return (
        name,
        settings_in_words(tuning.chosen),
        "" if best is None or best.accuracy is None else f"{best.accuracy:.3f}",
        f"{len(tuning.tried):,}",
        "" if tuning.as_good is None else f"{tuning.as_good:,}",
        three_digits(tuning.seconds),
        "; ".join(tuning.notes),
    )


def settings_in_words(settings: Mapping[str, Any]) -> str:
    """
    >>> settings_in_words({"lr": 0.0003, "epochs": 4})
    'learning rate 0.0003, epochs 4'
    """
    return ", ".join(f"{setting_name(name)} {setting_value(value)}" for name, value in settings.items())


def _trials(name: str, tuning: ArmTuning) -> Table:
    """What was tried, the chosen settings first and then by score; settings that never varied are left out."""
    best = tuning.best
    rest = sorted((each for each in tuning.tried if each is not best), key=lambda each: -(each.accuracy or 0.0))
    ranked = [*([best] if best else []), *rest]
    keys = list(dict.fromkeys(key for each in ranked for key in each.settings))
    varied = [key for key in keys if len({str(each.settings.get(key)) for each in ranked}) > 1] or keys
    failed = any(each.error for each in ranked)
    rows = tuple(
        (
            "chosen" if each is best else "",
            *(setting_value(each.settings[key]) if key in each.settings else "" for key in varied),
            "–" if each.accuracy is None else f"{each.accuracy:.4f}",
            "–" if each.loss is None else f"{each.loss:.4f}",
            f"{each.rows:,}",
            three_digits(each.seconds),
            *((each.error or "",) if failed else ()),
        )
        for each in ranked[:MOST_ROWS]
    )
    head = ("", *(f">{setting_name(key)}" for key in varied), ">accuracy", ">loss", ">on texts", ">seconds")
    title = f"{name}: {plural(len(ranked), 'combination')} tried"
    if len(ranked) > MOST_ROWS:
        title += f", the best {MOST_ROWS} of them"
    return Table((*head, *(("~error",) if failed else ())), rows, folded=title)


def _learning_rates(tuning: ArmTuning) -> set[float]:
    return {float(each.settings["lr"]) for each in tuning.tried if _has_rate(each)}


def _has_rate(each: Tried) -> bool:
    return isinstance(each.settings.get("lr"), int | float) and each.settings["lr"] > 0


def _figure(name: str, tuning: ArmTuning) -> Figure:
    """Accuracy on held-out texts by learning rate, a dot for each combination that was tried."""
    tried: Sequence[Tried] = [each for each in tuning.tried if _has_rate(each)]
    points, unscored, best = [], [], None
    for each in tried:
        rate, words = float(each.settings["lr"]), settings_in_words(each.settings)
        if each.accuracy is None:
            unscored.append(Point(rate, 0.0, f"{words}: {each.error or 'no score'}"))
            continue
        chosen = each is tuning.best
        points.append(Point(rate, each.accuracy, f"{words}: {each.accuracy:.4f}", "chosen" if chosen else ""))
        best = points[-1] if chosen else best
    x = setting_axis("learning rate", [point.x for point in (*points, *unscored)])
    y = axis("accuracy on held-out texts", [point.y for point in points] or [0.0, 1.0])
    svg = charts.scatter(f"Held-out accuracy of {name} by learning rate", points, best, unscored, x, y)
    return Figure(svg, name)
