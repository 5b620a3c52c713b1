"""A command that `torchrun` started in several processes: they meet, and one of them speaks for all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from headstart.errors import ConfigError


@contextmanager
def joined() -> Iterator[bool]:
    """With the others, where there are any; whether this process is the one that speaks and writes."""
    if not _several():  # most often: torch need not be loaded yet
        yield True
        return
    from headstart.training.distributed import joined as meet

    with meet() as team:
        yield team.first


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
