"""An exponential moving average of the weights: steadier than where the last step left them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headstart.errors import CheckpointError
from headstart.training.sharding import copy_into


class MovingAverage:
    """The average of these parameters: those that train.

    Early on it follows closely, forgetting where the run began: the n-th update keeps at most (1 + n) / (10 + n) of it.

    >>> average = MovingAverage(dict(nn.Linear(2, 2).named_parameters()), decay=0.999)
    >>> average.update()  # after each step
    >>> average.swap()    # the parameters have the average now: evaluate it, save it
    >>> average.swap()    # and now what they had before
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        self.parameters, self.decay, self.updates = parameters, decay, 0
        self.weights = {name: p.detach().clone() for name, p in parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        self.updates += 1
        kept = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, averaged in self.weights.items():
            averaged.lerp_(self.parameters[name], 1 - kept)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the averaged and the live weights; twice is as if nothing had been done."""
        for name, averaged in self.weights.items():
            before = averaged.clone()
            averaged.copy_(self.parameters[name])
            self.parameters[name].copy_(before)

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
