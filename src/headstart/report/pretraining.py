"""What the page says about a pretraining, and what a model is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from headstart.model.count import Count
from headstart.report import charts
from headstart.report.axes import axis
from headstart.report.blocks import (
    Beside,
    Block,
    Code,
    Figure,
    Gallery,
    Section,
    Table,
    Words,
    as_text,
    command,
    thinned,
)
from headstart.report.charts import Look, Row, Series
from headstart.report.records import Pretraining, Run


def pretraining_section(trained: Pretraining) -> Section:
    """The loss and the bits per byte of a language model, and what it is made of."""
    valid = tuple((float(step), scores["loss"]) for step, scores in trained.valid if "loss" in scores)
    series = [Series("train", Look(1), trained.loss, marked=False)] if trained.loss else []
    series += [Series("valid", Look(0), valid)] if valid else []
    result = trained.result
    facts = [f"Objective {result.objective or ''}, weights {result.weights or 'fresh'}"]
    facts += [] if result.steps is None else [f"{result.steps:,} steps"]
    facts += [] if result.tokens is None else [f"{result.tokens:,} tokens"]
    facts += [f"{trained.run.speed:,.0f} tokens a second"] if trained.run.speed else []
    blocks: list[Block] = [Words(", ".join(facts) + ".")]
    figures = []
    if series:
        figures.append(_by_step("Loss", "loss, nats a token", series))
    bits = tuple((float(step), s["bits_per_byte"]) for step, s in trained.valid if "bits_per_byte" in s)
    if bits:
        figures.append(_by_step("Bits per byte", "bits per byte on valid", [Series("valid", Look(0), bits)]))
    if figures:
        blocks.append(Gallery(tuple(figures)))
    names = list(dict.fromkeys(name for _, scores in trained.valid for name in scores))
    rows = tuple(
        (f"{step:,}", *(f"{scores[name]:,.4g}" if name in scores else "" for name in names))
        for step, scores in thinned(trained.valid)
    )
    if rows:
        head = (">step", *(f">{name.replace('_', ' ')}" for name in names))
        blocks.append(Table(head, rows, folded="On valid, by step"))
    if trained.loss:
        lost = tuple((f"{step:,.0f}", f"{loss:.4f}") for step, loss in thinned(trained.loss))
        blocks.append(Table((">up to step", ">mean loss"), lost, folded="Loss on train, by step"))
    if trained.run.parameters is not None:
        counted = trained.run.parameters
        blocks.append(parameter_table(counted, f"Parameters by block: {counted.total:,}"))
    settings = settings_table(trained.run)
    blocks += [Code(command("pretrain", f"{trained.run.path}/run.toml", f"{trained.run.path}-again")), settings]
    return Section(f"Pretraining: {trained.name}", tuple(blocks))


def _by_step(title: str, label: str, series: Sequence[Series]) -> Figure:
    steps = [step for s in series for step, _ in s.points]
    y = axis(label, [value for s in series for _, value in s.points])
    x = axis("step", [0.0, *steps], count=4, whole=True)
    return Figure(charts.lines(f"{title} by step", series, x, y), title)


def settings_table(run: Run) -> Table:
    rows = tuple((key, as_text(value)) for key, value in run.settings.items())
    return Table(("setting", "value"), rows, folded=f"Settings: {len(rows)}")


# --- parameters ---


def parameters(counts: Iterable[tuple[str, Count]]) -> Section | None:
    """A picture and a table for each model that differs in its numbers, under the names of all that share them."""
    names: dict[tuple[Any, ...], list[str]] = {}
    for name, counted in counts:
        names.setdefault(counted.blocks, []).append(name)
    blocks = [
        Beside(_parameter_figure(Count(parts), ", ".join(dict.fromkeys(shared))), (parameter_table(Count(parts)),))
        for parts, shared in names.items()
    ]
    return Section("Parameters by block", tuple(blocks)) if blocks else None


def _parameter_figure(counted: Count, name: str) -> Figure:
    blocks = [block for block in counted.blocks if not block.shared]
    scale, unit = (1e6, "million parameters") if counted.total >= 1e6 else (1e3, "thousand parameters")
    rows = [Row(block.name, Look(0), block.number / scale, f"{block.number:,}") for block in blocks]
    x = axis(unit, [0.0, *(row.value for row in rows)], count=4)
    return Figure(charts.bars(f"Parameters by block: {name}", rows, x), name)


def parameter_table(counted: Count, folded: str = "") -> Table:
    rows = [(b.name, "shared" if b.shared else f"{b.number:,}", b.formula, str(b.copies)) for b in counted.blocks]
    rows.append(("total", f"{counted.total:,}", "", ""))
    return Table(("block", ">parameters", "formula of each", ">×"), tuple(rows), folded=folded)
