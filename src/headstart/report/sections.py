"""What the page says about a study, section by section: words, figures and tables, made of the records alone.

A section that has nothing to show is None. Every number in a figure stands in a table beside it or under it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from headstart.report import charts
from headstart.report.answers import confusion, mistakes, reliability
from headstart.report.blocks import (
    METRICS,
    Aside,
    Beside,
    Cell,
    Figure,
    Gallery,
    Section,
    Table,
    Words,
    chance,
    estimate,
    in_points,
    measured,
    memory_unit,
    p_value,
    signed,
    some,
    times_100,
)
from headstart.report.charts import Look, Row, Series
from headstart.report.pretraining import parameters
from headstart.report.recipe import again, doctor, settings
from headstart.report.records import Run, Study
from headstart.runs.comparison import ArmResult, DifferenceResult, Estimate
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


def of_study(study: Study) -> list[Section]:
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
        again,
    ]
    return [section for section in (maker(study) for maker in makers) if section is not None]


def _looks(study: Study) -> dict[str, Look]:
    """A look for each arm, the same in every figure; and in every study, for the first arm of each mode."""
    found: dict[str, Look] = {}
    free = list(range(len(study.arms) + len(USUAL)))
    for arm in (each.result for each in study.arms):
        if not arm.trained:
            found[arm.name] = Look(sum(look.neutral for look in found.values()), neutral=True)
        else:
            later = [number for number in free if number >= len(USUAL)]
            number = USUAL[arm.mode] if USUAL[arm.mode] in free else later[0]
            free.remove(number)
            found[arm.name] = Look(number)
    return found


def _spread(study: Study) -> str:
    return "95 % interval" if study.intervals else "range of the seeds"


def _by_epoch(study: Study) -> Section | None:
    looks = _looks(study)
    curves = {arm.result.name: _mean_curve(arm.runs) for arm in study.arms}
    curves = {name: curve for name, curve in curves.items() if curve}
    if not curves:
        return None
    first = min(curve[0][0] for curve in curves.values())
    last = max(curve[-1][0] for curve in curves.values())
    lowest = min(low for curve in curves.values() for _, _, low, _ in curve)
    series = [
        Series(name, looks[name], tuple((e, m) for e, m, _, _ in curve), tuple((e, a, b) for e, _, a, b in curve))
        for name, curve in curves.items()
    ]
    baselines = {
        arm.name: float(np.mean([run.valid["accuracy"] for run in arm.runs]))
        for arm in study.comparison.arms
        if not arm.trained
    }
    for name, value in baselines.items():
        if value >= lowest - 0.05:  # further down it would press the lines together
            series.append(Series(name, looks[name], ((first, value), (last, value)), marked=False))
    values = [value for s in series for _, value in s.points] + [
        v for s in series for _, a, b in s.band for v in (a, b)
    ]
    x = charts.axis("epoch", [first, last], whole=last - first >= 2)
    svg = charts.lines("Accuracy on valid by epoch", series, _from(x, first), charts.axis("accuracy on valid", values))
    epochs = sorted({epoch for curve in curves.values() for epoch, *_ in curve})
    found = {name: {epoch: rest for epoch, *rest in curve} for name, curve in curves.items()}
    rows = tuple(
        (f"{epoch:.4g}", *(_mean_and_range(found[name].get(epoch)) for name in curves)) for epoch in some(epochs)
    )
    table = Table(
        (">epoch", *(f">{name}" for name in curves)), rows, folded="The numbers: mean, lowest to highest seed"
    )
    caption = "Each line is the mean over seeds; its band runs from the lowest seed to the highest."
    if len(series) > len(curves):
        caption += " A baseline has no epochs: its line is level."
    words = "How well each arm does on valid while it trains. Test is not looked at."
    if "best" in _kept(study):
        words = words.replace("Test", "What is kept of a run is chosen here; test")
    return Section("Accuracy by epoch", (Beside(Figure(svg, caption, table), (Words(words),)),))


def _kept(study: Study) -> set[str]:
    """Which weights of a run its scores are of, where it trained: `best`, `last`, or by arm the one or the other."""
    return {str(run.settings.get("weights", "best")) for arm in study.arms for run in arm.runs if run.curve}


def _from(x: charts.Axis, first: float) -> charts.Axis:
    """The axis from the first value on, without the empty stretch that a round beginning would leave."""
    return replace(x, low=first, ticks=tuple(tick for tick in x.ticks if tick >= first))


def _mean_curve(runs: Iterable[Run]) -> list[tuple[float, float, float, float]]:
    """Epoch, mean, lowest and highest, over the runs that were measured then."""
    found: dict[float, list[float]] = {}
    for run in runs:
        for epoch, value in run.curve:
            found.setdefault(epoch, []).append(value)
    return [(epoch, float(np.mean(values)), min(values), max(values)) for epoch, values in sorted(found.items())]


def _mean_and_range(found: Sequence[float] | None) -> Cell:
    return "" if found is None else Aside(f"{found[0]:.3f}", f"{found[1]:.3f}–{found[2]:.3f}")


def _final_figure(study: Study) -> Figure:
    looks = _looks(study)
    arms = _ranked(study)
    estimates = [arm.scores["accuracy"] for arm in arms]
    rows = [
        Row(arm.name, looks[arm.name], e.value, f"{e.value:.3f}", e.low, e.high)
        for arm, e in zip(arms, estimates, strict=True)
    ]
    x = charts.interval_axis(f"accuracy on {study.split}", estimates)
    svg = charts.dots(f"Accuracy on {study.split} of each arm", rows, x)
    return Figure(svg, f"Mean over the runs, with its {_spread(study)}.")


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
            "The 95 % intervals hold two kinds of luck: which seeds were drawn, and which texts the test set happens "
            "to hold. Macro-F1 counts every class alike; the calibration error is how far confidence is from accuracy."
        )
    else:
        words += "With these runs there are no intervals: the ranges are from the lowest seed to the highest."
    beside = [Words(words), *_unpaired(study)]
    return Section("Final accuracy", (Beside(_final_figure(study), tuple(beside)), *tables))


def _unpaired(study: Study) -> list[Words]:
    """Where runs were made one by one: the arms that cannot be held against the reference, seed by seed."""
    seeds = {arm.name: sorted(run.seed for run in arm.runs) for arm in study.comparison.arms}
    reference = study.comparison.reference
    found = [
        name
        for name in seeds
        if seeds[name] != seeds[reference] and not study.comparison.difference(name, reference) and study.intervals
    ]
    if "majority" in found:  # which is held against nothing
        found.remove("majority")
    if not found:
        return []
    verb = "has" if len(found) == 1 else "have"
    return [
        Words(f"{', '.join(found)} {verb} not the seeds of {reference}: a difference between them would not be paired.")
    ]


def _score_table(
    arms: Sequence[ArmResult], scores: Callable[[ArmResult], Mapping[str, Estimate]], caption: str
) -> Table:
    metrics = [metric for metric in METRICS if any(metric in scores(arm) for arm in arms)]
    rows = []
    for arm in arms:
        odd = [run.degenerate for run in arm.runs if run.degenerate]
        last = f"{len(odd)}: {', '.join(dict.fromkeys(odd))}" if odd else "none"
        cells = [estimate(scores(arm).get(metric)) for metric in metrics]
        rows.append((arm.name, *cells, *(() if caption else (str(len(arm.runs)), last))))
    head = ("arm", *(f">{METRICS[metric]}" for metric in metrics), *(() if caption else (">runs", "degenerate")))
    return Table(head, tuple(rows), caption)


def _differences(study: Study) -> Section | None:
    found = study.comparison.differences
    if not found:
        return None
    references = sorted({each.reference for each in found}, key=lambda name: (name != study.comparison.reference, name))
    ranked = sorted(found, key=lambda each: (references.index(each.reference), -each.scores["accuracy"].value))
    figures = tuple(_difference_figure(study, [e for e in ranked if e.reference == name]) for name in references)
    single = any(each.mcnemar is not None for each in found)
    head = ("arm", "minus", *(f">{name}" for name in METRICS.values()), ">better", ">p", ">Holm", ">detectable")
    rows = tuple(
        (
            each.arm,
            each.reference,
            *(in_points(each.scores.get(metric)) for metric in METRICS),
            chance(each.better),
            p_value(each.p),
            p_value(each.holm),
            each.could_show,
            *(("" if each.mcnemar is None else p_value(each.mcnemar),) if single else ()),
        )
        for each in ranked
    )
    tables = [Table((*head, *((">McNemar",) if single else ())), rows, "In points, that is hundredths")]
    if any(each.leak_free for each in found):
        leak_free = tuple(
            (each.arm, each.reference, *(in_points((each.leak_free or {}).get(metric)) for metric in METRICS))
            for each in ranked
        )
        caption = f"The same without the {study.comparison.leaked:,} leaked test texts"
        tables.append(Table(head[: 2 + len(METRICS)], leak_free, caption))
    words = (
        "One arm minus another, run by run and text by text. Where the interval reaches over zero, this study cannot "
        "tell the two apart. “Better” is the chance that the arm is ahead; Holm’s p allows for all the differences "
        "of the table being looked at at once; “detectable” is the smallest true difference that such a study would "
        "show four times in five; where it is none, there are too few seeds to show any."
    )
    first = Beside(figures[0], (Words(words),))
    return Section("Differences", (first, *((Gallery(figures[1:]),) if figures[1:] else ()), *tables))


def _difference_figure(study: Study, found: Sequence[DifferenceResult]) -> Figure:
    looks = _looks(study)
    reference = found[0].reference
    points = {each.arm: times_100(each.scores["accuracy"]) for each in found}
    rows = [Row(name, looks[name], e.value, signed(e.value), e.low, e.high) for name, e in points.items()]
    x = charts.interval_axis(f"points of accuracy above {reference}", points.values(), signed=True)
    return Figure(
        charts.dots(f"Differences to {reference}", rows, x, zero=True), f"Minus {reference}, with 95 % intervals."
    )


def _budget_figure(study: Study) -> Figure:
    looks = _looks(study)
    series = []
    for name in looks:
        arms = sorted((arm for arm in study.comparison.curves if arm.name == name), key=lambda arm: arm.budget)
        curve = [(arm.budget, arm.scores["accuracy"]) for arm in arms]
        if curve:
            points = tuple((float(labels), e.value) for labels, e in curve)
            series.append(Series(name, looks[name], points, tuple((float(n), e.low, e.high) for n, e in curve)))
    values = [value for s in series for _, a, b in s.band for value in (a, b)]
    x = charts.log_axis("labelled texts to learn from", [labels for s in series for labels, _ in s.points])
    y = charts.axis(f"accuracy on {study.split}", values)
    svg = charts.lines("Accuracy by number of labels", series, x, y)
    return Figure(
        svg, "Mean over the runs, with its 95 % interval as a band. A doubling of the labels is as long everywhere."
    )


def _budgets(study: Study) -> Section | None:
    comparison = study.comparison
    if not comparison.curves:
        return None
    names = list(_looks(study))
    found = {(arm.name, arm.budget): arm.scores["accuracy"] for arm in comparison.curves}
    budgets = sorted({labels for _, labels in found})
    rows = tuple((f"{n:,}", *(estimate(found.get((name, n))) for name in names)) for n in budgets)
    words = [
        Words(
            "The same study on fewer labelled texts: nested subsets with as many of each class as there are to have."
        ),
        *(Words(f"{label_worth(each, each.arm, each.reference, budgets)}.") for each in comparison.worth),
    ]
    tables = [Table((">labels", *(f">{name}" for name in names)), rows, "Accuracy by number of labels")]
    if comparison.worth:
        worth = tuple(
            (
                each.arm,
                f"{each.budget:,}",
                each.reference,
                _labels(each.value),
                f"{_labels(each.low)} to {_labels(each.high)}",
            )
            for each in comparison.worth
        )
        head = ("arm", ">with labels", "does as well as", ">with labels", ">95 % interval")
        tables.append(Table(head, worth, "What labels are worth"))
    return Section("Label budgets", (Beside(_budget_figure(study), tuple(words)), *tables))


def _labels(value: float | None) -> str:
    return "more than there are" if value is None else f"{value:,.0f}"


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
        means = {arm.result.name: _mean(measure(run) for run in arm.runs) for arm in study.arms}
        there = {name: value for name, value in means.items() if value is not None}
        if there:
            rows = [Row(name, looks[name], value, measured(value)) for name, value in there.items()]
            x = charts.axis(label, [0.0, *there.values()], count=3)
            figures.append(Figure(charts.bars(title, rows, x), title))
            columns[f"{title.removesuffix(' at its peak')}, {label}"] = there
    if not figures:
        return None
    names = [arm.result.name for arm in study.arms]
    cells = tuple((name, *(measured(column.get(name)) for column in columns.values())) for name in names)
    words = (
        "Means over the runs of an arm on all labels; the speed is that of training alone. A process’s memory "
        "is its highest mark since it began: where runs follow each other in one process, a "
        "later one cannot show less than an earlier one."
    )
    table = Table(("arm", *(f">{column}" for column in columns)), cells)
    return Section("Time and memory", (Words(words), Gallery(tuple(figures)), table))


def _memory(run: Run, kind: str, scale: float) -> float | None:
    found = run.manifest.peak_memory.get(kind)
    return None if found is None else found / scale


def _mean(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return float(np.mean(found)) if found else None
