"""What happens in a run, as the training loop yields it and `events.jsonl` keeps it, a line an event."""

from __future__ import annotations

from dataclasses import dataclass
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
    state: Any  # `training.loop.State`: its tensors are no part of what is recorded


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
