"""Importing torch without the garbage collector."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heavy_imports() -> Iterator[None]:
    """Around the imports of a command that needs torch: no garbage is collected meanwhile.

    They create hundreds of thousands of objects that stay, and the collector would go through all of them again and
    again: a fifth of the time of the import. From then on it leaves them alone.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
