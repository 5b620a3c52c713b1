"""Checkpoints of a run in progress: whole or not there, verified when they are read, written beside the training.

checkpoints/step-000000120/state.safetensors   parameters, moments, best weights
                          /state.json          where the run stands, and the checksum of the tensors
                          /*.distcp, .metadata in the place of state.safetensors, where several processes wrote it

Several processes write by `torch.distributed.checkpoint`, each what it has. Either form is read by any number of
processes, however their weights lie.
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
from headstart.training.distributed import meet, team
from headstart.training.loop import State

TENSORS, NUMBERS = "state.safetensors", "state.json"


def write_state(folder: Path, state: State, keep: int) -> Path:
    """Write a checkpoint, and remove the oldest where there are more than `keep`."""
    target = folder / f"step-{state.numbers['step']:09d}"
    if team().is_main:
        if target.exists():  # damaged, or from before a resume: what is written now is the same or better
            shutil.rmtree(target)
        with new_folder(target) as unfinished:
            _write_tensors(unfinished, state)
            sums = {path.name: _checksum(path) for path in sorted(unfinished.iterdir())}
            (unfinished / NUMBERS).write_text(json.dumps({**state.numbers, "sha256": sums}) + "\n", encoding="utf-8")
        for old in _found(folder)[:-keep]:
            shutil.rmtree(old)
    else:
        _write_tensors(None, state)
    meet()
    return target


def _write_tensors(folder: Path | None, state: State) -> None:
    """The first process says where; the others wait for it, and each writes its own part there."""
    if team().world_size == 1:
        assert folder is not None
        save_file(_on_host(state.tensors), folder / TENSORS)
        return
    from torch.distributed.checkpoint.state_dict_saver import save

    where = team().broadcast(None if folder is None else str(folder))
    save(dict(state.tensors), checkpoint_id=where)


def _on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """In the CPU's memory. From a GPU on a stream of their own: on the usual one each waits for steps under way."""
    device = next((t.device for t in tensors.values() if t.is_cuda), None)
    if device is None:
        return {name: t.contiguous() for name, t in tensors.items()}
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))  # the copies that `tensors` are
    with torch.cuda.stream(stream):
        return {name: t.contiguous().cpu() for name, t in tensors.items()}


def read_newest(folder: Path) -> tuple[State | None, list[str]]:
    """The newest checkpoint that is whole, and a line for each newer one that is not.

    None where there is no checkpoint yet; an error where there are some and every one is damaged.
    """
    damaged: list[str] = []
    found = _found(folder)
    for path in reversed(found):
        try:
            return _read(path), damaged
        except CheckpointError as error:
            damaged.append(f"{path.name} is damaged and was passed over: {error}")
    if found:
        raise TrainingError("; ".join([*damaged, "no checkpoint is whole: start again in another folder"]))
    return None, damaged


def _read(path: Path) -> State:
    numbers = read_json(path / NUMBERS)
    sums = numbers.pop("sha256", {})
    for name in sorted(sums) or [TENSORS]:
        if not (path / name).is_file() or _checksum(path / name) != sums.get(name):
            raise CheckpointError(f"the checksum of {path / name} is not the one it was written with")
    return State(read_safetensors(path / TENSORS) if TENSORS in sums else _read_together(path), numbers)


def _read_together(path: Path) -> dict[str, Tensor]:
    """All tensors in one piece, from what several processes wrote."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    described = FileSystemReader(path).read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(each.size, dtype=each.properties.dtype)
        for name, each in described.items()
        if isinstance(each, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # each process reads for itself
        load(tensors, checkpoint_id=path, no_dist=True)
    return tensors


def _found(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*")) if folder.is_dir() else []


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass
class Saver:
    """Writes checkpoints in a thread of its own, one at a time, so that training goes on meanwhile."""

    folder: Path
    keep: int
    _thread: threading.Thread | None = None
    _errors: list[Exception] = field(default_factory=list)

    def save(self, state: State) -> None:
        """Begin to write; waits for the one before. A failure of that one is raised here.

        Several processes write at once and wait for one another: they must not train meanwhile.
        """
        if team().world_size > 1:
            write_state(self.folder, state, self.keep)
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

    def _write(self, state: State) -> None:
        try:
            write_state(self.folder, state, self.keep)
        except Exception as error:
            self._errors.append(error)
