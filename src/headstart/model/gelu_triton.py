"""GELU on a GPU, one Triton kernel each way: gelu(gate) * up, and gelu(x + bias) where the feed-forward has no gate.

torch.compile makes one kernel of each backward pass too. But of the gated one it computes both halves of the gradient
for every element and then selects one, and the gradient of a bias costs it another pass over the gradient. The plain
forms are in `layers.py`.

    N tokens, F feed-forward width
"""

from __future__ import annotations

import math
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
COLUMNS = 1024  # that a program of the gated kernels works on
ROWS = 32  # tokens whose gradients one program of the plain kernel adds up for the bias
FORWARD_TILE, BACKWARD_TILE = (8, 256), (4, 512)  # rows and columns of the plain kernels


def supports(x: Tensor) -> bool:
    """Large batches on a GPU whose products are in half precision, by their own type or by autocast."""
    half = x.dtype in (torch.bfloat16, torch.float16) or torch.is_autocast_enabled("cuda")
    return AVAILABLE and x.is_cuda and x.shape[0] >= LEAST_TOKENS and half


def gated_gelu(x: Tensor) -> Tensor:
    """(…, 2 F), the gate first → (…, F)"""
    out: Tensor = torch.ops.headstart.gated_gelu(x)
    return out


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """(…, F) and (F,) → gelu(x + bias), (…, F)"""
    out: Tensor = torch.ops.headstart.bias_gelu(x, bias)
    return out


def _gated(x: Tensor) -> Tensor:
    x = x.contiguous()
    width = x.shape[-1] // 2
    out = torch.empty(*x.shape[:-1], width, dtype=x.dtype, device=x.device)
    rows = out.numel() // width
    _gated_kernel[(rows, triton.cdiv(width, COLUMNS))](x, out, width, columns=COLUMNS)
    return out


def _gated_backward(out_grad: Tensor, x: Tensor) -> Tensor:
    out_grad, x = out_grad.contiguous(), x.contiguous()
    width = out_grad.shape[-1]
    gradient = torch.empty_like(x)
    rows = out_grad.numel() // width
    _gated_backward_kernel[(rows, triton.cdiv(width, COLUMNS))](x, out_grad, gradient, width, columns=COLUMNS)
    return gradient


def _plain(x: Tensor, bias: Tensor) -> Tensor:
    x = x.contiguous()
    out, width = torch.empty_like(x), x.shape[-1]
    tokens, (rows, columns) = x.numel() // width, FORWARD_TILE
    grid = triton.cdiv(tokens, rows), triton.cdiv(width, columns)
    _plain_kernel[grid](x, bias, out, tokens, width, rows=rows, columns=columns)
    return out


