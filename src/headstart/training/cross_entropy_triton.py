"""Cross-entropy on a GPU in one kernel: logits become losses and gradients. The same in plain torch is
`_losses_and_gradients` in `cross_entropy.py`.

A row of logits is read twice, the second time from the cache, and the gradients are written over it. Triton comes with
torch where torch is built for CUDA; `AVAILABLE` says whether it is there.
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

AVAILABLE = triton is not None
BLOCK = 4, 4096  # logits that are loaded at once: each of 4096 lanes takes four


def supports(logits: Tensor) -> bool:
    """Whether the kernel takes these: on a GPU, in float32, bf16 or float16."""
    return AVAILABLE and logits.is_cuda and logits.dtype != torch.float64


def losses_and_gradients_(logits: Tensor, targets: Tensor, words: int) -> Tensor:
    """(M, V') logits become gradients in place; returns their (M,) losses in float32, 0 where a target is ignored.

    V' - `words` columns are padding. A target that is outside the vocabulary has a loss of nan.
    """
    losses = torch.empty(len(targets), dtype=torch.float32, device=logits.device)
    if len(targets):
        grid = (len(targets),)
        _compiled_kernel[grid](logits, targets, losses, words, logits.stride(0), logits.shape[1], num_warps=16)
    return losses


def _kernel(logits, targets, losses, words, stride, columns: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row. Exponentials are of base 2, the one that the hardware computes."""
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * stride
    target = tl.load(targets + row)
    counted, in_vocabulary = target != _IGNORE_INDEX, (target >= 0) & (target < words)
    at_target = tl.load(start + target, mask=in_vocabulary, other=float("nan")).to(tl.float32) * _LOG2E
    offsets = tl.arange(0, _ROWS)[:, None] * _LANES + tl.arange(0, _LANES)[None, :]

    # log2 Σ 2^z in one pass: each lane keeps the highest logit that it has seen and its sum relative to that, and
    # rescales the sum when a higher one comes. Lanes are combined once, at the end of the row.
    highest = tl.full((_LANES,), _LOWEST, tl.float32)
    total = tl.zeros((_LANES,), tl.float32)
    for low in range(0, columns, _ROWS * _LANES):
        column = low + offsets
        z = tl.load(start + column, mask=column < columns, other=_LOWEST).to(tl.float32) * _LOG2E
        higher = tl.maximum(highest, tl.max(z, 0))
        total = total * tl.exp2(highest - higher) + tl.sum(tl.exp2(z - higher[None, :]), 0)
        highest = higher
    row_highest = tl.max(highest, 0)
    log_sum = row_highest + tl.log2(tl.sum(total * tl.exp2(highest - row_highest), 0))
    tl.store(losses + row, tl.where(counted, (log_sum - at_target) / _LOG2E, 0.0))

    for low in range(0, columns, _ROWS * _LANES):
        column = low + offsets
        z = tl.load(start + column, mask=column < columns, other=_LOWEST).to(tl.float32) * _LOG2E
        tl.store(start + column, tl.where(counted, tl.exp2(z - log_sum), 0.0), mask=column < columns)
    tl.debug_barrier()  # the lane that owns the target's column has written its softmax: now overwrite it
    tl.store(start + target, tl.exp2(at_target - log_sum) - 1, mask=in_vocabulary)


if AVAILABLE:
    _ROWS, _LANES = map(tl.constexpr, BLOCK)
    _IGNORE_INDEX, _LOG2E, _LOWEST = tl.constexpr(IGNORE_INDEX), tl.constexpr(1 / math.log(2)), tl.constexpr(-1e30)
    _compiled_kernel = triton.jit(_kernel)
