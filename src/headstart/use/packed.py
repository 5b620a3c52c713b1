"""A model that only answers: its linear layers hold their weights in the order in which the CPU's kernels read them.

Laying the weights out anew for every product costs a tenth of the time on long batches and half of it on a single
text. It is done once here; the packed copy shares every other tensor with the model, and has no gradients.

>>> linear = nn.Linear(3, 2)
>>> x = torch.ones(1, 3)
>>> with torch.inference_mode():
...     torch.allclose(packed(nn.Sequential(linear))(x), linear(x))
True
"""

from __future__ import annotations

from copy import deepcopy
from itertools import chain
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.model.layers import FeedForward

M = TypeVar("M", bound=nn.Module)


class PackedLinear(nn.Module):
    """`nn.Linear` by oneDNN, whose own format its weight is kept in; `after` it ("none" or "gelu") in the same pass."""

    def __init__(self, linear: nn.Linear, after: str = "none") -> None:
        super().__init__()
        self.after = after
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, self.after, [], "none")
        return out


def packed(model: M) -> M:
    """A copy for `inference_mode` on the CPU in float32; the model itself where this torch cannot pack."""
    if not can_pack():
        return model
    copy = copy_sharing(model)
    for module in list(copy.modules()):
        gelu = isinstance(module, FeedForward) and not module.gated and module.activation is F.gelu
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                setattr(module, name, PackedLinear(child, "gelu" if gelu and name == "up" else "none"))
        if gelu:
            module.activation = nn.Identity()
    return copy


def copy_sharing(model: M) -> M:
    """Modules of its own, which may be exchanged, over the very tensors of the model."""
    return deepcopy(model, {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())})


def can_pack() -> bool:
    """Whether oneDNN is here and takes a layer: these are the operators that `torch.compile` uses, not a public API."""
    try:
        with torch.inference_mode():
            PackedLinear(nn.Linear(8, 8, bias=False))(torch.ones(1, 8))
    except (RuntimeError, AttributeError):
        return False
    return True
