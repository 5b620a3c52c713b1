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


def end_on_signals() -> None:
    """From here on, a SIGINT or SIGTERM ends the process on the spot, as it is about to end anyhow.

    An exception that is raised while the interpreter exits is printed with its traceback.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        if callable(signal.getsignal(number)):  # one that is ignored remains so
            signal.signal(number, signal.SIG_DFL)
