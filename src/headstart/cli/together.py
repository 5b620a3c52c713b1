"""A command that `torchrun` started in several processes: they meet, and one of them speaks for all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from headstart.errors import ConfigError
from headstart.parallel import Alone, Sharing


@contextmanager
def joined() -> Iterator[bool]:
    """With the others, where there are any; whether this process is the one that speaks and writes."""
    if not _several():  # most often: torch need not be loaded yet
        yield True
        return
    from headstart.training.distributed import joined as meet

    with meet() as team:
        yield team.first


@contextmanager
def sharing() -> Iterator[Sharing]:
    """The others, where there are any, as what the work on a text is shared with."""
    with joined():
        if not _several():
            yield Alone()
            return
        from headstart.training.distributed import team

        yield team()


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
