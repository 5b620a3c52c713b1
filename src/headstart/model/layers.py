"""One transformer layer: attention and feed-forward, each with a residual path and a norm before or after it."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from headstart.config import Activation, ModelConfig
from headstart.model import gelu_triton
from headstart.model.attention import Attention
from headstart.model.layout import Layout

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


def layer_norm(config: ModelConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.width, eps=config.norm_epsilon, bias=config.bias)


class FeedForward(nn.Module):
    """down(activation(up(x))), or down(activation(gate(x)) * up(x)) where it is gated.

    The gate and the up projection are one matrix, the gate first.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gated = config.gated
        self.activation = ACTIVATIONS[config.activation]
        self.up = nn.Linear(config.width, config.feed_forward * (2 if config.gated else 1), bias=config.bias)
        self.down = nn.Linear(config.feed_forward, config.width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        fast = self.activation is F.gelu and gelu_triton.supports(x)
        if fast and not self.gated and self.up.bias is not None:
            return self.down(gelu_triton.bias_gelu(F.linear(x, self.up.weight), self.up.bias))
        x = self.up(x)  # (…, F), or (…, 2 F)
        if fast and self.gated:
            x = gelu_triton.gated_gelu(x)
        elif self.gated:
            gate, x = x.chunk(2, dim=-1)
            x = self.activation(gate) * x
        else:
            x = self.activation(x)
        return self.down(x)


class Layer(nn.Module):
    """Post-norm, as BERT and the lab have it: x = norm(x + f(x)). Pre-norm, as GPT-2: x = x + f(norm(x)).

    All tokens are looked at; where `keep` names some of them, only these are given back, and worked on to the end.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.attention = Attention(config)
        self.attention_norm = layer_norm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = layer_norm(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Tensor, layout: Layout, angles: Tensor | None, bias: Tensor | None, keep: Tensor | None = None
    ) -> Tensor:
        kept = x if keep is None else layout.take(x, keep)
        if self.pre:
            x = kept + self.dropout(self.attention(self.attention_norm(x), layout, angles, bias, keep))
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        x = self.attention_norm(kept + self.dropout(self.attention(x, layout, angles, bias, keep)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
