"""Where two arms differ: class by class, the share of its texts that each recognises (recall)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headstart.runs.comparison import ALPHA, Estimate
from headstart.studies.corrections import holm, holm_levels
from headstart.studies.statistics import ArmPredictions, difference


@dataclass(frozen=True)
class ClassDifference:
    """One arm minus another on the test texts of one class."""

    class_name: str
    rows: int
    one: float  # recall of the first
    other: float
    difference: Estimate  # its interval excludes zero where the corrected p is below 0.05
    holm: float  # p, corrected for the number of classes


def class_differences(
    one: ArmPredictions, other: ArmPredictions, class_names: Sequence[str]
) -> tuple[ClassDifference, ...]:
    """For each class that test has a text of. The p-values are corrected by Holm over the classes."""
    classes = [k for k in range(len(class_names)) if (one.labels == k).any()]
    parts = [tuple(arm.without(np.flatnonzero(arm.labels != k)) for arm in (one, other)) for k in classes]
    differences = [difference(first, second) for first, second in parts]
    ps = [each.p for each in differences]
    at_levels = [replace(each, level=level) for each, level in zip(differences, holm_levels(ps, ALPHA), strict=True)]
    return tuple(
        ClassDifference(
            class_name=class_names[k],
            rows=len(first.labels),
            one=float(first.contributions[0].mean()),
            other=float(second.contributions[0].mean()),
            difference=each.scores["accuracy"],
            holm=p,
        )
        for k, (first, second), each, p in zip(classes, parts, at_levels, holm(ps), strict=True)
    )
