"""Attention over many short sequences on a GPU, packed end to end: one Triton kernel forward, one backward.

A flash kernel takes a tile of 64 or 128 queries of *one* sequence, so that with sequences of 20 tokens most of its work
is padding. Here a program takes `ROWS` queries in a row, whichever sequences they belong to, and the keys from the
start of the first of these sequences to the end of the last; tokens of other sequences are masked. The plain form that
it is tested against is `plain_attention` in `attention.py`; the algorithm is that of FlashAttention-2 (Dao 2023).

    N tokens, H heads, K head width
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

AVAILABLE = triton is not None
LEAST_TOKENS = 16_384  # of a batch: for smaller ones a kernel that has to be compiled does not pay
ROWS = 64  # queries, and keys, that a program multiplies at once


def packed_attention(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, sequence: Tensor, *, causal: bool) -> Tensor:
    """q, k, v (N, H, K) → (N, H, K). `starts` (S + 1,) and `sequence` (N,) are those of the layout."""
    out: Tensor = torch.ops.headstart.packed_attention(q, k, v, starts, sequence, causal)[0]
    return out


def _forward(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, sequence: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """The result, and log₂ Σ 2^score of each query (H, N), which the backward pass needs."""
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    tokens, heads, width = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    log_sums = torch.empty(heads, tokens, dtype=torch.float32, device=q.device)
    strides = [stride for x in (q, k, v, out) for stride in x.stride()[:2]]
    _forward_kernel[(triton.cdiv(tokens, ROWS), heads)](
        *(q, k, v, out, log_sums, starts, sequence), *strides, tokens, _scale(width), **_sizes(width, causal)
    )
    return out, log_sums


def _backward(
    out_grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sums: Tensor,
    starts: Tensor,
    sequence: Tensor,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v (N, H, K)."""
    out_grad, q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (out_grad, q, k, v))
    tokens, heads, width = q.shape
    q_grad, k_grad, v_grad = (torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(3))
    strides = [stride for x in (q, k, v, out, out_grad, q_grad) for stride in x.stride()[:2]]
    _backward_kernel[(triton.cdiv(tokens, ROWS), heads)](
        *(q, k, v, out, out_grad, q_grad, k_grad, v_grad, log_sums, starts, sequence),
        *strides,
        tokens,
        _scale(width),
        1 / math.sqrt(width),
        **_sizes(width, causal),
    )
    return q_grad, k_grad, v_grad


def _scale(width: int) -> float:
    """Of the scores, for exponentials of base 2, the one that the hardware computes."""
    return 1 / math.sqrt(width) / math.log(2)


def _sizes(width: int, causal: bool) -> dict[str, Any]:
    padded = max(16, triton.next_power_of_2(width))
    launch = {"num_warps": 4 if padded <= 64 else 8, "num_stages": 1}  # short loops: loading ahead costs a third more
    return {"width": width, "columns": padded, "rows": ROWS, "causal": causal, **launch}


def _forward_body(  # type: ignore[no-untyped-def]
    q, k, v, out, log_sums, starts, sequence,
    q_token, q_head, k_token, k_head, v_token, v_head, out_token, out_head,
    tokens, scale,
    width: tl.constexpr, columns: tl.constexpr, rows: tl.constexpr, causal: tl.constexpr,
):  # fmt: skip
    """`rows` queries of one head."""
    first, head = tl.program_id(0) * rows, tl.program_id(1)
    row, column = first + tl.arange(0, rows), tl.arange(0, columns)
    inside = (row < tokens)[:, None] & (column < width)[None, :]
    own = tl.load(sequence + row, mask=row < tokens, other=-1)
    last = tl.minimum(first + rows, tokens) - 1
    low, high = tl.load(starts + tl.load(sequence + first)), tl.load(starts + tl.load(sequence + last) + 1)
    if causal:
        high = last + 1
    queries = tl.load(q + head * q_head + row[:, None].to(tl.int64) * q_token + column[None, :], mask=inside, other=0.0)
    highest = tl.full((rows,), -1e30, tl.float32)
    total = tl.zeros((rows,), tl.float32)
    mixed = tl.zeros((rows, columns), tl.float32)
    for at in range(low, high, rows):
        other = at + tl.arange(0, rows)
        there = (other < high)[:, None] & (column < width)[None, :]
        keys = tl.load(
            k + head * k_head + other[:, None].to(tl.int64) * k_token + column[None, :], mask=there, other=0.0
        )
        values = tl.load(
            v + head * v_head + other[:, None].to(tl.int64) * v_token + column[None, :], mask=there, other=0.0
        )
        seen = own[:, None] == tl.load(sequence + other, mask=other < high, other=-2)[None, :]
        if causal:
            seen = seen & (row[:, None] >= other[None, :])
        scores = tl.where(seen, tl.dot(queries, tl.trans(keys)) * scale, -1e30)
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.where(seen, tl.exp2(scores - higher[:, None]), 0.0)
        shrink = tl.exp2(highest - higher)
        total = total * shrink + tl.sum(weights, 1)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(values.dtype), values)
        highest = higher
    total = tl.where(total == 0, 1.0, total)  # a row beyond the last token
    place = out + head * out_head + row[:, None].to(tl.int64) * out_token + column[None, :]
    tl.store(place, (mixed / total[:, None]).to(out.dtype.element_ty), mask=inside)
    tl.store(log_sums + head.to(tl.int64) * tokens + row, highest + tl.log2(total), mask=row < tokens)


