"""What the page says about a study, section by section: words, figures and tables, made of the records alone.

A section that has nothing to show is None. Every number in a figure stands in a table beside it or under it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from markupsafe import Markup

from headstart.config import to_toml
from headstart.model.count import Count
from headstart.report import charts
from headstart.report.charts import Look, Row, Series
from headstart.report.records import Arm, Mistake, Pretraining, Run, Study
from headstart.studies.comparison import ArmResult, DifferenceResult, WorthResult
from headstart.studies.statistics import Estimate

METRICS = {"accuracy": "accuracy", "macro_f1": "macro-F1", "calibration": "calibration error"}
MOST_CLASSES = 12  # that a matrix is drawn for
MOST_ROWS = 60  # of the table under a long line
USUAL = {"full": 0, "scratch": 1, "frozen": 2}  # the look of the first arm of each mode
SURROUNDINGS = ("headstart", "python", "torch", "numpy", "platform", "processor", "cores", "gpu", "precision")


# --- what a section is made of; `kind` names the macro that draws it ---


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
    """Columns whose name begins with `>` are flush right, as numbers are. `folded` is the line to open it with."""

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


Block = Words | Table | Figure | Beside | Gallery | Mistakes | Findings | Code


@dataclass(frozen=True)
class Section:
    title: str
    blocks: tuple[Block, ...]


# --- the study ---


def main_figure(study: Study) -> Figure:
    """The label-budget curve where there is one, else every arm's final accuracy."""
    return _budget_figure(study) if study.comparison.curves else _final_figure(study)


def summary(study: Study) -> str:
    """What was compared, in a line."""
    comparison = study.comparison
    runs = sum(len(arm.runs) for arm in (comparison.curves or comparison.arms))
    texts = f"{comparison.rows:,} test texts, " if comparison.rows else ""
    return f"{texts}{len(comparison.labels)} classes, {_number(len(comparison.arms), 'arm')}, {_number(runs, 'run')}"


def of_study(study: Study) -> list[Section]:
    """Every section that this study has something for, in the order of the page."""
    makers: list[Callable[[Study], Section | None]] = [
        _by_epoch,
        _final,
        _differences,
        _budgets,
        _confusion,
        _mistakes,
        _reliability,
        _parameters,
        _cost,
        _doctor,
        _settings,
        _again,
    ]
    return [section for section in (maker(study) for maker in makers) if section is not None]


def _looks(study: Study) -> dict[str, Look]:
    """A look for each arm, the same in every figure; and in every study, for the first arm of each mode."""
    found: dict[str, Look] = {}
    free = list(range(len(study.arms) + len(USUAL)))
    for arm in (each.result for each in study.arms):
        if arm.mode == "baseline":
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
        if arm.mode == "baseline"
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
        (f"{epoch:.4g}", *(_mean_and_range(found[name].get(epoch)) for name in curves)) for epoch in _some(epochs)
    )
    table = Table(
        (">epoch", *(f">{name}" for name in curves)), rows, folded="The numbers: mean, lowest to highest seed"
    )
    caption = "Each line is the mean over seeds; its band runs from the lowest seed to the highest."
    if len(series) > len(curves):
        caption += " A baseline has no epochs: its line is level."
    words = (
        "How well each arm does on valid while it trains. What is kept of a run is chosen here; test is not looked at."
    )
    return Section("Accuracy by epoch", (Beside(Figure(svg, caption, table), (Words(words),)),))


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
    words = f"Scores on {study.split}, once for each run, with the weights that were best on valid. "
    if study.intervals:
        words += (
            "The 95 % intervals hold two kinds of luck: which seeds were drawn, and which texts the test set happens "
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
        odd = [run.degenerate for run in arm.runs if run.degenerate]
        last = f"{len(odd)}: {', '.join(dict.fromkeys(odd))}" if odd else "none"
        cells = [_estimate(scores(arm).get(metric)) for metric in metrics]
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
            *(_points(each.scores.get(metric)) for metric in METRICS),
            _chance(each.better),
            _p(each.p),
            _p(each.holm),
            f"{100 * each.detectable:.1f}",
            *(("" if each.mcnemar is None else _p(each.mcnemar),) if single else ()),
        )
        for each in ranked
    )
    tables = [Table((*head, *((">McNemar",) if single else ())), rows, "In points, that is hundredths")]
    if any(each.leak_free for each in found):
        leak_free = tuple(
            (each.arm, each.reference, *(_points((each.leak_free or {}).get(metric)) for metric in METRICS))
            for each in ranked
        )
        caption = f"The same without the {study.comparison.leaked:,} leaked test texts"
        tables.append(Table(head[: 2 + len(METRICS)], leak_free, caption))
    words = (
        "One arm minus another, run by run and text by text. Where the interval reaches over zero, this study cannot "
        "tell the two apart. “Better” is the chance that the arm is ahead; Holm’s p allows for there being several "
        "comparisons with one reference; “detectable” is the smallest true difference that such a study would show "
        "four times in five."
    )
    first = Beside(figures[0], (Words(words),))
    return Section("Differences", (first, *((Gallery(figures[1:]),) if figures[1:] else ()), *tables))


