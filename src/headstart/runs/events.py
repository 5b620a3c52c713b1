"""What happens in a run, as the training loop yields it and `events.jsonl` keeps it, one event a line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from headstart.errors import DataError, OutputError
from headstart.files import open_regular
from headstart.runs.records import unfit
from headstart.wording import reason

Scores = dict[str, float]


@dataclass(frozen=True)
class Step:
    """One update."""

    epoch: int
    step: int  # counted from 1, over all epochs
    total: int  # steps in all
    loss: float
    parts: dict[str, float]  # of the loss, where it has several
    lr: float
    gradient: float  # its norm, before clipping
    tokens: int  # so far
    seconds: float  # of this step


@dataclass(frozen=True)
class Skipped:
    """A step that was left out, since its loss was no number."""

    epoch: int
    step: int
    loss: float


@dataclass(frozen=True)
class Halved:
    """The GPU had too little memory for a micro-batch; from here on there are `shares` of them a step."""

    step: int
    shares: int


@dataclass(frozen=True)
class Evaluated:
    epoch: float  # 1.5: in the middle of the second
    step: int
    scores: Scores
    best: bool  # so far


@dataclass(frozen=True)
class Saved:
    """A moment to write a checkpoint of; the consumer writes it."""

    step: int
    state: Any = None  # `training.run_checkpoint.RunState`; its tensors are not recorded, so it is None when read back


@dataclass(frozen=True)
class Finished:
    step: int
    reason: str  # "done", or "patience"
    best: Best | None


@dataclass(frozen=True)
class Best:
    step: int
    epoch: float
    scores: Scores


Event = Step | Skipped | Halved | Evaluated | Saved | Finished
OnEvent = Callable[[Event], None]
KINDS: dict[str, type[Event]] = {
    "step": Step,
    "skipped": Skipped,
    "halved": Halved,
    "evaluated": Evaluated,
    "saved": Saved,
    "finished": Finished,
}


@contextmanager
def event_writer(path: Path, offset: int) -> Iterator[Callable[[Event], int]]:
    """A function that appends an event and returns the size of the file; what lies beyond `offset` is cut off first.

    A `Saved` event is on the disk when the function returns: the checkpoint written next counts on all events up to it.
    """
    with _writing(path):
        path.touch()
        file = path.open("r+b", buffering=0)  # so that closing it has nothing left to write
    with file:
        with _writing(path):
            if os.fstat(file.fileno()).st_size < offset:
                raise OSError(f"it has fewer than the {offset} bytes that were written")
            file.truncate(offset)
            file.seek(offset)

        def write(event: Event) -> int:
            line = json.dumps({"event": _kind(event), **_to_json(event)}).encode() + b"\n"
            with _writing(path):
                while line:  # where the disk is nearly full, a part of it
                    line = line[file.write(line) :]
                if isinstance(event, Saved):
                    os.fsync(file.fileno())
            return file.tell()

        yield write


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {path}: {reason(error)}") from None


def ends_with_saved(path: Path, offset: int, step: int) -> bool:
    """Whether the first `offset` bytes end with the event that the checkpoint of this step was saved."""
    expected = Saved(step)
    line = json.dumps({"event": _kind(expected), **_to_json(expected)}).encode() + b"\n"
    try:
        with open_regular(path) as file:
            file.seek(max(0, offset - len(line)))
            return file.read(len(line)) == line
    except OSError:
        return False


def read_events(path: Path, last: int | None = None) -> list[Event]:
    """The events of a run, or those in the last `last` bytes; a line that is cut short is left out."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            start = 0 if last is None else max(0, size - last)
            file.seek(start)
            lines = file.read().split(b"\n")
    except OSError as error:
        raise DataError(path, f"it cannot be read: {reason(error)}") from None
    return [_parse(path, line) for line in lines[1 if start else 0 : -1]]


def _parse(path: Path, line: bytes) -> Event:
    try:
        record = json.loads(line)
        kind = KINDS[record.pop("event")]
        values = {name: _from_json(value) if name != "reason" else value for name, value in record.items()}
        if kind is Finished and values["best"] is not None:
            values["best"] = Best(**values["best"])
        event: Event = kind(**values)
        problem = unfit(event)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        problem = reason(error)
    if problem is not None:
        shown = line[:60].decode(errors="replace")
        raise DataError(path, f"{shown!r} is no event of a run ({problem})")
    return event


def _kind(event: Event) -> str:
    return type(event).__name__.lower()


def _to_json(value: Any) -> Any:
    """Plain values: no checkpoint state, and what JSON has no number for as a string."""
    if is_dataclass(value):
        return {f.name: _to_json(getattr(value, f.name)) for f in fields(value) if f.name != "state"}
    if isinstance(value, dict):
        return {name: _to_json(item) for name, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _from_json(item) for name, item in value.items()}
    return float(value) if isinstance(value, str) else value
