"""Does a run that is killed and resumed end as one that never stopped? The experiment, for a user's own recipe.

The run is made twice: once without interruption, once killed with SIGKILL as often as asked, after random steps, and
resumed each time, from one of twenty checkpoints. Then every loss and every weight is compared, bit for bit.
"""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headstart.errors import TrainingError
from headstart.runs.events import Step
from headstart.runs.run import RunFolder


@dataclass(frozen=True)
class ResumeCheck:
    steps: int
    kills: tuple[int, ...]  # after how many recorded steps the process was killed
    difference: str | None  # where the two first differ

    @property
    def identical(self) -> bool:
        return self.difference is None


def verify_resume(
    arguments: Sequence[str],
    work: Path,
    *,
    kills: int = 3,
    seed: int = 0,
    log: Callable[[str], None] = lambda text: None,
) -> ResumeCheck:
    """`arguments` is a study command without `--out`, such as `["finetune", "run.toml"]`; `work` is an empty folder."""
    uninterrupted, resumed = work / "straight", work / "broken"
    log("running it straight through")
    _finish(_start(arguments, uninterrupted))
    steps = len(_losses(uninterrupted))
    killed_after = tuple(sorted(random.Random(seed).sample(range(1, steps), min(kills, steps - 1))))
    saving = [*arguments, "--save-every", str(max(1, steps // 20))]
    for step in killed_after:
        log(f"killing it after step {step} of {steps}")
        kill_after(_start(saving, resumed), resumed, step)
    log("resuming to the end")
    _finish(_start(saving, resumed))
    return ResumeCheck(steps, killed_after, first_difference(uninterrupted, resumed))


def kill_after(process: subprocess.Popen[str], run: Path, steps: int) -> None:
    """Kill a run with SIGKILL once it has recorded so many steps; one that ends first is left to end."""
    try:
        while process.poll() is None and len(_losses(run)) < steps:
            time.sleep(0.005)
    finally:
        process.kill()
        process.communicate()


def first_difference(one: Path, other: Path) -> str | None:
    """Where two run folders first differ in their losses or weights; None where they don't."""
    a, b = _losses(one), _losses(other)
    for step, (x, y) in enumerate(zip(a, b, strict=False), start=1):
        if x != y:
            return f"step {step}: loss {x!r} against {y!r}"
    if len(a) != len(b):
        return f"{len(a)} steps against {len(b)}"
    weights = [hashlib.sha256((run / "model" / "model.safetensors").read_bytes()).hexdigest() for run in (one, other)]
    return None if weights[0] == weights[1] else "the losses agree, and the final weights differ"


def _losses(run: Path) -> list[float]:
    return [event.loss for event in RunFolder(run).events() if isinstance(event, Step)]


def _start(arguments: Sequence[str], out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headstart", *arguments, "--out", str(out), "--resume", "--quiet"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _finish(process: subprocess.Popen[str]) -> None:
    try:
        _, error = process.communicate()
    finally:
        process.kill()  # where this process is stopped, and the other knows nothing of it
    if process.returncode:
        raise TrainingError(f"the run itself failed: {error.strip()}")
