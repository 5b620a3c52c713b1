"""The training loop: one for pretraining and fine-tuning, with three different arguments: batches, head, objective.

It yields what happened and prints nothing, opens no file:

    for event in Loop(model, objective, batches, settings, validate).run():
        match event:
            case Step(): …        every update
            case Evaluated(): …   once an epoch, or every `evaluate_every` steps
            case Saved(): …       every `save_every` steps, or after an epoch, from half a minute to ten minutes apart;
                                  `event.state` is all that is needed to go on from here
            case Finished(): …

Order, masks and dropout are functions of the seed and the number of the step alone. So a loop that is restored from a
state (`run_checkpoint.py`) goes on as if it had never stopped: the same losses, the same weights, bit for bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from headstart.batches.batch import Batch, Batches
from headstart.errors import ModelError, TrainingError
from headstart.metrics import Scores
from headstart.model.model import Model
from headstart.parallel import SINGLE, Parallel
from headstart.runs.events import Best, Evaluated, Event, Finished, Halved, Saved, Skipped, Step
from headstart.training.moving_average import MovingAverage
from headstart.training.objectives import Objective
from headstart.training.optim import build_optimizer
from headstart.training.run_checkpoint import capture_state
from headstart.training.schedule import (
    EarlyStopping,
    SaveSchedule,
    lr_factor,
    reinitialise_top,
    unfreeze_top,
    unfrozen_layers,
)
from headstart.training.settings import TrainingSettings
from headstart.training.sharding import ParallelModel, checkpoint_activations, total_norm
from headstart.training.stepper import build_stepper
from headstart.wording import reason

READ_EVERY = {"cpu": 1, "cuda": 16}  # steps between reads of their losses: a GPU is waited for then


class Loop:
    """A run in progress. `validate` scores the model; the score named `choose_by` decides which weights are best."""

    def __init__(
        self,
        model: Model,
        objective: Objective,
        batches: Batches,
        settings: TrainingSettings,
        validate: Callable[[Model], Scores] | None = None,
        choose_by: str = "accuracy",  # higher is better; a name that ends in "loss" is better lower
        precision: torch.dtype = torch.float32,
        parallel: Parallel = SINGLE,
    ) -> None:
        objective.check(model)
        if not objective.divisible and (settings.accumulate > 1 or parallel.world_size > 1):
            raise ModelError(f"a batch of {objective.name} cannot be divided: use one process, without --accumulate")
        self.model, self.objective, self.batches, self.parallel = model, objective, batches, parallel
        self.settings, self.validate = settings, validate
        self.epoch = self.step_in_epoch = self.step = self.tokens = 0
        self.total = sum(map(batches.steps, range(settings.epochs))) if settings.steps is None else settings.steps
        self.micro_batches = settings.accumulate  # of each process
        if settings.reinitialise:
            torch.manual_seed(settings.seed)
            reinitialise_top(model, settings.reinitialise)
        if settings.recompute:
            checkpoint_activations(model)
        self.parallel_model = ParallelModel(model, objective, settings, parallel)
        self.trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.optimizer = build_optimizer(model, settings)
        self.average = MovingAverage(self.trainable, settings.average) if settings.average else None
        self.stepper = build_stepper(
            self.parallel_model, self.optimizer, self.average, settings, precision, self._count_tokens
        )
        self.early_stopping = EarlyStopping(settings, choose_by, self.trainable)
        self.saving = SaveSchedule(settings, parallel, model.device)
        self.pending: list[tuple[Step, Tensor]] = []  # taken, and their losses are still on the device
        self.read_every = READ_EVERY.get(model.device.type, 1)
        self.bad_steps = 0  # without a finite loss

    def run(self) -> Iterator[Event]:
        """Train to the end; events as they happen."""
        self.model.train()
        self.read_at = time.perf_counter()
        epoch, steps = -1, 0  # the epoch that was begun, which a resumed run may be in the middle of
        while self.step < self.total and not self.early_stopping.out_of_patience:
            if self.epoch != epoch:
                epoch, steps = self.epoch, self.batches.steps(self.epoch)
                if self.settings.unfreeze:
                    layers = unfrozen_layers(epoch, self.model.config.layers, self.settings.unfreeze)
                    unfreeze_top(self.model, layers)
            yield from self._update()

            epoch_ended = self.step_in_epoch == steps or self.step == self.total
            evaluate = self.validate is not None and self._is_due(self.settings.evaluate_every, epoch_ended)
            save = self._is_due(self.settings.save_every, False)
            read = evaluate or save or epoch_ended or len(self.pending) >= self.read_every
            # A signal may have come during the step, or will while an event is handled: so twice.
            if self.saving.sync(self.step, may_wait=read) or read:
                yield from self._read_losses()
            if evaluate:
                self._check_weights()
                yield self._evaluate(self.epoch + self.step_in_epoch / steps)
            if self.step_in_epoch == steps:
                self.epoch, self.step_in_epoch = self.epoch + 1, 0

            stop = self.saving.sync(self.step, may_wait=read)
            last = self.early_stopping.out_of_patience
            if stop or self.saving.is_due(every_due=save, epoch_ended=epoch_ended, may_wait=read, last=last):
                self._check_weights()
                yield Saved(self.step, capture_state(self))
                self.saving.saved()
            if stop:
                return
        self._keep_weights()
        self._check_weights()
        yield Finished(self.step, "patience" if self.step < self.total else "done", self.early_stopping.best)

    def _is_due(self, every: int | None, otherwise: bool) -> bool:
        """Whether this step is one of every so many, or the last; `otherwise` where no number was given."""
        return otherwise if every is None else self.step % every == 0 or self.step == self.total

    def _count_tokens(self) -> int:
        """About how many tokens the run will see."""
        return self.total * len(self.batches.batch(0, 0).ids) if self.total else 0

    def _update(self) -> Iterator[Event]:
        """One step of the optimizer; its loss is read later. Out of memory, micro-batches of half the size, once."""
        batch = self.batches.batch(self.epoch, self.step_in_epoch)
        warmup = round(self.settings.warmup * self.total)
        factor = lr_factor(self.settings.schedule, self.step, self.total, warmup)
        for attempt in range(2):
            try:
                values = self.stepper.step(batch, self.step, self.micro_batches, factor)
                break
            except torch.OutOfMemoryError as error:
                self.stepper.discard()
                # Other processes cannot know of it, and some objectives need the batch as a whole.
                if attempt or self.parallel.world_size > 1 or not self.objective.divisible:
                    raise TrainingError(self._out_of_memory(batch, error)) from None
                self.micro_batches *= 2
            yield Halved(self.step + 1, self.micro_batches)
        self.step += 1
        self.step_in_epoch += 1
        self.tokens += batch.ids.shape[0]
        lr, unread = self.settings.lr * factor, math.nan
        event = Step(self.epoch, self.step, self.total, unread, {}, lr, unread, self.tokens, unread)
        self.pending.append((event, values))

    def _out_of_memory(self, batch: Batch, error: Exception) -> str:
        return (
            f"out of memory at step {self.step + 1}, with {batch.ids.shape[0]} tokens in {self.micro_batches} "
            f"micro-batches (longest sequence {batch.longest}): lower batch_size or window ({reason(error)})"
        )

    def _read_losses(self) -> Iterator[Step | Skipped]:
        """The pending steps, with what they came to."""
        pending, self.pending = self.pending, []
        if not pending:
            return
        rows = torch.stack([values for _, values in pending]).tolist()
        now = time.perf_counter()
        seconds, self.read_at = (now - self.read_at) / len(pending), now
        for (step, _), (*losses, gradient) in zip(pending, rows, strict=True):
            loss = sum(losses)
            if math.isfinite(loss) and math.isfinite(gradient):
                parts = dict(zip(self.objective.parts, losses, strict=True)) if len(losses) > 1 else {}
                yield replace(step, loss=loss, parts=parts, gradient=gradient, seconds=seconds)
                continue
            self.bad_steps += 1
            if self.bad_steps > self.settings.skip_bad_steps:
                raise TrainingError(
                    f"the loss became {loss} at step {step.step} (learning rate {step.lr:.3g}): lower lr or clip, "
                    f"raise warmup, or allow --skip-bad-steps {self.bad_steps}; the checkpoints before it are whole"
                )
            yield Skipped(step.epoch, step.step, loss)

    def _check_weights(self) -> None:
        """Raise where an update made a weight inf or nan, before anything is kept of it."""
        norm = total_norm([p.detach() for p in self.trainable.values()], self.parallel)
        if not norm.isfinite():
            raise TrainingError(
                f"the weights became {norm.item()} by step {self.step} (lr is {self.settings.lr:.3g}): lower lr, or "
                "raise warmup; the checkpoints before it are whole"
            )

    def _evaluate(self, epoch: float) -> Evaluated:
        """Score the weights, or their average where there is one."""
        assert self.validate is not None
        if self.average:
            self.average.swap()
        with self.stepper.uncompiled(), self.parallel_model.unsharded():
            scores = self.validate(self.model)
        is_best = self.early_stopping.update(Best(self.step, epoch, scores))
        if self.average:
            self.average.swap()
        self.model.train()
        return Evaluated(epoch, self.step, scores, is_best)

    def _keep_weights(self) -> None:
        """Leave the model with the weights that were asked for."""
        if not self.early_stopping.restore_best() and self.average:
            self.average.swap()
        self.stepper.close()
        self.model.eval()
