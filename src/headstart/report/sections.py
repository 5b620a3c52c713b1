"""What the page says about a study, section by section: words, figures and tables, made of the records alone.

A section that has nothing to show is None. Every number in a figure stands in a table beside it or under it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from headstart.report import charts
from headstart.report.blocks import (
    METRICS,
    Beside,
    Cell,
    Figure,
    Gallery,
    Section,
    Table,
    Words,
    estimate,
    in_points,
    memory_unit,
    p_value,
    probability,
    signed,
    thinned,
    three_digits,
    times_100,
)
from headstart.report.charts import Look, Row, Series
from headstart.report.predictions import confusion, mistakes, reliability
from headstart.report.pretraining import parameters
from headstart.report.recipe import doctor, rerun, settings
from headstart.report.records import Run, Study, mean_and_range
from headstart.runs.comparison import ArmResult, DifferenceResult, Estimate, WorthResult, valid_accuracy
from headstart.studies.verdict import label_worth
from headstart.wording import plural

USUAL = {"full": 0, "scratch": 1, "frozen": 2}  # the look of the first arm of each mode


def main_figure(study: Study) -> Figure:
    """The label-budget curve where there is one, else every arm's final accuracy."""
    return _budget_figure(study) if study.comparison.curves else _final_figure(study)


def summary(study: Study) -> str:
    """What was compared, in a line."""
    comparison = study.comparison
    runs = sum(len(arm.runs) for arm in (comparison.curves or comparison.arms))
    texts = f"{comparison.rows:,} test texts, " if comparison.rows else ""
    return f"{texts}{len(comparison.class_names)} classes, {plural(len(comparison.arms), 'arm')}, {plural(runs, 'run')}"


def study_sections(study: Study) -> list[Section]:
    """Every section that this study has something for, in the order of the page."""
    makers: list[Callable[[Study], Section | None]] = [
        _by_epoch,
        _final,
        _differences,
        _budgets,
        confusion,
        mistakes,
        lambda study: reliability(study, _looks(study)),
        _parameters,
        _cost,
        doctor,
        settings,
        rerun,
    ]
    return [section for section in (maker(study) for maker in makers) if section is not None]


def _looks(study: Study) -> dict[str, Look]:
    """A look for each arm, the same in every figure; and in every study, for the first arm of each mode."""
    looks: dict[str, Look] = {}
    free = list(range(len(study.arms) + len(USUAL)))
    for arm in (each.result for each in study.arms):
        if not arm.trained:
            looks[arm.name] = Look(sum(look.neutral for look in looks.values()), neutral=True)
        else:
            later = [number for number in free if number >= len(USUAL)]
            number = USUAL[arm.mode] if USUAL[arm.mode] in free else later[0]
            free.remove(number)
            looks[arm.name] = Look(number)
    return looks


def _by_epoch(study: Study) -> Section | None:
    looks = _looks(study)
    curves = {arm.result.name: _mean_curve(arm.runs) for arm in study.arms}
    curves = {name: curve for name, curve in curves.items() if curve}
    if not curves:
        return None
    first = min(min(curve) for curve in curves.values())
    last = max(max(curve) for curve in curves.values())
    lowest = min(mean.low for curve in curves.values() for mean in curve.values())
    series = [_series(name, looks[name], curve) for name, curve in curves.items()]
    for arm in study.comparison.arms:
        value = valid_accuracy(arm)
        if not arm.trained and value >= lowest - 0.05:  # further down it would press the lines together
            series.append(Series(arm.name, looks[arm.name], ((first, value), (last, value)), marked=False))
    values = [value for s in series for _, value in s.points]
    values += [value for s in series for _, low, high in s.band for value in (low, high)]
    x = charts.axis("epoch", [first, last], whole=last - first >= 2)
    x = replace(x, low=first, ticks=tuple(tick for tick in x.ticks if tick >= first))  # no empty stretch before it
    svg = charts.lines("Accuracy on valid by epoch", series, x, charts.axis("accuracy on valid", values))
    epochs = sorted({epoch for curve in curves.values() for epoch in curve})
    rows = tuple((f"{e:.4g}", *(estimate(curve.get(e)) for curve in curves.values())) for e in thinned(epochs))
    head = (">epoch", *(f">{name}" for name in curves))
    table = Table(head, rows, folded="The numbers: mean, lowest to highest seed")
    caption = "Each line is the mean over seeds; its band runs from the lowest seed to the highest."
    if len(series) > len(curves):
        caption += " A baseline has no epochs: its line is level."
    words = "How well each arm does on valid while it trains. Test is not looked at."
    if "best" in _kept(study):
        words = words.replace("Test", "What is kept of a run is chosen here; test")
    return Section("Accuracy by epoch", (Beside(Figure(svg, caption, table), (Words(words),)),))