def _backward_body(  # type: ignore[no-untyped-def]
    q, k, v, out, out_grad, q_grad, k_grad, v_grad, log_sums, starts, sequence,
    q_token, q_head, k_token, k_head, v_token, v_head, out_token, out_head, upper_token, upper_head, to_token, to_head,
    tokens, scale, plain_scale,
    width: tl.constexpr, columns: tl.constexpr, rows: tl.constexpr, causal: tl.constexpr,
):  # fmt: skip
    """The gradients of `rows` tokens of one head: as keys and values, then as queries.

    With weights p = softmax(s) and d = Σ out · out_grad of each query:
    v_grad = pᵀ out_grad, s_grad = p (out_grad vᵀ - d), q_grad = s_grad k, k_grad = s_gradᵀ q.
    """
    first, head = tl.program_id(0) * rows, tl.program_id(1)
    row, column = first + tl.arange(0, rows), tl.arange(0, columns)
    inside = (row < tokens)[:, None] & (column < width)[None, :]
    own = tl.load(sequence + row, mask=row < tokens, other=-1)
    last = tl.minimum(first + rows, tokens) - 1
    low, high = tl.load(starts + tl.load(sequence + first)), tl.load(starts + tl.load(sequence + last) + 1)
    row_at = row[:, None].to(tl.int64)
    q, k, v = (
        q + head * q_head + column[None, :],
        k + head * k_head + column[None, :],
        v + head * v_head + column[None, :],
    )
    out, upper = out + head * out_head + column[None, :], out_grad + head * upper_head + column[None, :]
    log_sums += head.to(tl.int64) * tokens

    keys = tl.load(k + row_at * k_token, mask=inside, other=0.0)
    values = tl.load(v + row_at * v_token, mask=inside, other=0.0)
    k_sum, v_sum = tl.zeros((rows, columns), tl.float32), tl.zeros((rows, columns), tl.float32)
    begin = low
    if causal:
        begin = first
    for at in range(begin, high, rows):
        other = at + tl.arange(0, rows)
        there = (other < high)[:, None] & (column < width)[None, :]
        other_at = other[:, None].to(tl.int64)
        queries = tl.load(q + other_at * q_token, mask=there, other=0.0)
        above = tl.load(upper + other_at * upper_token, mask=there, other=0.0)
        result = tl.load(out + other_at * out_token, mask=there, other=0.0)
        d = tl.sum(result.to(tl.float32) * above.to(tl.float32), 1)
        log_sum = tl.load(log_sums + other, mask=other < high, other=0.0)
        seen = own[:, None] == tl.load(sequence + other, mask=other < high, other=-2)[None, :]
        if causal:
            seen = seen & (row[:, None] <= other[None, :])
        scores = tl.dot(keys, tl.trans(queries)) * scale  # (keys, queries)
        weights = tl.where(seen, tl.exp2(scores - log_sum[None, :]), 0.0)
        v_sum += tl.dot(weights.to(above.dtype), above)
        s_grad = weights * (tl.dot(values, tl.trans(above)) - d[None, :])
        k_sum += tl.dot(s_grad.to(queries.dtype), queries)
    place = head * to_head + row_at * to_token + column[None, :]
    tl.store(k_grad + place, (k_sum * plain_scale).to(k_grad.dtype.element_ty), mask=inside)
    tl.store(v_grad + place, v_sum.to(v_grad.dtype.element_ty), mask=inside)

    queries = tl.load(q + row_at * q_token, mask=inside, other=0.0)
    above = tl.load(upper + row_at * upper_token, mask=inside, other=0.0)
    result = tl.load(out + row_at * out_token, mask=inside, other=0.0)
    d = tl.sum(result.to(tl.float32) * above.to(tl.float32), 1)
    log_sum = tl.load(log_sums + row, mask=row < tokens, other=0.0)
    q_sum = tl.zeros((rows, columns), tl.float32)
    end = high
    if causal:
        end = last + 1
    for at in range(low, end, rows):
        other = at + tl.arange(0, rows)
        there = (other < end)[:, None] & (column < width)[None, :]
        other_at = other[:, None].to(tl.int64)
        keys = tl.load(k + other_at * k_token, mask=there, other=0.0)
        values = tl.load(v + other_at * v_token, mask=there, other=0.0)
        seen = own[:, None] == tl.load(sequence + other, mask=other < end, other=-2)[None, :]
        if causal:
            seen = seen & (row[:, None] >= other[None, :])
        scores = tl.dot(queries, tl.trans(keys)) * scale
        weights = tl.where(seen, tl.exp2(scores - log_sum[:, None]), 0.0)
        s_grad = weights * (tl.dot(above, tl.trans(values)) - d[:, None])
        q_sum += tl.dot(s_grad.to(keys.dtype), keys)
    tl.store(q_grad + place, (q_sum * plain_scale).to(q_grad.dtype.element_ty), mask=inside)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, starts, sequence, ctx.causal = inputs
    ctx.save_for_backward(q, k, v, *output, starts, sequence)


def _gradients(ctx: Any, out_grad: Tensor, log_sums_grad: Tensor) -> tuple[Tensor | None, ...]:
    gradients = torch.ops.headstart.packed_attention_backward(out_grad, *ctx.saved_tensors, ctx.causal)
    return (*gradients, None, None, None)


if AVAILABLE:
    _forward_kernel, _backward_kernel = triton.jit(_forward_body), triton.jit(_backward_body)
    # Operators of our own, so that torch.compile takes each as one step.
    _operator = torch.library.custom_op("headstart::packed_attention", _forward, mutates_args=())
    _operator.register_fake(
        lambda q, k, v, starts, sequence, causal: (
            torch.empty(q.shape, dtype=q.dtype, device=q.device),
            torch.empty(q.shape[1], q.shape[0], dtype=torch.float32, device=q.device),
        )
    )
    _operator.register_autograd(_gradients, setup_context=_save)
    torch.library.custom_op("headstart::packed_attention_backward", _backward, mutates_args=()).register_fake(
        lambda out_grad, q, *_: tuple(torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(3))
    )