def _difference_figure(study: Study, found: Sequence[DifferenceResult]) -> Figure:
    looks = _looks(study)
    reference = found[0].reference
    points = {each.arm: _times_100(each.scores["accuracy"]) for each in found}
    rows = [Row(name, looks[name], e.value, _signed(e.value), e.low, e.high) for name, e in points.items()]
    x = charts.interval_axis(f"points of accuracy above {reference}", points.values(), signed=True)
    return Figure(
        charts.dots(f"Differences to {reference}", rows, x, zero=True), f"Minus {reference}, with 95 % intervals."
    )


def _budget_figure(study: Study) -> Figure:
    looks = _looks(study)
    series = []
    for name in looks:
        arms = sorted((arm for arm in study.comparison.curves if arm.name == name), key=lambda arm: arm.labels)
        curve = [(arm.labels, arm.scores["accuracy"]) for arm in arms]
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
    found = {(arm.name, arm.labels): arm.scores["accuracy"] for arm in comparison.curves}
    budgets = sorted({labels for _, labels in found})
    rows = tuple((f"{n:,}", *(_estimate(found.get((name, n))) for name in names)) for n in budgets)
    words = [
        Words(
            "The same study on fewer labelled texts: nested subsets with as many of each class as there are to have."
        ),
        *(Words(_worth(each, budgets[-1])) for each in comparison.worth),
    ]
    tables = [Table((">labels", *(f">{name}" for name in names)), rows, "Accuracy by number of labels")]
    if comparison.worth:
        worth = tuple(
            (
                each.arm,
                f"{each.labels:,}",
                each.reference,
                _labels(each.value),
                f"{_labels(each.low)} to {_labels(each.high)}",
            )
            for each in comparison.worth
        )
        head = ("arm", ">with labels", "does as well as", ">with labels", ">95 % interval")
        tables.append(Table(head, worth, "What labels are worth"))
    return Section("Label budgets", (Beside(_budget_figure(study), tuple(words)), *tables))


def _worth(each: WorthResult, most: int) -> str:
    begin = f"With {each.labels:,} labels, {each.arm} does"
    if each.value is None:
        return f"{begin} better than {each.reference} with all {most:,}."
    about = "at most" if each.at_most else "about"
    sentence = f"{begin} as well as {each.reference} with {about} {each.value:,.0f}"
    if each.low is not None:
        high = "more than there are" if each.high is None else f"{each.high:,.0f}"
        sentence += f" (95 % interval {each.low:,.0f} to {high})"
    return sentence + "."


def _labels(value: float | None) -> str:
    return "more than there are" if value is None else f"{value:,.0f}"


