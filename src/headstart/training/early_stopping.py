"""The best evaluation so far, the weights it was of, and whether there has been none better for too long."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headstart.metrics import Scores
from headstart.runs.events import Best
from headstart.training.settings import EvaluationSettings


class EarlyStopping:
    """The score named `choose_by` decides: higher is better; a name that ends in "loss" is better lower."""

    def __init__(self, settings: EvaluationSettings, choose_by: str) -> None:
        self.settings, self.choose_by = settings, choose_by
        self.best: Best | None = None
        self.best_weights: dict[str, Tensor] = {}  # of the parameters that train; none where the last are to be kept
        self.evaluations_since_best = 0

    @property
    def out_of_patience(self) -> bool:
        return self.settings.patience is not None and self.evaluations_since_best >= self.settings.patience

    def update(self, evaluated: Best, parameters: Mapping[str, nn.Parameter]) -> bool:
        """Take in an evaluation of these weights; whether it is the best so far."""
        if self.best is not None and not self._is_better(evaluated.scores, self.best.scores):
            self.evaluations_since_best += 1
            return False
        self.best, self.evaluations_since_best = evaluated, 0
        if self.settings.weights == "best":
            self.best_weights = {name: p.detach().clone() for name, p in parameters.items()}
        return True

    def _is_better(self, new: Scores, old: Scores) -> bool:
        """Ties go to the lower loss, so that a run of equal accuracies does not keep the earliest by accident."""
        if self.choose_by.endswith("loss"):
            return new[self.choose_by] < old[self.choose_by]
        return (new[self.choose_by], -new["loss"]) > (old[self.choose_by], -old["loss"])

    @torch.no_grad()
    def restore_best(self, parameters: Mapping[str, nn.Parameter]) -> bool:
        """Give the parameters their best values; whether there are any."""
        for name, value in self.best_weights.items():
            parameters[name].copy_(value)
        return bool(self.best_weights)
