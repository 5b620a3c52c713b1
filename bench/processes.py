"""Weak scaling: twice the processes on twice the batch, each on one thread, against one; weights copied, and sharded.

    python -m bench processes

The lab's language model, 4 × 256 tokens a step for each process, over gloo. The first loss of two processes is compared
with that of one on the same batch before anything is timed.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

from bench.report import report
from bench.training import Given, lab_batches
from headstart.config import NextTokenConfig
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.runs.events import Step
from headstart.training.loop import Loop
from headstart.training.objectives import Causal
from headstart.training.parallel import process_group
from headstart.training.settings import TrainingSettings

ROWS, LENGTH = 4, 256  # of each process
STEPS, REPEATS = 4, 3
KINDS = {"1 process": (1, False), "2 processes": (2, False), "2 processes, split": (2, True)}


def work(out: Path, batch: int, steps: int, shard: bool) -> None:
    """What each process does: train on a batch for so many times `ROWS`; the first writes its loss and tokens/s."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Model.build(preset("lab"), NextTokenConfig())
    flat, _ = lab_batches(model.config.vocabulary, batch * ROWS, LENGTH, count=1)
    with process_group() as parallel:
        settings = TrainingSettings(
            steps=steps + 1,
            lr=1e-4,
            save_every=10**9,
            evaluate_every=10**9,
            shard=shard,
            accumulate=batch // parallel.world_size,
        )
        losses, began = [], 0.0
        for event in Loop(model, Causal(), Given(flat), settings, parallel=parallel).run():
            if isinstance(event, Step):
                losses.append(event.loss)
                began = began or time.perf_counter()  # the first step is for warming up
        seconds = time.perf_counter() - began
        if parallel.is_main:
            tokens = steps * batch * ROWS * LENGTH / seconds
            out.write_text(json.dumps({"loss": losses[0], "tokens": tokens}), encoding="utf-8")


def start(processes: int, batch: int, steps: int, *, shard: bool = False) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        arguments = [str(out), str(batch), str(steps), str(int(shard))]
        subprocess.run([*launcher, "-m", "bench.processes", *arguments], check=True, capture_output=True)
        result: dict[str, float] = json.loads(out.read_text(encoding="utf-8"))
        return result


def main() -> None:
    first = start(1, batch=2, steps=0)["loss"]
    figures: dict[str, list[float]] = {name: [] for name in KINDS}
    for _ in range(REPEATS):
        for name, (processes, shard) in KINDS.items():
            result = start(processes, processes, STEPS, shard=shard)
            if processes == 2 and not math.isclose(result["loss"], first, rel_tol=1e-5):
                raise SystemExit(f"{name}: the first loss is {result['loss']}, and {first} in one process")
            figures[name].append(result["tokens"])
    row = {f"{name}, tokens/s": median(values) for name, values in figures.items()}
    one = median(figures["1 process"])
    row |= {f"share of twice one, {name}": median(figures[name]) / (2 * one) for name in KINDS if name != "1 process"}
    report("processes", {"first loss": first, **row})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), shard=bool(int(sys.argv[4])))
    else:
        main()
