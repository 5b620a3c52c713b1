"""The state of a run in progress, and checkpoints of it to resume from: complete or not there, verified when read.

checkpoints/step-000000120/   a folder each; `checkpoint_files.py` has its files

Several processes write the tensors that they have. A checkpoint is read by any number of processes, whether their
weights are copied or sharded.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from headstart.errors import CheckpointError, TrainingError
from headstart.files import new_folder, writing
from headstart.parallel import SINGLE, Parallel
from headstart.runs.events import Best
from headstart.training.checkpoint_files import read_checkpoint, write_numbers, write_tensors
from headstart.training.sharding import copy_into, shard_like

if TYPE_CHECKING:
    from headstart.training.loop import Loop


@dataclass
class RunState:
    """What the rest of a run depends on. `tensors` by name: `model.…`, `optimizer.…`, `best.…` and `average.…`."""

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
        "bad_steps": loop.bad_steps,
        "since_best": loop.early_stopping.evaluations_since_best,
        "best": None if best is None else vars(best),
        "optimizer": optimizers,
        "batches": _batches_version(loop),
    }
    return RunState(tensors, numbers)


def restore_state(loop: Loop, state: RunState) -> None:
    """Let a loop go on from a state that one with the same settings, model and data gave."""
    numbers = state.numbers
    if numbers.get("batches", 1) != _batches_version(loop):
        raise TrainingError(
            "this run was begun by another version of headstart, which draws other masks: it cannot go on exactly. "
            "Go on with that version, or begin anew in another folder"
        )
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "best": {}, "average": {}}
    for name, value in state.tensors.items():
        part, _, rest = name.partition(".")
        parts.setdefault(part, {})[rest] = value.to(loop.model.device)
    _require_same_run(loop, numbers, parts)
    loop.epoch, loop.step_in_epoch = numbers["epoch"], numbers["in_epoch"]
    loop.step, loop.tokens = numbers["step"], numbers["tokens"]
    loop.micro_batches = math.ceil(numbers["shares"] / loop.parallel.world_size)  # as many in all as there were
    loop.bad_steps = numbers["bad_steps"]
    loop.early_stopping.evaluations_since_best = numbers["since_best"]
    loop.early_stopping.best = None if numbers["best"] is None else Best(**numbers["best"])
    for name, p in loop.trainable.items():
        copy_into(p, parts["model"][name])
    best_weights = {name: shard_like(loop.trainable[name], value) for name, value in parts["best"].items()}
    loop.early_stopping.best_weights = best_weights
    loop.optimizer.load_state_dict(parts["optimizer"], numbers["optimizer"])
    if loop.average:
        loop.average.load_state_dict(parts["average"])


def _batches_version(loop: Loop) -> int:
    """It changes where the same seed, epoch and step give another batch than before."""
    return getattr(loop.batches, "version", 1)


def _require_same_run(loop: Loop, numbers: Mapping[str, Any], parts: Mapping[str, Mapping[str, Tensor]]) -> None:
    """The weights are of this model, and the place is one that this run comes by."""
    epoch, in_epoch, step = (numbers[name] for name in ("epoch", "in_epoch", "step"))
    if not (epoch + in_epoch <= step <= loop.total and in_epoch < loop.batches.steps(epoch)):
        place = f"step {step}, which is step {in_epoch} of epoch {epoch}"
        raise TrainingError(f"the checkpoint is of another run: it stands at {place}, and this one has {loop.total}")
    averaged = {name: value for name, value in parts["average"].items() if name != "updates"}
    for weights in (parts["model"], parts["best"], averaged):
        if weights or weights is parts["model"]:
            _require_same_shapes(loop.trainable, weights)


def _require_same_shapes(parameters: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    if parameters.keys() != weights.keys():
        raise TrainingError("the checkpoint is of another model: its parameters have other names")
    for name, p in parameters.items():
        if p.shape != weights[name].shape:
            shapes = f"{tuple(weights[name].shape)}, expected {tuple(p.shape)}"
            raise TrainingError(f"the checkpoint is of another model: {name} has shape {shapes}")


def write_checkpoint(folder: Path, state: RunState, keep: int, parallel: Parallel = SINGLE) -> Path:
    """Write a checkpoint, and remove the oldest where there are more than `keep`."""
    target = folder / _name(state.numbers)
    if parallel.is_main and target.exists():  # damaged, or from before a resume: what is written now is the same
        shutil.rmtree(target)
    with new_folder(target) if parallel.is_main else writing(target) as unfinished:
        place = parallel.broadcast(str(unfinished))
        digests = write_tensors(Path(place), state.tensors, parallel)
        if unfinished is not None:
            write_numbers(unfinished, state.numbers, digests)
    if parallel.is_main:
        for old in _checkpoints(folder)[:-keep]:
            shutil.rmtree(old)
    parallel.barrier()
    return target


def read_newest(
    folder: Path, check: Callable[[Mapping[str, Any]], None] | None = None
) -> tuple[RunState | None, list[str]]:
    """The newest checkpoint that is undamaged, and a line for each newer one that is not.

    `check` raises a CheckpointError where the numbers do not agree with the rest of the run folder.
    None where there is no checkpoint yet; an error where there are some and every one is damaged.
    """
    damaged: list[str] = []
    paths = _checkpoints(folder)
    for path in reversed(paths):
        try:
            tensors, numbers = read_checkpoint(path)
            if _name(numbers) != path.name:
                raise CheckpointError(f"it says that it was written after step {numbers['step']}")
            if check is not None:
                check(numbers)
        except CheckpointError as error:
            damaged.append(f"{path.name} is damaged and was passed over: {error}")
        else:
            return RunState(tensors, numbers), damaged
    if paths:
        raise TrainingError("; ".join([*damaged, "no checkpoint is whole: start again in another folder"]))
    return None, damaged


def _name(numbers: Mapping[str, Any]) -> str:
    return f"step-{numbers['step']:09d}"


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*")) if folder.is_dir() else []


class CheckpointWriter:
    """Writes checkpoints in a thread of its own, one at a time, so that training goes on meanwhile."""

    def __init__(self, folder: Path, keep: int, parallel: Parallel = SINGLE) -> None:
        self.folder, self.keep, self.parallel = folder, keep, parallel
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="headstart-save")
        self._unfinished: Future[Path] | None = None

    def save(self, state: RunState) -> None:
        """Begin to write; waits for the one before. A failure of that one is raised here.

        Several processes write at once and wait for one another, by the same collectives as training: not in a thread.
        """
        if self.parallel.world_size > 1:
            write_checkpoint(self.folder, state, self.keep, self.parallel)
            return
        self.wait()
        self._unfinished = self._thread.submit(write_checkpoint, self.folder, state, self.keep)

    def wait(self) -> None:
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is not None:
            unfinished.result()