def _plain_backward(out_grad: Tensor, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    out_grad, x = out_grad.contiguous(), x.contiguous()
    gradient, width = torch.empty_like(x), x.shape[-1]
    tokens, (rows, columns) = x.numel() // width, BACKWARD_TILE
    sums = torch.empty(triton.cdiv(tokens, ROWS), width, dtype=torch.float32, device=x.device)
    grid = sums.shape[0], triton.cdiv(width, columns)
    _plain_backward_kernel[grid](
        x, bias, out_grad, gradient, sums, tokens, width, steps=ROWS // rows, rows=rows, columns=columns
    )
    return gradient, sums.sum(0).to(bias.dtype)


def _normal_body(z):  # type: ignore[no-untyped-def]
    """The normal distribution's Φ(z), and exp(-z² / 2), which it is computed from (Abramowitz and Stegun, 7.1.26).

    Within 1e-7, in half the time of an exact erf: that would bind these kernels, and not memory.
    """
    half = tl.abs(z) * 0.7071067811865476
    density = tl.exp2(half * half * -1.4426950408889634)
    t = 1.0 / (1.0 + 0.3275911 * half)
    series = 0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    tail = 0.5 * t * series * density
    return tl.where(z < 0, tail, 1.0 - tail), density


def _gated_body(x, out, width, columns: tl.constexpr):  # type: ignore[no-untyped-def]
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * columns + tl.arange(0, columns)
    inside = column < width
    gate = tl.load(x + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    below, _ = _normal(gate)
    tl.store(out + row * width + column, (gate * below * up).to(out.dtype.element_ty), mask=inside)


def _gated_backward_body(x, out_grad, gradient, width, columns: tl.constexpr):  # type: ignore[no-untyped-def]
    """gelu(z) = z Φ(z), and its derivative is Φ(z) + z φ(z), with the normal distribution's density φ."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * columns + tl.arange(0, columns)
    inside = column < width
    gate = tl.load(x + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    upper = tl.load(out_grad + row * width + column, mask=inside, other=0.0).to(tl.float32)
    below, density = _normal(gate)
    slope = below + gate * density * _DENSITY
    place = gradient + row * 2 * width + column
    tl.store(place, (upper * up * slope).to(gradient.dtype.element_ty), mask=inside)
    tl.store(place + width, (upper * gate * below).to(gradient.dtype.element_ty), mask=inside)


def _plain_body(x, bias, out, tokens, width, rows: tl.constexpr, columns: tl.constexpr):  # type: ignore[no-untyped-def]
    row, column = tl.program_id(0) * rows + tl.arange(0, rows), tl.program_id(1) * columns + tl.arange(0, columns)
    inside = (row < tokens)[:, None] & (column < width)[None, :]
    place = row[:, None].to(tl.int64) * width + column[None, :]
    shift = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)
    z = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) + shift[None, :]
    below, _ = _normal(z)
    tl.store(out + place, (z * below).to(out.dtype.element_ty), mask=inside)


def _plain_backward_body(  # type: ignore[no-untyped-def]
    x, bias, out_grad, gradient, sums, tokens, width,
    steps: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """The gradient of x, and its sum over `steps` × `rows` tokens, a part of the gradient of the bias."""
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    shift = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)
    total = tl.zeros((rows, columns), tl.float32)
    for step in range(steps):
        row = (tl.program_id(0) * steps + step) * rows + tl.arange(0, rows)
        inside = (row < tokens)[:, None] & (column < width)[None, :]
        place = row[:, None].to(tl.int64) * width + column[None, :]
        z = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) + shift[None, :]
        upper = tl.load(out_grad + place, mask=inside, other=0.0).to(tl.float32)
        below, density = _normal(z)
        slope = upper * (below + z * density * _DENSITY)
        tl.store(gradient + place, slope.to(gradient.dtype.element_ty), mask=inside)
        total += slope
    tl.store(sums + tl.program_id(0).to(tl.int64) * width + column, tl.sum(total, 0), mask=column < width)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gated_gradient(ctx: Any, out_grad: Tensor) -> Tensor:
    gradient: Tensor = torch.ops.headstart.gated_gelu_backward(out_grad, *ctx.saved_tensors)
    return gradient


def _plain_gradients(ctx: Any, out_grad: Tensor) -> tuple[Tensor, Tensor]:
    gradients: tuple[Tensor, Tensor] = torch.ops.headstart.bias_gelu_backward(out_grad, *ctx.saved_tensors)
    return gradients


if AVAILABLE:
    _DENSITY = tl.constexpr(1 / math.sqrt(2 * math.pi))
    _normal = triton.jit(_normal_body)
    _gated_kernel, _gated_backward_kernel = triton.jit(_gated_body), triton.jit(_gated_backward_body)
    _plain_kernel, _plain_backward_kernel = triton.jit(_plain_body), triton.jit(_plain_backward_body)
    # Operators of our own, so that torch.compile takes each as one step.
    _gated_operator = torch.library.custom_op("headstart::gated_gelu", _gated, mutates_args=())
    _gated_operator.register_fake(
        lambda x: torch.empty(*x.shape[:-1], x.shape[-1] // 2, dtype=x.dtype, device=x.device)
    )
    _gated_operator.register_autograd(_gated_gradient, setup_context=_save)
    torch.library.custom_op("headstart::gated_gelu_backward", _gated_backward, mutates_args=()).register_fake(
        lambda out_grad, x: torch.empty_like(x)
    )
    _plain_operator = torch.library.custom_op("headstart::bias_gelu", _plain, mutates_args=())
    _plain_operator.register_fake(lambda x, bias: torch.empty_like(x))
    _plain_operator.register_autograd(_plain_gradients, setup_context=_save)
    torch.library.custom_op("headstart::bias_gelu_backward", _plain_backward, mutates_args=()).register_fake(
        lambda out_grad, x, bias: (torch.empty_like(x), torch.empty_like(bias))
    )
