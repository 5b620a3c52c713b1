"""What changes over a run, and when: the learning rate, the layers that train, checkpoints, and an early end."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import assert_never

import torch
from torch import Tensor, nn

from headstart.errors import ModelError
from headstart.metrics import Scores
from headstart.model.initialisation import initialise
from headstart.model.model import Model
from headstart.parallel import Parallel
from headstart.runs.events import Best
from headstart.training.optim import depth_of
from headstart.training.settings import EvaluationSettings, SavingSettings, Schedule

LEAST_SECONDS = 30.0  # from one checkpoint to the next, where `save_every` says nothing: at the end of an epoch
MOST_SECONDS = 600.0  # and within an epoch, however long it is


def lr_factor(schedule: Schedule, step: int, total: int, warmup: int) -> float:
    """What the learning rate is multiplied by at a step, counted from 0, of a run of `total` steps.

    It rises in a line to 1 over the first `warmup` steps. Then it stays (`constant`), falls in a line (`linear`) or in
    half a cosine (`cosine`) so as to be 0 at step `total`, just after the last; or (`one-cycle`) falls in half a cosine
    to a thousandth, where 30 % of the steps are a warm-up unless another one is asked for.

    >>> [lr_factor("linear", step, total=6, warmup=2) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if not 0 <= step < total:
        raise ValueError(f"step {step} of a run of {total}: steps are counted from 0 to {total - 1}")
    if schedule == "one-cycle" and warmup == 0:
        warmup = round(0.3 * total)
    warmup = min(warmup, total)
    if step < warmup:
        return (step + 1) / warmup
    left = (total - step) / (total - warmup)  # 1 just after the warm-up, and above 0 at the last step
    half_cosine = math.sin(math.pi / 2 * left) ** 2  # (1 + cos(π (1 - left))) / 2, exact near 0
    match schedule:
        case "constant":
            return 1.0
        case "linear":
            return left
        case "cosine":
            return half_cosine
        case "one-cycle":
            return 1e-3 + (1 - 1e-3) * half_cosine
        case _:
            assert_never(schedule)


def unfrozen_layers(epoch: int, layers: int, every: int = 1) -> int:
    """Gradual unfreezing (Howard & Ruder 2018): how many layers, from the top, train in an epoch.

    The head alone in the first, then one more layer `every` so many epochs; with the last of them, all there is.

    >>> [unfrozen_layers(epoch, layers=2) for epoch in range(4)]
    [0, 1, 2, 2]
    """
    return min(epoch // every, layers)


def unfreeze_top(model: Model, count: int) -> None:
    """Let the head train, and `count` layers with what stands above them; with all of them, the embeddings too.

    Build the optimizer before, while everything trains: it leaves alone what has no gradient, and knows the rest.
    """
    layers = model.config.layers
    for name, p in model.named_parameters():
        part, depth = depth_of(name, layers)
        p.requires_grad_(part == "head" or count >= layers or (count > 0 and depth <= count))
    model.train(model.training)  # a backbone that is wholly frozen has no dropout


def reinitialise_top(model: Model, count: int) -> None:
    """Draw the top layers afresh (Zhang et al. 2021), and with them the pooler, which has learned to read them."""
    layers = list(model.backbone.layers)
    if not 0 <= count <= len(layers):
        raise ModelError(f"{count} layers to draw anew, and the model has {len(layers)}: choose 0 to {len(layers)}")
    for layer in layers[len(layers) - count :]:
        initialise(layer, model.config)
    if count and model.backbone.pooler is not None:
        initialise(model.backbone.pooler, model.config)


class SaveSchedule:
    """When to save a checkpoint, and when to stop because someone asked for it; all processes after the same step.

    Saves every `save_every` steps; or by the clock. `stop_requested` may be set at any time, from a signal too.
    """

    def __init__(self, settings: SavingSettings, parallel: Parallel, device: torch.device) -> None:
        self.every, self.parallel, self.device = settings.save_every, parallel, device
        self.stop_requested = False
        self.stopped = False  # all processes know of it
        self.saved_at = time.monotonic()
        self.seconds = 0.0  # since then, as all processes have it
        self._synced_at = -1  # the step

    def sync(self, step: int, *, may_wait: bool) -> bool:
        """Agree on whether to stop after this step, and on how long ago the last checkpoint is (the mean).

        Several processes talk only where they `may_wait`: where the GPU is waited for in any case. Once a step is
        enough.
        """
        seconds = time.monotonic() - self.saved_at
        if self.parallel.world_size == 1:
            self.stopped, self.seconds = self.stop_requested, seconds
        elif may_wait and self._synced_at != step:
            own = torch.tensor([float(self.stop_requested), seconds], device=self.device)
            requests, seconds = self.parallel.all_reduce(own).tolist()
            self.stopped, self.seconds, self._synced_at = requests > 0, seconds / self.parallel.world_size, step
        return self.stopped

    def is_due(self, *, every_due: bool, epoch_ended: bool, may_wait: bool, last: bool) -> bool:
        """Whether to save: `every_due` by the number of steps, `last` where nothing will follow."""
        if self.every is not None:
            return every_due or last
        return may_wait and self.seconds >= (LEAST_SECONDS if epoch_ended else MOST_SECONDS)

    def saved(self) -> None:
        self.saved_at = time.monotonic()


class EarlyStopping:
    """The best evaluation so far, the weights it was of, and whether there has been none better for too long.

    The score named `choose_by` decides: higher is better; a name that ends in "loss" is better lower.
    """

    def __init__(self, settings: EvaluationSettings, choose_by: str, parameters: Mapping[str, nn.Parameter]) -> None:
        self.settings, self.choose_by, self.parameters = settings, choose_by, parameters
        self.best: Best | None = None
        self.best_weights: dict[str, Tensor] = {}  # none where the last are to be kept
        self.evaluations_since_best = 0

    @property
    def out_of_patience(self) -> bool:
        return self.settings.patience is not None and self.evaluations_since_best >= self.settings.patience

    def update(self, evaluated: Best) -> bool:
        """Take in an evaluation of the weights; whether it is the best so far."""
        if self.best is not None and not self._is_better(evaluated.scores, self.best.scores):
            self.evaluations_since_best += 1
            return False
        self.best, self.evaluations_since_best = evaluated, 0
        if self.settings.weights == "best":
            self.best_weights = {name: p.detach().clone() for name, p in self.parameters.items()}
        return True

    def _is_better(self, new: Scores, old: Scores) -> bool:
        """Ties go to the lower loss, so that a run of equal accuracies does not keep the earliest by accident."""
        if self.choose_by.endswith("loss"):
            return new[self.choose_by] < old[self.choose_by]
        return (new[self.choose_by], -new["loss"]) > (old[self.choose_by], -old["loss"])

    @torch.no_grad()
    def restore_best(self) -> bool:
        """Give the parameters their best values; whether there are any."""
        for name, value in self.best_weights.items():
            self.parameters[name].copy_(value)
        return bool(self.best_weights)
