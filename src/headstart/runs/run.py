"""The run folder: its files, who may write it, and when a run may be resumed.

run.toml             the study and its settings, enough to run it again
events.jsonl         what happened, one event a line
checkpoints/         to resume from, while the run is in progress
model/               the trained model (a comparison does not keep every one), as `headstart.checkpoints.folder` has it
predictions.parquet  one row for each scored example
result.json          the scores
manifest.json        versions, hardware, data, time and memory; written last: a run that has it is done
stage.txt            what a run of several stages is doing, while it is in progress
.lock                which process writes it, while the run is in progress: one at a time
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headstart.config import read_toml, to_toml
from headstart.errors import DataError, OutputError, TrainingError
from headstart.files import LOCK, holds_something, locked, read_json, remove_unfinished, write_json, write_text
from headstart.runs.events import Event, Scores, read_events
from headstart.runs.manifest import Manifest
from headstart.runs.predictions import Predictions, read_predictions
from headstart.runs.records import read_record

RUN, EVENTS, PREDICTIONS = "run.toml", "events.jsonl", "predictions.parquet"
RESULT, MANIFEST = "result.json", "manifest.json"
STAGE = "stage.txt"
LINEAR = "linear.safetensors"  # in place of `model`, where the run is one of the linear model
LAUNCH = "torchrun.id"  # which launch of torchrun a run in progress belongs to
POLL = 0.2  # seconds between attempts to get a lock that another process holds


@dataclass(frozen=True)
class Result:
    """What result.json says of any run; what a kind of run does not have is None or empty."""

    valid: Scores | None = None
    test: Scores | None = None
    mode: str | None = None
    objective: str | None = None
    weights: str | None = None  # `fresh`, or what they come from
    class_names: tuple[str, ...] = ()
    rows: Mapping[str, int] = field(default_factory=dict)  # of each split
    steps: int | None = None
    tokens: int | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Result:
        names = ("valid", "test", "mode", "objective", "weights", "rows", "steps", "tokens")
        known = {name: values[name] for name in names if name in values}
        return cls(**known, class_names=tuple(values.get("labels", ())))


class RunFolder:
    """A run on disk; each file is read when it is asked for."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"

    @property
    def done(self) -> bool:
        return (self.path / MANIFEST).is_file()

    def settings(self) -> dict[str, Any]:
        return read_toml(self.path / RUN)

    def events(self, last: int | None = None) -> list[Event]:
        """All that are recorded so far, or those in the last so many bytes."""
        return read_events(self.path / EVENTS, last) if (self.path / EVENTS).is_file() else []

    @property
    def stage(self) -> str | None:
        """What the run said last of its stages, as one with teachers does; None where it has said nothing."""
        with suppress(FileNotFoundError):
            return (self.path / STAGE).read_text(encoding="utf-8", errors="replace")
        return None

    def predictions(self, class_names: Sequence[str] | None = None) -> Predictions:
        return read_predictions(self.path / PREDICTIONS, class_names)

    def result(self) -> Result:
        if not (self.path / RESULT).is_file():
            raise self._not_done(RESULT)
        return read_record(self.path / RESULT, Result.from_json)

    def result_json(self) -> dict[str, Any]:
        """result.json as it is, which is what `finetune` and `pretrain` return."""
        if not (self.path / RESULT).is_file():
            raise self._not_done(RESULT)
        return read_json(self.path / RESULT)

    def manifest(self) -> Manifest:
        if not self.done:
            raise self._not_done(MANIFEST)
        return read_record(self.path / MANIFEST, Manifest.from_json)

    def _not_done(self, missing: str) -> DataError:
        return DataError(self.path, f"the run is not done: it has no {missing}", fix="go on with it with --resume")

    def write_end(self, result: Mapping[str, Any], manifest: Manifest, predictions: Predictions | None = None) -> None:
        """Write what a finished run has, the manifest last, and remove what only a run in progress needs."""
        if predictions is not None:
            predictions.write(self.path / PREDICTIONS)
        write_json(self.path / RESULT, result)
        write_json(self.path / MANIFEST, manifest.to_json())
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        for name in (STAGE, LAUNCH, LOCK):  # whoever gets the lock now finds a run that is done, and writes nothing
            (self.path / name).unlink(missing_ok=True)


@contextmanager
def lock_run(path: Path, settings: Mapping[str, Any], *, resume: bool, patience: float) -> Iterator[Callable[[], None]]:
    """Begin the run with these settings, or resume it; to the end of the block no other process can write its folder.

    Yields a function that raises an error where the folder was removed or moved meanwhile; the end of the block does so
    too, since whatever is written after that makes a new folder, without the rest of the run.

    A run that torchrun restarts is resumed unasked, after at most `patience` seconds of waiting for its dead processes.
    """
    launch = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    restarted = _restarted(path / LAUNCH, launch)
    _refuse_other_things(path)
    run = RunFolder(path)
    with nullcontext() if run.done else _lock(path, patience if restarted else 0.0):
        _begin(run, settings, resume=resume or restarted)
        if not run.done:
            remove_unfinished(path)
            remove_unfinished(run.checkpoints)
        if launch != "none" and not run.done:
            write_text(path / LAUNCH, launch)
        begun = _identity(path / RUN)

        def require_there() -> None:
            if _identity(path / RUN) != begun:
                raise TrainingError(f"{path} was removed or moved during the run, and the run with it: start it again")

        yield require_there
        require_there()


def _identity(path: Path) -> tuple[int, ...] | None:
    """Which file has this name; None where none has."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _restarted(file: Path, launch: str) -> bool:
    """Whether torchrun began this run and restarts its processes: one died, or a host left or came back."""
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0 and file.parent.is_dir():
        return True
    return launch != "none" and file.is_file() and file.read_text(encoding="utf-8") == launch


@contextmanager
def _lock(path: Path, patience: float) -> Iterator[None]:
    until = time.monotonic() + patience
    while True:
        with locked(path / LOCK) as ours:
            if ours:
                yield
                return
        if time.monotonic() >= until:
            holder = "another process"
            with suppress(FileNotFoundError):  # which may be done by now
                holder = (path / LOCK).read_text(encoding="utf-8") or holder
            raise OutputError(f"{holder} is writing the run in {path}: wait for its end, or name another folder")
        time.sleep(POLL)


def _refuse_other_things(path: Path) -> None:
    if path.is_file():
        raise OutputError(f"{path} is a file, and a folder for the run was meant: name another")
    if path.is_dir() and holds_something(path) and not (path / RUN).is_file():
        raise OutputError(f"{path} holds something that is no run: name another folder")


def _begin(run: RunFolder, settings: Mapping[str, Any], *, resume: bool) -> None:
    if not (run.path / RUN).is_file():
        write_text(run.path / RUN, to_toml(settings))
        return
    before = run.settings()
    if before != settings:
        keys = sorted(key for key in before.keys() | settings.keys() if before.get(key) != settings.get(key))
        raise OutputError(f"{run.path} holds another run (it differs in {', '.join(keys)}): name another folder")
    if not resume:
        state = "is done" if run.done else "was begun"
        raise OutputError(f"the run in {run.path} {state}: add --resume to go on with it, or name another folder")
