"""Does a run that is killed and resumed end as one that never stopped? The experiment, for a user's own recipe.

The run is made twice in processes of their own: once straight through, once killed with SIGKILL as often as asked, at
steps drawn at random, and resumed each time; it saves twenty times, so that there is something to go on from. Then
every loss and every weight is compared, bit for bit.
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
class Verdict:
    identical: bool
    steps: int
    kills: tuple[int, ...]  # after how many recorded steps the process was killed
    difference: str | None  # where the two first differ


def verify_resume(
    arguments: Sequence[str],
    work: Path,
    *,
    kills: int = 3,
    seed: int = 0,
    log: Callable[[str], None] = lambda text: None,
) -> Verdict:
    """`arguments` is a study command without `--out`, such as `["finetune", "run.toml"]`; `work` is an empty folder."""
    straight, broken = work / "straight", work / "broken"
    log("running it straight through")
    _finish(_start(arguments, straight))
    steps = len(_losses(straight))
    draw = random.Random(seed)
    chosen = tuple(sorted(draw.sample(range(1, steps), min(kills, steps - 1))))
    saving = [*arguments, "--save-every", str(max(1, steps // 20))]
    for number in chosen:
        log(f"killing it after step {number} of {steps}")
        kill_after(_start(saving, broken), broken, number)
    log("resuming to the end")
    _finish(_start(saving, broken))
    return Verdict((difference := compare(straight, broken)) is None, steps, chosen, difference)


def kill_after(process: subprocess.Popen[str], run: Path, steps: int) -> None:
    """Kill a run with SIGKILL once it has recorded so many steps; one that ends first is left to end."""
    while process.poll() is None and len(_losses(run)) < steps:
        time.sleep(0.005)
    process.kill()
    process.communicate()


def compare(one: Path, other: Path) -> str | None:
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
    if not (run / "events.jsonl").is_file():
        return []
    return [event.loss for event in RunFolder(run).events() if isinstance(event, Step)]


def _start(arguments: Sequence[str], out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headstart", *arguments, "--out", str(out), "--resume", "--quiet"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _finish(process: subprocess.Popen[str]) -> None:
    _, error = process.communicate()
    if process.returncode:
        raise TrainingError(f"the run itself failed: {error.strip()}")
