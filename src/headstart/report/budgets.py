"""What the page says about label budgets: accuracy by number of labels, and what labels are worth."""

from __future__ import annotations

from headstart.report import charts
from headstart.report.blocks import Beside, Figure, Section, Table, Words, estimate
from headstart.report.looks import looks_of, mean_series
from headstart.report.records import Study
from headstart.runs.comparison import Estimate, WorthResult
from headstart.studies.labels_saved import label_worth


def budget_figure(study: Study) -> Figure:
    curves: dict[str, dict[float, Estimate]] = {name: {} for name in looks_of(study)}
    for arm in sorted(study.comparison.curves, key=lambda arm: arm.budget):
        curves[arm.name][arm.budget] = arm.scores["accuracy"]
    series = [mean_series(name, look, curves[name]) for name, look in looks_of(study).items() if curves[name]]
    values = [value for s in series for _, low, high in s.band for value in (low, high)]
    x = charts.log_axis("labelled texts to learn from", [budget for s in series for budget, _ in s.points])
    svg = charts.lines("Accuracy by number of labels", series, x, charts.axis(f"accuracy on {study.split}", values))
    caption = "Mean over the runs, with its 95 % interval as a band. A doubling of the labels is as long everywhere."
    return Figure(svg, caption)


def budgets(study: Study) -> Section | None:
    comparison = study.comparison
    if not comparison.curves:
        return None
    names = list(looks_of(study))
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
    return Section("Label budgets", (Beside(budget_figure(study), tuple(words)), *tables))


def _labels(worth: WorthResult) -> str:
    if worth.low is None:
        return "not known"
    return f"more than {worth.low:,.0f}" if worth.beyond else f"{worth.low:,.0f}"
