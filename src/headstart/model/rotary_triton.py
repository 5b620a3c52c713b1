"""Rotary positions on a GPU: queries, keys and values out of their product, rotated, one Triton kernel each way.

The kernel that torch.compile makes of the backward pass, which puts the three gradients together again, takes 2.5 times
as long as memory needs. The plain form is `rotate` in `positions.py`.

    N tokens, H heads, K head width
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headstart.model.attention_triton import LEAST_TOKENS

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

AVAILABLE = triton is not None
ROWS = 64  # heads of tokens that a program rotates


def supports(x: Tensor) -> bool:
    """Large packed batches on a GPU in half precision."""
    packed = x.dim() == 2 and x.shape[0] >= LEAST_TOKENS
    return AVAILABLE and packed and x.is_cuda and x.dtype in (torch.bfloat16, torch.float16)


def rotated(x: Tensor, angles: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """(N, 3 H K), queries, keys and values, and (N, 2, K / 2) → each (N, H, K), the first two rotated."""
    q, k, v = torch.ops.headstart.rotated(x, angles, heads)
    return q, k, v


def _forward(x: Tensor, angles: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    x, angles = x.contiguous(), angles.contiguous()
    shape = (x.shape[0], heads, x.shape[1] // (3 * heads))
    parts = tuple(torch.empty(shape, dtype=x.dtype, device=x.device) for _ in range(3))
    _launch(x, parts, angles, backward=False)
    return parts[0], parts[1], parts[2]


def _backward(q: Tensor, k: Tensor, v: Tensor, angles: Tensor) -> Tensor:
    parts = tuple(x.contiguous() for x in (q, k, v))
    tokens, heads, width = q.shape
    gradient = torch.empty(tokens, 3 * heads * width, dtype=q.dtype, device=q.device)
    _launch(gradient, parts, angles.contiguous(), backward=True)
    return gradient


def _launch(whole: Tensor, parts: tuple[Tensor, ...], angles: Tensor, *, backward: bool) -> None:
    tokens, heads, width = parts[0].shape
    sizes: dict[str, Any] = {"heads": heads, "half": width // 2, "columns": triton.next_power_of_2(width // 2)}
    _kernel[(triton.cdiv(tokens * heads, ROWS), 3)](
        whole, *parts, angles, tokens, **sizes, rows=ROWS, backward=backward
    )


def _body(  # type: ignore[no-untyped-def]
    whole, q, k, v, angles, tokens,
    heads: tl.constexpr, half: tl.constexpr, columns: tl.constexpr, rows: tl.constexpr, backward: tl.constexpr,
):  # fmt: skip
    """Queries, keys or values of `rows` heads, one token's after another's: all pairs (i, i + K / 2) of each.

    A pair (a, b) becomes (a cos - b sin, b cos + a sin). The gradient is rotated back, by the opposite angle.
    """
    part, row = tl.program_id(1), tl.program_id(0) * rows + tl.arange(0, rows)
    token, pair = (row // heads).to(tl.int64), tl.arange(0, columns)
    inside = (token < tokens)[:, None] & (pair < half)[None, :]
    place = (token * heads + row % heads)[:, None] * 2 * half + pair[None, :]
    own = q
    if part == 1:
        own = k
    if part == 2:
        own = v
    source = whole + (token * 2 + part)[:, None] * 2 * half * heads + place  # 3 parts a token, of which `place` has one
    target = own + place
    if backward:
        source, target = target, source
    a, b = tl.load(source, mask=inside, other=0.0), tl.load(source + half, mask=inside, other=0.0)
    if part < 2:
        angle = angles + token[:, None] * 2 * half + pair[None, :]
        cos = tl.load(angle, mask=inside, other=0.0).to(tl.float32)
        sin = tl.load(angle + half, mask=inside, other=0.0).to(tl.float32)
        if backward:
            sin = -sin
        x, y = a.to(tl.float32), b.to(tl.float32)
        a, b = (x * cos - y * sin).to(a.dtype), (y * cos + x * sin).to(b.dtype)
    tl.store(target, a, mask=inside)
    tl.store(target + half, b, mask=inside)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(inputs[1])


def _gradients(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, None, None]:
    return torch.ops.headstart.rotated_backward(q, k, v, *ctx.saved_tensors), None, None


def _empty_parts(x: Tensor, angles: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    shape = (x.shape[0], heads, x.shape[1] // (3 * heads))
    q, k, v = (torch.empty(shape, dtype=x.dtype, device=x.device) for _ in range(3))
    return q, k, v


if AVAILABLE:
    _kernel = triton.jit(_body)
    # Operators of our own, so that torch.compile takes each as one step.
    _operator = torch.library.custom_op("headstart::rotated", _forward, mutates_args=())
    _operator.register_fake(_empty_parts)
    _operator.register_autograd(_gradients, setup_context=_save)
    torch.library.custom_op("headstart::rotated_backward", _backward, mutates_args=()).register_fake(
        lambda q, k, v, angles: torch.empty(q.shape[0], 3 * q.shape[1] * q.shape[2], dtype=q.dtype, device=q.device)
    )
