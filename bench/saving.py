"""What saving costs the training that goes on meanwhile: the lab's language model, with and without checkpoints.

Both sides train the same steps, in turns; the difference, over the steps between two checkpoints, is the stall.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch

from bench.report import report
from headstart.batches.batch import Batch
from headstart.config import NextTokenConfig
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.runs.events import Saved, Step
from headstart.training.loop import Loop
from headstart.training.objectives import Causal
from headstart.training.run_checkpoint import CheckpointWriter
from headstart.training.settings import TrainingSettings

TOKENS, WINDOW, STEPS, REPEATS = 2048, 256, 12, 3
RHYTHM = 100  # steps between checkpoints in a run that saves often


class RandomBatches:
    """The same random tokens every step."""

    def __init__(self, vocabulary: int) -> None:
        ids = torch.from_numpy(np.random.default_rng(0).integers(vocabulary, size=TOKENS))
        starts = torch.arange(0, TOKENS + 1, WINDOW, dtype=torch.int32)
        self.only = Batch(ids=ids, starts=starts, longest=WINDOW, targets=ids.roll(-1))

    def steps(self, epoch: int) -> int:
        return STEPS

    def batch(self, epoch: int, step: int) -> Batch:
        return self.only


def run(save_every: int | None) -> float:
    """Seconds for all steps but the first, up to when the last checkpoint is on the disk."""
    model = Model.build(preset("lab"), NextTokenConfig())
    settings = TrainingSettings(steps=STEPS, save_every=save_every or 10**9, lr=1e-4)
    loop = Loop(model, Causal(), RandomBatches(model.config.vocabulary), settings)
    began = 0.0
    with tempfile.TemporaryDirectory() as folder:
        writer = CheckpointWriter(Path(folder), keep=2)
        for event in loop.run():
            if isinstance(event, Step) and event.step == 1:
                began = time.perf_counter()
            if isinstance(event, Saved) and save_every is not None:
                writer.save(event.state)
        seconds = time.perf_counter() - began
        writer.wait()
    return seconds


def main() -> None:
    run(None)  # warm-up
    pairs = [(run(None), run(4)) for _ in range(REPEATS)]
    without, with_saves = (median(side) for side in zip(*pairs, strict=True))
    step = without / (STEPS - 1)
    stall = (with_saves - without) / (STEPS // 4)
    row = {
        "parameters": 21_018_401,
        "step, s": step,
        "stall a checkpoint, s": stall,
        f"share of time, every {RHYTHM} steps": stall / (RHYTHM * step),
        "goal": 0.02,
    }
    report("saving", row)


if __name__ == "__main__":
    main()
