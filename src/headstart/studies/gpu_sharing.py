"""NVIDIA's Multi-Process Service (MPS): kernels of several processes run on a GPU at the same time and not in turns.

A service of our own, in a folder of its own, for as long as the workers of a study run. Where one is running already,
it is used; where there is none, or it does not work here, processes take turns, as they do without it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
FOLDER, LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
DEFAULT_FOLDER = Path("/tmp/nvidia-mps")  # of a service that an administrator started
Sharing = Callable[[], Mapping[str, str]]  # waits for the service, and gives the environment of its processes
SECONDS = 20.0  # to start, to try and to end it

# A context on the first GPU, by the driver alone: torch would take seconds to import.
TRIAL = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
device = ctypes.c_int()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
"""


def can_share() -> bool:
    """Whether this machine has the service."""
    return shutil.which(CONTROL) is not None


@contextmanager
def shared_gpu() -> Iterator[Mapping[str, str]]:
    """The environment in which processes share a GPU; empty where it is as it is."""
    if not can_share() or FOLDER in os.environ or DEFAULT_FOLDER.exists():
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="headstart-mps-", ignore_cleanup_errors=True) as folder:
        names = {FOLDER: folder, LOG: folder}
        if not _run([CONTROL, "-d"], names):
            yield {}
            return
        try:
            yield names if _run([sys.executable, "-c", TRIAL], names) else {}
        finally:
            _run([CONTROL], names, "quit\n")


@contextmanager
def starting_to_share(*, wanted: bool) -> Iterator[Sharing]:
    """The same, started in a thread of its own while other things are done: it takes seconds.

    Yields a function that waits for it and gives the environment.
    """
    with ExitStack() as stack, ThreadPoolExecutor(1) as thread:
        started = thread.submit(stack.enter_context, shared_gpu()) if wanted else None
        yield lambda: {} if started is None else started.result()


def _run(command: list[str], names: Mapping[str, str], text: str = "") -> bool:
    """Whether a command ended well, with these names in its environment."""
    environment = {**os.environ, **names}
    try:
        ended = subprocess.run(command, env=environment, input=text, text=True, capture_output=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ended.returncode == 0
