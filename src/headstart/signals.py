"""SIGTERM, which schedulers, containers and `kill` send, ends a command as Ctrl-C does: nothing unfinished is left."""

from __future__ import annotations

import os
import signal
from typing import Any


class Terminated(KeyboardInterrupt):
    """A SIGTERM came; unlike Ctrl-C in a terminal, perhaps to this process alone."""


def interrupt_on_sigterm() -> None:
    """Raise `Terminated` at a SIGTERM, instead of ending on the spot; at a second one, end on the spot.

    Under torchrun, which sends it twice and kills whoever is too slow, the second one is ignored.
    """
    second = signal.SIG_IGN if "TORCHELASTIC_RUN_ID" in os.environ else signal.SIG_DFL

    def interrupt(number: int, frame: Any) -> None:
        signal.signal(number, second)
        raise Terminated

    signal.signal(signal.SIGTERM, interrupt)
