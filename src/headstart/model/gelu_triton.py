"""The gated feed-forward's gelu(gate) * up on a GPU, one Triton kernel each way.

torch.compile makes one kernel of its backward pass too, but computes both halves of the gradient for every element of
it and then selects one: twice the work, and 2.3 times the time that memory needs. The plain form is in `layers.py`.

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
COLUMNS = 1024  # that a program works on


def supports(x: Tensor) -> bool:
    """Large batches on a GPU in half precision."""
    return AVAILABLE and x.is_cuda and x.dtype in (torch.bfloat16, torch.float16) and x.shape[0] >= LEAST_TOKENS


def gated_gelu(x: Tensor) -> Tensor:
    """(…, 2 F), the gate first → (…, F)"""
    out: Tensor = torch.ops.headstart.gated_gelu(x)
    return out


def _forward(x: Tensor) -> Tensor:
    x = x.contiguous()
    width = x.shape[-1] // 2
    out = torch.empty(*x.shape[:-1], width, dtype=x.dtype, device=x.device)
    rows = out.numel() // width
    _forward_kernel[(rows, triton.cdiv(width, COLUMNS))](x, out, width, columns=COLUMNS)
    return out


def _backward(out_grad: Tensor, x: Tensor) -> Tensor:
    out_grad, x = out_grad.contiguous(), x.contiguous()
    width = out_grad.shape[-1]
    gradient = torch.empty_like(x)
    rows = out_grad.numel() // width
    _backward_kernel[(rows, triton.cdiv(width, COLUMNS))](x, out_grad, gradient, width, columns=COLUMNS)
    return gradient


def _forward_body(x, out, width, columns: tl.constexpr):  # type: ignore[no-untyped-def]
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * columns + tl.arange(0, columns)
    inside = column < width
    gate = tl.load(x + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    activated = gate * 0.5 * (1 + tl.erf(gate * _ROOT_HALF))
    tl.store(out + row * width + column, (activated * up).to(out.dtype.element_ty), mask=inside)


def _backward_body(x, out_grad, gradient, width, columns: tl.constexpr):  # type: ignore[no-untyped-def]
    """gelu(z) = z Φ(z), and its derivative is Φ(z) + z φ(z), with the normal distribution's Φ and density φ."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * columns + tl.arange(0, columns)
    inside = column < width
    gate = tl.load(x + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    upper = tl.load(out_grad + row * width + column, mask=inside, other=0.0).to(tl.float32)
    below = 0.5 * (1 + tl.erf(gate * _ROOT_HALF))
    slope = below + gate * tl.exp(-0.5 * gate * gate) * _DENSITY
    place = gradient + row * 2 * width + column
    tl.store(place, (upper * up * slope).to(gradient.dtype.element_ty), mask=inside)
    tl.store(place + width, (upper * gate * below).to(gradient.dtype.element_ty), mask=inside)


def _save(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradient(ctx: Any, out_grad: Tensor) -> Tensor:
    gradient: Tensor = torch.ops.headstart.gated_gelu_backward(out_grad, *ctx.saved_tensors)
    return gradient


if AVAILABLE:
    _ROOT_HALF, _DENSITY = tl.constexpr(math.sqrt(0.5)), tl.constexpr(1 / math.sqrt(2 * math.pi))
    _forward_kernel, _backward_kernel = triton.jit(_forward_body), triton.jit(_backward_body)
    # Operators of our own, so that torch.compile takes each as one step.
    _operator = torch.library.custom_op("headstart::gated_gelu", _forward, mutates_args=())
    _operator.register_fake(lambda x: torch.empty(*x.shape[:-1], x.shape[-1] // 2, dtype=x.dtype, device=x.device))
    _operator.register_autograd(_gradient, setup_context=_save)
    torch.library.custom_op("headstart::gated_gelu_backward", _backward, mutates_args=()).register_fake(
        lambda out_grad, x: torch.empty_like(x)
    )
