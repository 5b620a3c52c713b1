"""Module hooks that are safe while other threads use the same model."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any


def this_thread_only(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that acts only in the thread that made it: in another, the model may be computing a prediction."""
    thread = get_ident()
    return lambda *arguments: hook(*arguments) if get_ident() == thread else None
