"""An exponential moving average of the weights: steadier than where the last step left them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from headstart.errors import CheckpointError
from headstart.model.model import Model
from headstart.training.sharding import copy_into


class MovingAverage:
    """The average of the weights that train.

    Early on it follows closely, forgetting where the run began: the n-th update keeps at most (1 + n) / (10 + n) of it.

    >>> from headstart.model.presets import preset
    >>> model = Model.build(preset("lab", vocabulary=10))
    >>> average = MovingAverage(model, decay=0.999)
    >>> average.update(model)  # after each step
    >>> average.swap(model)    # the model has the average now: evaluate it, save it
    >>> average.swap(model)    # and now what it had before
    """

    def __init__(self, model: Model, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def update(self, model: Model) -> None:
        self.updates += 1
        kept = min(self.decay, (1 + self.updates) / (10 + self.updates))
        live = dict(model.named_parameters())
        for name, averaged in self.weights.items():
            averaged.lerp_(live[name], 1 - kept)

    @torch.no_grad()
    def swap(self, model: Model) -> None:
        """Exchange the averaged and the live weights; twice is as if nothing had been done."""
        live = dict(model.named_parameters())
        for name, averaged in self.weights.items():
            before = averaged.clone()
            averaged.copy_(live[name])
            live[name].copy_(before)

    def state_dict(self) -> dict[str, Tensor]:
        """The live tensors by the names of their parameters, and the number of updates."""
        return {**self.weights, "updates": torch.tensor(self.updates)}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from a copy of such a state."""
        if tensors.keys() != self.weights.keys() | {"updates"}:
            names = sorted(tensors.keys() ^ (self.weights.keys() | {"updates"}))
            raise CheckpointError(
                f"the average is of other parameters than those that train: {names[0]} is in one only"
            )
        self.updates = int(tensors["updates"])
        for name, averaged in self.weights.items():
            copy_into(averaged, tensors[name])
