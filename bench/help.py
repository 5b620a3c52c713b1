"""CPU time of `headstart --help`, and of what it avoids."""

from __future__ import annotations

import resource
import subprocess
import sys
from statistics import median

from bench.report import report


def cpu(*command: str) -> float:
    """CPU seconds of one command, the children's clock read before and after."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    pairs = [(cpu("-m", "headstart", "--help"), cpu("-c", "import torch")) for _ in range(5)]
    ours, torch = (median(side) for side in zip(*pairs, strict=True))
    report("help", {"headstart --help, CPU s": ours, "import torch, CPU s": torch, "goal, CPU s": 0.3})


if __name__ == "__main__":
    main()