def _series(name: str, look: Look, curve: Mapping[float, Estimate]) -> Series:
    """A line of means with the intervals around it as a band."""
    points = tuple((x, each.value) for x, each in curve.items())
    return Series(name, look, points, tuple((x, each.low, each.high) for x, each in curve.items()))


def _kept(study: Study) -> set[str]:
    """Which weights of a run its scores are of, where it trained: `best`, `last`, or by arm the one or the other."""
    return {str(run.settings.get("weights", "best")) for arm in study.arms for run in arm.runs if run.curve}


def _mean_curve(runs: Iterable[Run]) -> dict[float, Estimate]:
    """By epoch: mean, lowest and highest, over the runs that were evaluated then."""
    values: dict[float, list[float]] = {}
    for run in runs:
        for epoch, value in run.curve:
            values.setdefault(epoch, []).append(value)
    return {epoch: mean_and_range(each) for epoch, each in sorted(values.items())}


def _final_figure(study: Study) -> Figure:
    looks = _looks(study)
    estimates = {arm.name: arm.scores["accuracy"] for arm in _ranked(study)}
    rows = [Row(name, looks[name], e.value, f"{e.value:.3f}", e.low, e.high) for name, e in estimates.items()]
    x = charts.interval_axis(f"accuracy on {study.split}", estimates.values())
    svg = charts.dots(f"Accuracy on {study.split} of each arm", rows, x)
    spread = "95 % interval" if study.intervals else "range of the seeds"
    return Figure(svg, f"Mean over the runs, with its {spread}.")


def _ranked(study: Study) -> list[ArmResult]:
    return sorted(study.comparison.arms, key=lambda arm: -arm.scores["accuracy"].value)


def _final(study: Study) -> Section:
    comparison = study.comparison
    arms = _ranked(study)
    tables = [_score_table(arms, lambda arm: arm.scores, "")]
    if any(arm.leak_free for arm in arms):
        caption = f"Without the {comparison.leaked:,} test texts that also stand in train or valid"
        tables.append(_score_table(arms, lambda arm: arm.leak_free or {}, caption))
    kept = {"best": "with the weights that were best on valid", "last": "with the weights of its last step"}
    words = (
        f"Scores on {', '.join([study.split, 'once for each run', *(kept[each] for each in sorted(_kept(study)))])}. "
    )
    if study.intervals:
        words += (
            "The 95 % intervals allow for both: which seeds were drawn, and which texts the test set happens "
            "to hold. Macro-F1 counts every class alike; the calibration error is how far confidence is from accuracy."
        )
    else:
        words += "With these runs there are no intervals: the ranges are from the lowest seed to the highest."
    return Section("Final accuracy", (Beside(_final_figure(study), (Words(words),)), *tables))


def _score_table(
    arms: Sequence[ArmResult], scores: Callable[[ArmResult], Mapping[str, Estimate]], caption: str
) -> Table:
    metrics = [metric for metric in METRICS if any(metric in scores(arm) for arm in arms)]
    rows = []
    for arm in arms:
        degenerate = [run.degenerate for run in arm.runs if run.degenerate]
        last = f"{len(degenerate)}: {', '.join(dict.fromkeys(degenerate))}" if degenerate else "none"
        cells = [estimate(scores(arm).get(metric)) for metric in metrics]
        rows.append((arm.name, *cells, *(() if caption else (str(len(arm.runs)), last))))
    head = ("arm", *(f">{METRICS[metric]}" for metric in metrics), *(() if caption else (">runs", "degenerate")))
    return Table(head, tuple(rows), caption)


def _differences(study: Study) -> Section | None:
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
    looks = _looks(study)
    reference = results[0].reference
    points = {result.arm: times_100(result.scores["accuracy"]) for result in results}
    rows = [Row(name, looks[name], e.value, signed(e.value), e.low, e.high) for name, e in points.items()]
    x = charts.interval_axis(f"points of accuracy above {reference}", points.values(), signed=True)
    svg = charts.dots(f"Differences to {reference}", rows, x, zero=True)
    return Figure(svg, f"Minus {reference}, with the intervals that decide.")


