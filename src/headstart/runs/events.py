"""What happens in a run, as the training loop yields it and `events.jsonl` keeps it, one event a line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

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
    """A function that appends an event and returns the size of the file; what lies beyond `offset` is cut off first."""
    path.touch()
    with path.open("r+b") as file:
        file.truncate(offset)
        file.seek(offset)

        def write(event: Event) -> int:
            file.write(json.dumps({"event": type(event).__name__.lower(), **_to_json(event)}).encode() + b"\n")
            file.flush()
            return file.tell()

        yield write


def read_events(path: Path, last: int | None = None) -> list[Event]:
    """The events of a run, or those in the last `last` bytes; a line that is cut short is left out."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        start = 0 if last is None else max(0, size - last)
        file.seek(start)
        lines = file.read().split(b"\n")
    return list(_parse(lines[1 if start else 0 : -1]))


def _parse(lines: Iterable[bytes]) -> Iterator[Event]:
    for line in lines:
        record = json.loads(line)
        kind = KINDS[record.pop("event")]
        values = {name: _from_json(value) if name != "reason" else value for name, value in record.items()}
        if kind is Finished and values["best"] is not None:
            values["best"] = Best(**values["best"])
        yield kind(**values)


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
