"""A command that `torchrun` started in several processes: they meet, and one of them speaks for all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from headstart.errors import ConfigError
from headstart.parallel import SINGLE, Parallel


@contextmanager
def joined() -> Iterator[Parallel]:
    """The processes that torchrun started, as a parallel context; one process where it did not."""
    if not _several():  # most often: torch need not be loaded yet
        yield SINGLE
        return
    from headstart.training.parallel import process_group

    with process_group() as parallel:
        yield parallel


def cores() -> int | None:
    """How many cores this process may use, where several of a host share them; None where it is alone."""
    if not _several():
        return None
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, here // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def refuse_streams(*names: str) -> None:
    """Standard input and output belong to one process."""
    if _several() and "-" in names:
        raise ConfigError("torchrun", ["standard input and output belong to one process: name files"])


def _several() -> bool:
    """torchrun sets all of these; a job scheduler may set one of them and start a single process."""
    return {"RANK", "MASTER_ADDR"} <= os.environ.keys() and int(os.environ.get("WORLD_SIZE", "1")) > 1


def who() -> str:
    """The name that an error is printed under."""
    rank = os.environ.get("RANK", "0")
    return "headstart" if rank == "0" else f"headstart (rank {rank})"
