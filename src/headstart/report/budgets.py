"""What the page says about label budgets: accuracy by number of labels, and what labels are worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headstart.report import charts
from headstart.report.axes import axis, log_axis
from headstart.report.blocks import Figure, Section, Table, Words, estimate
from headstart.report.looks import looks_of, mean_series
from headstart.report.records import Study
from headstart.runs.comparison import Estimate
from headstart.studies.labels_saved import label_worth
from headstart.studies.settings import ENOUGH_STEPS


def budget_figure(study: Study) -> Figure:
    curves: dict[str, dict[float, Estimate]] = {name: {} for name in looks_of(study)}
    for arm in sorted(study.comparison.curves, key=lambda arm: arm.budget):
        if arm.name in curves:  # time may have been up before it was trained on all labels
            curves[arm.name][arm.budget] = arm.scores["accuracy"]
    series = [mean_series(name, look, curves[name]) for name, look in looks_of(study).items() if curves[name]]
    values = [value for s in series for _, low, high in s.band for value in (low, high)]
    x = log_axis("labelled texts to learn from", [budget for s in series for budget, _ in s.points])
    svg = charts.lines("Accuracy by number of labels", series, x, axis(f"accuracy on {study.split}", values))
    caption = "Mean over the runs, with its 95 % interval as a band; the axis of labels is logarithmic."
    return Figure(svg, caption)


def budgets(study: Study) -> Section | None:
    """The numbers of the figure at the top of the page, and what labels are worth."""
    comparison = study.comparison
    if not comparison.curves:
        return None
    names = list(looks_of(study))
    scores = {(arm.name, arm.budget): arm.scores["accuracy"] for arm in comparison.curves}
    budgets = sorted({budget for _, budget in scores})
    rows = tuple((f"{n:,}", *(estimate(scores.get((name, n))) for name in names)) for n in budgets)
    about = "The same study on fewer labelled texts: nested subsets, with the classes as even as possible."
    table = Table((">labels", *(f">{name}" for name in names)), rows, "Accuracy by number of labels")
    # With the most labels of both, it is the difference that stands below.
    worth = [each for each in comparison.worth if not each.beyond or each.low != each.budget]
    worths = " ".join(f"{label_worth(each, each.arm, each.reference)}." for each in worth)
    return Section(
        "Label budgets", (Words(about + _steps(study.settings)), table, *([Words(worths)] if worths else []))
    )


def _steps(settings: Mapping[str, Any]) -> str:
    """How long networks are trained on few labels; nothing where they have the epochs of the largest budget."""
    least = settings.get("least_steps")
    if (
        settings["study"] != "compare"
        or least == 0
        or (least is None and ("steps" in settings or "tokens" in settings))
    ):
        return ""
    many = f"at least {least:,}" if least else f"as many as with the most labels, up to {ENOUGH_STEPS}"
    return f" Networks pass over few texts more often, so that they are trained for enough steps: {many}."
