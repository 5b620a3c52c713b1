"""Checkpoints of a run in progress: whole or not there, verified when they are read, written beside the training.

checkpoints/step-000000120/state.safetensors   parameters, moments, best weights
                          /state.json          where the run stands, and the checksum of the tensors
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path

from safetensors.torch import save_file

from headstart.checkpoints.folder import read_json, read_safetensors
from headstart.errors import CheckpointError, TrainingError
from headstart.files import new_folder
from headstart.training.loop import State

TENSORS, NUMBERS = "state.safetensors", "state.json"


def write_state(folder: Path, state: State, keep: int) -> Path:
    """Write a checkpoint, and remove the oldest where there are more than `keep`."""
    target = folder / f"step-{state.numbers['step']:09d}"
    if target.exists():  # damaged, or from before a resume: what is written now is the same or better
        shutil.rmtree(target)
    with new_folder(target) as unfinished:
        save_file({name: t.contiguous().cpu() for name, t in state.tensors.items()}, unfinished / TENSORS)
        numbers = {**state.numbers, "sha256": _checksum(unfinished / TENSORS)}
        (unfinished / NUMBERS).write_text(json.dumps(numbers) + "\n", encoding="utf-8")
    for old in _found(folder)[:-keep]:
        shutil.rmtree(old)
    return target


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
    if not (path / TENSORS).is_file() or _checksum(path / TENSORS) != numbers.pop("sha256", None):
        raise CheckpointError(f"the checksum of {path / TENSORS} is not the one it was written with")
    return State(read_safetensors(path / TENSORS), numbers)


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
        """Begin to write; waits for the one before. A failure of that one is raised here."""
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
