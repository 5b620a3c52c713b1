"""Memory on a CPU: what a step of training frees is kept for the next one.

glibc's malloc returns large blocks to the system as soon as they are freed. The next step fetches them anew, and the
system maps and zeroes every page again: the gradient of an embedding alone is 47 MB in MiniLM, every step.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

# Parameters of mallopt, as in glibc's malloc.h.
TRIM_THRESHOLD, MMAP_MAX = -1, -4
NEVER_TRIM, NO_MMAP = -1, 0
# What is set afterwards: glibc's default, and what its threshold for trimming grows to by itself at most.
DEFAULT_MMAP_MAX, USUAL_TRIM_THRESHOLD = 65536, 64 * 2**20


@contextmanager
def keep_freed_memory(device: torch.device) -> Iterator[None]:
    """A block in which freed memory stays with the process; at its end what is free goes back to the system.

    Only with glibc, and for training on a CPU: elsewhere the block does nothing.
    """
    libc = _glibc() if device.type == "cpu" else None
    if libc is None:
        yield
        return
    libc.mallopt(MMAP_MAX, NO_MMAP)
    libc.mallopt(TRIM_THRESHOLD, NEVER_TRIM)
    try:
        yield
    finally:
        libc.mallopt(MMAP_MAX, DEFAULT_MMAP_MAX)
        libc.mallopt(TRIM_THRESHOLD, USUAL_TRIM_THRESHOLD)
        libc.malloc_trim(0)


@cache
def _glibc() -> Any:
    """The C library where it is glibc; None on other systems, and with musl."""
    try:
        libc = ctypes.CDLL(None)
        return libc if hasattr(libc, "gnu_get_libc_version") and hasattr(libc, "mallopt") else None
    except (OSError, TypeError):  # TypeError: Windows
        return None
