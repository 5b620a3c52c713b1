"""The Triton kernels against the plain forms: in float32 by Triton's interpreter where there is no GPU, in bf16 on one.

The interpreter needs the package `triton` alone: `pip install triton`, then TRITON_INTERPRET=1.
"""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.config import ModelConfig
from headstart.model import attention, attention_triton, gelu_triton, norm_triton, rotary_triton
from headstart.model.attention import plain_attention, square_mask
from headstart.model.backbone import Backbone
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


@NEEDS_TRITON
@pytest.mark.parametrize("width", [16, 200, 384, 768])
@pytest.mark.parametrize("post", [True, False])
@pytest.mark.parametrize("parameters", [1, 2], ids=["weight", "weight and bias"])
@pytest.mark.parametrize("used", [[0, 1], [0], [1]], ids=str)
def test_add_norm_is_the_norm_of_the_sum(
    width: int, post: bool, parameters: int, used: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32 and in half precision; with gradients of both results, or of one."""
    monkeypatch.setattr(norm_triton, "PROGRAMS", 2)
    monkeypatch.setattr(norm_triton, "BACKWARD", (2, 4))
    torch.manual_seed(0)
    values = [torch.randn(7, width), torch.randn(7, width).bfloat16(), *torch.randn(parameters, width)]
    upper = [torch.randn(7, width), torch.randn(7, width).bfloat16()]

    ours = [value.to(DEVICE, copy=True).requires_grad_() for value in values]
    residual, x, weight, bias = (*ours, None)[:4]
    results = norm_triton.add_norm(residual, x, weight, bias, 1e-5, 0.0, post=post)
    exact = [value.to(DEVICE, torch.float64).requires_grad_() for value in values]
    residual, x, weight, bias = (*exact, None)[:4]
    normed = F.layer_norm(residual + x, (width,), weight, bias, 1e-5)
    expected = (normed if post else residual + x), normed
    torch.testing.assert_close(results[0], expected[0].float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(results[1], expected[1].bfloat16(), rtol=1e-2, atol=1e-5)

    for outputs in (results, expected):
        torch.autograd.backward([outputs[i] for i in used], [upper[i].to(DEVICE, outputs[i].dtype) for i in used])
    for value, plain in zip(ours, exact, strict=True):
        expected_gradient = torch.zeros_like(plain) if plain.grad is None else plain.grad
        torch.testing.assert_close(value.grad, expected_gradient.to(value.dtype), rtol=1e-2, atol=5e-3)


@NEEDS_TRITON
def test_add_norm_drops_the_same_elements_in_both_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows a program of either pass takes."""
    monkeypatch.setattr(norm_triton, "BACKWARD", (4, 4))
    x = torch.ones(10, 200, device=DEVICE).bfloat16().requires_grad_()

    def total(seed: int) -> Tensor:
        torch.manual_seed(seed)
        residual, weight = torch.zeros(x.shape, device=DEVICE), torch.ones(200, device=DEVICE)
        return norm_triton.add_norm(residual, x, weight, None, 1e-5, 0.3, post=False)[0]

    out = total(1)
    kept = out != 0
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 1 / 0.7))
    (gradient,) = torch.autograd.grad(out, x, torch.ones_like(out))
    torch.testing.assert_close(gradient, out.bfloat16(), rtol=1e-2, atol=0.0)
    assert torch.equal(total(1), out)
    for mask, rate in [
        (kept, 0.7),
        (kept[1:] & kept[:-1], 0.49),  # neighbours are independent
        *((kept[:, apart:] & kept[:, :-apart], 0.49) for apart in (1, 2, 3, 4)),
        (kept & (total(2) != 0), 0.49),
    ]:
        assert abs(mask.float().mean().item() - rate) < 4 * math.sqrt(rate * (1 - rate) / mask.numel())


@pytest.mark.parametrize(
    ("tokens", "length", "short"), [(16_384, 20, True), (16_384, 200, True), (16_384, 256, False), (4_096, 20, False)]
)
def test_the_kernel_for_short_sequences_is_for_large_batches_of_them(tokens: int, length: int, short: bool) -> None:
    layout = Flat.from_lengths([length] * (tokens // length) + [tokens % length] * bool(tokens % length))
    assert attention._many_short(layout) is short


def run(norm: str, layers: int, how: str) -> tuple[Tensor, list[Tensor]]:
    """What a backbone gives in training under autocast, and the gradients of its weights."""
    settings = {"vocabulary": 30, "width": 16, "layers": layers, "heads": 2, "feed_forward": 32, "window": 8}
    torch.manual_seed(0)
    backbone = Backbone(ModelConfig.from_mapping(settings | {"norm": norm, "dropout": 0.3}, "test"))
    ids, layout, keep = torch.randint(30, (12,)), Flat.from_lengths([5, 7]), torch.tensor([0, 3, 5])
    with torch.autocast("cpu", torch.bfloat16):
        if how == "every layer":
            outputs = backbone.every_layer(ids, layout)
        else:
            outputs = [backbone(ids, layout, keep=keep if "keep" in how else None, mean="mean" in how)]
    stacked = torch.stack(outputs)
    torch.autograd.backward(stacked.square().sum())
    return stacked, [p.grad for p in backbone.parameters() if p.grad is not None]


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("how", ["all", "keep", "mean", "mean of keep", "every layer"])
def test_the_backbone_hands_on_what_the_kernel_gives(
    norm: str, layers: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One result in float32 and one in half precision: the same, to the bit, as the plain form under autocast."""
    calls = []

    def add_norm(
        residual: Tensor, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, dropout: float, *, post: bool
    ) -> tuple[Tensor, Tensor]:
        calls.append(post)
        total = residual + F.dropout(x, dropout)
        normed = F.layer_norm(total, x.shape[-1:], weight, bias, epsilon)
        return normed if post else total, normed.to(x.dtype)

    expected, expected_gradients = run(norm, layers, how)
    monkeypatch.setattr(norm_triton, "supports", lambda residual, x: x.dtype == torch.bfloat16)
    monkeypatch.setattr(norm_triton, "add_norm", add_norm)
    outputs, gradients = run(norm, layers, how)
    assert torch.equal(outputs, expected)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-2, atol=1e-4)
    whole = "mean" in how or how == "every layer"  # a pre-norm layer then adds its feed-forward's result itself
    assert len(calls) == (layers if norm == "pre" and whole else 2 * layers)
