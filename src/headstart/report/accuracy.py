"""What the page says about accuracy: by epoch, on test, seed by seed, and beside what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from headstart.report import charts
from headstart.report.axes import axis, decade_axis, interval_axis
from headstart.report.blocks import METRICS, Beside, Block, Figure, Section, Table, Words, estimate, thinned
from headstart.report.charts import Row, Series
from headstart.report.looks import looks_of, mean_series
from headstart.report.records import Run, Study, mean_and_range
from headstart.runs.comparison import ArmResult, Estimate, valid_accuracy
from headstart.wording import two_digits

COSTS = {"pretraining": "pretraining, s", "seconds": "training, s", "milliseconds": "ms a text", "megabytes": "MB"}


def by_epoch(study: Study) -> Section | None:
    looks = looks_of(study)
    curves = {arm.result.name: _mean_curve(arm.runs) for arm in study.arms}
    curves = {name: curve for name, curve in curves.items() if curve}
    if len({epoch for curve in curves.values() for epoch in curve}) < 2:  # scored at the end alone
        return None
    first = min(min(curve) for curve in curves.values())
    last = max(max(curve) for curve in curves.values())
    lowest = min(mean.low for curve in curves.values() for mean in curve.values())
    series = [mean_series(name, looks[name], curve) for name, curve in curves.items()]
    for arm in study.comparison.arms:
        value = valid_accuracy(arm)
        if not arm.trained and value >= lowest - 0.05:  # further down it would press the lines together
            series.append(Series(arm.name, looks[arm.name], ((first, value), (last, value)), marked=False))
    values = [value for s in series for _, value in s.points]
    values += [value for s in series for _, low, high in s.band for value in (low, high)]
    x = axis("epoch", [first, last], whole=last - first >= 2)
    x = replace(x, low=first, ticks=tuple(tick for tick in x.ticks if tick >= first))  # no empty stretch before it
    svg = charts.lines("Accuracy on valid by epoch", series, x, axis("accuracy on valid", values))
    epochs = sorted({epoch for curve in curves.values() for epoch in curve})
    rows = tuple((f"{e:.4g}", *(estimate(curve.get(e)) for curve in curves.values())) for e in thinned(epochs))
    head = (">epoch", *(f">{name}" for name in curves))
    table = Table(head, rows, folded="The numbers: mean, lowest to highest seed")
    words = "How well each arm does on valid while it trains. Test is not looked at."
    if "best" in _kept(study):
        words = words.replace("Test", "What is kept of a run is chosen here; test")
    words += " Each line is the mean over seeds; its band runs from the lowest seed to the highest."
    if len(series) > len(curves):
        words += " A baseline has no epochs: its line is level."
    return Section("Accuracy by epoch", (Beside(Figure(svg), (Words(words), table)),))


def _kept(study: Study) -> set[str]:
    """Which weights of a run its scores are of, where it trained: `best`, `last`, or by arm the one or the other."""
    return {str(run.settings.get("weights", "best")) for arm in study.arms for run in arm.runs if run.curve}


def _mean_curve(runs: Iterable[Run]) -> dict[float, Estimate]:
    """By epoch: mean, lowest and highest, over the runs that were evaluated then."""
    values: dict[float, list[float]] = {}
    for run in runs:
        for epoch, value in run.curve:
            values.setdefault(epoch, []).append(value)
    return {epoch: mean_and_range(each) for epoch, each in sorted(values.items())}


def final_figure(study: Study) -> Figure:
    looks = looks_of(study)
    estimates = {arm.name: arm.scores["accuracy"] for arm in _ranked(study)}
    rows = [Row(name, looks[name], e.value, f"{e.value:.3f}", e.low, e.high) for name, e in estimates.items()]
    x = interval_axis(f"accuracy on {study.split}", estimates.values())
    svg = charts.dots(f"Accuracy on {study.split} of each arm", rows, x)
    spread = "95 % interval" if study.intervals else "range of the seeds"
    return Figure(svg, f"Mean over the runs, with its {spread}.")


def _ranked(study: Study) -> list[ArmResult]:
    return sorted(study.comparison.arms, key=lambda arm: -arm.scores["accuracy"].value)


def final(study: Study) -> Section:
    """Every arm on test with what it costs, then seed by seed."""
    comparison = study.comparison
    arms = _ranked(study)
    tables = [_score_table(arms, lambda arm: arm.scores, "")]
    if any(arm.leak_free for arm in arms):
        caption = f"Without the {comparison.leaked:,} test texts that also stand in train or valid"
        tables.append(_score_table(arms, lambda arm: arm.leak_free or {}, caption))
    seeds = _seeds_table(study, arms)
    words, cost = Words(_about_scores(study)), _cost_figure(study)
    by_seed: tuple[Block, ...] = (seeds,) if seeds else ()
    if not comparison.curves:  # every arm's accuracy is at the top of the page already
        return Section("Final accuracy", (Beside(cost or final_figure(study), (words,)), *tables, *by_seed))
    first = Beside(final_figure(study), (words,))
    if cost is not None:
        by_seed = (Beside(cost, (seeds,)),) if seeds else (cost,)
    return Section("Final accuracy", (first, *tables, *by_seed))


def _about_scores(study: Study) -> str:
    kept = {"best": "with the weights that were best on valid", "last": "with the weights of its last step"}
    words = (
        f"Scores on {', '.join([study.split, 'once for each run', *(kept[each] for each in sorted(_kept(study)))])}. "
    )
    if not study.intervals:
        return words + "With these runs there are no intervals: the ranges are from the lowest seed to the highest."
    scaled = ", after temperature scaling on valid" if study.comparison.title else ""  # older comparisons did without
    words += (
        "The 95 % intervals allow for both: which seeds were drawn, and which texts the test set happens to hold. "
        "Macro-F1 counts every class alike; the calibration error is how far confidence is from accuracy"
    )
    words = f"{words}{scaled}."
    if any(_has_cost(arm) for arm in study.comparison.arms):
        words += (
            " Training is the time of one run, its settings being known; the time of a text is that of test, in "
            "batches; MB are of the model in float32."
        )
    if any(arm.cost.pretraining is not None for arm in study.comparison.arms):
        words += " Pretraining is the time in which the base was made of the pile of text, once for all runs."
    return words


def _has_cost(arm: ArmResult) -> bool:
    return any(value is not None for value in vars(arm.cost).values())


def _cost_figure(study: Study) -> Figure | None:
    """Accuracy by the time to train, but for the most frequent label, which would press the others together."""
    looks = looks_of(study)
    timed = {arm.name: (arm.cost.seconds, arm.scores["accuracy"].value) for arm in study.comparison.arms}
    points = {name: (seconds, value) for name, (seconds, value) in timed.items() if seconds and name != "majority"}
    if len(points) < 2:
        return None
    series = [Series(name, looks[name], (point,)) for name, point in points.items()]
    x = decade_axis("seconds to train", [seconds for seconds, _ in points.values()])
    y = axis(f"accuracy on {study.split}", [value for _, value in points.values()])
    return Figure(
        charts.lines("Accuracy by time to train", series, x, y), "Accuracy beside the time of one training run."
    )


def _seeds_table(study: Study, arms: Sequence[ArmResult]) -> Table | None:
    """The accuracy of every run, arm by seed; None where every arm has a single run."""
    seeds = sorted({run.seed for arm in arms if len(arm.runs) > 1 for run in arm.runs})
    if not seeds:
        return None
    rows = []
    for arm in arms:
        scores = {run.seed: run.test.get("accuracy") for run in arm.runs}
        if len(arm.runs) > 1:
            rows.append((arm.name, *("" if (s := scores.get(seed)) is None else f"{s:.4f}" for seed in seeds)))
    head = ("arm", *(f">seed {seed}" for seed in seeds))
    return Table(head, tuple(rows), f"Accuracy on {study.split}, seed by seed")


def _score_table(
    arms: Sequence[ArmResult], scores: Callable[[ArmResult], Mapping[str, Estimate]], caption: str
) -> Table:
    """Scores with intervals; without a caption it is the first table, which has runs and costs too."""
    metrics = [metric for metric in METRICS if any(metric in scores(arm) for arm in arms)]
    costs = [] if caption else [name for name in COSTS if any(getattr(arm.cost, name) is not None for arm in arms)]
    rows = []
    for arm in arms:
        degenerate = [run.degenerate for run in arm.runs if run.degenerate]
        last = f"{len(degenerate)}: {', '.join(dict.fromkeys(degenerate))}" if degenerate else "none"
        cells = [estimate(scores(arm).get(metric)) for metric in metrics]
        taken = [getattr(arm.cost, name) for name in costs]
        cells += ["" if value is None else two_digits(value) for value in taken]
        rows.append((arm.name, *cells, *(() if caption else (str(len(arm.runs)), last))))
    columns = [*(METRICS[metric] for metric in metrics), *(COSTS[name] for name in costs)]
    head = ("arm", *(f">{column}" for column in columns), *(() if caption else (">runs", "degenerate")))
    return Table(head, tuple(rows), caption)
