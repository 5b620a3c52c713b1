"""manifest.json: what a run ran on, what it took, and which data it saw."""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from headstart.redaction import redacted_arguments
from headstart.version import __version__


@dataclass(frozen=True)
class Manifest:
    """What a run did not record, because it has none of it or an earlier headstart wrote it, is None or empty."""

    headstart: str | None = None
    python: str | None = None
    torch: str | None = None
    numpy: str | None = None
    platform: str | None = None
    processor: str | None = None
    cores: int | None = None
    gpu: str | None = None
    finished: str | None = None
    command: Sequence[str] = ()
    seconds: float | None = None
    peak_memory: Mapping[str, int] = field(default_factory=dict)  # bytes: resident, gpu
    data: Mapping[str, str] = field(default_factory=dict)  # a digest of each split or file
    tokenizer: str | None = None  # its fingerprint
    parameters: Mapping[str, int] = field(default_factory=dict)  # total, trainable
    tokens: int | None = None
    flops: float | None = None
    precision: str | None = None
    compiled: bool | None = None  # whether its layers were; None where nobody tried
    format: int = 1

    @classmethod
    def now(cls, *, torch: str, gpu: str | None, gpu_memory: int | None, **measured: Any) -> Manifest:
        """The versions, the hardware and the peak memory of this process, beside what the run measured."""
        memory = {"resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
        return cls(
            headstart=__version__,
            python=platform.python_version(),
            torch=torch,
            numpy=np.__version__,
            platform=platform.platform(),
            processor=_processor(),
            cores=os.cpu_count(),
            gpu=gpu,
            finished=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            command=redacted_arguments(sys.argv),
            peak_memory=memory if gpu_memory is None else {**memory, "gpu": gpu_memory},
            **measured,
        )

    def to_json(self) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if value is not None and value != {}}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Manifest:
        return cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values})


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
