"""What the page says about a sweep: every trial with its scores, and which of them is best on valid."""

from __future__ import annotations

from dataclasses import replace

from headstart.report import charts
from headstart.report.axes import axis, setting_axis
from headstart.report.blocks import (
    Aside,
    Cell,
    Figure,
    Gallery,
    Section,
    Table,
    Words,
    distinct_values,
    memory_unit,
    setting_name,
    setting_value,
    three_digits,
)
from headstart.report.charts import Point
from headstart.report.recipe import provenance, rerun_study, shared_settings
from headstart.report.records import SweepStudy
from headstart.runs.sweep import Sweep, Trial
from headstart.wording import listed, plural


def summary(study: SweepStudy) -> str:
    """What was tried, in a line."""
    sweep = study.sweep
    kind = "grid of" if sweep.kind == "grid" else "search over"
    return f"{kind} {listed([setting_name(name) for name in sweep.swept])}, {plural(len(sweep.trials), 'trial')}"


def headline(study: SweepStudy) -> str:
    """The best trial and its scores."""
    best = study.sweep.best
    if best is None or best.valid is None:
        return "No trial has a score on valid"
    scores = f"accuracy {best.valid['accuracy']:.3f}"
    scores += f", and {best.test['accuracy']:.3f} on test" if best.test else ""
    return f"Best on valid is trial {1 + study.sweep.trials.index(best)} of {len(study.sweep.trials)}: {scores}"


def verdict(study: SweepStudy) -> tuple[str, ...]:
    """The settings of the best trial, how far its scores can be trusted, and what became of them all."""
    sweep = study.sweep
    done = sum(trial.valid is not None for trial in sweep.trials)
    sentences = []
    if sweep.best is not None and sweep.best.valid is not None:
        named = [f"{setting_name(name)} {setting_value(sweep.best.settings[name])}" for name in sweep.swept]
        sentences.append(f"**The best trial has {listed(named)}.**")
    if sweep.best is not None and done > 1:
        test = "the score on test had no part in the choice" if sweep.best.test else "there is no test beside it"
        sentences.append(f"It was chosen as the highest of {done} on valid, so its score there flatters it; {test}.")
    if sweep.significance is not None:
        sentences.append(f"{sweep.significance} Another seed would move each of them too.")
    ends = {
        "done": done,
        "failed": sum(trial.error is not None for trial in sweep.trials),
        "pruned": sum(trial.pruned is not None for trial in sweep.trials),
    }
    ends["not done yet"] = len(sweep.trials) - sum(ends.values())
    if done < len(sweep.trials):
        counts = ", ".join(f"{count} {how}" for how, count in ends.items() if count)
        sentences.append(f"{plural(len(sweep.trials), 'trial')}: {counts}.")
    return tuple(sentences)


def main_figure(study: SweepStudy) -> Figure | None:
    """Accuracy on valid against the setting that was swept; where there are several, trial by trial."""
    sweep = study.sweep
    if not any(trial.valid for trial in sweep.trials):
        return None
    numeric = [name for name in sweep.swept if _is_numeric(sweep, name)]
    return _figure(sweep, numeric[0] if len(sweep.swept) == len(numeric) == 1 else None)


def sweep_sections(study: SweepStudy) -> list[Section]:
    """The sections of a sweep, in the order of the page."""
    sweep = study.sweep
    sections = [Section("Trials", (_trials_table(sweep),))]
    numeric = [name for name in sweep.swept if _is_numeric(sweep, name)]
    if len(sweep.swept) > 1 and numeric and any(trial.valid for trial in sweep.trials):
        words = "The same trials against each setting whose values are numbers; the other settings vary beside it."
        figures = tuple(replace(_figure(sweep, name), caption=setting_name(name).capitalize()) for name in numeric)
        sections.append(Section("Setting by setting", (Words(words), Gallery(figures))))
    keys = dict.fromkeys(key for run in study.runs for key in run)
    same = {
        key: distinct_values([study.runs[0].get(key)])
        for key in keys
        if key not in sweep.swept and all(run.get(key) == study.runs[0].get(key) for run in study.runs)
    }
    if same:
        sections.append(
            Section("Settings", (Words("What was swept is in the table of trials."), shared_settings(same, "trial")))
        )
    commands = rerun_study("sweep", study.path, study.settings)
    return [*sections, Section("To run it again", (*commands, *provenance(study.manifests, study.data)))]


# --- figures ---


def _is_numeric(sweep: Sweep, name: str) -> bool:
    return all(type(trial.settings.get(name)) in (int, float) for trial in sweep.trials)


def _figure(sweep: Sweep, name: str | None) -> Figure:
    """Every trial against a setting, or in their order."""
    points, unscored, best = [], [], None
    for number, trial in enumerate(sweep.trials, start=1):
        x = float(number if name is None else trial.settings[name])
        where = "" if name is None else f" at {setting_value(trial.settings[name])}"
        if trial.valid is None:
            unscored.append(Point(x, 0.0, f"trial {number}{where}: {_end(trial)}"))
            continue
        title = f"trial {number}{where}: {trial.valid['accuracy']:.4f}"
        points.append(Point(x, trial.valid["accuracy"], title, f"best: {number}" if trial.best else ""))
        best = points[-1] if trial.best else best
    every_x = [point.x for point in (*points, *unscored)]
    if name is None:
        x_axis, title = axis("trial", every_x, whole=True), "Accuracy on valid, trial by trial"
    else:
        x_axis, title = setting_axis(setting_name(name), every_x), f"Accuracy on valid by {setting_name(name)}"
    y_axis = axis("accuracy on valid", [point.y for point in points])
    caption = "A dot a trial; the square is the best."
    caption += " A cross on the axis is a trial without a score." if unscored else ""
    return Figure(charts.scatter(title, points, best, unscored, x_axis, y_axis), caption)


# --- the table ---


def _trials_table(sweep: Sweep) -> Table:
    """One row a trial: what was swept, what came of it, the usual settings, and what it cost."""
    usual = [name for name in sweep.settings if name not in sweep.swept]
    scale, unit = memory_unit(trial.memory for trial in sweep.trials if trial.memory is not None)
    rows = tuple(
        (
            f"{number} best" if trial.best else str(number),
            *(setting_value(trial.settings[name]) for name in sweep.swept),
            *("–" if scores is None else f"{scores['accuracy']:.4f}" for scores in (trial.valid, trial.test)),
            *(setting_value(trial.settings.get(name, "")) for name in usual),
            three_digits(trial.seconds),
            three_digits(None if trial.memory is None else trial.memory / scale),
            _ended(trial),
        )
        for number, trial in enumerate(sweep.trials, start=1)
    )
    swept, rest = ([_heading(sweep, name) for name in names] for names in (sweep.swept, usual))
    head = ("trial", *swept, ">valid", ">test", *rest, ">seconds", f">memory, {unit}", "~ended")
    caption = "Accuracy on valid and on test; the best is chosen on valid"
    return Table(head, rows, caption)


def _heading(sweep: Sweep, name: str) -> str:
    return f"{'>' if _is_numeric(sweep, name) else ''}{setting_name(name)}"


def _ended(trial: Trial) -> Cell:
    return Aside("failed", trial.error) if trial.error else _end(trial)


def _end(trial: Trial) -> str:
    """How a trial ended, in few words."""
    if trial.error:
        return "failed"
    if trial.pruned is not None:
        return f"pruned at epoch {trial.pruned}"
    return "done" if trial.valid else "not done yet"
