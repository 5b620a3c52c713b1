"""The page: one HTML file that needs nothing beside itself.

Texts and labels come from whoever wrote the data, so everything that is put into the page is escaped, and the page runs
no script. The same records give the same bytes: there is no clock here, no random name, and no path but those recorded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment
from markupsafe import Markup

from headstart.files import write_text
from headstart.report import pretraining, sections, sweep
from headstart.report.answers import LONGEST
from headstart.report.blocks import Figure, Section
from headstart.report.html import environment
from headstart.report.records import Records, read
from headstart.studies.verdict import LONGEST_TITLE
from headstart.studies.words import shortened
from headstart.version import __version__
from headstart.wording import parts_of

BEFORE = ("Parameters by block", "Settings", "To run it again")  # a pretraining stands before the first of these
SHOWN = 320  # characters of a text before the rest is folded away


@dataclass(frozen=True)
class Part:
    """A study, or what is left when there is none: its headline, its main figure, its sections."""

    kicker: str
    headline: str
    verdict: tuple[str, ...]
    figure: Figure | None
    sections: tuple[tuple[str, Section], ...]  # each with the name that a link finds it by


def write_report(folders: Sequence[str | Path], out: str | Path) -> None:
    """The page of some study and run folders, as a file."""
    write_text(out, render(read([Path(folder) for folder in folders])))


def render(records: Records) -> str:
    """The page as text."""
    parts = _parts(records)
    title = parts[0].headline if len(parts) == 1 else "headstart report"
    return _templates().get_template("page.html").render(parts=parts, title=title, version=__version__)


def _parts(records: Records) -> list[Part]:
    parts: list[tuple[str, tuple[str, ...], Figure | None, list[Section]]] = []
    for study in records.studies:
        comparison = study.comparison
        verdict = (sections.headline(study), *comparison.verdict, *comparison.notes)
        kicker = f"{study.name} · {sections.summary(study)}"
        parts.append((kicker, verdict, sections.main_figure(study), sections.study_sections(study)))
    for trials in records.sweeps:
        verdict = (sweep.headline(trials), *sweep.verdict(trials))
        kicker = f"{trials.name} · {sweep.summary(trials)}"
        parts.append((kicker, verdict, sweep.main_figure(trials), sweep.sweep_sections(trials)))
    pretrained = [pretraining.pretraining_section(run) for run in records.pretraining]
    if parts:  # it is pretrained once
        first = parts[0][-1]
        at = next(k for k, section in enumerate(first) if section.title in BEFORE)
        first[at:at] = pretrained
    else:
        names = ", ".join(run.name for run in records.pretraining)
        counted = ((each.name, each.run.parameters) for each in records.pretraining)
        section = pretraining.parameters((name, count) for name, count in counted if count is not None)
        pretrained += [] if section is None else [section]
        parts.append(("pretraining", (shortened(f"Pretraining: {names}", LONGEST_TITLE),), None, pretrained))
    return [
        Part(kicker, verdict[0], verdict[1:], figure, tuple(zip(_names(contents, number), contents, strict=True)))
        for number, (kicker, verdict, figure, contents) in enumerate(parts, start=1)
    ]


def _names(contents: Sequence[Section], number: int) -> list[str]:
    """A name for each section of a part that no other has, though two bases may be called the same."""
    slugs = [re.sub(r"\W+", "-", section.title.lower()).strip("-") for section in contents]
    return [f"{slug}-{number}" + f"-{k}" * (slug in slugs[:k]) for k, slug in enumerate(slugs)]


@cache
def _templates() -> Environment:
    templates = environment()
    templates.filters |= {"folded": _folded, "tidy": _tidy, "ended": _ended, "emphasised": _emphasised}
    templates.globals["LONGEST"] = LONGEST
    return templates


def _tidy(text: str) -> str:
    """A sentence in which no line ends between a number and its percent sign, and a minus is as long as a plus.

    >>> _tidy("-0.6 points (-3.1 to 1.9), lr 1e-05").replace("\u2212", "MINUS ")
    'MINUS 0.6 points (MINUS 3.1 to 1.9), lr 1e-05'
    """
    return re.sub(r"(?<![^\s(\[])-(?=\d)", "\u2212", text.replace(" %", "\u00a0%"))


def _emphasised(text: str) -> Markup:
    """A paragraph of a verdict, with what is emphasised in `<strong>`; all else is escaped.

    >>> _emphasised("**Use <b>.** It is")
    Markup('<strong>Use &lt;b&gt;.</strong> It is')
    """
    return Markup("").join(
        Markup("<strong>{}</strong>").format(part) if strong else part for part, strong in parts_of(text)
    )


def _ended(text: str) -> str:
    """
    >>> _ended("leave them out of train"), _ended("is that meant?")
    ('leave them out of train.', 'is that meant?')
    """
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _folded(text: str) -> tuple[str, str]:
    """What is shown of a text, and the rest, parted at a space where there is one near.

    >>> _folded("short"), [len(part) for part in _folded("word " * 100)]
    (('short', ''), [319, 181])
    """
    if len(text) <= SHOWN:
        return text, ""
    at = text.rfind(" ", SHOWN - 40, SHOWN)
    at = SHOWN if at < 0 else at
    return text[:at], text[at:]
