"""What the processes of `test_parallel.py` run: each case a small run, its losses and weights into one file.

torchrun --nproc-per-node 2 -m tests.training.processes OUT CASE…
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from headstart.errors import ConfigError
from headstart.model.model import Model
from headstart.parallel import SINGLE, Parallel
from headstart.runs.events import Event, Saved, Step
from headstart.training import driver
from headstart.training.parallel import ProcessGroup, process_group
from headstart.training.run_checkpoint import read_newest, restore_state, write_checkpoint
from tests.training.test_loop import classifier, examples, make_loop

ROWS = 29  # the last batch of 8 has 5: fewer than 2 processes × 3 micro-batches can all have
CASES: dict[str, dict[str, Any]] = {
    "copied": {},
    "sharded": {"shard": True},
    "sharded, recomputed": {"shard": True, "recompute": True},
    "micro-batches": {"accumulate": 3},
    "sharded, micro-batches": {"shard": True, "accumulate": 3},
    "averaged": {"average": 0.9},
    "sharded, averaged": {"shard": True, "average": 0.9},
    "sharded, muon": {"shard": True, "optimizer": "muon"},
    "unfrozen": {"unfreeze": 1},
    "few": {"batch_size": 1},
}


def run(
    name: str, checkpoints: Path | None = None, parallel: Parallel = SINGLE, *, resume: bool = False, **more: Any
) -> dict[str, Any]:
    """Losses, scores and weights of a case; a checkpoint after three steps is written, or gone on from."""
    settings = {**CASES[name], **more}
    loop = make_loop(examples(ROWS), classifier(dropout=0.2), parallel, epochs=2, save_every=3, **settings)
    if checkpoints is not None and resume:
        state, damaged = read_newest(checkpoints)
        assert state is not None and not damaged
        restore_state(loop, state)
    events: list[Event] = []
    for event in loop.run():
        if isinstance(event, Saved) and event.step == 3 and checkpoints is not None and not resume:
            write_checkpoint(checkpoints, event.state, 1, parallel)
        events.append(event)
    model, best = loop.parallel_model.unwrapped(), loop.early_stopping.best
    return {
        "losses": [event.loss for event in events if isinstance(event, Step)],
        "gradients": [event.gradient for event in events if isinstance(event, Step)],
        "best": None if best is None else best.scores,
        "weights": {key: value.clone() for key, value in model.state_dict().items()},
    }


def other_version(folder: Path, parallel: Parallel) -> list[str]:
    """The error of each process where the second has another headstart than the first."""
    message = "none"
    with mock.patch.object(driver, "__version__", f"0.{parallel.rank}"):
        try:
            with driver.open_run(folder, "finetune", {}, resume=False, parallel=parallel):
                pass
        except ConfigError as error:
            message = str(error)
    return parallel.gather(message)


class Counting(ProcessGroup):
    """Counts the all-reduces in float32: those of losses are in float64."""

    count = 0

    def all_reduce(self, tensor: Any) -> Any:
        Counting.count += tensor.dtype == torch.float32
        return super().all_reduce(tensor)


def stop(parallel: Parallel) -> dict[str, Any]:
    """One process is asked to stop while four steps are pending: after which step each ends, how often they sync."""
    counting = Counting(parallel.rank, parallel.world_size)
    loop = make_loop(examples(ROWS), classifier(), counting, epochs=9, save_every=10**6, evaluate_every=10**6)
    loop.read_every = 4
    update = loop._update

    def request_at_six() -> Iterator[Event]:
        loop.saving.stop_requested = loop.saving.stop_requested or (loop.step == 5 and not parallel.is_main)
        return update()

    loop._update = request_at_six  # type: ignore[method-assign]
    events = list(loop.run())
    steps = parallel.gather(loop.step)
    last = type(events[-1]).__name__
    return {"steps": steps, "syncs": Counting.count, "last": last, "stopped": loop.saving.stopped}


def save_steps(parallel: Parallel) -> list[list[int]]:
    """After which steps each process saves, where the second believes in the first two epochs that it just has.

    On average it is half a minute ago only after these.
    """
    loop = make_loop(examples(ROWS), classifier(), parallel, epochs=4)
    update = loop._update

    def with_other_clocks() -> Iterator[Event]:
        loop.saving.saved_at = time.monotonic() - (40 if parallel.is_main or loop.epoch > 1 else 0)
        return update()

    loop._update = with_other_clocks  # type: ignore[method-assign]
    return parallel.gather([event.step for event in loop.run() if isinstance(event, Saved)])


def bytes_moved(model: Model, trace: Path, parallel: Parallel, **settings: Any) -> dict[str, int]:
    """What PyTorch's profiler counts in one step: bytes that this process hands to each kind of collective."""
    loop = make_loop(examples(32), model, parallel, batch_size=8, save_every=10**6, evaluate_every=10**6, **settings)
    loop.read_every = 10**6  # nobody asks whether to stop
    for _ in range(2):  # buckets are made in the first, and agreed on in the second
        list(loop._update())
    with torch.profiler.profile(record_shapes=True) as profile:
        list(loop._update())
    profile.export_chrome_trace(str(trace))
    found: dict[str, int] = {}
    for event in json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]:
        if event["name"] in COLLECTIVES:
            kind, place = COLLECTIVES[event["name"]]
            sizes, types = event["args"]["Input Dims"], event["args"]["Input type"]
            found[kind] = found.get(kind, 0) + math.prod(sizes[place]) * WIDTHS[types[place]]
    found["all_reduce"] -= found.get("reduce_scatter", 0)  # gloo does it by an all-reduce
    return found


# The events that tell of a collective, and which of their inputs is the whole.
COLLECTIVES = {
    "gloo:all_reduce": ("all_reduce", 0),
    "gloo:broadcast": ("broadcast", 0),
    "c10d::_allgather_base_": ("all_gather", 0),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", 1),
}
WIDTHS = {"float": 4, "double": 8, "int": 4}
PROFILED: dict[str, Any] = {  # 31 rows do not divide by two; sinusoidal positions are a buffer
    "all used": {"pooler": False, "positions": "sinusoidal", "vocabulary": 31},
    "pooler": {"pooler": True},
}


def main() -> None:
    out, *names = sys.argv[1:]
    torch.set_num_threads(1)
    with process_group() as parallel:
        found: dict[str, Any] = {}
        folder = Path(out).parent
        for name in names:
            found[name] = run(name, folder / name, parallel)
            found[f"{name}, resumed"] = run(name, folder / name, parallel, resume=True)
        for begun in ("single", "copied", "sharded"):
            for shard in (False, True):
                again = run("copied", folder / begun, parallel, resume=True, shard=shard)
                found[f"{begun}, resumed with shard={shard}"] = again
        found["other version"] = other_version(folder / "other", parallel)
        found["stop"], found["save steps"] = stop(parallel), save_steps(parallel)
        for name, changes in PROFILED.items():
            for shard in (False, True):
                trace = folder / f"trace-{parallel.rank}.json"
                found[f"{name}, {shard}"] = bytes_moved(classifier(**changes), trace, parallel, shard=shard)
        if parallel.is_main:
            torch.save(found, out)


if __name__ == "__main__":
    main()
