"""Worker processes that share a study, forked from a server that has torch imported already.

This module does not import torch itself: the server is started before a command does that, and both do it at once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headstart.errors import HeadstartError, TrainingError
from headstart.signals import Terminated, interrupt_on_sigterm
from headstart.studies.gpu_sharing import can_share

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, SpawnContext
    from multiprocessing.queues import SimpleQueue

PRELOAD = "headstart.studies.preload"
INTERRUPTS = {signal.SIGINT, signal.SIGTERM}
LONGEST = 2000  # characters of an error: those of all workers fit into a pipe that nobody reads until they have ended


def default_jobs(device: str) -> int:
    """Two processes with half of the cores each train faster on a CPU than one with all of them.

    On a GPU eight, where there are cores for them and their kernels run side by side, else three: small models leave
    most of it idle.
    """
    import torch

    cores = os.cpu_count() or 1
    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    if on_gpu:
        return max(1, min(8, cores // 2) if can_share() else min(3, cores // 4))
    return min(2, cores)


def start_fork_server() -> ForkServerContext | SpawnContext:
    """A server that imports what workers need, while this process does the same and reads the data, and forks them.

    Where there is none, as on Windows, each worker imports for itself, which takes seconds.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    from multiprocessing import forkserver, resource_tracker

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOAD])
    resource_tracker.ensure_running()  # the server would start it, and it sets a signal mask of its own
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)  # these are for the workers, and not for the server
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return context


class WorkerFailure(TrainingError):
    """A worker that was killed, or ended in an error that is not ours; the others may have done its share."""


def run_workers(
    work: Callable[..., None], arguments: tuple[Any, ...], count: int, environment: Mapping[str, str] | None = None
) -> None:
    """So many processes that do the same work, until all have ended; `environment` is added to theirs."""
    threads = max(1, (os.cpu_count() or 1) // count)
    context = start_fork_server()
    errors = context.SimpleQueue()
    given = (work, arguments, threads, environment or {}, errors)
    workers = [context.Process(target=_run_worker, args=given) for _ in range(count)]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    except KeyboardInterrupt as interrupt:  # they save their checkpoints first
        alive = {worker.pid: worker for worker in workers if worker.pid is not None and worker.is_alive()}
        # A second SIGTERM, where it was sent to all, would stop them at once. But a script starts what is to run in the
        # background with SIGINT ignored, and so are they.
        number = signal.SIGTERM if signal.getsignal(signal.SIGINT) == signal.SIG_IGN else signal.SIGINT
        for pid in alive if isinstance(interrupt, Terminated) else ():  # Ctrl-C reaches them too
            os.kill(pid, number)
        for worker in alive.values():
            worker.join()
        raise
    if not errors.empty():
        raise TrainingError(f"{errors.get()}. What is done is kept: the same command goes on from there")
    failed = [worker for worker in workers if worker.exitcode]
    if failed:
        raise WorkerFailure(f"{len(failed)} of {len(workers)} processes ended early (exit code {failed[0].exitcode})")


def _run_worker(
    work: Callable[..., None],
    arguments: tuple[Any, ...],
    threads: int,
    environment: Mapping[str, str],
    errors: SimpleQueue[Any],
) -> None:
    os.environ.update(environment)  # before CUDA is asked for anything
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(threads)
    # scikit-learn's too: threads of several processes that wait for each other in a loop take many times as long.
    threadpool_limits(threads)
    try:
        interrupt_on_sigterm()
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)
        work(*arguments)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except HeadstartError as error:
        errors.put(str(error)[:LONGEST])
        raise SystemExit(error.exit_code) from None
