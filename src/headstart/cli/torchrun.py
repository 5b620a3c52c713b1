"""A command that `torchrun` started in several processes: one of them prints and writes for all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from headstart.errors import ConfigError, shown
from headstart.parallel import SINGLE, Parallel, cores


@contextmanager
def process_group() -> Iterator[Parallel]:
    """Join the other processes for the length of a command, where torchrun started any."""
    if not _several():  # most often: torch need not be loaded yet
        yield SINGLE
        return
    from headstart.training import parallel

    with parallel.process_group() as group:
        yield group


def cores_per_process() -> int | None:
    """How many cores this process may use, where several of a host share them; None where it has them all."""
    if not _several():
        return None
    return max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def require_files(*names: str) -> None:
    """Refuse standard input and output, which belong to one process."""
    if _several() and "-" in names:
        raise ConfigError("torchrun", ["standard input and output belong to one process: name files"])


def program_name() -> str:
    """The name that an error is printed under."""
    rank = os.environ.get("RANK", "0")
    return "headstart" if rank == "0" else f"headstart (rank {rank})"


def _several() -> bool:
    """torchrun sets all of these; a job scheduler may set one of them and start a single process."""
    if not {"RANK", "MASTER_ADDR"} <= os.environ.keys():
        return False
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT")
    odd = [name for name in names if not os.environ.get(name, "1").isdecimal()]
    if odd:
        problems = [f"the variable {name} is {shown(os.environ[name])}, and must be a whole number" for name in odd]
        raise ConfigError("torchrun", problems)
    return int(os.environ.get("WORLD_SIZE", "1")) > 1
