"""Dropout, sum with the residual and layer norm on a GPU, one Triton kernel each way. In `layers.py` is the plain form.

Under autocast the residual is float32, and a sub-layer gives and takes half precision: for every element the forward
pass reads 6 bytes and writes 8, the backward pass as many. What the backward pass needs of the input is its normalized
value, kept in float16: it is at most √D, so that float16 has it to 11 bits. Which elements are dropped is computed in
both passes from one random seed, four elements for each call of Philox: torch.compile's kernels, which call it for
every element, take twice the time that memory needs.

    N tokens, D width
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

AVAILABLE = triton is not None
LEAST_TOKENS_NORM = 0  # of a batch
WIDEST = 2048  # a row is held in registers
FORWARD, BACKWARD = (1, 4), (2, 4)  # rows that a program works on at once, and its warps
PROGRAMS = 528  # of the backward pass, each with its own sums of the weights' gradients: four for each unit of an H100


def supports(residual: Tensor, x: Tensor) -> bool:
    """A float32 residual and a sub-layer's output in half precision, on a GPU."""
    return (
        AVAILABLE
        and x.is_cuda
        and x.dtype in (torch.bfloat16, torch.float16)
        and residual.dtype == torch.float32
        and x.shape[-1] <= WIDEST
        and x.numel() >= LEAST_TOKENS_NORM * x.shape[-1]
    )


def add_norm(
    residual: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float, dropout: float, *, post: bool
) -> tuple[Tensor, Tensor]:
    """norm(residual + dropout(x)) twice: in float32, or without `post` the sum in its place, and in the precision of x.

    All are (…, D), weight and bias (D,).
    """
    seed = torch.randint(2**62, (1,), device=x.device) if dropout > 0 else None
    out, half, _, _ = torch.ops.headstart.add_norm(residual, x, weight, bias, seed, epsilon, dropout, post)
    return out, half


