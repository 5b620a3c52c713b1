"""Drives the training loop of a run: records its events, saves checkpoints, resumes, and ends the run folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from headstart.checkpoints import folder as model_folder
from headstart.checkpoints.folder import Checkpoint
from headstart.errors import MissingExtra
from headstart.runs.events import Evaluated, Event, OnEvent, Saved, Step, event_writer
from headstart.runs.manifest import Manifest, reset_peak_memory
from headstart.runs.predictions import Predictions
from headstart.runs.run import EVENTS, RunFolder, lock_run
from headstart.training.distributed import agree, meet, patience, team
from headstart.training.loop import Loop, State
from headstart.training.state import Saver, read_newest
from headstart.version import __version__


class Run(RunFolder):
    """A run that this process works on. `open_run` begins or resumes one."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.began = time.time()
        reset_peak_memory()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    @property
    def seconds(self) -> float:
        return time.time() - self.began

    def train(self, loop: Loop, *, on_event: OnEvent | None = None, log: Callable[[str], None] | None = None) -> None:
        """Drive the loop to its end: record events, save checkpoints, go on from the newest where there is one."""
        meet()
        state, damaged = read_newest(self.checkpoints)
        meet()  # before one of them writes
        if not team().is_main:
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
        tracking = tensorboard(self.path / "tensorboard", loop.step) if loop.settings.track else nullcontext(_nothing)
        # What came after the checkpoint will come again.
        with event_writer(self.path / EVENTS, offset) as record, tracking as track, _interruptible(loop):
            try:
                for event in loop.run():
                    size = record(event)
                    if isinstance(event, Saved):
                        event.state.numbers |= {"events": size, "seconds": self.seconds}
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
        predictions: Predictions | None = None,
    ) -> None:
        """Write what a finished run has; the manifest last, and the checkpoints go."""
        if not team().is_main:
            return
        shutil.rmtree(self.path / "model", ignore_errors=True)  # half of one, from a finish that was cut short
        if checkpoint is not None:
            model_folder.save(checkpoint, self.path / "model")
        on_gpu = torch.cuda.is_available()
        name, memory = (torch.cuda.get_device_name(), torch.cuda.max_memory_allocated()) if on_gpu else (None, None)
        version = str(torch.__version__)
        about = Manifest.now(torch=version, gpu=name, gpu_memory=memory, seconds=self.seconds, **manifest)
        self.write_end(result, about, predictions)


@contextmanager
def open_run(path: str | Path, study: str, settings: Mapping[str, Any], *, resume: bool) -> Iterator[Run]:
    """A run folder for these settings: new; or, with `resume`, the one that is there if it is of the same run.

    To the end of the block nobody else can write it.
    """
    path = Path(path)
    wanted = {"study": study, **settings}
    agree("code", __version__)
    agree("settings", json.dumps(wanted, sort_keys=True, default=str))
    if not team().is_main:
        meet()
        yield Run(path)
        return
    with lock_run(path, wanted, resume=resume, patience=patience() / 2):
        run = Run(path)
        meet()
        yield run


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
