"""Logits into losses and slopes on a GPU, in one kernel: it reads each row twice, the second time from the cache, and
writes the slopes over the logits. The same in plain torch is `_turn` in `cross_entropy.py`.

Triton comes with torch where torch is built for CUDA; `can_turn` says whether it is here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headstart.text.batches import IGNORE

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

HERE = triton is not None
BLOCK = 8192  # logits that are looked at together


def can_turn(logits: Tensor) -> bool:
    """Whether the kernel takes these: on a GPU, in float32 or half of it."""
    return HERE and logits.is_cuda and logits.dtype != torch.float64


def turn_(logits: Tensor, targets: Tensor, words: int) -> Tensor:
    """(M, V') logits become slopes where they stand; their (M,) losses in float32, 0 where a target is ignored.

    V' - `words` columns are filling. A target that is no word has a loss of nan.
    """
    losses = torch.empty(len(targets), dtype=torch.float32, device=logits.device)
    if len(targets):
        _turn[(len(targets),)](logits, targets, losses, words, logits.stride(0), logits.shape[1], num_warps=16)
    return losses


def _kernel(logits, targets, losses, words, stride, columns: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * stride
    target = tl.load(targets + row)
    counted = target != _IGNORE

    # log Σ exp(z), by the largest so far; and z at the target
    top = -float("inf")
    total = 0.0
    at_target = tl.where((target >= 0) & (target < words), 0.0, float("nan"))
    for low in range(0, columns, _BLOCK):
        column = low + tl.arange(0, _BLOCK)
        z = tl.load(start + column, mask=column < columns, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(z, 0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(z - higher), 0)
        at_target += tl.sum(tl.where(column == target, z, 0.0), 0)
        top = higher
    whole = top + tl.log(total)
    tl.store(losses + row, tl.where(counted, whole - at_target, 0.0))

    for low in range(0, columns, _BLOCK):
        column = low + tl.arange(0, _BLOCK)
        z = tl.load(start + column, mask=column < columns, other=-float("inf")).to(tl.float32)
        slope = tl.exp(z - whole) - tl.where(column == target, 1.0, 0.0)
        tl.store(start + column, tl.where(counted, slope, 0.0), mask=column < columns)


if HERE:
    _BLOCK, _IGNORE = tl.constexpr(BLOCK), tl.constexpr(IGNORE)
    _turn = triton.jit(_kernel)
