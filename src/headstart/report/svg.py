"""Elements of a vector graphic, and how much room their text takes."""

from __future__ import annotations

import unicodedata

from markupsafe import Markup

TEXT = 10.5  # the height of text
LONGEST = 120.0  # that a name may be; the rest is cut


def width_of(text: str) -> float:
    """About how wide a text is; rather too much than too little.

    >>> round(width_of("scratch"), 1)
    43.4
    """
    return TEXT * sum(1.0 if unicodedata.east_asian_width(c) in "WF" else 0.7 if c.isupper() else 0.59 for c in text)


def cut(text: str, room: float = LONGEST) -> str:
    """A text that fits, with its rest left out where it doesn't.

    >>> cut("full:a-base-with-a-long-name")
    'full:a-base-with-a…'
    """
    if width_of(text) <= room:
        return text
    kept = next(k for k in range(len(text), -1, -1) if k == 0 or width_of(text[:k] + "…") <= room)
    return text[:kept].rstrip() + "…"


def tag(name: str, *inside: str, **attributes: str | float) -> Markup:
    """An element; what is not markup already is escaped, and an empty attribute left out.

    >>> tag("text", "a < b", x=1.0, text_anchor="end")
    Markup('<text x="1" text-anchor="end">a &lt; b</text>')
    """
    written = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), value if isinstance(value, str) else px(value))
        for key, value in attributes.items()
        if value != ""
    )
    return Markup("<{}{}>{}</{}>").format(Markup(name), written, Markup("").join(inside), Markup(name))


def px(value: float) -> str:
    """A coordinate to a tenth of a pixel, as it is written."""
    return f"{round(value, 1) + 0.0:g}"  # -0.0 + 0.0 is 0.0