def _budget_figure(study: Study) -> Figure:
    curves: dict[str, dict[float, Estimate]] = {name: {} for name in _looks(study)}
    for arm in sorted(study.comparison.curves, key=lambda arm: arm.budget):
        curves[arm.name][arm.budget] = arm.scores["accuracy"]
    series = [_series(name, look, curves[name]) for name, look in _looks(study).items() if curves[name]]
    values = [value for s in series for _, low, high in s.band for value in (low, high)]
    x = charts.log_axis("labelled texts to learn from", [budget for s in series for budget, _ in s.points])
    svg = charts.lines("Accuracy by number of labels", series, x, charts.axis(f"accuracy on {study.split}", values))
    caption = "Mean over the runs, with its 95 % interval as a band. A doubling of the labels is as long everywhere."
    return Figure(svg, caption)


def _budgets(study: Study) -> Section | None:
    comparison = study.comparison
    if not comparison.curves:
        return None
    names = list(_looks(study))
    scores = {(arm.name, arm.budget): arm.scores["accuracy"] for arm in comparison.curves}
    budgets = sorted({budget for _, budget in scores})
    rows = tuple((f"{n:,}", *(estimate(scores.get((name, n))) for name in names)) for n in budgets)
    about = "The same study on fewer labelled texts: nested subsets with as many of each class as there are to have."
    words = [
        Words(about),
        *(Words(f"{label_worth(each, each.arm, each.reference)}.") for each in comparison.worth),
    ]
    tables = [Table((">labels", *(f">{name}" for name in names)), rows, "Accuracy by number of labels")]
    if comparison.worth:
        worth = tuple((w.arm, f"{w.budget:,}", w.reference, _labels(w)) for w in comparison.worth)
        head = ("arm", ">with labels", "does as well as", ">with at least")
        tables.append(Table(head, worth, "What labels are worth"))
    return Section("Label budgets", (Beside(_budget_figure(study), tuple(words)), *tables))


def _labels(worth: WorthResult) -> str:
    if worth.low is None:
        return "not known"
    return f"more than {worth.low:,.0f}" if worth.beyond else f"{worth.low:,.0f}"


def _parameters(study: Study) -> Section | None:
    section = parameters(
        (arm.result.name, run.parameters) for arm in study.arms for run in arm.runs if run.parameters is not None
    )
    rows = []
    for arm in study.arms:
        numbers = next((run.manifest.parameters for run in arm.runs if run.manifest.parameters), None)
        if numbers is not None:
            rows.append((arm.result.name, f"{numbers['total']:,}", f"{numbers['trainable']:,}"))
    if section is None or not rows:
        return section
    return Section(section.title, (*section.blocks, Table(("arm", ">parameters", ">that train"), tuple(rows))))


def _cost(study: Study) -> Section | None:
    looks = _looks(study)
    memory = [value for arm in study.arms for run in arm.runs for value in run.manifest.peak_memory.values()]
    scale, unit = memory_unit(memory)
    quantities: list[tuple[str, str, Callable[[Run], float | None]]] = [
        ("Time", "seconds", lambda run: run.manifest.seconds),
        ("Speed", "tokens a second", lambda run: run.speed),
        ("GPU memory at its peak", unit, lambda run: _memory(run, "gpu", scale)),
        ("Process memory at its peak", unit, lambda run: _memory(run, "resident", scale)),
    ]
    figures = []
    columns: dict[str, dict[str, float]] = {}
    for title, label, measure in quantities:
        values = {arm.result.name: [v for v in map(measure, arm.runs) if v is not None] for arm in study.arms}
        means = {name: float(np.mean(each)) for name, each in values.items() if each}
        if means:
            rows = [Row(name, looks[name], mean, three_digits(mean)) for name, mean in means.items()]
            x = charts.axis(label, [0.0, *means.values()], count=3)
            figures.append(Figure(charts.bars(title, rows, x), title))
            columns[f"{title.removesuffix(' at its peak')}, {label}"] = means
    if not figures:
        return None
    names = [arm.result.name for arm in study.arms]
    cells = tuple((name, *(three_digits(column.get(name)) for column in columns.values())) for name in names)
    words = (
        "Means over the runs of an arm on all labels; the speed is that of training alone. A process’s memory "
        "is its highest mark since it began: where runs follow each other in one process, a "
        "later one cannot show less than an earlier one."
    )
    table = Table(("arm", *(f">{column}" for column in columns)), cells)
    return Section("Time and memory", (Words(words), Gallery(tuple(figures)), table))


def _memory(run: Run, kind: str, scale: float) -> float | None:
    peak = run.manifest.peak_memory.get(kind)
    return None if peak is None else peak / scale