def _confusion(study: Study) -> Section | None:
    labels = study.comparison.labels
    found = [(arm.result.name, arm.confusion, len(arm.runs)) for arm in study.arms if arm.confusion is not None]
    if not found:
        return None
    words = f"What each class of {study.split} was taken for, over all runs of an arm, in percent of the true class."
    if len(labels) > MOST_CLASSES:
        tables = [_commonest(name, counts, labels) for name, counts, _ in found]
        return Section("Confusion", (Words(f"{words} With {len(labels)} classes: the commonest confusions."), *tables))
    figures = tuple(
        Figure(
            charts.matrix(f"Confusion of {name}", labels, counts),
            name,
            Table(
                ("true", *(f">{label}" for label in labels)),
                tuple((label, *(f"{n:,}" for n in row)) for label, row in zip(labels, counts, strict=True)),
                folded="Counts",
            ),
        )
        for name, counts, _ in found
    )
    return Section("Confusion", (Words(words), Gallery(figures, small=True)))


def _commonest(name: str, counts: Sequence[Sequence[int]], labels: Sequence[str], most: int = 15) -> Table:
    pairs = [(n, i, j, sum(row)) for i, row in enumerate(counts) for j, n in enumerate(row) if n and i != j]
    pairs.sort(key=lambda pair: (-pair[0], pair[1], pair[2]))
    rows = tuple((labels[i], labels[j], f"{n:,}", f"{100 * n / whole:.1f} %") for n, i, j, whole in pairs[:most])
    return Table(("true", "taken for", ">times", ">of the class"), rows, name)


def _mistakes(study: Study) -> Section | None:
    if not study.mistakes:
        return None
    words = (
        f"The wrong answers that the first run of {study.best}, the arm that is best on valid, was surest of. Where "
        "the answer looks right to you, look at the label."
    )
    return Section("The most confident mistakes", (Words(words), Mistakes(study.mistakes)))


def _reliability(study: Study) -> Section | None:
    looks = _looks(study)
    least = 0.5 if len(study.comparison.labels) == 2 else 0.0
    figures = tuple(
        Figure(
            charts.reliability(f"Reliability of {arm.result.name}", looks[arm.result.name], arm.bins, least),
            arm.result.name,
            Table(
                (">confidence", ">accuracy", ">answers"),
                tuple((f"{sure:.3f}", f"{right:.3f}", f"{n:,}") for sure, right, n in arm.bins),
                folded="The numbers",
            ),
        )
        for arm in study.arms
        if arm.bins
    )
    if not figures:
        return None
    words = (
        f"How often an answer on {study.split} is right, by how sure the model was of it. On the dashed diagonal the "
        "two agree; below it the model is too sure of itself. A dot’s area is its share of the answers."
    )
    return Section("Reliability", (Words(words), Gallery(figures, small=True)))


def _parameters(study: Study) -> Section | None:
    section = parameters(
        (arm.result.name, run.parameters) for arm in study.arms for run in arm.runs if run.parameters is not None
    )
    rows = []
    for arm in study.arms:
        found = next((run.manifest["parameters"] for run in arm.runs if "parameters" in run.manifest), None)
        if found is not None:
            rows.append((arm.result.name, f"{found['total']:,}", f"{found['trainable']:,}"))
    if section is None or not rows:
        return section
    return Section(section.title, (*section.blocks, Table(("arm", ">parameters", ">that train"), tuple(rows))))


def parameters(found: Iterable[tuple[str, Count]]) -> Section | None:
    """A picture and a table for each model that differs in its numbers, under the names of all that share them."""
    names: dict[tuple[Any, ...], list[str]] = {}
    for name, counted in found:
        names.setdefault(counted.blocks, []).append(name)
    blocks = [
        Beside(_parameter_figure(Count(parts), ", ".join(dict.fromkeys(shared))), (_parameter_table(Count(parts)),))
        for parts, shared in names.items()
    ]
    return Section("Parameters by block", tuple(blocks)) if blocks else None


