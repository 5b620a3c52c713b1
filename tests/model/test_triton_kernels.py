"""The Triton kernels against the plain forms: in float32 by Triton's interpreter where there is no GPU, in bf16 on one.

The interpreter needs the package `triton` alone: `pip install triton`, then TRITON_INTERPRET=1.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.model import attention, attention_triton, gelu_triton, rotary_triton
from headstart.model.attention import plain_attention, square_mask
from headstart.model.layout import Flat
from headstart.model.positions import rotary, rotate

ON_GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if ON_GPU else ("cpu", torch.float32)
CLOSE: dict[str, Any] = {"rtol": 5e-2, "atol": 1e-1} if ON_GPU else {"rtol": 1e-5, "atol": 1e-5}
NEEDS_TRITON = pytest.mark.skipif(
    not attention_triton.AVAILABLE or not (ON_GPU or os.environ.get("TRITON_INTERPRET") == "1"),
    reason="needs Triton, and a GPU or TRITON_INTERPRET=1",
)
LENGTHS = [[3, 20, 1, 40, 17, 0, 0], [150, 5, 70], [64, 64], [1], [200, 1, 1, 1, 30]]


def one_at_a_time(q: Tensor, k: Tensor, v: Tensor, lengths: list[int], causal: bool) -> Tensor:
    parts = zip(*(torch.split(x.transpose(0, 1), lengths, 1) for x in (q, k, v)), strict=True)
    results = []
    for one_q, one_k, one_v in parts:
        mask = square_mask(one_q.shape[1], q.device) if causal else None
        results.append(plain_attention(one_q, one_k, one_v, mask)[0].transpose(0, 1))
    return torch.cat(results)


@NEEDS_TRITON
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("width", [32, 64, 100])
@pytest.mark.parametrize("causal", [False, True])
def test_packed_attention_is_plain_attention_for_each_sequence(lengths: list[int], width: int, causal: bool) -> None:
    torch.manual_seed(0)
    values = torch.randn(sum(lengths), 3, 2, width).to(DEVICE, DTYPE)
    upper = torch.randn(sum(lengths), 2, width).to(DEVICE, DTYPE)
    layout = Flat.from_lengths(lengths, DEVICE)
    ours, exact = values.clone().requires_grad_(), values.float().requires_grad_()
    q, k, v = ours.unbind(1)
    out = attention_triton.packed_attention(q, k, v, layout.starts, layout.sequence, causal=causal)
    q, k, v = exact.unbind(1)
    expected = one_at_a_time(q, k, v, lengths, causal)
    torch.testing.assert_close(out.float(), expected, **CLOSE)
    (gradient,) = torch.autograd.grad(out, ours, upper)
    (expected_gradient,) = torch.autograd.grad(expected, exact, upper.float())
    torch.testing.assert_close(gradient.float(), expected_gradient, **CLOSE)


@NEEDS_TRITON
@pytest.mark.parametrize("shape", [(3, 10), (5, 3000), (2, 3, 64)], ids=str)
def test_gated_gelu_is_the_product_of_gelu_and_up(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    values = torch.randn(shape).to(DEVICE, DTYPE)
    ours, exact = values.clone().requires_grad_(), values.float().requires_grad_()
    gate, up = exact.chunk(2, dim=-1)
    out, expected = gelu_triton.gated_gelu(ours), F.gelu(gate) * up
    torch.testing.assert_close(out.float(), expected, **CLOSE)
    upper = torch.randn(expected.shape).to(DEVICE, DTYPE)
    (gradient,) = torch.autograd.grad(out, ours, upper)
    (expected_gradient,) = torch.autograd.grad(expected, exact, upper.float())
    torch.testing.assert_close(gradient.float(), expected_gradient, **CLOSE)


@NEEDS_TRITON
@pytest.mark.parametrize("shape", [(3, 10), (70, 700), (2, 3, 64)], ids=str)
def test_bias_gelu_is_gelu_of_the_sum(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    values, shift = (3 * torch.randn(shape)).to(DEVICE, DTYPE), torch.randn(shape[-1]).to(DEVICE, DTYPE)
    ours, exact = [
        [x.clone().requires_grad_() for x in (values.to(kind), shift.to(kind))] for kind in (DTYPE, torch.float32)
    ]
    out, expected = gelu_triton.bias_gelu(*ours), F.gelu(exact[0] + exact[1])
    torch.testing.assert_close(out.float(), expected, **CLOSE)
    upper = torch.randn(expected.shape).to(DEVICE, DTYPE)
    gradients, expected_gradients = (
        torch.autograd.grad(out, ours, upper),
        torch.autograd.grad(expected, exact, upper.float()),
    )
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient.float(), expected_gradient, **CLOSE)


@NEEDS_TRITON
@pytest.mark.parametrize(("tokens", "heads", "width"), [(5, 2, 4), (7, 6, 64), (3, 3, 10)])
def test_rotated_is_rotate_of_queries_and_keys(tokens: int, heads: int, width: int) -> None:
    torch.manual_seed(0)
    values = torch.randn(tokens, 3 * heads * width).to(DEVICE, DTYPE)
    angles = rotary(50, width)[torch.randint(50, (tokens,))].to(DEVICE)
    ours, exact = values.clone().requires_grad_(), values.float().requires_grad_()
    q, k, v = exact.view(tokens, 3, heads, width).unbind(1)
    out, expected = rotary_triton.rotated(ours, angles, heads), (rotate(q, angles), rotate(k, angles), v)
    upper = torch.randn(3, tokens, heads, width).to(DEVICE, DTYPE)
    for part, expected_part in zip(out, expected, strict=True):
        torch.testing.assert_close(part.float(), expected_part, **CLOSE)
    (gradient,) = torch.autograd.grad(out, ours, list(upper))
    (expected_gradient,) = torch.autograd.grad(expected, exact, list(upper.float()))
    torch.testing.assert_close(gradient.float(), expected_gradient, **CLOSE)


@pytest.mark.parametrize(
    ("tokens", "length", "short"), [(16_384, 20, True), (16_384, 200, True), (16_384, 256, False), (4_096, 20, False)]
)
def test_the_kernel_for_short_sequences_is_for_large_batches_of_them(tokens: int, length: int, short: bool) -> None:
    layout = Flat.from_lengths([length] * (tokens // length) + [tokens % length] * bool(tokens % length))
    assert attention._many_short(layout) is short
