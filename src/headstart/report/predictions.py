"""What the page says about the predictions of the arms: confusion, the most confident mistakes, reliability."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.report import charts
from headstart.report.blocks import Figure, Gallery, Mistakes, Section, Table, Words
from headstart.report.looks import looks_of
from headstart.report.records import Arm, Study

MOST_CLASSES = 12  # that a matrix is drawn for


def _telling(study: Study) -> list[Arm]:
    """Without the most frequent label, which is always the same answer; unless there is nothing else."""
    return [arm for arm in study.arms if arm.result.name != "majority"] or list(study.arms)


def confusion(study: Study) -> Section | None:
    class_names = study.comparison.class_names
    matrices = {arm.result.name: arm.confusion for arm in _telling(study) if arm.confusion is not None}
    if not matrices:
        return None
    words = f"What each class of {study.split} was taken for, over all runs of an arm, in percent of the true class."
    if len(class_names) > MOST_CLASSES:
        tables = [_most_frequent(name, counts, class_names) for name, counts in matrices.items()]
        words += f" With {len(class_names)} classes: the commonest confusions."
        return Section("Confusion", (Words(words), *tables))
    figures = tuple(
        Figure(
            charts.matrix(f"Confusion of {name}", class_names, counts),
            name,
            Table(
                ("true", *(f">{label}" for label in class_names)),
                tuple((label, *(f"{n:,}" for n in row)) for label, row in zip(class_names, counts, strict=True)),
                folded="Counts",
            ),
        )
        for name, counts in matrices.items()
    )
    return Section("Confusion", (Words(words), Gallery(figures, small=True)))


def _most_frequent(name: str, counts: Sequence[Sequence[int]], class_names: Sequence[str], most: int = 15) -> Table:
    pairs = [(n, i, j, sum(row)) for i, row in enumerate(counts) for j, n in enumerate(row) if n and i != j]
    pairs.sort(key=lambda pair: (-pair[0], pair[1], pair[2]))
    rows = tuple(
        (class_names[i], class_names[j], f"{n:,}", f"{100 * n / total:.1f} %") for n, i, j, total in pairs[:most]
    )
    return Table(("true", "taken for", ">times", ">of the class"), rows, name)


def mistakes(study: Study) -> Section | None:
    if not study.mistakes:
        return None
    words = (
        f"The wrong answers that the first run of {study.best}, the arm that is best on valid, was surest of. Where "
        "the answer looks right to you, look at the label."
    )
    return Section("The most confident mistakes", (Words(words), Mistakes(study.mistakes)))


def reliability(study: Study) -> Section | None:
    looks = looks_of(study)
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
        for arm in _telling(study)
        if arm.bins
    )
    if not figures:
        return None
    words = (
        f"How often an answer on {study.split} is right, by how sure the model was of it. On the dashed diagonal the "
        "two agree; below it the model is too sure of itself. A dot’s area is its share of the answers. Confidence is "
        "after temperature scaling, with the temperature that fits valid."
    )
    return Section("Reliability", (Words(words), Gallery(figures, small=True)))