def _parameter_figure(counted: Count, name: str) -> Figure:
    blocks = [block for block in counted.blocks if not block.shared]
    scale, unit = (1e6, "million parameters") if counted.total >= 1e6 else (1e3, "thousand parameters")
    rows = [Row(block.name, Look(0), block.number / scale, f"{block.number:,}") for block in blocks]
    x = charts.axis(unit, [0.0, *(row.value for row in rows)], count=4)
    return Figure(charts.bars(f"Parameters by block: {name}", rows, x), name)


def _parameter_table(counted: Count, folded: str = "") -> Table:
    rows = [(b.name, "shared" if b.shared else f"{b.number:,}", b.formula, str(b.copies)) for b in counted.blocks]
    rows.append(("total", f"{counted.total:,}", "", ""))
    return Table(("block", ">parameters", "formula of each", ">×"), tuple(rows), folded=folded)


def _cost(study: Study) -> Section | None:
    looks = _looks(study)
    memory = [value for arm in study.arms for run in arm.runs for value in run.manifest.get("peak_memory", {}).values()]
    scale, unit = (2.0**30, "GiB") if max(memory, default=0) > 4 * 2**30 else (2.0**20, "MiB")
    quantities: list[tuple[str, str, Callable[[Run], float | None]]] = [
        ("Time", "seconds", lambda run: run.manifest.get("seconds")),
        ("Speed", "tokens a second", lambda run: run.speed),
        ("GPU memory at its peak", unit, lambda run: _memory(run, "gpu", scale)),
        ("Process memory at its peak", unit, lambda run: _memory(run, "resident", scale)),
    ]
    figures = []
    columns: dict[str, dict[str, float]] = {}
    for title, measured, measure in quantities:
        means = {arm.result.name: _mean(measure(run) for run in arm.runs) for arm in study.arms}
        there = {name: value for name, value in means.items() if value is not None}
        if there:
            rows = [Row(name, looks[name], value, _measured(value)) for name, value in there.items()]
            x = charts.axis(measured, [0.0, *there.values()], count=3)
            figures.append(Figure(charts.bars(title, rows, x), title))
            columns[f"{title.removesuffix(' at its peak')}, {measured}"] = there
    if not figures:
        return None
    names = [arm.result.name for arm in study.arms]
    cells = tuple((name, *(_measured(column.get(name)) for column in columns.values())) for name in names)
    words = (
        "Means over the runs of an arm on all labels; the speed is that of training alone. A process’s memory "
        "is its highest mark since it began: where runs follow each other in one process, a "
        "later one cannot show less than an earlier one."
    )
    table = Table(("arm", *(f">{column}" for column in columns)), cells)
    return Section("Time and memory", (Words(words), Gallery(tuple(figures)), table))


def _memory(run: Run, kind: str, scale: float) -> float | None:
    found = run.manifest.get("peak_memory", {}).get(kind)
    return None if found is None else found / scale


