"""The training loop: one for pretraining and fine-tuning, with three different arguments: batches, head, objective.

It yields what happened and prints nothing, opens no file:

    for event in Loop(model, objective, batches, settings, validate).run():
        match event:
            case Step(): …        every update
            case Evaluated(): …   once an epoch, or every `evaluate_every` steps
            case Saved(): …       every `save_every` steps, or after an epoch, from half a minute to ten minutes apart;
                                  `event.state` is all that is needed to go on from here
            case Finished(): …

Order, masks and dropout are functions of the seed and the number of the step alone. So a loop that is given a `State`
goes on from it as if it had never stopped: the same losses, the same weights, bit for bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headstart.batches.batch import Batch, Batches, rng
from headstart.errors import TrainingError
from headstart.metrics import Scores
from headstart.model.model import Model
from headstart.runs.events import Best, Evaluated, Event, Finished, Halved, Saved, Skipped, Step
from headstart.training import distributed, slopes_gpu
from headstart.training.distributed import Spread, fill, like
from headstart.training.objectives import Objective
from headstart.training.optim import Average, build_optimizer, rate, reinitialise_top, set_unfrozen, unfrozen_layers
from headstart.training.precision import Precision
from headstart.training.settings import TrainingSettings
from headstart.training.steps import Recorded, Stepper

COMPILERS = ("torch._dynamo", "torch._inductor", "triton")  # where their errors come from
LONG = 50_000_000  # tokens of a run in which compiled layers save more time than compiling takes
PAUSE = 30.0  # seconds from one checkpoint to the next, at least, where nobody said how many steps
OVERDUE = 600.0  # and at most, however long an epoch is


@dataclass
class State:
    """Where a run stands: tensors by name, and a few numbers that JSON can hold."""

    tensors: dict[str, Tensor]
    numbers: dict[str, Any]


@dataclass(frozen=True)
class Unread:
    """A step that was taken; the parts of its loss and its gradient's norm are still on the device."""

    epoch: int
    step: int
    lr: float
    tokens: int
    names: tuple[str, ...]
    found: Tensor


