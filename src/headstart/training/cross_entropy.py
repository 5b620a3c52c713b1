"""The loss over a vocabulary: how far a model was from expecting the tokens that came.

A token has V logits z and a target y. Its loss, and the slope of its loss along each logit, are

    loss = log Σ exp(z) - z[y]        slope = softmax(z) - (1 at y, 0 elsewhere)

The plain form makes the logits of all tokens at once. For 32,768 tokens and 50,001 words they fill 6.6 GB in float32,
and the backward pass holds as much twice more. But the slope needs nothing that comes after it: so the chunked form
takes some tokens at a time, turns their logits into slopes, adds these to the gradients, and forgets them.

Two things make it fast. The bias is a column of the weight, and every vector ends in a 1: then the bias is added, and
its gradient found, by the very products that there are anyway. And logits become slopes in one pass over them, by a
kernel of our own on a GPU (`slopes_gpu.py`).

    M tokens, D width, V words

    >>> features, weight = torch.eye(2), torch.tensor([[9.0, 0.0], [0.0, 9.0], [0.0, 0.0]])
    >>> expected = torch.tensor([0, 1])  # the words that these two vectors point at
    >>> round(plain_cross_entropy(features, weight, None, expected).item(), 4)
    0.0005
    >>> round(chunked_cross_entropy(features, weight, None, expected, chunk=1).item(), 4)
    0.0005
    >>> round(chunked_cross_entropy(features, weight, None, torch.tensor([2, IGNORE_INDEX])).item(), 4)
    9.0002
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.batches.batch import IGNORE_INDEX
from headstart.errors import ModelError
from headstart.training import slopes_gpu

CHUNK = {"cpu": 512, "cuda": 4096}  # tokens, where it runs fast and the logits are still small

Wanted = tuple[bool, bool, bool]  # whether the gradients of features, weight and bias are asked for
Slopes = tuple[Tensor | None, Tensor | None, Tensor | None]


def plain_cross_entropy(features: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """The sum of the losses of all targets but `IGNORE_INDEX`, as one would write it down; the chunked form equals it.

    features (M, D), weight (V, D), bias (V,) or None, targets (M,) → a number
    """
    multiply, exact = _dtypes(features)
    logits = F.linear(features.to(multiply), weight.to(multiply), _cast(bias, multiply)).to(exact)  # (M, V)
    log_p = logits.log_softmax(-1)
    counted = targets != IGNORE_INDEX
    return -log_p[counted, targets[counted]].sum()


def chunked_cross_entropy(
    features: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, *, chunk: int | None = None
) -> Tensor:
    """The same sum with the same gradients, holding the logits of at most `chunk` tokens at a time.

    Where a gradient is asked for it is computed on the way forward, while the logits are there, and only scaled on
    the way back. Where none is, no work is done for it.
    """
    chunk = chunk or CHUNK.get(features.device.type, CHUNK["cpu"])
    if len(features) != len(targets):
        raise ModelError(f"{len(features)} vectors and {len(targets)} targets: each vector needs one target")
    strange = (
        targets[(targets != IGNORE_INDEX) & ((targets < 0) | (targets >= len(weight)))]
        if targets.is_cpu
        else targets[:0]
    )
    if len(strange):  # a GPU is not asked, since that would hold it up: there the loss becomes nan
        raise IndexError(f"a target is {strange[0]}, and the vocabulary has {len(weight)} words")
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
    words, width = weight.shape
    w = _widened(weight, bias, multiply)  # (V', D')
    total = torch.zeros((), dtype=exact, device=features.device)
    by_features = torch.empty_like(features) if wanted[0] else None
    by_w = torch.zeros_like(w, dtype=exact) if wanted[1] or wanted[2] else None
    room = w.new_empty(min(chunk, len(targets)), len(w))  # for the logits, and then for their slopes
    for start in range(0, len(targets), chunk):
        some = slice(start, start + chunk)
        x, y = F.pad(features[some].to(multiply), (0, w.shape[1] - width)), targets[some]
        x[:, width] = 1
        logits = torch.mm(x, w.T, out=room[: len(x)])  # (chunk, V')
        if not any(wanted):
            total += _losses(logits, y, exact).sum()
            continue
        losses, slopes = _turn(logits, x, w, y, words, exact)
        total += losses.sum()
        if by_features is not None:
            by_features[some] = slopes @ w[:, :width]
        if by_w is not None:
            _add_product(by_w, slopes.T, x)
    by_weight = by_w[:words, :width].to(weight.dtype) if by_w is not None and wanted[1] else None
    by_bias = by_w[:words, width].to(bias.dtype) if by_w is not None and bias is not None and wanted[2] else None
    return total, (by_features, by_weight, by_bias)


def _widened(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """(V', D'): the weight with its bias as one more column, filled up to sizes that are multiplied fast.

    A row that was filled in has a bias so low that no word of it is ever expected.
    """
    words, width = weight.shape
    w = F.pad(weight.to(dtype), (0, 8 - width % 8, 0, -words % 64))
    w[:words, width] = 0 if bias is None else bias.to(dtype)
    w[words:, width] = -30_000
    return w


def _turn(
    logits: Tensor, x: Tensor, w: Tensor, targets: Tensor, words: int, exact: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The (M,) losses of logits = x wᵀ, and their (M, V') slopes; zeros for targets that are ignored.

    The slopes are written over the logits where they are of the same kind.
    """
    if slopes_gpu.can_turn(logits):
        return slopes_gpu.turn_(logits, targets, words), logits
    p = torch.softmax(logits, -1, out=logits) if logits.dtype == exact else logits.to(exact).softmax(-1)
    rows, chosen = torch.arange(len(targets), device=targets.device), targets.clamp(min=0)
    likely = p[rows, chosen]
    losses = -likely.log()
    lost = likely < 1e-30  # so small that its logarithm is not exact, or not there at all
    if lost.any():
        losses[lost] = _losses(x[lost] @ w.T, chosen[lost], exact)
    p[rows, chosen] -= 1
    ignored = targets == IGNORE_INDEX
    return losses.masked_fill_(ignored, 0.0), p.index_fill_(0, ignored.nonzero()[:, 0], 0.0).to(x.dtype)


def _losses(logits: Tensor, targets: Tensor, exact: torch.dtype) -> Tensor:
    """(M, V') → (M,): log Σ exp(z) - z[y], zero for targets that are ignored."""
    return F.cross_entropy(logits.to(exact), targets, ignore_index=IGNORE_INDEX, reduction="none")


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, in the total's own precision."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    elif a.is_cuda:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += a @ b


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
