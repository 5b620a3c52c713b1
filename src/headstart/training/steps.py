"""One update of the weights: forwards, backwards, clip, step. What it finds stays on the device until it is asked for.

`Stepper` does it as it is written. `Recorded` is for a GPU, which on small batches waits for Python most of the time:
a step is recorded once for each size of batch, as a CUDA graph, and played back from then on. So that there are few
sizes, batches are filled up: `filled` adds tokens that no other looks at and no loss counts.

    >>> starts = torch.tensor([0, 2, 3], dtype=torch.int32)
    >>> batch = Batch(torch.tensor([5, 6, 7]), starts, longest=2, labels=torch.tensor([1, 0]))
    >>> more = filled(batch, window=128)
    >>> len(more.ids), more.starts.tolist(), more.labels.tolist()
    (64, [0, 2, 3, 64], [1, 0, -100])
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headstart.batches.batch import IGNORE_INDEX, Batch, micro_batch
from headstart.model.model import Model
from headstart.training import distributed
from headstart.training.distributed import Spread
from headstart.training.optim import Average, Optimizers
from headstart.training.precision import Precision, autocast

Seed = Callable[[int], None]  # draws dropout for a share anew
Play = Callable[[], Tensor]
WARM = 1  # steps of one size before it is recorded: kernels are chosen and compiled in them
MOST = 64  # sizes that are recorded


@dataclass
class Stepper:
    """A step as it is written."""

    model: Model
    spread: Spread
    optimizer: Optimizers
    average: Average | None
    clip: float
    precision: Precision

    def step(self, batch: Batch, shares: int, seed: Seed, factor: float) -> Tensor:
        """Move the weights by one batch, at `factor` times their rates: the parts of its loss, and the gradient's norm.

        Where one of them is no finite number the weights stay as they were.
        """
        counts, team = self.counts(batch), distributed.team()
        self.optimizer.set_rate(factor)
        total = torch.zeros(len(counts), dtype=torch.float64, device=counts.device)
        every = shares * team.world_size
        for share in range(team.rank, every, team.world_size):
            part = micro_batch(batch, share, every)
            seed(share)
            last = share + team.world_size >= every
            with nullcontext() if last else self.spread.alone():
                if part is not None:
                    total += self.gradients(part.to(counts.device), counts)
                elif team.world_size > 1:  # the others wait for a gradient from here: one of zeros
                    some = micro_batch(batch, 0, every)
                    assert some is not None
                    self.gradients(some.to(counts.device), counts, weight=0.0)
        return self.averaged(self.move(distributed.sum_over(total)))

    def counts(self, batch: Batch) -> Tensor:
        """How many terms each part of the loss has, and at least 1."""
        found = [max(count, 1.0) for count in self.spread.objective.counts(batch).values()]
        counts = torch.tensor(found, dtype=torch.float32)
        return (counts.pin_memory() if self.on_gpu else counts).to(self.model.device, non_blocking=True)

    @property
    def on_gpu(self) -> bool:
        return self.model.device.type == "cuda"

    def gradients(self, part: Batch, counts: Tensor, weight: float = 1.0) -> Tensor:
        """Forwards and backwards: the parts of the loss."""
        with autocast(self.precision, counts.device):
            sums = self.sums(part)
        means = [value / count for value, count in zip(sums.values(), counts, strict=True)]
        loss = torch.stack(means).sum() * (weight * distributed.team().world_size)  # torch averages over them
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
        return torch.stack([mean.detach().double() for mean in means])

    def sums(self, part: Batch) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self.spread.module(part)
        return found

    def move(self, total: Tensor) -> Tensor:
        """Clip and step, unless something is no number."""
        norm = distributed.total_norm(p.grad for p in self.model.parameters() if p.grad is not None)
        found = torch.cat([total, norm.double()[None]])
        over = (norm / self.clip).clamp(min=1.0).float()
        self.optimizer.step(None, divide=over, skip=~found.isfinite().all())
        self.optimizer.zero_grad()
        return found

    def averaged(self, found: Tensor) -> Tensor:
        """Let the average follow a step that was taken. Its weight changes from step to step: it is never recorded."""
        if self.average and (found.is_cuda or found.isfinite().all()):
            self.average.update(self.model)  # on a GPU, of weights that stayed, where the step was skipped
        return found


@dataclass
class Recorded(Stepper):
    """A step that is recorded for each size of batch, and played back."""

    seen: Counter[Any] = field(default_factory=Counter)
    recordings: dict[Any, tuple[Batch, Tensor, Play]] = field(default_factory=dict)
    pool: Any = None

    def __post_init__(self) -> None:
        self.halves = None if self.precision.dtype is None else Halves(self.spread.module, self.precision.dtype)

    def sums(self, part: Batch) -> dict[str, Tensor]:
        return super().sums(part) if self.halves is None else self.halves.sums(part)

    def gradients(self, part: Batch, counts: Tensor, weight: float = 1.0) -> Tensor:
        found = super().gradients(part, counts, weight)
        if self.halves is not None:
            self.halves.give_gradients()  # after each share: their sum would be coarse in half precision
        return found

    def step(self, batch: Batch, shares: int, seed: Seed, factor: float) -> Tensor:
        if shares > 1:
            return super().step(batch, shares, seed, factor)
        counts, full = self.counts(batch), filled(batch, self.model.config.window)
        full = full.pinned() if self.on_gpu else full
        size = tuple((name, tuple(value.shape)) for name, value in full.tensors().items()), full.longest
        self.seen[size] += 1
        self.optimizer.set_rate(factor)
        if size not in self.recordings and (self.seen[size] <= WARM or len(self.recordings) == MOST):
            seed(0)
            return self.averaged(self.move(self.gradients(full.to(counts.device), counts)))
        if size not in self.recordings:
            static = full.to(counts.device)
            self.recordings[size] = static, counts, self.record(static, counts)
        static, their_counts, play = self.recordings[size]
        their_counts.copy_(counts)
        for name, value in full.tensors().items():
            getattr(static, name).copy_(value, non_blocking=True)
        seed(0)
        return self.averaged(play())

    def record(self, static: Batch, counts: Tensor) -> Play:
        """What plays the step that these tensors hold the inputs of."""
        graph = torch.cuda.CUDAGraph()
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # a recording has memory of its own
        # Another thread may be writing a checkpoint meanwhile: what it asks of the GPU is none of ours.
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            found = self.move(self.gradients(static, counts))

        def play() -> Tensor:
            graph.replay()
            return found.clone()  # the next recording writes over it

        return play


class Halves:
    """The weights of linear layers in half precision: all are made by one kernel a step, and their gradients go back by
    another. Autocast would take one for each of them, which on small batches is a sixth of the time.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self.module = module
        linear = ((name, part) for name, part in module.named_modules() if isinstance(part, nn.Linear))
        self.wholes = {f"{name}.{which}": p for name, part in linear for which, p in part.named_parameters()}
        self.halves = {
            name: p.detach().to(dtype, copy=True).requires_grad_(p.requires_grad) for name, p in self.wholes.items()
        }
        self.moving = [name for name, p in self.wholes.items() if p.requires_grad]

    def sums(self, part: Batch) -> dict[str, Tensor]:
        if self.moving:
            with torch.no_grad():
                torch._foreach_copy_(
                    [self.halves[name] for name in self.moving], [self.wholes[name] for name in self.moving]
                )
        found: dict[str, Tensor] = torch.func.functional_call(self.module, self.halves, (part,))
        return found

    def give_gradients(self) -> None:
        """To the weights that they are halves of."""
        found = {name: slope for name in self.moving if (slope := self.halves[name].grad) is not None}
        if not found:
            return
        slopes = [torch.empty_like(self.wholes[name]) for name in found]
        torch._foreach_copy_(slopes, list(found.values()))
        for name, slope in zip(found, slopes, strict=True):
            whole, half = self.wholes[name], self.halves[name]
            whole.grad, half.grad = slope if whole.grad is None else whole.grad + slope, None


