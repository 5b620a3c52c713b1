"""Checkpoints of a run in progress, to resume it from: complete or not there, verified when they are read.

checkpoints/step-000000120/state.safetensors   parameters, moments, best weights
                          /state.json          where the run stands, and the checksum of the tensors
                          /*.distcp, .metadata in the place of state.safetensors, where several processes wrote them

Several processes write by `torch.distributed.checkpoint`, each what it has. Either form is read by any number of
processes, whether their weights are copied or sharded.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from headstart.checkpoints.folder import read_json, read_safetensors
from headstart.errors import CheckpointError, TrainingError
from headstart.files import new_folder
from headstart.parallel import SINGLE, Parallel
from headstart.training.run_state import RunState

TENSORS, NUMBERS = "state.safetensors", "state.json"


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


@dataclass
class CheckpointWriter:
    """Writes checkpoints in a thread of its own, one at a time, so that training goes on meanwhile."""

    folder: Path
    keep: int
    parallel: Parallel = SINGLE
    _thread: threading.Thread | None = None
    _errors: list[Exception] = field(default_factory=list)

    def save(self, state: RunState) -> None:
        """Begin to write; waits for the one before. A failure of that one is raised here.

        Several processes write at once and wait for one another, by the same collectives as training: not in a thread.
        """
        if self.parallel.world_size > 1:
            write_checkpoint(self.folder, state, self.keep, self.parallel)
            return
        self.wait()
        self._thread = threading.Thread(target=self._write, args=(state,), name="headstart-save")
        self._thread.start()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._errors:
            raise self._errors.pop()

    def _write(self, state: RunState) -> None:
        try:
            write_checkpoint(self.folder, state, self.keep)
        except Exception as error:
            self._errors.append(error)
