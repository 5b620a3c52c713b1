"""Drives the training loop of a run: records its events, saves checkpoints, resumes, and ends the run folder."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from headstart.checkpoints import folder as model_folder
from headstart.checkpoints.folder import Checkpoint
from headstart.errors import CheckpointError, MissingExtra, OutputError
from headstart.files import write_text
from headstart.model.heads import ReplacedHead
from headstart.model.layers import Layer
from headstart.model.model import Model
from headstart.parallel import SINGLE, Parallel, timeout
from headstart.runs.events import Evaluated, Event, OnEvent, Saved, Step, ends_with_saved, event_writer
from headstart.runs.manifest import Manifest, reset_peak_memory
from headstart.runs.predictions import Predictions
from headstart.runs.run import EVENTS, STAGE, RunFolder, lock_run
from headstart.training.checkpoint_files import is_count, is_number
from headstart.training.loop import Loop
from headstart.training.memory import keep_freed_memory
from headstart.training.run_checkpoint import CheckpointWriter, read_newest, restore_state
from headstart.training.stepper import CompiledStepper
from headstart.version import __version__


class Run(RunFolder):
    """A run that this process works on, by itself or with others. `open_run` begins or resumes one."""

    def __init__(self, path: Path, parallel: Parallel, require_there: Callable[[], None]) -> None:
        super().__init__(path)
        self.parallel, self.require_there = parallel, require_there
        self.began = time.time()
        reset_peak_memory()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    @property
    def seconds(self) -> float:
        return time.time() - self.began

    def stage_log(self, log: Callable[[str], None]) -> Callable[[str], None]:
        """A `log` that also leaves each line in the folder, where a comparison reads how far its runs are."""

        def say(text: str) -> None:
            if self.parallel.is_main:
                write_text(self.path / STAGE, text)
            log(text)

        return say

    def train(self, loop: Loop, *, on_event: OnEvent | None = None, log: Callable[[str], None] | None = None) -> None:
        """Drive the loop to its end, from the newest checkpoint where there is one. The main process tells of it."""
        self.parallel.barrier()
        state, damaged = read_newest(self.checkpoints, self._require_recorded)
        # From here on all have read it: nobody writes a checkpoint while others still read.
        self.parallel.require_same("newest checkpoint", None if state is None else state.numbers["step"])
        is_main = self.parallel.is_main
        log, on_event = (log or _ignore, on_event or _ignore) if is_main else (_ignore, _ignore)
        for line in damaged:
            log(line)
        if state is not None:
            restore_state(loop, state)
            self.began -= state.numbers["seconds"]  # time spent before counts
            log(f"going on from step {loop.step} of {loop.total}")
        size = 0 if state is None else state.numbers["events"]  # events after the checkpoint come again
        recording = event_writer(self.path / EVENTS, size) if is_main else nullcontext(_ignore)
        track_it = is_main and loop.settings.track
        tracking = tensorboard(self.path / "tensorboard", loop.step) if track_it else nullcontext(_ignore)
        try:
            with keep_freed_memory(loop.model.device), _interruptible(loop), recording as record, tracking as track:
                self._drive(loop, record, (track, on_event))
            if isinstance(loop.stepper, CompiledStepper) and loop.stepper.failure is not None:
                log(f"the layers ran uncompiled, which is slower: {loop.stepper.failure}")
        except OutputError as error:
            fix = "once that is mended, the run goes on from its newest checkpoint (--resume)"
            raise OutputError(f"{error}; {fix}") from None
        if loop.saving.stopped:
            raise KeyboardInterrupt

    def _drive(self, loop: Loop, record: Callable[[Event], int], listeners: Sequence[OnEvent]) -> None:
        checkpoints = CheckpointWriter(self.checkpoints, loop.settings.keep, self.parallel)
        try:
            for event in loop.run():
                if not isinstance(event, Step):
                    self.require_there()
                size = record(event)
                if isinstance(event, Saved):
                    event.state.numbers |= {"events": size, "seconds": self.seconds}
                    checkpoints.save(event.state)
                for listener in listeners:
                    listener(event)
        finally:
            checkpoints.wait()

    def _require_recorded(self, numbers: Mapping[str, Any]) -> None:
        """The events that a checkpoint counts are there: they are not recorded again."""
        size, seconds = numbers.get("events"), numbers.get("seconds")
        if not is_number(seconds) or not 0 <= seconds < math.inf:
            raise CheckpointError(f"'seconds' is {seconds!r}, expected a number of 0 or more")
        if not is_count(size) or not ends_with_saved(self.path / EVENTS, size, numbers["step"]):
            raise CheckpointError(f"{self.path / EVENTS} does not hold the events up to it, {size!r} bytes")

    def finish(
        self,
        checkpoint: Checkpoint | None,
        result: Mapping[str, Any],
        manifest: Mapping[str, Any],
        predictions: Predictions | None = None,
    ) -> None:
        """Write what a finished run has; the manifest last, and the checkpoints go."""
        if not self.parallel.is_main:
            return
        self.require_there()
        shutil.rmtree(self.path / "model", ignore_errors=True)  # half of one, from a finish that was cut short
        if checkpoint is not None:
            model_folder.save(checkpoint, self.path / "model")
        on_gpu = torch.cuda.is_available()
        name, memory = (torch.cuda.get_device_name(), torch.cuda.max_memory_allocated()) if on_gpu else (None, None)
        version = str(torch.__version__)
        about = Manifest.now(torch=version, gpu=name, gpu_memory=memory, seconds=self.seconds, **manifest)
        self.write_end(result, about, predictions)


@contextmanager
def open_run(
    path: str | Path, study: str, settings: Mapping[str, Any], *, resume: bool, parallel: Parallel = SINGLE
) -> Iterator[Run]:
    """A run folder for these settings: new; or, with `resume`, the one that is there if it is of the same run.

    To the end of the block nobody else can write it.
    """
    path = Path(path)
    wanted = {"study": study, **settings}
    parallel.require_same("code", __version__)
    parallel.require_same("settings", json.dumps(wanted, sort_keys=True, default=str))
    # Where torchrun restarts processes, the main one waits for the lock of the one before it; the others wait for it,
    # and no longer than the time-out.
    lock = lock_run(path, wanted, resume=resume, patience=timeout() / 2) if parallel.is_main else nullcontext(_nothing)
    with lock as require_there:
        parallel.barrier()
        yield Run(path, parallel, require_there)


def training_result(loop: Loop) -> dict[str, Any]:
    """What result.json says of every training."""
    best = loop.early_stopping.best
    return {"steps": loop.step, "best": None if best is None else {"epoch": best.epoch, "step": best.step}}


def training_manifest(loop: Loop, model: Model, precision: torch.dtype, *, frozen: bool = False) -> dict[str, Any]:
    """What manifest.json says of every training; `frozen`: the features of the backbone were computed once."""
    blocks = [] if frozen else [part for part in model.modules() if isinstance(part, Layer)]
    layers = sum(p.numel() for block in blocks for p in block.parameters())
    return {
        "parameters": count_parameters(model),
        "tokens": loop.tokens,
        "flops": 6.0 * loop.tokens * layers,  # 6 for each token and parameter of the layers
        "precision": "float32" if precision == torch.float32 else "bf16",
        "compiled": loop.stepper.failure is None if isinstance(loop.stepper, CompiledStepper) else None,
    }


def count_parameters(model: Model) -> dict[str, int]:
    """In all and those that train; a generator, which is dropped at the end, is counted by itself."""
    generator = model.head.generator if isinstance(model.head, ReplacedHead) else None
    dropped = set() if generator is None else set(generator.parameters())
    kept = [p for p in model.parameters() if p not in dropped]
    counted = {"total": sum(p.numel() for p in kept), "trainable": sum(p.numel() for p in kept if p.requires_grad)}
    return counted if generator is None else {**counted, "generator": sum(p.numel() for p in dropped)}


@contextmanager
def tensorboard(folder: Path, step: int) -> Iterator[Callable[[Any], None]]:
    """An event callback that writes losses, rates and scores as TensorBoard scalars; those after `step` are dropped."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtra("tensorboard", "track", "--track") from None

    def write(event: Event) -> None:
        values = {}
        if isinstance(event, Step):
            values = {"train/loss": event.loss, "train/lr": event.lr, "train/gradient": event.gradient}
        elif isinstance(event, Evaluated):
            values = {f"valid/{name}": value for name, value in event.scores.items()}
        for name, value in values.items():
            writer.add_scalar(name, value, event.step)

    writer: Any
    with SummaryWriter(str(folder), purge_step=step) as writer:
        yield write


def _ignore(_: Any) -> Any:
    pass


def _nothing() -> None:
    pass


@contextmanager
def _interruptible(loop: Loop) -> Iterator[None]:
    """Ctrl-C, or the SIGTERM of a scheduler, asks the loop to save and stop; a second one stops at once.

    Not so under torchrun, which passes signals on: there each process gets them twice, and is killed if it is too slow.
    """
    default: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}

    def request_stop(number: int, frame: Any) -> None:
        loop.saving.stop_requested = True
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            signal.signal(number, default[number])

    try:
        before = {number: signal.signal(number, request_stop) for number in default}
    except ValueError:  # not in the main thread, where signals are handled
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
