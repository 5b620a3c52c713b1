"""The run folder, which everything after training reads and nothing else.

run.toml             the study and its settings, enough to run it again
events.jsonl         what happened, a line an event
checkpoints/         to go on from, while the run is in progress
model/               the trained model (a comparison does not keep every one), as `headstart.checkpoints.folder` has it
predictions.parquet  one row for each scored example
result.json          the scores
manifest.json        versions, hardware, data, time and memory; written last: a run that has it is whole
.lock                which process writes it, while the run is in progress: one at a time
"""

from __future__ import annotations

import json
import math
import os
import platform
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headstart.checkpoints import folder as model_folder
from headstart.checkpoints.folder import Checkpoint
from headstart.config import read_toml, to_toml
from headstart.errors import MissingExtra, OutputError
from headstart.files import LOCK, holds_something, locked, new_file, write_json, write_text
from headstart.runs.events import Evaluated, Event, Saved, Step
from headstart.training.distributed import agree, meet, patience, team
from headstart.training.loop import Loop, State
from headstart.training.state import Saver, read_newest
from headstart.version import __version__

OnEvent = Callable[[Event], None]
LAUNCH = "torchrun.id"  # which start by torchrun a run in progress belongs to
POLL = 0.2  # seconds between looks at a lock that another has


class RunFolder:
    """A run on disk. `open_run` makes one or goes on with one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events = path / "events.jsonl"
        self.checkpoints = path / "checkpoints"
        self.began = time.time()
        _forget_peaks()

    @property
    def seconds(self) -> float:
        return time.time() - self.began

    @property
    def done(self) -> bool:
        return (self.path / "manifest.json").is_file()

    def result(self) -> dict[str, Any]:
        """The scores of a run that is done."""
        return model_folder.read_json(self.path / "result.json")

    def train(self, loop: Loop, *, on_event: OnEvent | None = None, log: Callable[[str], None] | None = None) -> None:
        """Drive the loop to its end: record events, save checkpoints, go on from the newest where there is one."""
        meet()
        state, damaged = read_newest(self.checkpoints)
        meet()  # before one of them writes
        if not team().first:
            with _interruptible(loop):
                self._follow(loop, state)
            return
        for line in damaged:
            (log or _nothing)(line)
        offset = 0
        if state is not None:
            offset = state.numbers["events"]
            self.began -= state.numbers["seconds"]  # time spent before counts
            loop.restore(state)
            (log or _nothing)(f"going on from step {loop.step} of {loop.total}")
        saver = Saver(self.checkpoints, loop.settings.keep)
        self.events.touch()
        tracking = tensorboard(self.path / "tensorboard", loop.step) if loop.settings.track else nullcontext(_nothing)
        with self.events.open("r+b") as file, tracking as track, _interruptible(loop):
            file.truncate(offset)  # what came after the checkpoint will come again
            file.seek(offset)
            try:
                for event in loop.run():
                    file.write(json.dumps(_plain(event)).encode() + b"\n")
                    file.flush()
                    if isinstance(event, Saved):
                        event.state.numbers |= {"events": file.tell(), "seconds": self.seconds}
                        saver.save(event.state)
                    track(event)
                    if on_event:
                        on_event(event)
            finally:
                saver.wait()
        if loop.stopped:
            raise KeyboardInterrupt

    def _follow(self, loop: Loop, state: State | None) -> None:
        """The part of a process that neither speaks nor writes."""
        if state is not None:
            loop.restore(state)
        saver = Saver(self.checkpoints, loop.settings.keep)
        for event in loop.run():
            if isinstance(event, Saved):
                saver.save(event.state)
        if loop.stopped:
            raise KeyboardInterrupt

    def finish(
        self,
        checkpoint: Checkpoint | None,
        result: Mapping[str, Any],
        manifest: Mapping[str, Any],
        rows: Any | None = None,
    ) -> None:
        """Write what a finished run has; the manifest last, and the checkpoints go."""
        if not team().first:
            return
        shutil.rmtree(self.path / "model", ignore_errors=True)  # half of one, from a finish that was cut short
        if checkpoint is not None:
            model_folder.save(checkpoint, self.path / "model")
        if rows is not None:
            import pyarrow.parquet

            with new_file(self.path / "predictions.parquet") as unfinished:
                pyarrow.parquet.write_table(rows, unfinished)
        write_json(self.path / "result.json", result)
        write_json(self.path / "manifest.json", {**_surroundings(), "seconds": self.seconds, **manifest})
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        for name in (LAUNCH, LOCK):  # whoever gets the lock from here on finds a run that is done, and writes nothing
            (self.path / name).unlink(missing_ok=True)


@contextmanager
def open_run(path: str | Path, study: str, settings: Mapping[str, Any], *, resume: bool) -> Iterator[RunFolder]:
    """A run folder for these settings: new; or, with `resume`, the one that is there if it is of the same run.

    To the end of the block nobody else can write it.
    """
    path = Path(path)
    wanted = {"study": study, **settings}
    agree("code", __version__)
    agree("settings", json.dumps(wanted, sort_keys=True, default=str))
    if not team().first:
        meet()
        yield RunFolder(path)
        return
    launch = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    again = _started_again(path / LAUNCH, launch)
    _refuse_other_things(path)
    done = (path / "manifest.json").is_file()  # nothing will be written
    with nullcontext() if done else _alone(path, patience() / 2 if again else 0.0):
        run = _open(path, wanted, resume=resume or again)
        if launch != "none" and not run.done:
            write_text(path / LAUNCH, launch)
        meet()
        yield run


def _started_again(file: Path, launch: str) -> bool:
    """Whether torchrun began this run and starts its processes anew: one died, or a host left or came back."""
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0 and file.parent.is_dir():
        return True
    return launch != "none" and file.is_file() and file.read_text(encoding="utf-8") == launch


@contextmanager
def _alone(path: Path, seconds: float) -> Iterator[None]:
    """Lock the folder. Where torchrun starts a run again, its processes of before are given some time to be gone."""
    until = time.monotonic() + seconds
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
    if path.is_dir() and holds_something(path) and not (path / "run.toml").is_file():
        raise OutputError(f"{path} holds something that is no run: name another folder")


def _open(path: Path, wanted: Mapping[str, Any], *, resume: bool) -> RunFolder:
    if not (path / "run.toml").is_file():
        write_text(path / "run.toml", to_toml(wanted))
        return RunFolder(path)
    found = read_toml(path / "run.toml")
    if found != wanted:
        keys = sorted(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key))
        raise OutputError(f"{path} holds another run (it differs in {', '.join(keys)}): name another folder")
    if not resume:
        state = "is done" if (path / "manifest.json").is_file() else "was begun"
        raise OutputError(f"the run in {path} {state}: add --resume to go on with it, or name another folder")
    return RunFolder(path)


def read_events(path: str | Path) -> list[dict[str, Any]]:
    """The events of a run; a last line that was cut short by a kill is left out."""
    lines = (Path(path) / "events.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _plain(event: Event) -> dict[str, Any]:
    """An event as JSON: its name, and its fields without the tensors."""
    return {"event": type(event).__name__.lower(), **_fields(event)}


def _fields(value: Any) -> Any:
    if is_dataclass(value):
        return {f.name: _fields(getattr(value, f.name)) for f in fields(value) if f.name != "state"}
    if isinstance(value, dict):
        return {name: _fields(item) for name, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


@contextmanager
def tensorboard(folder: Path, step: int) -> Iterator[Callable[[Any], None]]:
    """A listener that writes losses, rates and scores as TensorBoard scalars; what lies after `step` is taken back."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtra("tensorboard", "track", "--track") from None
    writer: Any = SummaryWriter(str(folder), purge_step=step)

    def write(event: Event) -> None:
        if isinstance(event, Step):
            values = {"train/loss": event.loss, "train/lr": event.lr, "train/gradient": event.gradient}
        elif isinstance(event, Evaluated):
            values = {f"valid/{name}": value for name, value in event.scores.items()}
        else:
            return
        for name, value in values.items():
            writer.add_scalar(name, value, event.step)

    try:
        yield write
    finally:
        writer.close()


def _nothing(_: Any) -> None:
    pass


@contextmanager
def _interruptible(loop: Loop) -> Iterator[None]:
    """Ctrl-C, or the SIGTERM of a scheduler, asks the loop to save and stop; a second one stops at once.

    Not so under torchrun, which passes on what it gets: each comes twice there, and it kills who takes too long.
    """
    at_once: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}

    def ask(number: int, frame: Any) -> None:
        loop.stopping = True
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            signal.signal(number, at_once[number])

    try:
        before = {number: signal.signal(number, ask) for number in at_once}
    except ValueError:  # not in the main thread: whoever is there decides what they mean
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _forget_peaks() -> None:
    """Begin to measure memory anew, so that each of several runs in one process has a peak of its own."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):  # Linux; elsewhere the peak is that of the whole process so far
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _surroundings() -> dict[str, Any]:
    """Versions and hardware, and the most memory that this process had since the run began."""
    found: dict[str, Any] = {
        "format": 1,
        "headstart": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": sys.argv,
        "peak_memory": {"resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024},
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        found["peak_memory"]["gpu"] = torch.cuda.max_memory_allocated()
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
