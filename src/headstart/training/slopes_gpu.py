"""Logits into losses and slopes on a GPU, in one kernel: it reads each row twice, the second time from the cache, and
writes the slopes over the logits. The same in plain torch is `_turn` in `cross_entropy.py`.

Triton comes with torch where torch is built for CUDA; `can_turn` says whether it is here.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headstart.batches.batch import IGNORE_INDEX

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

HERE = triton is not None
AT_ONCE = 4, 4096  # logits that are looked at together: each of 4096 lanes takes four


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
    """One row. Exponentials are of base 2, which is what the chip has; lanes meet once, at the end of the row."""
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * stride
    target = tl.load(targets + row)
    counted, a_word = target != _IGNORE, (target >= 0) & (target < words)
    at_target = tl.load(start + target, mask=a_word, other=float("nan")).to(tl.float32) * _LOG2E
    places = tl.arange(0, _ROWS)[:, None] * _LANES + tl.arange(0, _LANES)[None, :]

    # log2 Σ 2^z: each lane by the largest that it has seen; what is missing is so low that it counts nowhere
    top = tl.full((_LANES,), _LOWEST, tl.float32)
    total = tl.zeros((_LANES,), tl.float32)
    for low in range(0, columns, _ROWS * _LANES):
        column = low + places
        z = tl.load(start + column, mask=column < columns, other=_LOWEST).to(tl.float32) * _LOG2E
        higher = tl.maximum(top, tl.max(z, 0))
        total = total * tl.exp2(top - higher) + tl.sum(tl.exp2(z - higher[None, :]), 0)
        top = higher
    highest = tl.max(top, 0)
    whole = highest + tl.log2(tl.sum(total * tl.exp2(top - highest), 0))
    tl.store(losses + row, tl.where(counted, (whole - at_target) / _LOG2E, 0.0))

    for low in range(0, columns, _ROWS * _LANES):
        column = low + places
        z = tl.load(start + column, mask=column < columns, other=_LOWEST).to(tl.float32) * _LOG2E
        tl.store(start + column, tl.where(counted, tl.exp2(z - whole), 0.0), mask=column < columns)
    tl.debug_barrier()  # whoever wrote the target's place has done so
    tl.store(start + target, tl.exp2(at_target - whole) - 1, mask=a_word)


if HERE:
    _ROWS, _LANES = map(tl.constexpr, AT_ONCE)
    _IGNORE, _LOG2E, _LOWEST = tl.constexpr(IGNORE_INDEX), tl.constexpr(1 / math.log(2)), tl.constexpr(-1e30)
    _turn = triton.jit(_kernel)
