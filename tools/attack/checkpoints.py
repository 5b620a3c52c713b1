"""An attack on runs in progress: files of a stopped run damaged at random, then the run is resumed.

It must be refused, or go on and end with the weights of a run that never stopped, bit for bit.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

from attack.cases import Outcome, WrongAnswer, judge, run_cases
from attack.mutations import mutate_bytes, mutate_json, mutate_lines, mutate_safetensors
from attack.world import finetune_settings, make_world
from headstart.runs.events import Event, Step
from headstart.studies.finetune import finetune

STOPPED = 8  # the step after which the run is stopped: there are checkpoints of steps 3 and 6
MUTATIONS = {".json": mutate_json, ".safetensors": mutate_safetensors, ".jsonl": mutate_lines, ".toml": mutate_lines}


def run(cases: int, seed: int) -> list[Outcome]:
    return run_cases("checkpoints", cases, seed)


class _Stop(BaseException):
    pass


def prepare(folder: Path) -> None:
    """A run that was stopped, and the same run without a stop."""

    def stop(event: Event) -> None:
        if isinstance(event, Step) and event.step == STOPPED:
            raise _Stop

    make_world(folder)
    try:
        finetune(finetune_settings(folder), folder / "stopped", on_event=stop)
    except _Stop:
        return
    raise AssertionError(f"the run has fewer than {STOPPED} steps")


def attack(folder: Path, number: int, draw: random.Random) -> Outcome:
    with tempfile.TemporaryDirectory() as name:
        damaged = Path(name) / "run"
        shutil.copytree(folder / "stopped", damaged)
        files = sorted(path for path in damaged.rglob("*") if path.suffix in MUTATIONS)
        changed = []
        for path in draw.sample(files, k=draw.choice((1, 1, 2, 3))):
            mutation = draw.choice((MUTATIONS[path.suffix], mutate_bytes))
            if draw.random() < 0.1:
                path.unlink()
            else:
                path.write_bytes(mutation(draw, path.read_bytes()))
            changed.append(str(path.relative_to(damaged)))
        return judge(f"case {number}: {', '.join(changed)}", lambda: _resume(folder, damaged))


def _resume(folder: Path, damaged: Path) -> str:
    finetune(finetune_settings(folder), damaged, resume=True)
    files = ("model/model.safetensors", "predictions.parquet")
    other = [file for file in files if (damaged / file).read_bytes() != (folder / "run" / file).read_bytes()]
    if other:
        raise WrongAnswer(f"it went on, and ended with other bytes in {', '.join(other)}")
    return "the same in the end"
