"""One transformer layer: attention and feed-forward, each with a residual path and a norm before or after it."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from headstart.config import Activation, ModelConfig
from headstart.model import gelu_triton, norm_triton
from headstart.model.attention import Attention
from headstart.model.dropout import Dropout
from headstart.model.layout import Layout
from headstart.model.linear import Linear

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
        self.up = Linear(config.width, config.feed_forward * (2 if config.gated else 1), bias=config.bias)
        self.down = Linear(config.feed_forward, config.width, bias=config.bias)

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


def add_norm(
    residual: Tensor, x: Tensor, norm: nn.LayerNorm, dropout: nn.Dropout, *, post: bool
) -> tuple[Tensor, Tensor]:
    """norm(residual + dropout(x)), or without `post` the sum in its place, to go on as residual; and this norm for the
    next product, in half precision where that takes it.
    """
    if norm_triton.supports(residual, x):
        drop = dropout.p if dropout.training else 0.0
        return norm_triton.add_norm(residual, x, norm.weight, norm.bias, norm.eps, drop, post=post)
    total = residual + dropout(x)
    normed = norm(total)
    return normed if post else total, normed


class Layer(nn.Module):
    """Post-norm, as BERT and the lab have it: x = norm(x + f(x)). Pre-norm, as GPT-2: x = x + f(norm(x)).

    All tokens are looked at; where `keep` names some of them, only these are given back, and worked on to the end.

    A layer gives its output and what goes with it to the next layer, where one kernel sums and normalizes: post-norm,
    the output in half precision; pre-norm, the feed-forward's result, not yet added to the output. Otherwise None.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.attention = Attention(config)
        self.attention_norm = layer_norm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = layer_norm(config)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        angles: Tensor | None,
        bias: Tensor | None,
        keep: Tensor | None = None,
        beside: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        if self.pre:
            if beside is None:
                normed = self.attention_norm(x)
            else:
                x, normed = add_norm(x, beside, self.attention_norm, self.dropout, post=False)
        else:
            normed = x if beside is None else beside
        kept = x if keep is None else layout.take(x, keep)
        norm = self.feed_forward_norm if self.pre else self.attention_norm
        x, normed = add_norm(
            kept, self.attention(normed, layout, angles, bias, keep), norm, self.dropout, post=not self.pre
        )
        beside = self.feed_forward(normed)
        if self.pre:
            return (x, beside) if norm_triton.supports(x, beside) else (x + self.dropout(beside), None)
        x, normed = add_norm(x, beside, self.feed_forward_norm, self.dropout, post=True)
        return x, None if normed is x else normed