def _forward(
    residual: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    seed: Tensor | None,
    epsilon: float,
    dropout: float,
    post: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The two results; for the backward pass the normalized sum, and 1 / its standard deviation (…)."""
    residual, x = residual.contiguous(), x.contiguous()
    out, half, normed, scales = _outputs(residual, x)
    sizes = _sizes(x.shape[-1], *FORWARD)
    grid = (triton.cdiv(scales.numel(), sizes["rows"]),)
    _forward_kernel[grid](
        *(residual, x, weight, bias, seed, out, half, normed, scales),
        *(scales.numel(), epsilon, dropout, 1 / (1 - dropout)),
        post=post,
        **sizes,
    )
    return out, half, normed, scales


def _outputs(residual: Tensor, x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    exact, half, normed = (
        torch.empty(x.shape, dtype=dtype, device=x.device) for dtype in (torch.float32, x.dtype, torch.float16)
    )
    return exact, half, normed, torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)


def _backward(
    out_grad: Tensor | None,
    half_grad: Tensor | None,
    normed: Tensor,
    scales: Tensor,
    weight: Tensor,
    seed: Tensor | None,
    dropout: float,
    post: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the residual and of x, and (2, D) of weight and bias."""
    out_grad, half_grad = (None if x is None else x.contiguous() for x in (out_grad, half_grad))
    sizes = _sizes(normed.shape[-1], *BACKWARD)
    programs = min(PROGRAMS, triton.cdiv(scales.numel(), sizes["rows"]))
    residual_grad, x_grad, _ = _gradients_like(normed, dtype)
    sums = torch.empty(programs, 2, normed.shape[-1], dtype=torch.float32, device=normed.device)
    _backward_kernel[(programs,)](
        *(out_grad, half_grad, normed, scales, weight, seed, residual_grad, x_grad, sums),
        *(scales.numel(), dropout, 1 / (1 - dropout)),
        post=post,
        **sizes,
    )
    return residual_grad, x_grad, sums.sum(0)


def _gradients_like(normed: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    residual_grad = torch.empty(normed.shape, dtype=torch.float32, device=normed.device)
    weight_grads = torch.empty(2, normed.shape[-1], dtype=torch.float32, device=normed.device)
    return residual_grad, torch.empty(normed.shape, dtype=dtype, device=normed.device), weight_grads


def _sizes(width: int, rows: int, warps: int) -> dict[str, int]:
    return {"width": width, "columns": max(16, triton.next_power_of_2(width)), "rows": rows, "num_warps": warps}


def _kept_body(seed, row, dropout, rows: tl.constexpr, columns: tl.constexpr):  # type: ignore[no-untyped-def]
    """(rows, columns): True where dropout keeps an element. It depends on the seed and the element's place alone."""
    group = row[:, None] * (columns // 4) + tl.arange(0, columns // 4)[None, :]
    a, b, c, d = tl.rand4x(tl.load(seed), group)
    return tl.reshape(tl.join(tl.join(a, b), tl.join(c, d)), (rows, columns)) >= dropout


def _forward_body(  # type: ignore[no-untyped-def]
    residual, x, weight, bias, seed, out, half, normed, scales,
    tokens, epsilon, dropout, kept_scale,
    width: tl.constexpr, columns: tl.constexpr, rows: tl.constexpr, post: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, columns)
    inside = (row < tokens)[:, None] & (column < width)[None, :]
    place = row[:, None].to(tl.int64) * width + column[None, :]
    total = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    if seed is not None:
        total = tl.where(_kept(seed, row, dropout, rows, columns), total * kept_scale, 0.0)
    total += tl.load(residual + place, mask=inside, other=0.0)
    centred = tl.where(inside, total - (tl.sum(total, 1) / width)[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 1) / width + epsilon)
    unit = centred * scale[:, None]
    result = unit * tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    if bias is not None:
        result += tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    tl.store(out + place, result if post else total, mask=inside)
    tl.store(half + place, result.to(half.dtype.element_ty), mask=inside)
    tl.store(normed + place, unit.to(normed.dtype.element_ty), mask=inside)
    tl.store(scales + row, scale, mask=row < tokens)


def _backward_body(  # type: ignore[no-untyped-def]
    out_grad, half_grad, normed, scales, weight, seed, residual_grad, x_grad, sums,
    tokens, dropout, kept_scale,
    width: tl.constexpr, columns: tl.constexpr, rows: tl.constexpr, post: tl.constexpr,
):  # fmt: skip
    """With u the normalized sum, g the gradient of the result and h = g weight:
    the sum's gradient is (h - mean(h) - u mean(h u)) / standard deviation, that of the weight Σ g u, of the bias Σ g.
    """
    column = tl.arange(0, columns)
    factor = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    weight_sum, bias_sum = tl.zeros((rows, columns), tl.float32), tl.zeros((rows, columns), tl.float32)
    for first in range(tl.program_id(0) * rows, tokens, tl.num_programs(0) * rows):
        row = first + tl.arange(0, rows)
        inside = (row < tokens)[:, None] & (column < width)[None, :]
        place = row[:, None].to(tl.int64) * width + column[None, :]
        unit = tl.load(normed + place, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scales + row, mask=row < tokens, other=0.0)
        upper = tl.zeros((rows, columns), tl.float32)
        if half_grad is not None:
            upper += tl.load(half_grad + place, mask=inside, other=0.0).to(tl.float32)
        if post and out_grad is not None:
            upper += tl.load(out_grad + place, mask=inside, other=0.0)
        weight_sum += upper * unit
        bias_sum += upper
        upper *= factor
        mean, slope = tl.sum(upper, 1) / width, tl.sum(upper * unit, 1) / width
        gradient = (upper - mean[:, None] - unit * slope[:, None]) * scale[:, None]
        if not post and out_grad is not None:
            gradient += tl.load(out_grad + place, mask=inside, other=0.0)
        tl.store(residual_grad + place, gradient, mask=inside)
        if seed is not None:
            gradient = tl.where(_kept(seed, row, dropout, rows, columns), gradient * kept_scale, 0.0)
        tl.store(x_grad + place, gradient.to(x_grad.dtype.element_ty), mask=inside)
    own = sums + tl.program_id(0) * 2 * width + column
    tl.store(own, tl.sum(weight_sum, 0), mask=column < width)
    tl.store(own + width, tl.sum(bias_sum, 0), mask=column < width)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    _, x, weight, bias, seed, _, ctx.dropout, ctx.post = inputs
    ctx.dtype, ctx.biased = x.dtype, bias is not None
    ctx.save_for_backward(*output[2:], weight, seed)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, out_grad: Tensor | None, half_grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    residual, x, (weight, bias) = torch.ops.headstart.add_norm_backward(
        out_grad, half_grad, *ctx.saved_tensors, ctx.dropout, ctx.post, ctx.dtype
    )
    return residual, x, weight, bias if ctx.biased else None, None, None, None, None


if AVAILABLE:
    _kept = triton.jit(_kept_body)
    _forward_kernel, _backward_kernel = triton.jit(_forward_body), triton.jit(_backward_body)
    # Operators of our own, so that torch.compile takes each as one step.
    _operator = torch.library.custom_op("headstart::add_norm", _forward, mutates_args=())
    _operator.register_fake(_outputs)
    _operator.register_autograd(_gradients, setup_context=_save)
    torch.library.custom_op("headstart::add_norm_backward", _backward, mutates_args=()).register_fake(
        lambda out_grad, half_grad, normed, scales, weight, seed, dropout, post, dtype: _gradients_like(normed, dtype)
    )
