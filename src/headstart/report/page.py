"""The page: one HTML file that needs nothing beside itself.

Texts and labels come from whoever wrote the data, so everything that is put into the page is escaped, and the page runs
no script. The same records give the same bytes: there is no clock here, no random name, and no path but those recorded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from headstart import __version__
from headstart.report import sections
from headstart.report.records import LONGEST, Records
from headstart.report.sections import Figure, Section

SHOWN = 320  # characters of a text before the rest is folded away


@dataclass(frozen=True)
class Part:
    """A study, or what is left when there is none: its headline, its main figure, its sections."""

    kicker: str
    headline: str
    verdict: tuple[str, ...]
    figure: Figure | None
    sections: tuple[tuple[str, Section], ...]  # each with the name that a link finds it by


def render(records: Records) -> str:
    """The page as text."""
    parts = _parts(records)
    title = parts[0].headline if len(parts) == 1 else "headstart report"
    return _templates().get_template("page.html").render(parts=parts, title=title, version=__version__)


def _parts(records: Records) -> list[Part]:
    parts = []
    pretraining = [sections.of_pretraining(found) for found in records.pretraining]
    for number, study in enumerate(records.studies):
        found = sections.of_study(study)
        if number == 0:  # a pretraining stands before the parameters, once
            at = next((k for k, section in enumerate(found) if section.title == "Parameters by block"), len(found))
            found[at:at] = pretraining
        verdict = study.comparison.verdict or (f"{study.name}: {sections.summary(study)}.",)
        kicker = f"{study.name} · {sections.summary(study)}"
        named = tuple((f"{_slug(section.title)}-{number + 1}", section) for section in found)
        parts.append(Part(kicker, verdict[0], verdict[1:], sections.main_figure(study), named))
    if not records.studies:
        names = ", ".join(found.name for found in records.pretraining)
        counted = ((found.name, found.run.parameters) for found in records.pretraining)
        section = sections.parameters((name, count) for name, count in counted if count is not None)
        pretraining += [] if section is None else [section]
        named = tuple((f"{_slug(section.title)}-{k}", section) for k, section in enumerate(pretraining))
        parts.append(Part("pretraining", f"Pretraining: {names}", (), None, named))
    return parts


def _slug(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower()).strip("-")


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("headstart.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"printable": _printable, "halves": _halves, "tidy": _tidy}
    made.globals["LONGEST"] = LONGEST
    return made


def _tidy(text: str) -> str:
    """A sentence in which no line ends between a number and its percent sign."""
    return text.replace(" %", "\u00a0%")


def _printable(text: str) -> str:
    """A text without the control characters that HTML has no place for."""
    return "".join(c if c.isprintable() or c.isspace() else "\ufffd" for c in text)


def _halves(text: str) -> tuple[str, str]:
    """What is shown of a text, and the rest, parted at a space where there is one near.

    >>> _halves("short"), [len(half) for half in _halves("word " * 100)]
    (('short', ''), [319, 181])
    """
    if len(text) <= SHOWN:
        return text, ""
    at = text.rfind(" ", SHOWN - 40, SHOWN)
    at = SHOWN if at < 0 else at
    return text[:at], text[at:]
