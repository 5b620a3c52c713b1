"""The loss over a vocabulary: how far a model was from expecting the tokens that came.

A token has V logits z and a target y. Its loss, and the gradient of its loss with respect to each logit, are

    loss = log Σ exp(z) - z[y]        gradient = softmax(z) - (1 at y, 0 elsewhere)

The plain form makes the logits of all tokens at once. For 32,768 tokens and 50,001 words they fill 6.6 GB in float32,
and the backward pass holds as much twice more. But this gradient needs nothing that comes after it: so the chunked form
takes some tokens at a time, computes the gradient of their logits, adds what follows from it to the gradients of the
features and the weight, and forgets both.

Two things make it fast. The bias is a column of the weight, and every vector ends in a 1: then the bias is added, and
its gradient found, by the very products that there are anyway. And logits become gradients in one pass over them, by a
kernel of our own on a GPU (`cross_entropy_triton.py`).

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

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.batches.batch import IGNORE_INDEX
from headstart.errors import ModelError
from headstart.model.linear import OneDnn, onednn_is_faster, onednn_rows
from headstart.training import cross_entropy_triton

CHUNK = {"cpu": 512, "cuda": 4096}  # tokens, where it runs fast and the logits are still small

Needed = tuple[bool, bool, bool]  # whether features, weight and bias need a gradient
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


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

    Where a gradient is needed it is computed in the forward pass, while the logits are there, and only scaled in the
    backward pass. Where none is, no work is done for it.
    """
    chunk = chunk or CHUNK.get(features.device.type, CHUNK["cpu"])
    if len(features) != len(targets):
        raise ModelError(f"{len(features)} vectors and {len(targets)} targets: each vector needs one target")
    if targets.is_cpu:  # to look at a GPU's targets would be to wait for it: there the loss becomes nan
        outside = targets[(targets != IGNORE_INDEX) & ((targets < 0) | (targets >= len(weight)))]
        if len(outside):
            raise IndexError(f"a target is {outside[0]}, and the vocabulary has {len(weight)} words")
    if torch.is_grad_enabled():
        total: Tensor = _Chunked.apply(features, weight, bias, targets, chunk)  # type: ignore[no-untyped-call]
        return total
    return _sum_and_gradients(features, weight, bias, targets, chunk, (False, False, False))[0]


def sampled_cross_entropy(
    features: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, candidates: Tensor, log_chance: Tensor
) -> Tensor:
    """The same sum over a part of the vocabulary (C,), which has every target: sampled softmax.

    A logit is lowered by the logarithm of the word's chance to be in that part (`batches/candidates.py`). Where all
    words are, with a chance of 1, it is the loss above.
    """
    bias = -log_chance if bias is None else bias.index_select(0, candidates) - log_chance
    places = torch.searchsorted(candidates, targets)  # of each target among the candidates
    places = places.where(targets != IGNORE_INDEX, IGNORE_INDEX)
    return chunked_cross_entropy(features, weight.index_select(0, candidates), bias, places)


class _Chunked(torch.autograd.Function):
    """Tells autograd that the gradients are there already."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, chunk: int) -> Tensor:
        needed = ctx.needs_input_grad[:3]
        total, gradients = _sum_and_gradients(features, weight, bias, targets, chunk, needed)
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        """`scale` is the gradient with respect to the sum: 1 / count where it became a mean."""
        gradients = (None if gradient is None else gradient * scale for gradient in ctx.saved_tensors)
        return (*gradients, None, None)  # targets and chunk have none


def _sum_and_gradients(
    features: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, chunk: int, needed: Needed
) -> tuple[Tensor, Gradients]:
    """The sum of the losses, and its gradients for features (M, D), weight (V, D) and bias (V,) where needed."""
    multiply, exact = _dtypes(features)
    words, width = weight.shape
    w = _weight_with_bias(weight, bias, multiply)  # (V', D')
    total = torch.zeros((), dtype=exact, device=features.device)
    features_grad = torch.empty_like(features) if needed[0] else None  # (M, D)
    w_grad = torch.zeros_like(w, dtype=exact) if needed[1] or needed[2] else None  # (V', D')
    buffer = w.new_empty(min(chunk, len(targets)), len(w))  # one for all chunks: their logits, then their gradients
    recurring = features.device.type == "cpu" and onednn_is_faster()
    for rows in _chunks(len(targets), chunk, recurring=recurring):
        x, y = F.pad(features[rows].to(multiply), (0, w.shape[1] - width)), targets[rows]  # (chunk, D')
        x[:, width] = 1
        with OneDnn(len(x)):
            logits = torch.mm(x, w.T, out=buffer[: len(x)])  # (chunk, V')
        if not any(needed):
            total += _losses(logits, y, exact).sum()
            continue
        losses, gradients = _losses_and_gradients(logits, x, w, y, words, exact)  # (chunk,), (chunk, V')
        total += losses.sum()
        with OneDnn(len(x)):
            if features_grad is not None:
                features_grad[rows] = gradients @ w[:, :width]
            if w_grad is not None:
                _add_product(w_grad, gradients.T, x)
    weight_grad = w_grad[:words, :width].to(weight.dtype) if w_grad is not None and needed[1] else None
    bias_grad = w_grad[:words, width].to(bias.dtype) if w_grad is not None and bias is not None and needed[2] else None
    return total, (features_grad, weight_grad, bias_grad)


def _chunks(tokens: int, chunk: int, *, recurring: bool) -> Iterator[slice]:
    """The tokens, `chunk` at a time; the rest with `recurring` in sizes that oneDNN has kernels for already.

    >>> [[part.stop - part.start for part in _chunks(1300, 512, recurring=r)] for r in (False, True)]
    [[512, 512, 276], [512, 512, 256, 16, 4]]
    """
    start = 0
    while start < tokens:
        left = tokens - start
        size = min(chunk, (onednn_rows(left) or left) if recurring else left)
        yield slice(start, start + size)
        start += size


def _weight_with_bias(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """(V, D), (V,) → (V', D'): the bias as one more column, padded to sizes that are multiplied fast.

    A row of padding has a bias so low that its softmax is zero.
    """
    words, width = weight.shape
    w = F.pad(weight.to(dtype), (0, 8 - width % 8, 0, -words % 64))
    w[:words, width] = 0 if bias is None else bias.to(dtype)
    w[words:, width] = -30_000
    return w


def _losses_and_gradients(
    logits: Tensor, x: Tensor, w: Tensor, targets: Tensor, words: int, exact: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The (M,) losses of logits = x wᵀ, and their (M, V') gradients; zeros for targets that are ignored.

    The gradients are written over the logits where they are of the same dtype.
    """
    if cross_entropy_triton.supports(logits):
        return cross_entropy_triton.losses_and_gradients_(logits, targets, words), logits
    p = torch.softmax(logits, -1, out=logits) if logits.dtype == exact else logits.to(exact).softmax(-1)
    rows, columns = torch.arange(len(targets), device=targets.device), targets.clamp(min=0)
    p_target = p[rows, columns]  # (M,)
    losses = -p_target.log()
    underflow = p_target < 1e-30  # so small that its logarithm is not exact, or infinite
    if underflow.any():
        losses[underflow] = _losses(x[underflow] @ w.T, columns[underflow], exact)
    p[rows, columns] -= 1
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
