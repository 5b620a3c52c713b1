"""What the page says about the differences between arms: on all of test, and class by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headstart.report import charts
from headstart.report.answers import ByClass
from headstart.report.axes import interval_axis
from headstart.report.blocks import (
    METRICS,
    Beside,
    Cell,
    Columns,
    Figure,
    Gallery,
    Section,
    Table,
    Words,
    in_points,
    p_value,
    probability,
    signed,
    times_100,
)
from headstart.report.charts import Row
from headstart.report.looks import looks_of
from headstart.report.predictions import MOST_CLASSES
from headstart.report.records import Study
from headstart.runs.comparison import DifferenceResult, Estimate


def differences(study: Study) -> Section | None:
    results = study.comparison.differences
    if not results:
        return None
    references = sorted({r.reference for r in results}, key=lambda name: (name != study.comparison.reference, name))
    ranked = sorted(results, key=lambda r: (references.index(r.reference), -r.scores["accuracy"].value))
    figures = tuple(_difference_figure(study, [r for r in ranked if r.reference == name]) for name in references)
    single = any(r.mcnemar is not None for r in results)
    head = ("arm", "minus", *(f">{name}" for name in METRICS.values()), ">better", ">p", ">Holm", ">detectable")
    rows = tuple(
        (
            *_points(r, r.scores),
            probability(r.better),
            p_value(r.p),
            p_value(r.holm),
            r.detectable_points,
            *(("" if r.mcnemar is None else p_value(r.mcnemar),) if single else ()),
        )
        for r in ranked
    )
    tables = [Table((*head, *((">McNemar",) if single else ())), rows, "In points, that is hundredths")]
    if any(r.leak_free for r in results):
        leak_free = tuple(_points(r, r.leak_free or {}) for r in ranked)
        caption = f"The same without the {study.comparison.leaked:,} leaked test texts"
        tables.append(Table(head[: 2 + len(METRICS)], leak_free, caption))
    words = (
        "One arm minus another, text by text. Where the interval includes zero, this study cannot "
        "tell the two apart. “Better” is the probability that the arm is ahead; Holm’s p is corrected for the number "
        "of questions, and the interval is at the level at which it decides; “detectable” is the smallest true "
        "difference that such a study would show four times in five; where it is none, there are too few seeds to show "
        "any."
    )
    first = Beside(figures[0], (Words(words),))
    return Section("Differences", (first, *((Gallery(figures[1:]),) if figures[1:] else ()), *tables))


def _points(result: DifferenceResult, scores: Mapping[str, Estimate]) -> tuple[Cell, ...]:
    return result.arm, result.reference, *(in_points(scores.get(metric)) for metric in METRICS)


def _difference_figure(study: Study, results: Sequence[DifferenceResult]) -> Figure:
    looks = looks_of(study)
    reference = results[0].reference
    points = {result.arm: times_100(result.scores["accuracy"]) for result in results}
    rows = [Row(name, looks[name], e.value, signed(e.value), e.low, e.high) for name, e in points.items()]
    x = interval_axis(f"points of accuracy above {reference}", points.values(), signed=True)
    svg = charts.dots(f"Differences to {reference}", rows, x, zero=True)
    return Figure(svg, f"Minus {reference}, with the intervals that decide.")


def by_class(study: Study) -> Section | None:
    """The primary differences, class by class; many classes have a table that is folded, and no figure."""
    if not study.by_class or len(study.comparison.class_names) < 2:
        return None
    words = (
        "The share of each class’s texts that an arm recognises (recall), and the difference of two arms in points. "
        "The p-values and the intervals are corrected by Holm for the number of classes: where an interval includes "
        "zero, the difference on that class is not significant."
    )
    few = len(study.comparison.class_names) <= MOST_CLASSES
    figures = tuple(_class_figure(study, pair) for pair in study.by_class) if few else ()
    tables = tuple((_class_table(pair, folded=not few),) for pair in study.by_class)
    return Section("Class by class", (Words(words), *((Gallery(figures),) if figures else ()), Columns(tables)))


def _class_table(pair: ByClass, *, folded: bool) -> Table:
    """The classes in their order, or where they are many the most significant first."""
    classes = sorted(pair.classes, key=lambda each: each.holm) if folded else pair.classes
    rows = tuple(
        (
            each.class_name,
            f"{each.rows:,}",
            f"{each.one:.3f}",
            f"{each.other:.3f}",
            in_points(each.difference),
            p_value(each.holm),
        )
        for each in classes
    )
    head = ("class", ">texts", f">{pair.arm}", f">{pair.reference}", ">difference", ">Holm")
    title = f"{pair.arm} minus {pair.reference}"
    return Table(head, rows, "" if folded else title, f"{title}: {len(rows):,} classes" if folded else "")


def _class_figure(study: Study, pair: ByClass) -> Figure:
    look = looks_of(study)[pair.arm]
    points = {each.class_name: times_100(each.difference) for each in pair.classes}
    rows = [Row(name, look, e.value, signed(e.value), e.low, e.high) for name, e in points.items()]
    x = interval_axis(f"points of recall above {pair.reference}", points.values(), signed=True)
    svg = charts.dots(f"Recall of {pair.arm} minus {pair.reference}", rows, x, zero=True)
    return Figure(svg, f"{pair.arm} minus {pair.reference}")
