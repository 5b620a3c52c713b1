"""Several processes, one run. `torchrun` starts them; each takes its micro-batches of every batch.

    torchrun --nproc-per-node 2 -m headstart finetune …

Which examples a step sees depends on the seed alone. Each loss is divided by the count of the whole batch, so the
gradients of micro-batches are summed, and a run is the same however many processes it has. How the weights lie in the
processes is in `sharding.py`.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from headstart.errors import ConfigError, TrainingError
from headstart.parallel import Parallel, timeout
from headstart.wording import reason

T = TypeVar("T")

CONNECTION_WORDS = ("gloo", "Gloo", "NCCL", "Connection", "Timed out", "timeout")  # in errors about other processes


@dataclass(frozen=True)
class ProcessGroup(Parallel):
    """The parallel context of processes that have met: torch.distributed's default group."""

    def barrier(self) -> None:
        dist.barrier()

    def broadcast(self, value: T) -> T:
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def gather(self, value: T) -> list[T]:
        values: list[T] = [value] * self.world_size if self.is_main else []
        dist.gather_object(value, values if self.is_main else None, dst=0)
        return values

    def all_reduce(self, tensor: T) -> T:
        dist.all_reduce(tensor)
        return tensor

    def require_same(self, what: str, value: Any) -> None:
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        ranks = ", ".join(str(rank) for rank, other in enumerate(values) if other != values[0])
        if ranks:
            raise ConfigError("torchrun", [f"rank {ranks} has other {what} than rank 0: start all with the same"])


@contextmanager
def process_group() -> Iterator[ProcessGroup]:
    """Join the processes that torchrun started, and leave them at the end."""
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    seconds = timeout()
    limit = timedelta(seconds=seconds)
    address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    problem = f"the processes of this run did not all meet at {address} within {seconds:g} s"
    remedy = "start all of them, with an address that each can reach"
    try:
        store, rank, size = next(rendezvous("env://", timeout=limit))
        store = PrefixStore(_fresh_prefix(store, rank, size, seconds), store)
        dist.init_process_group("nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=size, timeout=limit)
        problem = f"a process of this run is gone, or was silent for {seconds:g} s"
        remedy = (
            "start it again; training goes on from its newest checkpoint with --resume, a store from its last chunk"
        )
        yield ProcessGroup(rank, size)
    except RuntimeError as error:
        # torch has a class for some of what gloo and NCCL raise about the other processes.
        why = reason(error)[:200]
        if not (isinstance(error, dist.DistError) or any(word in why for word in CONNECTION_WORDS)):
            raise
        raise TrainingError(f"{problem} ({why}): {remedy}") from None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
            _let_go(sys.exception())


def _let_go(error: BaseException | None) -> None:
    """Drop what still refers to the process group, so that its threads end now.

    DDP and the training loop refer to it, in cycles, and so do the frames of an error. A thread of gloo that is left
    when the interpreter exits may free a tensor then, for which it needs the GIL; Python ends such a thread within
    C++, which aborts the process: SIGABRT, "terminate called without an active exception".
    """
    if error is not None:
        traceback.clear_frames(error.__traceback__)
    gc.collect()


def _fresh_prefix(store: Any, rank: int, size: int, seconds: float) -> str:
    """A prefix for the store's keys that all processes of this start share and no earlier start had.

    When torchrun restarts processes, the store still holds what the ones before wrote, such as the addresses at which
    they listened; whoever takes such an address for a new one waits for a dead process. So nobody trusts an answer that
    does not repeat a token that it made up itself: each process sends its token to rank 0, which sends it back together
    with its own token. That of rank 0 is the prefix.

        rank r → 0   "token r"       = its token
        0 → rank r   "answer r"      = its token, and the prefix
        rank r → 0   "confirmed r"   = the prefix
    """
    token, deadline = uuid.uuid4().hex, time.monotonic() + seconds

    def read(key: str) -> str:
        value: bytes = store.get(key) if store.check([key]) else b""
        return value.decode()

    prefix, missing = token, set(range(1, size)) if rank == 0 else {0}
    while True:
        if rank == 0:
            for other in missing:
                store.set(f"answer {other}", f"{read(f'token {other}')} {token}")
            missing = {other for other in missing if read(f"confirmed {other}") != token}
        else:
            store.set(f"token {rank}", token)
            answered, _, prefix = read(f"answer {rank}").partition(" ")
            if answered == token:
                store.set(f"confirmed {rank}", prefix)
                missing = set()
        if not missing:
            return prefix
        if time.monotonic() > deadline:
            raise dist.DistStoreError(f"rank {', '.join(map(str, sorted(missing)))} did not come")
        time.sleep(0.01)
