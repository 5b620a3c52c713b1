"""What the page says about what the runs took: parameters, time and memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headstart.report import charts
from headstart.report.axes import axis
from headstart.report.blocks import Beside, Figure, Gallery, Section, Table, Words, memory_unit, three_digits
from headstart.report.charts import Row
from headstart.report.looks import looks_of
from headstart.report.pretraining import parameters
from headstart.report.records import Run, Study


def parameters_section(study: Study) -> Section | None:
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


def time_and_memory(study: Study) -> Section | None:
    looks = looks_of(study)
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
            x = axis(label, [0.0, *means.values()], count=3)
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
    if len(figures) % 2 == 0:
        return Section("Time and memory", (Words(words), Gallery(tuple(figures)), table))
    *pairs, last = figures  # the table fills the place beside an odd one
    above = (Gallery(tuple(pairs)),) if pairs else ()
    return Section("Time and memory", (Words(words), *above, Beside(last, (table,))))


def _memory(run: Run, kind: str, scale: float) -> float | None:
    peak = run.manifest.peak_memory.get(kind)
    return None if peak is None else peak / scale
