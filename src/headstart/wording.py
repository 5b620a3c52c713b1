"""Words that messages in every room need."""

from __future__ import annotations


def plural(count: int, noun: str) -> str:
    """
    >>> plural(1, "run"), plural(1200, "run")
    ('1 run', '1,200 runs')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


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
