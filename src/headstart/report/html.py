"""What every page of ours begins with: templates that escape what is put into them, and text that a page can hold."""

from __future__ import annotations

import unicodedata

from jinja2 import Environment, PackageLoader, StrictUndefined


def environment() -> Environment:
    """The templates of this room. Texts and labels are whatever someone wrote, so everything is escaped."""
    templates = Environment(
        loader=PackageLoader("headstart.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["printable"] = printable
    return templates


def printable(text: str) -> str:
    """As many characters, without those that command a terminal or that HTML has no place for.

    >>> printable("a\\x1b[31m\\nb") == "a\\ufffd[31m\\nb"
    True
    """
    return "".join("\ufffd" if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t" else c for c in text)
