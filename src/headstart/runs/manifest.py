"""manifest.json: what a run ran on, and what it took."""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from headstart.version import __version__


def surroundings(torch: str, gpu: str | None, gpu_memory: int | None) -> dict[str, Any]:
    """Versions and hardware, and the peak memory of this process since `reset_peak_memory`."""
    manifest: dict[str, Any] = {
        "format": 1,
        "headstart": __version__,
        "python": platform.python_version(),
        "torch": torch,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": sys.argv,
        "peak_memory": {"resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024},
    }
    if gpu is not None:
        manifest["gpu"] = gpu
        manifest["peak_memory"]["gpu"] = gpu_memory
    return manifest


def reset_peak_memory() -> None:
    """So that each of several runs in one process has a peak of its own (on Linux)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
