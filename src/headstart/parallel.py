"""The parallel context: which of several processes this is, and how they talk to one another.

It is passed to whatever can share its work. This one is a process by itself; `headstart.training.parallel` has the one
of processes that `torchrun` started, which needs torch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, TypeVar

from headstart.errors import ConfigError, shown

T = TypeVar("T")

TIMEOUT, LONGEST = 120.0, 1e6  # seconds; HEADSTART_TIMEOUT changes the first


@dataclass(frozen=True)
class Parallel:
    """One process of `world_size`. Its methods are collectives: every process must call them, in the same order."""

    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process prints and writes for all."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until every process is here."""

    def broadcast(self, value: T) -> T:
        """The value that the main process has."""
        return value

    def gather(self, value: T) -> list[T]:
        """In the main process the value of each, by rank; nothing in the others."""
        return [value]

    def all_reduce(self, tensor: T) -> T:
        """The sum of every process's tensor, in place."""
        return tensor

    def require_same(self, what: str, value: Any) -> None:
        """A ConfigError in every process where they do not all have the same value."""


SINGLE = Parallel()


def timeout() -> float:
    """Seconds that a process waits for the others."""
    given = os.environ.get("HEADSTART_TIMEOUT", str(TIMEOUT))
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= LONGEST:
        problem = f"{shown(given)} is no time to wait: give seconds, more than 0 and at most {LONGEST:,.0f}"
        raise ConfigError("HEADSTART_TIMEOUT", [problem])
    return seconds


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
