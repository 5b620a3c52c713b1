"""The attention weights of every layer and head for one text."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from headstart.model.attention import Attention, plain_attention, square_mask
from headstart.model.layout import Flat
from headstart.model.model import Model
from headstart.use.classifier import TextClassifier
from headstart.use.explanation import AttentionMaps
from headstart.use.hooks import this_thread_only
from headstart.use.words import TokenizedText


def attention_maps(classifier: TextClassifier, text: TokenizedText) -> AttentionMaps:
    """The attention weights that a classifier gives a text."""
    ids = torch.from_numpy(text.ids).to(classifier.device)
    segments = None if text.segments is None else torch.from_numpy(text.segments).to(classifier.device)
    weights = attention_weights(classifier.model, ids, segments).float().cpu().numpy()
    return AttentionMaps(text.tokens, weights, causal=classifier.model.config.direction == "causal")


@torch.no_grad()
def attention_weights(model: Model, ids: Tensor, segments: Tensor | None = None) -> Tensor:
    """(layers, H, L, L) for one sequence, in the plain form; the fast kernels never materialise them."""
    by_layer: list[Tensor] = []

    def record(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        assert isinstance(module, Attention)
        x, _, angles, bias, _ = inputs
        q, k, v = (part.transpose(0, 1) for part in module.project(x, angles))  # each (H, L, K)
        mask = square_mask(len(x), x.device) if module.causal else None
        if bias is not None:
            mask = bias if mask is None else bias + mask
        by_layer.append(plain_attention(q, k, v, mask)[1])  # (H, L, L)

    with ExitStack() as hooks:
        for module in model.backbone.modules():
            if isinstance(module, Attention):
                hooks.enter_context(module.register_forward_pre_hook(this_thread_only(record)))
        model.backbone(ids, Flat.from_lengths([len(ids)], ids.device), segments)
    return torch.stack(by_layer)
