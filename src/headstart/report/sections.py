"""What the page says about a study, section by section: words, figures and tables, made of the records alone.

A section that has nothing to show is None. Every number in a figure stands in a table beside it or under it.
"""

from __future__ import annotations

from collections.abc import Callable

from headstart.report.accuracy import by_epoch, final, final_figure
from headstart.report.blocks import Figure, Section
from headstart.report.budgets import budget_figure, budgets
from headstart.report.differences import by_class, differences
from headstart.report.predictions import confusion, mistakes, reliability
from headstart.report.recipe import doctor, rerun, settings
from headstart.report.records import Study
from headstart.report.resources import parameters_section, time_and_memory
from headstart.report.tuning import tuning
from headstart.studies.verdict import LONGEST_TITLE
from headstart.studies.words import shortened
from headstart.wording import plural


def main_figure(study: Study) -> Figure:
    """The label-budget curve where there is one, else every arm's final accuracy."""
    return budget_figure(study) if study.comparison.curves else final_figure(study)


def headline(study: Study) -> str:
    """The verdict in a line; of an older comparison, which has none, what was compared."""
    return study.comparison.title or shortened(f"{study.name}: {summary(study)}", LONGEST_TITLE)


def summary(study: Study) -> str:
    """What was compared, in a line."""
    comparison = study.comparison
    runs = sum(len(arm.runs) for arm in (comparison.curves or comparison.arms))
    texts = f"{comparison.rows:,} test texts, " if comparison.rows else ""
    return f"{texts}{len(comparison.class_names)} classes, {plural(len(comparison.arms), 'arm')}, {plural(runs, 'run')}"


def study_sections(study: Study) -> list[Section]:
    """Every section that this study has something for, in the order of the page."""
    makers: list[Callable[[Study], Section | None]] = [
        budgets,  # their curve is at the top of the page
        final,
        differences,
        by_class,
        tuning,
        by_epoch,
        confusion,
        mistakes,
        reliability,
        parameters_section,
        time_and_memory,
        doctor,
        settings,
        rerun,
    ]
    return [section for section in (maker(study) for maker in makers) if section is not None]
