"""What the page says about the answers of the arms: confusion, the surest mistakes, reliability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headstart.report import charts
from headstart.report.blocks import Figure, Gallery, Mistakes, Section, Table, Words
from headstart.report.charts import Look
from headstart.report.records import Study

MOST_CLASSES = 12  # that a matrix is drawn for


def confusion(study: Study) -> Section | None:
    labels = study.comparison.class_names
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


def mistakes(study: Study) -> Section | None:
    if not study.mistakes:
        return None
    words = (
        f"The wrong answers that the first run of {study.best}, the arm that is best on valid, was surest of. Where "
        "the answer looks right to you, look at the label."
    )
    return Section("The most confident mistakes", (Words(words), Mistakes(study.mistakes)))


def reliability(study: Study, looks: Mapping[str, Look]) -> Section | None:
    least = 0.5 if len(study.comparison.class_names) == 2 else 0.0
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
