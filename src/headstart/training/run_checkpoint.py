"""The state of a run in progress, and checkpoints of it to resume from: complete or not there, verified when read.

checkpoints/step-000000120/state.safetensors   parameters, moments, best weights
                          /state.json          where the run stands, and the checksum of the tensors
                          /*.distcp, .metadata in the place of state.safetensors, where several processes wrote them

Several processes write by `torch.distributed.checkpoint`, each what it has. Either form is read by any number of
processes, whether their weights are copied or sharded.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import warnings
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from headstart.checkpoints.folder import read_json, read_safetensors
from headstart.errors import CheckpointError, TrainingError
from headstart.files import new_folder
from headstart.parallel import SINGLE, Parallel
from headstart.runs.events import Best
from headstart.training.sharding import copy_into, shard_like

if TYPE_CHECKING:
    from headstart.training.loop import Loop

TENSORS, NUMBERS = "state.safetensors", "state.json"


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
    loop.epoch, loop.step_in_epoch = numbers["epoch"], numbers["in_epoch"]
    loop.step, loop.tokens = numbers["step"], numbers["tokens"]
    loop.micro_batches = math.ceil(numbers["shares"] / loop.parallel.world_size)  # as many in all as there were
    loop.bad_steps = numbers["bad_steps"]
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


def _batches_version(loop: Loop) -> int:
    """It changes where the same seed, epoch and step give another batch than before."""
    return getattr(loop.batches, "version", 1)


def _load_weights(parameters: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    if parameters.keys() != weights.keys():
        raise TrainingError("the checkpoint is of another model: its parameters have other names")
    for name, p in parameters.items():
        if p.shape != weights[name].shape:
            shapes = f"{tuple(weights[name].shape)}, expected {tuple(p.shape)}"
            raise TrainingError(f"the checkpoint is of another model: {name} has shape {shapes}")
        copy_into(p, weights[name])


def write_checkpoint(folder: Path, state: RunState, keep: int, parallel: Parallel = SINGLE) -> Path:
    """Write a checkpoint, and remove the oldest where there are more than `keep`."""
    target = folder / f"step-{state.numbers['step']:09d}"
    if parallel.is_main:
        if target.exists():  # damaged, or from before a resume: what is written now is the same or better
            shutil.rmtree(target)
        with new_folder(target) as unfinished:
            _write_tensors(unfinished, state, parallel)
            sums = {path.name: _checksum(path) for path in sorted(unfinished.iterdir())}
            (unfinished / NUMBERS).write_text(json.dumps({**state.numbers, "sha256": sums}) + "\n", encoding="utf-8")
        for old in _checkpoints(folder)[:-keep]:
            shutil.rmtree(old)
    else:
        _write_tensors(None, state, parallel)
    parallel.barrier()
    return target


def _write_tensors(folder: Path | None, state: RunState, parallel: Parallel) -> None:
    """The main process says where; each writes its own part there."""
    if parallel.world_size == 1:
        assert folder is not None
        save_file(_to_cpu(state.tensors), folder / TENSORS)
        return
    from torch.distributed.checkpoint.state_dict_saver import save

    target = parallel.broadcast(None if folder is None else str(folder))
    save(dict(state.tensors), checkpoint_id=target)


def _to_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies from a GPU go on a stream of their own: on the default one they would wait for the steps queued there."""
    device = next((t.device for t in tensors.values() if t.is_cuda), None)
    if device is None:
        return {name: t.contiguous() for name, t in tensors.items()}
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))  # `tensors` are copies that it may still be making
    with torch.cuda.stream(stream):
        return {name: t.contiguous().cpu() for name, t in tensors.items()}


def read_newest(folder: Path) -> tuple[RunState | None, list[str]]:
    """The newest checkpoint that is undamaged, and a line for each newer one that is not.

    None where there is no checkpoint yet; an error where there are some and every one is damaged.
    """
    damaged: list[str] = []
    paths = _checkpoints(folder)
    for path in reversed(paths):
        try:
            return _read(path), damaged
        except CheckpointError as error:
            damaged.append(f"{path.name} is damaged and was passed over: {error}")
    if paths:
        raise TrainingError("; ".join([*damaged, "no checkpoint is whole: start again in another folder"]))
    return None, damaged


def _read(path: Path) -> RunState:
    numbers = read_json(path / NUMBERS)
    sums = numbers.pop("sha256", {})
    for name in sorted(sums) or [TENSORS]:
        if not (path / name).is_file() or _checksum(path / name) != sums.get(name):
            raise CheckpointError(f"the checksum of {path / name} is not the one it was written with")
    return RunState(read_safetensors(path / TENSORS) if TENSORS in sums else _read_distributed(path), numbers)


def _read_distributed(path: Path) -> dict[str, Tensor]:
    """All tensors in one piece, from what several processes wrote."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    described = FileSystemReader(path).read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(about.size, dtype=about.properties.dtype)
        for name, about in described.items()
        if isinstance(about, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # each process reads for itself
        load(tensors, checkpoint_id=path, no_dist=True)
    return tensors


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*")) if folder.is_dir() else []


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
