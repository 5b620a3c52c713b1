"""Attention by oneDNN is the plain form, values and gradients, on every processor; and where it is used."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from headstart.model import attention_onednn as module
from headstart.model.attention import attend, plain_attention, square_mask
from headstart.model.attention_onednn import attention, supports
from headstart.model.dropout import factors
from headstart.model.layout import Flat

from .reference_attention import one_at_a_time

LENGTHS = [1, 15, 16, 17, 100, 250, 260, 300]


def drawn(length: int, *, heads: int = 3, width: int = 10, bias: bool = False) -> list[Tensor]:
    """q, k, v and perhaps a bias, which want gradients."""
    source = torch.Generator().manual_seed(length)
    shapes = [(heads, length, width)] * 3 + ([(heads, length, length)] if bias else [])
    return [torch.randn(shape, generator=source).requires_grad_() for shape in shapes]


def with_gradients(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    weight = torch.arange(out.numel()).view(out.shape).to(out.dtype).cos()  # every entry counts otherwise
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), inputs)]


def in_float64(inputs: list[Tensor], *, causal: bool, dropped: Tensor | None = None) -> list[Tensor]:
    exact = [x.detach().double().requires_grad_() for x in inputs]
    q, k, v, *bias = exact
    mask = bias[0] if bias else torch.zeros(1, dtype=torch.float64)
    if causal:
        mask = mask + square_mask(q.shape[1]).double()
    out, weights = plain_attention(q, k, v, mask)
    return with_gradients(out if dropped is None else (weights * dropped.double()) @ v, exact)


@pytest.mark.parametrize("kept_tokens", [module.KEPT_TOKENS, 0], ids=["kept", "computed again"])
@pytest.mark.parametrize(("causal", "bias"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("length", LENGTHS)
def test_it_is_the_plain_form(
    length: int, causal: bool, bias: bool, kept_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT_TOKENS", kept_tokens)
    q, k, v, *rest = inputs = drawn(length, bias=bias)
    given = rest[0] if rest else None
    expected = in_float64(inputs, causal=causal)
    for ours, exact in zip(
        with_gradients(attention(q, k, v, causal=causal, bias=given), inputs), expected, strict=True
    ):
        torch.testing.assert_close(ours.double(), exact, rtol=0, atol=2e-5)
    with torch.no_grad():
        still = attention(q, k, v, causal=causal, bias=given)
    torch.testing.assert_close(still.double(), expected[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [100, 256])
def test_dropout_is_of_the_weights(length: int, causal: bool) -> None:
    q, k, v = inputs = drawn(length)
    padded = module._padded_length(length)
    torch.manual_seed(3)
    dropped = factors(torch.empty(len(q), padded, padded), 0.3)[:, :length, :length]
    assert 0.65 < dropped.count_nonzero() / dropped.numel() < 0.75
    torch.manual_seed(3)
    ours = with_gradients(attention(q, k, v, causal=causal, dropout=0.3), inputs)
    for one, exact in zip(ours, in_float64(inputs, causal=causal, dropped=dropped), strict=True):
        torch.testing.assert_close(one.double(), exact, rtol=0, atol=3e-5)


def test_no_gradient_for_what_needs_none() -> None:
    q, k, v, bias = drawn(100, bias=True)
    out = attention(q, k.detach(), v, bias=bias.detach())
    found = torch.autograd.grad(out.sum(), [q, v])
    assert all(gradient.isfinite().all() for gradient in found)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [[130, 5, 300, 100], [128, 128]], ids=str)
def test_sequences_of_a_batch(lengths: list[int], causal: bool, biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long ones by oneDNN, all others by torch's kernel; the bias is that of the longest."""
    taken: list[int] = []

    def spied(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
        taken.append(q.shape[1])
        return attention(q, k, v, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(module, "attention", spied)
    source = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, sum(lengths), 4, 8, generator=source).unbind()
    bias = torch.randn(4, max(lengths), max(lengths), generator=source) if biased else None
    out = attend(q, k, v, Flat.from_lengths(lengths), causal=causal, bias=bias)
    torch.testing.assert_close(out, one_at_a_time(q, k, v, lengths, causal=causal, bias=bias), rtol=0, atol=2e-5)
    assert taken == [length for length in lengths if length >= 96]


def test_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    q = torch.zeros(200, 4, 8)
    monkeypatch.setattr(module, "onednn_is_faster", lambda: True)
    assert supports(q, 96)
    assert not supports(q, 95)  # of few tokens
    assert not supports(q[:, :2], 96)  # and heads
    assert supports(q[:, :2], 192)
    assert not supports(q.double(), 200)
    assert not supports(q.bfloat16(), 200)
    assert not supports(q.to("meta"), 200)
    monkeypatch.setattr(module, "onednn_is_faster", lambda: False)
    assert not supports(q, 200)


def test_few_lengths_so_that_few_kernels_are_compiled() -> None:
    padded = {length: module._padded_length(length) for length in range(1, 2049)}
    assert all(length <= most for length, most in padded.items())
    assert all(most < length * 1.13 for length, most in padded.items() if length >= 128)
    assert len({padded[length] for length in range(96, 513)}) == 19
    assert math.isclose(len(set(padded.values())), 40, abs_tol=2)
