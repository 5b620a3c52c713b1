"""The state of a run: everything that the rest of it depends on, as tensors and as numbers that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from headstart.errors import TrainingError
from headstart.runs.events import Best
from headstart.training.sharding import copy_into, shard_like

if TYPE_CHECKING:
    from headstart.training.loop import Loop


@dataclass
class RunState:
    """`tensors` by name: `model.…`, `optimizer.…`, `best.…` and `average.…`."""

    tensors: dict[str, Tensor]
    numbers: dict[str, Any]


def capture_state(loop: Loop) -> RunState:
    """A copy of the loop's state."""
    moments, optimizers = loop.optimizer.state_dict()
    tensors = {f"model.{name}": p.detach().clone() for name, p in loop.trainable.items()}
    tensors |= {f"optimizer.{name}": value.clone() for name, value in moments.items()}
    tensors |= {f"best.{name}": value for name, value in loop.early_stopping.best_weights.items()}
    if loop.average:
        tensors |= {f"average.{name}": value.clone() for name, value in loop.average.state_dict().items()}
    best = loop.early_stopping.best
    numbers = {
        "epoch": loop.epoch,
        "in_epoch": loop.step_in_epoch,
        "step": loop.step,
        "tokens": loop.tokens,
        "shares": loop.micro_batches * loop.parallel.world_size,
        "bad_steps": loop.pending.bad_steps,
        "since_best": loop.early_stopping.evaluations_since_best,
        "best": None if best is None else vars(best),
        "optimizer": optimizers,
    }
    return RunState(tensors, numbers)


def restore_state(loop: Loop, state: RunState) -> None:
    """Let a loop go on from a state that one with the same settings, model and data gave."""
    numbers = state.numbers
    loop.epoch, loop.step_in_epoch = numbers["epoch"], numbers["in_epoch"]
    loop.step, loop.tokens = numbers["step"], numbers["tokens"]
    loop.micro_batches = math.ceil(numbers["shares"] / loop.parallel.world_size)  # as many in all as there were
    loop.pending.bad_steps = numbers["bad_steps"]
    loop.early_stopping.evaluations_since_best = numbers["since_best"]
    loop.early_stopping.best = None if numbers["best"] is None else Best(**numbers["best"])
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "best": {}, "average": {}}
    for name, value in state.tensors.items():
        part, _, rest = name.partition(".")
        parts[part][rest] = value.to(loop.model.device)
    _load_weights(loop.trainable, parts["model"])
    best_weights = {name: shard_like(loop.trainable[name], value) for name, value in parts["best"].items()}
    loop.early_stopping.best_weights = best_weights
    loop.optimizer.load_state_dict(parts["optimizer"], numbers["optimizer"])
    if loop.average:
        loop.average.load_state_dict(parts["average"])


def _load_weights(parameters: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    if parameters.keys() != weights.keys():
        raise TrainingError("the checkpoint is of another model: its parameters have other names")
    for name, p in parameters.items():
        if p.shape != weights[name].shape:
            shapes = f"{tuple(weights[name].shape)}, expected {tuple(p.shape)}"
            raise TrainingError(f"the checkpoint is of another model: {name} has shape {shapes}")
        copy_into(p, weights[name])
