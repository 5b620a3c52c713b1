"""What the processes of `test_distributed.py` run: each case a small run, its losses and weights into one file.

torchrun --nproc-per-node 2 -m tests.training.team OUT CASE…
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
from torch import Tensor

from headstart.errors import ConfigError
from headstart.model.model import Model
from headstart.runs.events import Event, Saved, Step
from headstart.training import distributed, driver
from headstart.training.distributed import team
from headstart.training.parallel import process_group
from headstart.training.state import read_newest, write_state
from tests.training.test_loop import classifier, examples, make_loop

ROWS = 29  # the last batch of 8 has 5: fewer than 2 processes × 3 shares can all have
CASES: dict[str, dict[str, Any]] = {
    "copied": {},
    "split": {"shard": True},
    "split, recomputed": {"shard": True, "recompute": True},
    "shares": {"accumulate": 3},
    "split, shares": {"shard": True, "accumulate": 3},
    "averaged": {"average": 0.9},
    "split, averaged": {"shard": True, "average": 0.9},
    "split, muon": {"shard": True, "optimizer": "muon"},
    "unfrozen": {"unfreeze": 1},
    "few": {"batch_size": 1},
}


def run(name: str, checkpoints: Path | None = None, *, resume: bool = False, **more: Any) -> dict[str, Any]:
    """Losses, scores and weights of a case; a checkpoint after three steps is written, or gone on from."""
    settings = {**CASES[name], **more}
    loop = make_loop(examples(ROWS), classifier(dropout=0.2), epochs=2, save_every=3, **settings)
    if checkpoints is not None and resume:
        state, damaged = read_newest(checkpoints)
        assert state is not None and not damaged
        loop.restore(state)
    events: list[Event] = []
    for event in loop.run():
        if isinstance(event, Saved) and event.step == 3 and checkpoints is not None and not resume:
            write_state(checkpoints, event.state, keep=1)
        events.append(event)
    plain = loop.spread.plain(loop.model)
    return {
        "losses": [event.loss for event in events if isinstance(event, Step)],
        "gradients": [event.gradient for event in events if isinstance(event, Step)],
        "best": None if loop.best is None else loop.best.scores,
        "weights": {key: value.clone() for key, value in plain.state_dict().items()},
    }


def other_version(folder: Path) -> list[str]:
    """What each process says where the second has another headstart than the first."""
    said = "nothing"
    with mock.patch.object(driver, "__version__", f"0.{team().rank}"):
        try:
            with driver.open_run(folder, "finetune", {}, resume=False):
                pass
        except ConfigError as error:
            said = str(error)
    return team().gather(said)


def stop() -> dict[str, Any]:
    """One process is asked to stop while four steps are on their way: after which step each ends, how often it asks."""
    loop = make_loop(examples(ROWS), classifier(), epochs=9, save_every=10**6, evaluate_every=10**6)
    loop.together = 4
    update, sum_over, asked = loop._update, distributed.sum_over, 0

    def ask_at_six() -> Iterator[Event]:
        loop.stopping = loop.stopping or (loop.step == 5 and not team().is_main)
        return update()

    def counted(x: Tensor) -> Tensor:
        nonlocal asked
        asked += x.dtype == torch.float32  # losses are summed in float64
        return sum_over(x)

    loop._update, distributed.sum_over = ask_at_six, counted  # type: ignore[method-assign]
    try:
        events = list(loop.run())
    finally:
        distributed.sum_over = sum_over
    steps = team().gather(loop.step)
    return {"steps": steps, "asked": asked, "last": type(events[-1]).__name__, "stopped": loop.stopped}


def rest() -> list[list[int]]:
    """After which steps each process saves, where the second believes in the first two epochs that it just has.

    On average it is half a minute ago only after these.
    """
    loop = make_loop(examples(ROWS), classifier(), epochs=4)
    update = loop._update

    def impatient() -> Iterator[Event]:
        loop.saved_at = time.monotonic() - (40 if team().is_main or loop.epoch > 1 else 0)
        return update()

    loop._update = impatient  # type: ignore[method-assign]
    return team().gather([event.step for event in loop.run() if isinstance(event, Saved)])


def bytes_moved(model: Model, trace: Path, **settings: Any) -> dict[str, int]:
    """What PyTorch's profiler counts in one step: bytes that this process hands to each kind of collective."""
    loop = make_loop(examples(32), model, batch_size=8, save_every=10**6, evaluate_every=10**6, **settings)
    loop.together = 10**6  # nobody asks whether to stop
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
PROFILED: dict[str, Any] = {  # 31 rows do not part in two; sinusoidal positions are a buffer
    "all used": {"pooler": False, "positions": "sinusoidal", "vocabulary": 31},
    "pooler": {"pooler": True},
}


def main() -> None:
    out, *names = sys.argv[1:]
    torch.set_num_threads(1)
    with process_group():
        found: dict[str, Any] = {}
        for name in names:
            checkpoints = Path(out).parent / name
            found[name] = run(name, checkpoints)
            found[f"{name}, resumed"] = run(name, checkpoints, resume=True)
        for begun in ("alone", "copied", "split"):
            for shard in (False, True):
                again = run("copied", Path(out).parent / begun, resume=True, shard=shard)
                found[f"{begun}, resumed with shard={shard}"] = again
        found["other version"] = other_version(Path(out).parent / "other")
        found["stop"], found["rest"] = stop(), rest()
        for name, changes in PROFILED.items():
            for shard in (False, True):
                trace = Path(out).parent / f"trace-{team().rank}.json"
                found[f"{name}, {shard}"] = bytes_moved(classifier(**changes), trace, shard=shard)
        if team().is_main:
            torch.save(found, out)


if __name__ == "__main__":
    main()
