"""Fresh weights, as each family draws them. Uses torch's global generator: seed it first.

bert, roberta, …   normal(0, 0.02), biases 0, norms 1 and 0
gpt2, headstart    the same; the projections back into the residual path are scaled by 1 / √(2 · layers)
lab                uniform(−0.1, 0.1) for the embedding and the heads, and torch's own defaults within the layers
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from headstart.config import ModelConfig
from headstart.model.attention import Attention
from headstart.model.heads import ClassifierHead, VocabularyHead
from headstart.model.layers import FeedForward


@torch.no_grad()
def initialise(module: nn.Module, config: ModelConfig) -> None:
    """Draw every parameter of `module` (a backbone, or a head) anew."""
    for part in module.modules():
        if config.family == "lab":
            _lab(part)
        else:
            _normal(part)
    for part in module.modules():  # what depends on the part that a layer plays
        if config.family == "lab" and isinstance(part, Attention):  # as nn.MultiheadAttention does
            nn.init.xavier_uniform_(part.qkv.weight)
            _zero(part.qkv.bias)
            _zero(part.out.bias)
        elif config.family == "lab" and isinstance(part, ClassifierHead):
            part.out.weight.uniform_(-0.1, 0.1)
            _zero(part.out.bias)
        elif config.family in ("gpt2", "headstart") and isinstance(part, Attention):
            part.out.weight.mul_(1 / math.sqrt(2 * config.layers))
        elif config.family in ("gpt2", "headstart") and isinstance(part, FeedForward):
            part.down.weight.mul_(1 / math.sqrt(2 * config.layers))


def _normal(part: nn.Module) -> None:
    if isinstance(part, nn.Linear | nn.Embedding | VocabularyHead) and part.weight is not None:
        part.weight.normal_(0.0, 0.02)
    if isinstance(part, nn.Linear | VocabularyHead):
        _zero(part.bias)
    if isinstance(part, nn.LayerNorm):
        part.reset_parameters()


def _lab(part: nn.Module) -> None:
    if isinstance(part, nn.Embedding | VocabularyHead) and part.weight is not None:
        part.weight.uniform_(-0.1, 0.1)
    if isinstance(part, VocabularyHead):
        _zero(part.bias)
    if isinstance(part, nn.Linear | nn.LayerNorm):
        part.reset_parameters()


def _zero(bias: Tensor | None) -> None:
    if bias is not None:
        bias.zero_()
