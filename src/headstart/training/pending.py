"""Steps that were taken and whose losses are still on the device."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headstart.errors import TrainingError
from headstart.runs.events import Skipped, Step


@dataclass(frozen=True)
class PendingStep:
    """`values` are the parts of its loss, by these names, and the norm of its gradient."""

    epoch: int
    step: int
    lr: float
    tokens: int
    names: tuple[str, ...]
    values: Tensor


@dataclass
class PendingSteps:
    """Reads them many at once: to read a number from a GPU is to wait until it has done all that it was given."""

    total: int  # steps of the run
    skip_bad_steps: int  # steps without a finite loss that are tolerated
    read_every: int
    bad_steps: int = 0
    _pending: list[PendingStep] = field(default_factory=list)
    _read_at: float = 0.0

    @property
    def full(self) -> bool:
        return len(self._pending) >= self.read_every

    def start_clock(self) -> None:
        self._read_at = time.perf_counter()

    def add(self, step: PendingStep) -> None:
        self._pending.append(step)

    def read(self) -> Iterator[Step | Skipped]:
        """What came of them, as events."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        values = torch.stack([step.values for step in pending]).tolist()
        seconds = (time.perf_counter() - self._read_at) / len(pending)
        self.start_clock()
        for step, (*losses, gradient) in zip(pending, values, strict=True):
            loss = sum(losses)
            if not (math.isfinite(loss) and math.isfinite(gradient)):
                yield self._skip(step, loss)
                continue
            parts = dict(zip(step.names, losses, strict=True)) if len(losses) > 1 else {}
            yield Step(step.epoch, step.step, self.total, loss, parts, step.lr, gradient, step.tokens, seconds)

    def _skip(self, step: PendingStep, loss: float) -> Skipped:
        self.bad_steps += 1
        if self.bad_steps > self.skip_bad_steps:
            raise TrainingError(
                f"the loss became {loss} at step {step.step} (learning rate {step.lr:.3g}): lower lr or clip, raise "
                f"warmup, or allow --skip-bad-steps {self.skip_bad_steps + 1}; the checkpoints before it are whole"
            )
        return Skipped(step.epoch, step.step, loss)
