"""How the cost of a step grows: with the length of the windows, the width of the model, its vocabulary and the batch,
and with as many tokens in shorter documents.

One thing is doubled at a time, the rest stays as in the middle row. `share` is the part of what the device's own matrix
product reaches that the step's arithmetic comes to (6 times the weights that multiply, and the attention, a token).
The last figures are the parts of a step that are a batch's way to the device, and the optimizer's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from bench.report import report
from bench.training import DEVICE, lab_batches, ours
from headstart.config import NextTokenConfig
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.training.objectives import Causal
from headstart.training.optim import build_optimizer
from headstart.training.settings import OptimizerSettings

MIDDLE = (
    {"length": 256, "width": 256, "vocabulary": 32_000, "batch": 64}
    if DEVICE.type == "cuda"
    else {"length": 128, "width": 128, "vocabulary": 8_000, "batch": 8}
)
WARM, STEPS = (6, 12) if DEVICE.type == "cuda" else (1, 3)


def seconds(run: Callable[[], Any], repeats: int) -> float:
    took = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        took.append(time.perf_counter() - began)
    return median(took)


def peak() -> float:
    """FLOP a second of one large product, in the precision that training multiplies in."""
    size = 8192 if DEVICE.type == "cuda" else 2048
    a = torch.ones(size, size, device=DEVICE, dtype=torch.bfloat16 if DEVICE.type == "cuda" else torch.float32)
    seconds(lambda: a @ a, 3)
    return 2 * size**3 / seconds(lambda: a @ a, 5)


def built(length: int, width: int, vocabulary: int, batch: int) -> tuple[Any, Any, float]:
    """A model, batches for it, and the FLOP of a step."""
    sizes = {"vocabulary": vocabulary, "width": width, "heads": width // 64, "feed_forward": 4 * width}
    config = preset("lab", **sizes, layers=4, window=length)
    model = Model.build(config, NextTokenConfig())
    flat, _ = lab_batches(vocabulary, batch, length, count=2)
    layers = 4 * (4 * width**2 + 8 * width**2)
    attention = 4 * 2 * length * width / 2  # the square mask halves it
    return model, flat, 6 * batch * length * (layers + vocabulary * width + attention)


def step(**changes: int) -> dict[str, float]:
    sizes = MIDDLE | changes
    model, flat, flop = built(**sizes)
    side = ours(model, Causal(), flat, compile="no")  # thirteen sizes, and each would be compiled anew
    side.run(WARM)
    took = seconds(lambda: side.run(STEPS), 3) / STEPS
    tokens = sizes["length"] * sizes["batch"]
    return {"ms": 1000 * took, "tokens/s": tokens / took, "GFLOP": flop / 1e9, "flop/s": flop / took}


def parts() -> dict[str, float]:
    """Milliseconds of one step that are the batch's, and the optimizer's."""
    model, flat, _ = built(**MIDDLE)
    model.to(DEVICE)
    optimizer = build_optimizer(model, OptimizerSettings(lr=1e-4))
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    moved = seconds(lambda: flat[0].to(DEVICE), 5)
    optimizer.step()
    return {"batch to the device, ms": 1000 * moved, "optimizer, ms": 1000 * seconds(optimizer.step, 5)}


def main() -> None:
    torch.manual_seed(0)
    limit = peak()
    rows: dict[str, Any] = {"peak, GFLOP/s": limit / 1e9}
    cases: list[tuple[str, dict[str, int]]] = [("middle", {})]
    cases += [
        (f"{name} {int(value * times)}", {name: int(value * times)})
        for name, value in MIDDLE.items()
        for times in (0.5, 2, 4)
    ]
    tokens = MIDDLE["length"] * MIDDLE["batch"]
    cases += [(f"documents of {length}", {"length": length, "batch": tokens // length}) for length in (64, 32, 16)]
    for name, changes in cases:
        figures = step(**changes)
        share = figures.pop("flop/s") / limit
        rows |= {f"{name}: {what}": value for what, value in figures.items()} | {f"{name}: share": share}
        print(
            f"{name:18} {figures['ms']:8.1f} ms {figures['tokens/s']:12,.0f} tok/s  {share:.2f} of the peak", flush=True
        )
    rows |= parts()
    report("growth", rows)


if __name__ == "__main__":
    main()