def _mean(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return float(np.mean(found)) if found else None


def _doctor(study: Study) -> Section | None:
    doctor = study.data.get("doctor")
    if not doctor:
        return None
    rows = tuple(
        (
            split["name"],
            f"{split['rows']:,}",
            ", ".join(f"{label} {share:.1%}" for label, share in list(split["balance"].items())[:8]),
            *(f"{split['words'][key]:.0f}" for key in ("median", "most", "longest")),
        )
        for split in doctor["splits"]
    )
    head = ("split", ">rows", "labels", ">words: median", ">95th of 100", ">longest")
    findings = Findings(tuple(doctor["findings"]), tuple(doctor["unexamined"]))
    return Section("What the doctor found in the data", (Table(head, rows), findings))


# --- how it was made ---


def _settings(study: Study) -> Section:
    neural = [arm for arm in study.arms if arm.result.mode != "baseline"]
    rest = [arm for arm in study.arms if arm.result.mode == "baseline"]
    tables = [*_settings_tables(neural, "arm"), *_settings_tables(rest, "baseline")]
    return Section(
        "Settings",
        (Words("What differs between the arms is marked ●; what is the same in all of them is folded away."), *tables),
    )


def _settings_tables(arms: Sequence[Arm], noun: str) -> list[Table]:
    if not arms:
        return []
    keys = dict.fromkeys(key for arm in arms for run in arm.runs for key in run.settings)
    found = {key: [_values(run.settings.get(key) for run in arm.runs) for arm in arms] for key in keys}
    differ = {key: values for key, values in found.items() if len(set(values)) > 1}
    same = {key: values[0] for key, values in found.items() if key not in differ}
    tables = []
    if differ:
        rows = tuple((f"● {key}", *values) for key, values in differ.items())
        tables.append(Table(("setting", *(arm.result.name for arm in arms)), rows))
    if same:
        title = f"The same in every {noun}: {_number(len(same), 'setting')}"
        tables.append(Table(("setting", "value"), tuple(same.items()), folded=title))
    return tables


def _values(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys("–" if value is None else _plain(value) for value in values))


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _again(study: Study) -> Section:
    manifests = [run.manifest for arm in study.arms for run in arm.runs]
    rows = [(key, _values(m[key] for m in manifests if key in m)) for key in SURROUNDINGS]
    finished = sorted(m["finished"] for m in manifests if "finished" in m)
    rows += [("finished", " to ".join(dict.fromkeys((finished[0], finished[-1]))))] if finished else []
    prints = [
        (f"data: {name}", digest, f"{study.data.get('rows', {}).get(name, 0):,} rows")
        for name, digest in study.data.get("fingerprint", {}).items()
    ]
    prints += [
        ("tokenizer", digest, "") for digest in dict.fromkeys(m["tokenizer"] for m in manifests if "tokenizer" in m)
    ]
    blocks: list[Block] = []
    if study.settings.get("study") == "compare":
        path = study.path
        blocks += [Words("To run it again, from the folder it was first run in:")]
        blocks += [Code(_command("compare", f"{path}/study.toml", f"{path}-again"))]
        blocks += [Code(to_toml(study.settings), folded="study.toml")]
    else:
        lines = [
            _command("finetune", f"{run.path}/run.toml", f"{run.path}-again") for arm in study.arms for run in arm.runs
        ]
        blocks += [Words("To run them again, from the folder they were first run in:"), Code("\n".join(lines))]
    blocks.append(Table(("", ""), tuple(row for row in rows if row[1]), "Versions and hardware"))
    if prints:
        blocks.append(Table(("", "fingerprint", ""), tuple(prints), "Fingerprints"))
    blocks.append(_runs_table(study))
    return Section("To run it again", tuple(blocks))


def _command(verb: str, recipe: str, out: str) -> str:
    return f"headstart {verb} {shlex.quote(recipe)} --out {shlex.quote(out)}"


def _runs_table(study: Study) -> Table:
    """Every run there is, with its scores."""
    arms = study.comparison.curves or study.comparison.arms
    rows = tuple(
        (
            arm.name,
            f"{arm.labels:,}" if arm.labels else "all",
            str(run.seed),
            f"{run.valid['accuracy']:.3f}",
            *(f"{run.test[metric]:.3f}" if metric in run.test else "" for metric in METRICS),
            run.degenerate or "",
            run.path,
        )
        for arm in arms
        for run in arm.runs
    )
    scored = tuple(f">{study.split} {name}" for name in METRICS.values())
    head = ("arm", ">labels", ">seed", ">valid accuracy", *scored, "degenerate", "folder")
    return Table(head, rows, folded=f"Every run: {len(rows):,}")


# --- pretraining ---


def of_pretraining(found: Pretraining) -> Section:
    """The loss and the bits per byte of a language model, and what it is made of."""
    valid = tuple((float(step), scores["loss"]) for step, scores in found.valid if "loss" in scores)
    series = [Series("train", Look(1), found.loss, marked=False)] if found.loss else []
    series += [Series("valid", Look(0), valid)] if valid else []
    objective = str(found.result.get("objective", ""))
    facts = [f"Objective {objective}, weights {found.result.get('weights', 'fresh')}"]
    facts += [f"{found.result[key]:,} {key}" for key in ("steps", "tokens") if key in found.result]
    facts += [f"{found.run.speed:,.0f} tokens a second"] if found.run.speed else []
    blocks: list[Block] = [Words(", ".join(facts) + ".")]
    figures = []
    if series:
        figures.append(_by_step("Loss", "loss, nats a token", series))
    bits = tuple((float(step), s["bits_per_byte"]) for step, s in found.valid if "bits_per_byte" in s)
    if bits:
        figures.append(_by_step("Bits per byte", "bits per byte on valid", [Series("valid", Look(0), bits)]))
    if figures:
        blocks.append(Gallery(tuple(figures)))
    names = list(dict.fromkeys(name for _, scores in found.valid for name in scores))
    rows = tuple(
        (f"{step:,}", *(f"{scores[name]:,.4g}" if name in scores else "" for name in names))
        for step, scores in _some(found.valid)
    )
    if rows:
        head = (">step", *(f">{name.replace('_', ' ')}" for name in names))
        blocks.append(Table(head, rows, folded="On valid, by step"))
    if found.loss:
        lost = tuple((f"{step:,.0f}", f"{loss:.4f}") for step, loss in _some(found.loss))
        blocks.append(Table((">up to step", ">mean loss"), lost, folded="Loss on train, by step"))
    if found.run.parameters is not None:
        counted = found.run.parameters
        blocks.append(_parameter_table(counted, f"Parameters by block: {counted.total:,}"))
    settings = _settings_tables_of(found.run)
    blocks += [Code(_command("pretrain", f"{found.run.path}/run.toml", f"{found.run.path}-again")), settings]
    return Section(f"Pretraining: {found.name}", tuple(blocks))


def _by_step(title: str, label: str, series: Sequence[Series]) -> Figure:
    steps = [step for s in series for step, _ in s.points]
    y = charts.axis(label, [value for s in series for _, value in s.points])
    x = charts.axis("step", [0.0, *steps], count=4, whole=True)
    return Figure(charts.lines(f"{title} by step", series, x, y), title)


def _settings_tables_of(run: Run) -> Table:
    rows = tuple((key, _plain(value)) for key, value in run.settings.items())
    return Table(("setting", "value"), rows, folded=f"Settings: {len(rows)}")


# --- numbers as words ---


def _estimate(found: Estimate | None) -> Cell:
    return "" if found is None else Aside(f"{found.value:.3f}", f"{found.low:.3f}–{found.high:.3f}")


def _points(found: Estimate | None) -> Cell:
    if found is None:
        return ""
    each = _times_100(found)
    return Aside(_signed(each.value), f"{_signed(each.low)} to {_signed(each.high)}")


def _times_100(each: Estimate) -> Estimate:
    return Estimate(100 * each.value, 100 * each.low, 100 * each.high)


def _signed(value: float) -> str:
    """With its sign, and a minus as long as the plus.

    >>> _signed(6.24), _signed(-0.31), _signed(-0.04)
    ('+6.2', '−0.3', '0.0')
    """
    text = f"{value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def _chance(value: float) -> str:
    """
    >>> _chance(0.5), _chance(0.99996), _chance(0.0)
    ('50 %', 'over 99.9 %', 'under 0.1 %')
    """
    if value > 0.999:
        return "over 99.9 %"
    if value < 0.001:
        return "under 0.1 %"
    return f"{100 * value:.1f} %".replace(".0 ", " ")


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _measured(value: float | None) -> str:
    """
    >>> _measured(12345.6), _measured(42.31), _measured(3.456), _measured(None)
    ('12,346', '42.3', '3.46', '–')
    """
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _some(items: Sequence[Any]) -> Sequence[Any]:
    """At most MOST_ROWS of them, evenly, the last among them."""
    every = -(-len(items) // MOST_ROWS)
    return items[(len(items) - 1) % every :: every] if items else items