@dataclass
class Loop:
    """A run in progress. `validate` scores the model; the score named `choose_by` decides which weights are best."""

    model: Model
    objective: Objective
    batches: Batches
    settings: TrainingSettings
    validate: Callable[[Model], Scores] | None = None
    choose_by: str = "accuracy"  # higher is better; a name that ends in "loss" is better lower
    precision: Precision = field(default_factory=lambda: Precision(None, None))

    def __post_init__(self) -> None:
        s = self.settings
        self.objective.check(self.model)
        lengths = [self.batches.steps(epoch) for epoch in range(s.epochs)] if s.steps is None else []
        self.total = sum(lengths) if s.steps is None else s.steps
        self.epoch = self.in_epoch = self.step = self.tokens = 0
        self.shares, self.bad_steps, self.since_best = s.accumulate, 0, 0
        self.stopping = False  # set it, and the loop saves and ends; several processes, when they read next
        self.stopped = False  # whether it did
        self.asked_at = -1  # the step at which processes last asked one another
        self.saved_at = time.monotonic()
        self.waited = 0.0  # seconds since then, as all processes have it
        self.best: Best | None = None
        self.best_weights: dict[str, Tensor] = {}
        if s.reinitialise:
            torch.manual_seed(s.seed)
            reinitialise_top(self.model, s.reinitialise)
        if s.recompute:
            distributed.recompute(self.model)
        self.spread = Spread.of(self.model, self.objective, shard=s.shard, changing=bool(s.unfreeze))
        self.moving = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.optimizer = build_optimizer(
            self.model,
            kind=s.optimizer,
            lr=s.lr,
            betas=(s.beta1, s.beta2),
            eps=s.epsilon,
            weight_decay=s.weight_decay,
            layer_decay=s.layer_decay,
            head_lr=s.head_lr,
        )
        self.average = Average(self.model, s.average) if s.average else None
        on_gpu = self.model.device.type == "cuda"
        # Gradual unfreezing changes what a step does. Without our kernel the vocabulary's loss asks the device for
        # numbers, which nothing that is recorded may.
        several = distributed.team().world_size > 1
        steady = self.optimizer.recordable and not s.unfreeze and not several
        steady = steady and slopes_gpu.HERE
        kind = Recorded if on_gpu and steady else Stepper
        self.stepper = kind(self.model, self.spread, self.optimizer, self.average, s.clip or math.inf, self.precision)
        self.compiled = s.compile == "yes" or (s.compile == "auto" and on_gpu and steady and self._is_long())
        if self.compiled:
            for layer in self.model.backbone.layers:
                layer.compile()
        self.unread: list[Unread] = []
        self.together = 16 if on_gpu else 1  # steps whose losses are read at once
        self.read_at = time.perf_counter()

    def _is_long(self) -> bool:
        """Whether there are tokens enough that compiling pays."""
        return self.step < self.total and self.total * len(self.batches.batch(0, 0).ids) >= LONG

    # --- the run -----------------------------------------------------------------------------------------------------

    def run(self) -> Iterator[Event]:
        """Train to the end; events as they happen."""
        s = self.settings
        self.model.train()
        self.read_at = time.perf_counter()
        epoch, steps = -1, 0
        while self.step < self.total and not self._tired():
            if self.epoch != epoch:
                epoch, steps = self.epoch, self.batches.steps(self.epoch)
                self._thaw()
            yield from self._update()
            last = self.in_epoch == steps or self.step == self.total
            evaluate = self.validate is not None and (last if s.evaluate_every is None else self._due(s.evaluate_every))
            save = s.save_every is not None and self._due(s.save_every)
            reads = evaluate or save or last or len(self.unread) >= self.together
            if self._stops(reads) or reads:
                yield from self._read()
            if evaluate:
                yield self._evaluate(self.epoch + self.in_epoch / steps)
            if self.in_epoch == steps:
                self.epoch, self.in_epoch = self.epoch + 1, 0
            stops = self._stops(reads)
            if s.save_every is None:
                save = reads and self.waited >= (PAUSE if last else OVERDUE)
            if stops or save or (s.save_every is not None and self._tired()):
                yield Saved(self.step, self.state())
                self.saved_at = time.monotonic()
            if stops:
                return
        self._keep()
        yield Finished(self.step, "patience" if self.step < self.total else "done", self.best)

    def _stops(self, reads: bool) -> bool:
        """Whether to end after this step. Several processes ask one another, and so end after the same; they ask too
        how long ago it is that they saved, and agree on the mean.

        They ask when they read their numbers: a GPU is waited for then in any case.
        """
        waited, team = time.monotonic() - self.saved_at, distributed.team()
        if team.world_size == 1:
            self.stopped, self.waited = self.stopping, waited
        elif reads and self.asked_at != self.step:
            asked = torch.tensor([float(self.stopping), waited], device=self.model.device)
            stopping, waited = distributed.sum_over(asked).tolist()
            self.stopped, self.waited, self.asked_at = stopping > 0, waited / team.world_size, self.step
        return self.stopped

    def _due(self, every: int) -> bool:
        return self.step % every == 0 or self.step == self.total

    def _tired(self) -> bool:
        return self.settings.patience is not None and self.since_best >= self.settings.patience

    def _thaw(self) -> None:
        """Gradual unfreezing: in each epoch some more of the layers train, from the top."""
        if self.settings.unfreeze:
            layers = self.model.config.layers
            count = unfrozen_layers(self.epoch, layers, self.settings.unfreeze)
            set_unfrozen(self.model, None if count >= layers else count)
            self.model.train()

    # --- one step ----------------------------------------------------------------------------------------------------

    def _update(self) -> Iterator[Event]:
        """One step of the optimizer, in as many micro-batches as it takes; what it found is read later."""
        batch = self.batches.batch(self.epoch, self.in_epoch)
        factor = rate(self.settings.schedule, self.step, self.total, round(self.settings.warmup * self.total))
        try:
            found = self._take(batch, factor)
        except torch.OutOfMemoryError as error:
            self._release()
            if distributed.team().world_size > 1:  # the others cannot know of it
                raise TrainingError(self._too_large(batch, error)) from None
            self.shares *= 2
            yield Halved(self.step + 1, self.shares)
            try:
                found = self._take(batch, factor)
            except torch.OutOfMemoryError as error:
                self._release()
                raise TrainingError(self._too_large(batch, error)) from None
        self.step += 1
        self.in_epoch += 1
        self.tokens += batch.ids.shape[0]
        names = tuple(self.spread.objective.counts(batch))
        self.unread.append(Unread(self.epoch, self.step, self.settings.lr * factor, self.tokens, names, found))

    def _take(self, batch: Batch, factor: float) -> Tensor:
        """The step; as it is written where it cannot be compiled, unless that was asked for."""
        try:
            return self.stepper.step(batch, self.shares, self._seed_dropout, factor)
        except Exception as error:
            if not (self.compiled and type(error).__module__.startswith(COMPILERS)):
                raise
            if self.settings.compile == "yes":
                reason = str(error).strip().split("\n", 1)[0]
                raise TrainingError(f"the layers cannot be compiled here ({reason}): train with --compile no") from None
        self._release()
        self._written()
        return self.stepper.step(batch, self.shares, self._seed_dropout, factor)

    def _written(self) -> None:
        """Let the layers run as they are written from here on."""
        for layer in self.model.backbone.layers:
            layer._compiled_call_impl = None  # which `compile` had set
        self.compiled = False

    @contextmanager
    def _as_written(self) -> Iterator[None]:
        """For batches of other sizes: to compile for each of them would take longer than they do."""
        calls = [layer._compiled_call_impl for layer in self.model.backbone.layers]
        for layer in self.model.backbone.layers:
            layer._compiled_call_impl = None
        try:
            yield
        finally:
            for layer, call in zip(self.model.backbone.layers, calls, strict=True):
                layer._compiled_call_impl = call

    def _read(self) -> Iterator[Event]:
        """What the last steps found, as events; read together, since to ask a GPU for a number is to wait for it."""
        unread, self.unread = self.unread, []
        if not unread:
            return
        values = torch.stack([each.found for each in unread]).tolist()
        seconds = (time.perf_counter() - self.read_at) / len(unread)
        self.read_at = time.perf_counter()
        for each, (*losses, gradient) in zip(unread, values, strict=True):
            loss = sum(losses)
            if not (math.isfinite(loss) and math.isfinite(gradient)):
                yield self._bad_step(each, loss)
                continue
            parts = dict(zip(each.names, losses, strict=True)) if len(losses) > 1 else {}
            yield Step(each.epoch, each.step, self.total, loss, parts, each.lr, gradient, each.tokens, seconds)

    def _seed_dropout(self, share: int) -> None:
        """What dropout drops depends on the seed, the step and the share, and on nothing before."""
        seed = int(rng(self.settings.seed, self.step, share, 3).integers(2**63))
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` asks for kinds of device that are not here
        if self.model.device.type == "cuda":
            torch.cuda.manual_seed_all(seed)

    def _bad_step(self, bad: Unread, loss: float) -> Event:
        self.bad_steps += 1
        if self.bad_steps > self.settings.skip_bad_steps:
            raise TrainingError(
                f"the loss became {loss} at step {bad.step} (learning rate {bad.lr:.3g}): lower lr or clip, raise "
                f"warmup, or allow --skip-bad-steps {self.settings.skip_bad_steps + 1}; the checkpoints before it are "
                "whole"
            )
        return Skipped(bad.epoch, bad.step, loss)

    def _release(self) -> None:
        self.optimizer.zero_grad()
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def _too_large(self, batch: Batch, error: Exception) -> str:
        reason = str(error).split("\n", 1)[0]
        return (
            f"out of memory at step {self.step + 1}, with {batch.ids.shape[0]} tokens in {self.shares} micro-batches "
            f"(longest sequence {batch.longest}): lower batch_size or window ({reason})"
        )

    # --- evaluation ---------------------------------------------------------------------------------------------------

    def _evaluate(self, epoch: float) -> Evaluated:
        assert self.validate is not None
        if self.average:
            self.average.swap(self.model)
        with self._as_written(), self.spread.gathered():
            scores = self.validate(self.model)
        better = self.best is None or self._better(scores, self.best.scores)
        if better:
            self.best, self.since_best = Best(self.step, epoch, scores), 0
            if self.settings.weights == "best":
                self.best_weights = self._copy_of_weights()
        else:
            self.since_best += 1
        if self.average:
            self.average.swap(self.model)
        self.model.train()
        return Evaluated(epoch, self.step, scores, better)

    def _better(self, new: Scores, old: Scores) -> bool:
        """Ties go to the lower loss, so that a run of equal accuracies does not keep the earliest by accident."""
        if self.choose_by.endswith("loss"):
            return new[self.choose_by] < old[self.choose_by]
        return (new[self.choose_by], -new["loss"]) > (old[self.choose_by], -old["loss"])

    def _copy_of_weights(self) -> dict[str, Tensor]:
        """The parameters that training moves; the others are as they were."""
        return {name: p.detach().clone() for name, p in self.moving.items()}

    @torch.no_grad()
    def _keep(self) -> None:
        """Leave the model with the weights that were asked for."""
        if self.settings.weights == "best" and self.best_weights:
            for name, p in self.moving.items():
                p.copy_(self.best_weights[name])
        elif self.average:
            self.average.swap(self.model)
        self._written()
        self.model.eval()

    # --- stopping and going on ----------------------------------------------------------------------------------------

    def state(self) -> State:
        """A copy of everything that the rest of the run depends on."""
        optimizer, numbers = self.optimizer.state_dict()
        tensors = {f"model.{name}": p.detach().clone() for name, p in self.moving.items()}
        tensors |= {f"optimizer.{name}": value.clone() for name, value in optimizer.items()}
        tensors |= {f"best.{name}": value for name, value in self.best_weights.items()}
        if self.average:
            tensors |= {f"average.{name}": value.clone() for name, value in self.average.state_dict().items()}
        best = None if self.best is None else vars(self.best)
        return State(
            tensors,
            {
                "epoch": self.epoch,
                "in_epoch": self.in_epoch,
                "step": self.step,
                "tokens": self.tokens,
                "shares": self.shares * distributed.team().world_size,
                "bad_steps": self.bad_steps,
                "since_best": self.since_best,
                "best": best,
                "optimizer": numbers,
            },
        )

    @torch.no_grad()
    def restore(self, state: State) -> None:
        """Go on from a state that a loop with the same settings, model and data gave."""
        numbers = state.numbers
        for name in ("epoch", "in_epoch", "step", "tokens", "bad_steps", "since_best"):
            setattr(self, name, numbers[name])
        self.shares = math.ceil(numbers["shares"] / distributed.team().world_size)  # as many in all as there were
        self.best = None if numbers["best"] is None else Best(**numbers["best"])
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "best": {}, "average": {}}
        for name, value in state.tensors.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = value.to(self.model.device)
        moving = self.moving
        if moving.keys() != parts["model"].keys():
            raise TrainingError("the checkpoint is of another model: its parameters have other names")
        for name, p in moving.items():
            if p.shape != parts["model"][name].shape:
                raise TrainingError(
                    f"the checkpoint is of another model: {name} has shape {tuple(parts['model'][name].shape)}, "
                    f"expected {tuple(p.shape)}"
                )
            fill(p, parts["model"][name])
        self.best_weights = {name: like(moving[name], value) for name, value in parts["best"].items()}
        self.optimizer.load_state_dict(parts["optimizer"], numbers["optimizer"])
        if self.average:
            self.average.load_state_dict(parts["average"])
