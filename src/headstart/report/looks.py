"""The look of each arm, the same in every figure of the page."""

from __future__ import annotations

from collections.abc import Mapping

from headstart.report.charts import Look, Series
from headstart.report.records import Study
from headstart.runs.comparison import Estimate

USUAL = {"full": 0, "scratch": 1, "frozen": 2}  # the look of the first arm of each mode


def looks_of(study: Study) -> dict[str, Look]:
    """A look for each arm, the same in every figure; and in every study, for the first arm of each mode."""
    looks: dict[str, Look] = {}
    free = list(range(len(study.arms) + len(USUAL)))
    for arm in (each.result for each in study.arms):
        if not arm.trained:
            looks[arm.name] = Look(sum(look.neutral for look in looks.values()), neutral=True)
        else:
            later = [number for number in free if number >= len(USUAL)]
            number = USUAL[arm.mode] if USUAL.get(arm.mode) in free else later[0]
            free.remove(number)
            looks[arm.name] = Look(number)
    return looks


def mean_series(name: str, look: Look, curve: Mapping[float, Estimate]) -> Series:
    """A line of means with the intervals around it as a band."""
    points = tuple((x, each.value) for x, each in curve.items())
    return Series(name, look, points, tuple((x, each.low, each.high) for x, each in curve.items()))
