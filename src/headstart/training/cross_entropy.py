"""The loss over a vocabulary: how far a model was from expecting the tokens that came.

A token has V logits z and a target y. Its loss, and the slope of its loss along each logit, are

    loss = log Σ exp(z) - z[y]        slope = softmax(z) - (1 at y, 0 elsewhere)

The plain form makes the logits of all tokens at once. For 32,768 tokens and 50,001 words they fill 6.6 GB in float32,
and the backward pass holds as much twice more. But the slope needs nothing that comes after it: so the chunked form
takes some tokens at a time, turns their logits into slopes, adds these to the gradients, and forgets them.

    M tokens, D width, V words

    >>> features, weight = torch.eye(2), torch.tensor([[9.0, 0.0], [0.0, 9.0], [0.0, 0.0]])
    >>> expected = torch.tensor([0, 1])  # the words that these two vectors point at
    >>> round(plain_cross_entropy(features, weight, None, expected).item(), 4)
    0.0005
    >>> round(chunked_cross_entropy(features, weight, None, expected, chunk=1).item(), 4)
    0.0005
    >>> round(chunked_cross_entropy(features, weight, None, torch.tensor([2, IGNORE])).item(), 4)
    9.0002
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.errors import ModelError
from headstart.text.batches import IGNORE

Wanted = tuple[bool, bool, bool]  # whether the gradients of features, weight and bias are asked for
Slopes = tuple[Tensor | None, Tensor | None, Tensor | None]


def plain_cross_entropy(features: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """The sum of the losses of all targets but `IGNORE`, as one would write it down; the chunked form equals it.

    features (M, D), weight (V, D), bias (V,) or None, targets (M,) → a number
    """
    multiply, exact = _dtypes(features)
    logits = F.linear(features.to(multiply), weight.to(multiply), _cast(bias, multiply)).to(exact)  # (M, V)
    log_p = logits.log_softmax(-1)
    counted = targets != IGNORE
    return -log_p[counted, targets[counted]].sum()


def chunked_cross_entropy(
    features: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, *, chunk: int = 1024
) -> Tensor:
    """The same sum with the same gradients, holding the logits of at most `chunk` tokens at a time.

    Where a gradient is asked for it is computed on the way forward, while the logits are there, and only scaled on
    the way back. Where none is, no work is done for it.
    """
    if len(features) != len(targets):
        raise ModelError(f"{len(features)} vectors and {len(targets)} targets: each vector needs one target")
    wanted = (_wanted(features), _wanted(weight), _wanted(bias))
    if any(wanted):
        total: Tensor = _Chunked.apply(features, weight, bias, targets, chunk, wanted)  # type: ignore[no-untyped-call]
        return total
    return _sum_and_slopes(features, weight, bias, targets, chunk, wanted)[0]


class _Chunked(torch.autograd.Function):
    """Tells autograd that the gradients are there already."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        chunk: int,
        wanted: Wanted,
    ) -> Tensor:
        total, slopes = _sum_and_slopes(features, weight, bias, targets, chunk, wanted)
        ctx.save_for_backward(*slopes)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        """`scale` is the slope of what was made of the sum: 1 / count where it became a mean."""
        slopes = (None if slope is None else slope * scale for slope in ctx.saved_tensors)
        return (*slopes, None, None, None)  # targets, chunk and wanted have no gradient


def _sum_and_slopes(
    features: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, chunk: int, wanted: Wanted
) -> tuple[Tensor, Slopes]:
    """The sum of the losses, and its slope along features (M, D), weight (V, D) and bias (V,) where wanted."""
    multiply, exact = _dtypes(features)
    total = torch.zeros((), dtype=exact, device=features.device)
    by_features = torch.empty_like(features) if wanted[0] else None
    by_weight = torch.zeros_like(weight, dtype=exact) if wanted[1] else None
    by_bias = torch.zeros_like(bias, dtype=exact) if bias is not None and wanted[2] else None
    w, b = weight.to(multiply), _cast(bias, multiply)

    for start in range(0, len(targets), chunk):
        some = slice(start, start + chunk)
        x, y = features[some].to(multiply), targets[some]
        log_p = F.linear(x, w, b).to(exact).log_softmax(-1)  # (chunk, V)
        total += F.nll_loss(log_p, y, ignore_index=IGNORE, reduction="sum")
        if any(wanted):
            slope = _slope(log_p, y)  # (chunk, V)
            if by_bias is not None:
                by_bias += slope.sum(0)
            slope = slope.to(multiply)
            if by_features is not None:
                by_features[some] = slope @ w
            if by_weight is not None:
                by_weight += slope.T @ x
            del slope
        del log_p  # before the next chunk's logits are made, not after

    by_bias = by_bias if bias is None else _cast(by_bias, bias.dtype)
    return total, (by_features, _cast(by_weight, weight.dtype), by_bias)


def _slope(log_p: Tensor, targets: Tensor) -> Tensor:
    """softmax(z) - (1 at the target), zero for targets that are ignored; written over `log_p` to save its room."""
    slope = log_p.exp_()
    slope[torch.arange(len(targets), device=targets.device), targets.clamp(min=0)] -= 1
    return slope.masked_fill_((targets == IGNORE)[:, None], 0.0)


def _dtypes(features: Tensor) -> tuple[torch.dtype, torch.dtype]:
    """What to multiply in, and what to take exponentials and sums in.

    Products are taken in bf16 where the features are, or where autocast is on; a sum over a vocabulary never is.
    """
    if features.dtype == torch.float64:
        return torch.float64, torch.float64
    device = features.device.type
    multiply = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else features.dtype
    return multiply, torch.float32


def _cast(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if x is None else x.to(dtype)


def _wanted(x: Tensor | None) -> bool:
    return x is not None and x.requires_grad and torch.is_grad_enabled()
