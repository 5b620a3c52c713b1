"""Words that messages in every room need."""

from __future__ import annotations

from collections.abc import Sequence


def plural(count: int, noun: str) -> str:
    """
    >>> plural(1, "run"), plural(1200, "run")
    ('1 run', '1,200 runs')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(items: Sequence[str]) -> str:
    """
    >>> listed(["a", "b", "c"]), listed(["a"])
    ('a, b and c', 'a')
    """
    return " and ".join(filter(None, [", ".join(items[:-1]), items[-1]]))


def reason(error: BaseException) -> str:
    """The first line of what the system or a library says went wrong."""
    message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return message.strip().partition("\n")[0] or type(error).__name__


def size(number: int) -> str:
    """Bytes in the largest unit that fits.

    >>> size(900), size(84073604)
    ('900 B', '80.2 MiB')
    """
    power = min(max(number.bit_length() - 1, 0) // 10, 3)
    return f"{number / 1024**power:.1f} {('KiB', 'MiB', 'GiB')[power - 1]}" if power else f"{number} B"


def two_digits(value: float) -> str:
    """A quantity that need not be exact: whole from ten on, and two digits below.

    >>> two_digits(1234.5), two_digits(45.2), two_digits(3.04), two_digits(0.0312), two_digits(0.0)
    ('1,234', '45', '3', '0.031', '<0.001')
    """
    if value < 0.001:
        return "<0.001"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


STRONG = "**"  # around what is to be emphasised


def parts_of(text: str) -> list[tuple[str, bool]]:
    """A sentence in parts, each with whether it is emphasised.

    >>> parts_of("**Use the linear model.** It is as good.")
    [('Use the linear model.', True), (' It is as good.', False)]
    """
    return [(part, k % 2 == 1) for k, part in enumerate(text.split(STRONG)) if part]


def plain_text(text: str) -> str:
    """The same without marks of emphasis.

    >>> plain_text("**Use the linear model.** It is as good.")
    'Use the linear model. It is as good.'
    """
    return text.replace(STRONG, "")