def filled(batch: Batch, window: int) -> Batch:
    """The batch with as many tokens, sequences and masks as one of a few sizes has; what it brings counts nowhere.

    The tokens make sequences of their own, none of them empty, none longer than the window.
    """
    tokens, sequences = len(batch.ids), len(batch.starts) - 1
    ragged = tokens != sequences * batch.longest
    few = min(window, 64 if tokens < 1024 else 128 if tokens < 8192 else 512)
    others = -sequences % _coarse(sequences) if ragged else 0
    if tokens % few:
        others = others or _coarse(sequences)
    more = others + -(tokens + others) % few
    changed: dict[str, Any] = {}
    if ragged or more:
        longest = max(batch.longest, more - others + 1)
        changed["longest"] = min(window, max(64, 1 << (longest - 1).bit_length()))
    if more:
        each = np.append(np.ones(others - 1, dtype=np.int32), np.int32(more - others + 1))
        ends = batch.starts[-1:] + torch.from_numpy(np.cumsum(each, dtype=np.int32))
        changed |= {"ids": _longer(batch.ids, more, 0), "starts": torch.cat([batch.starts, ends])}
        if batch.segments is not None:
            changed["segments"] = _longer(batch.segments, more, 0)
        if batch.labels is not None:
            changed["labels"] = _longer(batch.labels, others, IGNORE_INDEX)
        if batch.rows is not None:
            changed["rows"] = _longer(batch.rows, others, 0)
        if batch.targets is not None and batch.masked is None:
            changed["targets"] = _longer(batch.targets, more, IGNORE_INDEX)
    if batch.masked is not None and batch.targets is not None:
        masks = -len(batch.masked) % (128 if tokens < 8192 else 512)
        changed["masked"] = _longer(batch.masked, masks, 0)
        changed["targets"] = _longer(batch.targets, masks, IGNORE_INDEX)
    return replace(batch, **changed)


def _coarse(count: int) -> int:
    """A power of two, about a sixth of the count: numbers of sequences are multiples of it.

    >>> [_coarse(count) for count in (1, 8, 100, 200)]
    [1, 1, 16, 32]
    """
    return 1 << max(count // 6, 1).bit_length() - 1


def _longer(x: Tensor, by: int, value: int) -> Tensor:
    """By numpy: torch would wake its threads for a few thousand numbers."""
    return torch.from_numpy(np.concatenate([x.numpy(), np.full(by, value, dtype=x.numpy().dtype)]))
