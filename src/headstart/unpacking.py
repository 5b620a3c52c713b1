"""What a file may unpack to: a few hundred bytes can be made to hold gigabytes."""

from __future__ import annotations

from pathlib import Path

from headstart.errors import DataError
from headstart.wording import size

MAX_EXPANSION = 200  # times its size on the disk that a file may unpack to; text compresses to a third or a tenth
ALWAYS_ALLOWED = 1 << 26  # bytes that any file may unpack to


def expansion_limit(size_on_disk: int) -> int:
    """The most bytes that a file may unpack to.

    >>> expansion_limit(500), expansion_limit(10**9)
    (67108864, 200000000000)
    """
    return max(ALWAYS_ALLOWED, MAX_EXPANSION * size_on_disk)


def too_large(path: Path, limit: int) -> DataError:
    """The error for a file that unpacks to more than its limit."""
    problem = f"it unpacks to more than {size(limit)}, the most that a file of its size may hold"
    return DataError(path, problem, fix="if you trust it, unpack it and give its texts as they are")
