"""What changes over a run: how the learning rate rises and falls, and which layers train."""

from __future__ import annotations

import math
from typing import assert_never

from headstart.errors import ModelError
from headstart.model.initialisation import initialise
from headstart.model.model import Model
from headstart.training.optim import depth_of
from headstart.training.settings import Schedule


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
