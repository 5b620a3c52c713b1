"""The plain form against numbers worked by hand; every fast layout against the plain form, values and gradients."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headstart.config import ModelConfig
from headstart.model.attention import Attention, attend, plain_attention, square_mask
from headstart.model.layout import Dense, Flat, Layout
from headstart.model.positions import rotary, rotate

from .reference_attention import one_at_a_time
from .strategies import SEEDS, configs, randomized

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="varlen attention runs on CUDA alone")

RAGGED = [5, 1, 7, 3]
LONG = [40, 0, 3, 61, 1, 18]  # on the CPU these run one by one
EQUAL = [4, 4, 4]
TRAILING = [3, 6, 0, 0]
EQUAL_AND_TRAILING = [4, 4, 0]


# The plain form


def test_the_square_mask_can_be_printed() -> None:
    hidden = -math.inf
    assert square_mask(3).tolist() == [[0, hidden, hidden], [0, 0, hidden], [0, 0, 0]]
    assert square_mask(1).tolist() == [[0]]
    assert square_mask(2, "meta").device.type == "meta"


def test_plain_attention_by_hand() -> None:
    """K = 4, so scores are halved: q0·k0 / 2 = ln 3 and q0·k1 / 2 = 0 give weights 3/4 and 1/4."""
    q = torch.tensor([[2 * math.log(3), 0, 0, 0], [0, 2 * math.log(4), 0, 0]], dtype=torch.float64)
    k = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0]], dtype=torch.float64)
    v = torch.tensor([[4, 0, 0, 1], [8, 0, 0, 1]], dtype=torch.float64)
    out, weights = plain_attention(q, k, v)
    torch.testing.assert_close(weights, torch.tensor([[3 / 4, 1 / 4], [1 / 5, 4 / 5]], dtype=torch.float64))
    torch.testing.assert_close(out, torch.tensor([[5, 0, 0, 1], [7.2, 0, 0, 1]], dtype=torch.float64))


def test_plain_attention_under_the_square_mask_by_hand() -> None:
    q = torch.tensor([[2 * math.log(3), 0, 0, 0], [0, 2 * math.log(4), 0, 0]])
    k = torch.eye(2, 4)
    v = torch.tensor([[4.0], [8.0]])
    out, weights = plain_attention(q, k, v, square_mask(2))
    assert weights[0].tolist() == [1, 0]
    assert out[0].tolist() == [4]
    assert out[1].item() == pytest.approx(7.2)


# The fast layouts against it


def drawn_inputs(
    lengths: list[int], dtype: torch.dtype, *, bias: bool, heads: int = 2, width: int = 6, device: str = "cpu"
) -> tuple[list[Tensor], Tensor]:
    """q, k, v and perhaps a bias, which want gradients, and the weights of a loss over the result."""
    drawn = torch.Generator().manual_seed(sum(lengths) + heads * width)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=drawn, dtype=torch.float64).to(device, dtype)

    tokens, longest = sum(lengths), max(lengths)
    inputs = [draw(tokens, heads, width).mul(1.5).requires_grad_() for _ in "qkv"]
    if bias:
        inputs.append(draw(heads, longest, longest).requires_grad_())
    return inputs, draw(tokens, heads, width)


def result_and_gradients(
    attention: Callable[..., Tensor], inputs: list[Tensor], weight: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    out = attention(*inputs)
    return out.detach(), torch.autograd.grad((out * weight).sum(), inputs)


CASES = [
    pytest.param(False, False, id="both-ways"),
    pytest.param(True, False, id="causal"),
    pytest.param(False, True, id="both-ways-biased"),
    pytest.param(True, True, id="causal-biased"),
]
PRECISIONS = [pytest.param(torch.float64, 1e-10, id="float64"), pytest.param(torch.float32, 2e-5, id="float32")]


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize(("causal", "biased"), CASES)
@pytest.mark.parametrize("lengths", [RAGGED, LONG, EQUAL, TRAILING, EQUAL_AND_TRAILING, [6]], ids=str)
def test_flat_blocks_are_plain_attention_for_each_sequence(
    lengths: list[int], causal: bool, biased: bool, dtype: torch.dtype, tolerance: float
) -> None:
    inputs, weight = drawn_inputs(lengths, dtype, bias=biased)
    layout = Flat.from_lengths(lengths)

    def fast(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        return attend(q, k, v, layout, causal=causal, bias=bias)

    def plain(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        return one_at_a_time(q, k, v, lengths, causal=causal, bias=bias)

    out, gradients = result_and_gradients(fast, inputs, weight)
    expected, expected_gradients = result_and_gradients(plain, inputs, weight)
    torch.testing.assert_close(out, expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(gradients, expected_gradients, rtol=0, atol=5 * tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize(("causal", "biased"), CASES)
@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize("lengths", [RAGGED, EQUAL], ids=str)
def test_a_padded_block_is_plain_attention_for_each_sequence(
    lengths: list[int], padding: int, causal: bool, biased: bool, dtype: torch.dtype, tolerance: float
) -> None:
    """Whatever stands in the padding: here it is large, so that the least of it would show."""
    inputs, weight = drawn_inputs(lengths, dtype, bias=biased)
    longest = max(lengths)
    mask = torch.arange(longest + padding) < torch.tensor(lengths)[:, None]

    def fast(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        def block(x: Tensor) -> Tensor:
            filled = torch.full((*mask.shape, *x.shape[1:]), 9.0, dtype=dtype)
            return filled.masked_scatter(mask[..., None, None], x)

        wide = None if bias is None else F.pad(bias, (0, padding, 0, padding), value=9.0)
        return attend(block(q), block(k), block(v), Dense(mask), causal=causal, bias=wide)[mask]

    def plain(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        return one_at_a_time(q, k, v, lengths, causal=causal, bias=bias)

    out, gradients = result_and_gradients(fast, inputs, weight)
    expected, expected_gradients = result_and_gradients(plain, inputs, weight)
    torch.testing.assert_close(out, expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(gradients, expected_gradients, rtol=0, atol=5 * tolerance)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_padding_gets_no_gradient_at_all(causal: bool, biased: bool) -> None:
    mask = torch.tensor([[True, True, False], [True, False, False]])
    q, k, v = (torch.randn(2, 3, 1, 4, requires_grad=True) for _ in "qkv")
    bias = torch.randn(1, 3, 3) if biased and not causal else None
    out = attend(q, k, v, Dense(mask), causal=causal, bias=bias)
    torch.autograd.backward(out[mask].square().sum())
    for x in (q, k, v):
        assert x.grad is not None
        assert not x.grad[~mask].any()
        assert x.grad[mask][:2].any()


FEW, MANY = (st.lists(st.integers(0, most), min_size=1, max_size=5).filter(any) for most in (9, 60))


@settings(max_examples=80)
@given(FEW | MANY, st.booleans(), st.booleans())
def test_any_lengths(lengths: list[int], causal: bool, biased: bool) -> None:
    """Empty sequences anywhere, in any number: real results, real gradients, those of the plain form."""
    inputs, weight = drawn_inputs(lengths, torch.float64, bias=biased)

    def fast(*inputs: Tensor) -> Tensor:
        q, k, v, *bias = inputs
        return attend(q, k, v, Flat.from_lengths(lengths), causal=causal, bias=bias[0] if bias else None)

    def plain(*inputs: Tensor) -> Tensor:
        q, k, v, *bias = inputs
        return one_at_a_time(q, k, v, lengths, causal=causal, bias=bias[0] if bias else None)

    out, gradients = result_and_gradients(fast, inputs, weight)
    expected, expected_gradients = result_and_gradients(plain, inputs, weight)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(gradients, expected_gradients, rtol=0, atol=1e-10)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [[700, 300, 513], [600, 600]], ids=str)
def test_long_sequences_which_kernels_cut_into_tiles(lengths: list[int], causal: bool) -> None:
    (q, k, v), _ = drawn_inputs(lengths, torch.float64, bias=False, heads=1, width=8)
    with torch.no_grad():
        out = attend(q, k, v, Flat.from_lengths(lengths), causal=causal)
        torch.testing.assert_close(out, one_at_a_time(q, k, v, lengths, causal=causal), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "layout",
    [Flat.from_lengths([40, 30]), Flat.from_lengths([40, 40]), Dense(torch.ones(2, 40) > 0)],
    ids=["ragged", "equal", "dense"],
)
@pytest.mark.parametrize("causal", [False, True])
def test_dropout_drops_weights_and_keeps_their_mean(layout: Layout, causal: bool) -> None:
    """With v = 1 the result is the sum of the kept weights, each doubled: 1 on average, and not always 1."""
    torch.manual_seed(0)
    q, k = torch.randn(2, *layout.position.shape, 8, 4)
    out = attend(q, k, torch.ones_like(q), layout, causal=causal, dropout=0.5)
    assert out.std() > 0.05
    assert out.mean().item() == pytest.approx(1, abs=0.1)
    still = attend(q, k, torch.ones_like(q), layout, causal=causal)
    torch.testing.assert_close(still, torch.ones_like(still))


def test_on_a_cpu_dropout_is_that_of_the_kernel_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written out, so that a sequence takes fewer calls: the same random numbers, the same rounding, no kernel."""
    torch.manual_seed(0)
    lengths = [40, 0, 17, 33]
    q, k, v = inputs = torch.randn(3, sum(lengths), 3, 20, requires_grad=True).unbind()

    def kernel() -> Tensor:
        parts = zip(*(torch.split(x.transpose(0, 1)[None], lengths, 2) for x in inputs), strict=True)
        each = [F.scaled_dot_product_attention(q, k, v, dropout_p=0.3) for q, k, v in parts]
        return torch.cat(each, 2)[0].transpose(0, 1)

    torch.manual_seed(1)
    expected = kernel()
    expected_gradients = torch.autograd.grad(expected.sin().sum(), inputs)
    monkeypatch.delattr(F, "scaled_dot_product_attention")
    torch.manual_seed(1)
    out = attend(q, k, v, Flat.from_lengths(lengths), causal=False, dropout=0.3)
    assert torch.equal(out, expected)
    for one, other in zip(torch.autograd.grad(out.sin().sum(), inputs), expected_gradients, strict=True):
        assert torch.equal(one, other)


# Queries of some tokens alone

ALL_LONG = [40, 17, 61, 18]


def kept_tokens(which: str, lengths: list[int]) -> Tensor:
    starts = Flat.from_lengths(lengths).starts.long()
    return {
        "first": starts[:-1],
        "last": starts[1:] - 1,
        "some": torch.tensor([3, 3, 41, 42, sum(lengths) - 1]),  # none of the third sequence
        "none": torch.tensor([], dtype=torch.long),
        "not in order": torch.tensor([60, 2, 59]),
    }[which]


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("which", ["first", "last", "some", "none", "not in order"])
@pytest.mark.parametrize("direction", ["bidirectional", "causal"])
def test_kept_tokens_alone_are_what_they_are_among_all(direction: Any, which: str, positions: Any) -> None:
    config = ModelConfig(
        vocabulary=11, window=64, width=12, layers=1, heads=2, feed_forward=8, direction=direction, positions=positions
    )
    attention = randomized(Attention(config), 0).double()
    layout, keep = Flat.from_lengths(ALL_LONG), kept_tokens(which, ALL_LONG)
    angles = rotary(64, 6).double()[layout.position] if positions == "rotary" else None
    x = torch.randn(sum(ALL_LONG), 12, dtype=torch.float64, requires_grad=True)
    inputs = [x, *attention.parameters()]
    some, every = attention(x, layout, angles, None, keep), attention(x, layout, angles, None)[keep]
    torch.testing.assert_close(some, every, rtol=0, atol=1e-12)
    taught = (torch.autograd.grad(out.sin().sum(), inputs) for out in (some, every))
    for one, other in zip(*taught, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("direction", "which", "queries"),
    [("bidirectional", "first", 4), ("bidirectional", "some", 5), ("causal", "last", 4), ("causal", "some", 136)],
)
def test_tokens_that_are_not_kept_need_no_query(
    direction: Any, which: str, queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A causal token in the middle is left to the mask, among all."""
    asked = []
    kernel = F.scaled_dot_product_attention

    def spy(q: Tensor, *rest: Any, **named: Any) -> Tensor:
        asked.append(q.shape[-2])
        return kernel(q, *rest, **named)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    config = ModelConfig(vocabulary=11, window=64, width=12, layers=1, heads=2, feed_forward=8, direction=direction)
    Attention(config).eval()(
        torch.randn(136, 12), Flat.from_lengths(ALL_LONG), None, None, kept_tokens(which, ALL_LONG)
    )
    assert sum(asked) == queries


# The varlen kernel


def stand_in(signature: str) -> Callable[..., Tensor]:
    """What `varlen_attn` promises, in plain attention; `signature` is how it was told to look back alone."""

    def body(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, scale: float, causal: bool) -> Tensor:
        assert q.shape[-1] % 8 == 0, "flash kernels want a head width that is a multiple of 8"
        assert starts.dtype == torch.int32
        fit = scale * math.sqrt(q.shape[-1])  # plain attention divides by √K itself
        return one_at_a_time(q * fit, k, v, starts.diff().tolist(), causal=causal)

    def by_window(
        q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int,
        *, scale: float, window_size: tuple[int, int] = (-1, -1),
    ) -> Tensor:  # fmt: skip
        assert torch.equal(cu_q, cu_k)
        assert max_q == max_k == cu_q.diff().max()
        return body(q, k, v, cu_q, scale, {(-1, -1): False, (-1, 0): True}[window_size])

    def by_name(
        q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int,
        is_causal: bool = False, *, scale: float,
    ) -> Tensor:  # fmt: skip
        return by_window(q, k, v, cu_q, cu_k, max_q, max_k, scale=scale, window_size=(-1, 0 if is_causal else -1))

    return by_window if signature == "window_size" else by_name


@pytest.mark.parametrize("signature", ["window_size", "is_causal"])
@pytest.mark.parametrize("width", [6, 8, 100])
@pytest.mark.parametrize("causal", [False, True])
def test_the_varlen_kernel_is_called_as_both_its_versions_want(
    monkeypatch: pytest.MonkeyPatch, causal: bool, width: int, signature: str
) -> None:
    """Without a GPU: a stand-in that keeps the kernel's contract, in its two signatures."""
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", stand_in(signature))
    monkeypatch.setattr("headstart.model.attention.BY_WINDOW", signature == "window_size")
    monkeypatch.setattr("headstart.model.attention._varlen_can", lambda q, bias, dropout: True)
    inputs, weight = drawn_inputs(TRAILING, torch.float64, bias=False, width=width)
    out, gradients = result_and_gradients(
        lambda q, k, v: attend(q, k, v, Flat.from_lengths(TRAILING), causal=causal), inputs, weight
    )
    expected, expected_gradients = result_and_gradients(
        lambda q, k, v: one_at_a_time(q, k, v, TRAILING, causal=causal), inputs, weight
    )
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(gradients, expected_gradients, rtol=0, atol=1e-10)


@NEEDS_CUDA
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("width", [6, 64, 100])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [RAGGED, EQUAL, TRAILING, [300, 1, 513, 64, 0]], ids=str)
def test_varlen_is_plain_attention_for_each_sequence(
    monkeypatch: pytest.MonkeyPatch, lengths: list[int], causal: bool, width: int, dtype: torch.dtype
) -> None:
    ran: list[bool] = []
    from torch.nn.attention import varlen

    real = varlen.varlen_attn

    def counted(*args: Any, **kwargs: Any) -> Any:
        ran.append(True)
        return real(*args, **kwargs)

    counted.__signature__ = inspect.signature(real)  # type: ignore[attr-defined]
    monkeypatch.setattr(varlen, "varlen_attn", counted)
    inputs, weight = drawn_inputs(lengths, dtype, bias=False, width=width, device="cuda")
    layout = Flat.from_lengths(lengths, "cuda")
    out, gradients = result_and_gradients(lambda q, k, v: attend(q, k, v, layout, causal=causal), inputs, weight)
    assert ran
    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected, expected_gradients = result_and_gradients(
        lambda q, k, v: one_at_a_time(q, k, v, lengths, causal=causal), exact, weight.double()
    )
    torch.testing.assert_close(out.double(), expected, rtol=2e-2, atol=3e-2)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient.double(), expected_gradient, rtol=5e-2, atol=1e-1)


@NEEDS_CUDA
@pytest.mark.parametrize(("causal", "biased"), CASES[:3])
@pytest.mark.parametrize("lengths", [RAGGED, EQUAL, TRAILING, EQUAL_AND_TRAILING], ids=str)
def test_blocks_on_cuda_are_plain_attention_too(lengths: list[int], causal: bool, biased: bool) -> None:
    """In float32, where varlen has no kernel, and with empty sequences, whose rows have no key to look at."""
    inputs, weight = drawn_inputs(lengths, torch.float32, bias=biased, device="cuda")

    def fast(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        return attend(q, k, v, Flat.from_lengths(lengths, "cuda"), causal=causal, bias=bias)

    def plain(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        return one_at_a_time(q, k, v, lengths, causal=causal, bias=bias)

    out, gradients = result_and_gradients(fast, inputs, weight)
    expected, expected_gradients = result_and_gradients(plain, inputs, weight)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(gradients, expected_gradients, rtol=0, atol=1e-3)


# The module


@settings(max_examples=40)
@given(st.data(), SEEDS)
def test_multi_head_attention_written_out(data: st.DataObject, seed: int) -> None:
    """Project, cut into heads, turn, attend in each head by itself, lay the heads side by side, project back."""
    config: ModelConfig = data.draw(configs())
    module = randomized(Attention(config), seed).double()
    n, width = 7, config.head_width
    x = torch.randn(n, config.width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    angles = rotary(n, width).double() if config.positions == "rotary" else None
    bias = torch.randn(config.heads, n, n, dtype=torch.float64) if config.positions == "relative" else None

    mixed = []
    q, k, v = (
        F.linear(x, w, b)
        for w, b in zip(
            module.qkv.weight.chunk(3), module.qkv.bias.chunk(3) if config.bias else [None] * 3, strict=True
        )
    )
    for head in range(config.heads):
        mine = slice(head * width, (head + 1) * width)
        qh, kh, vh = q[:, mine], k[:, mine], v[:, mine]
        if angles is not None:
            qh, kh = rotate(qh[:, None], angles)[:, 0], rotate(kh[:, None], angles)[:, 0]
        mask = torch.zeros(n, n, dtype=torch.float64) if bias is None else bias[head]
        if config.direction == "causal":
            mask = mask + square_mask(n)
        mixed.append(plain_attention(qh, kh, vh, mask)[0])
    expected = F.linear(torch.cat(mixed, -1), module.out.weight, module.out.bias)
    torch.testing.assert_close(module(x, Flat.from_lengths([n]), angles, bias), expected, rtol=0, atol=1e-10)


def test_attention_drops_weights_in_training_alone() -> None:
    config = ModelConfig(vocabulary=5, width=8, layers=1, heads=2, feed_forward=8, attention_dropout=0.5)
    module = randomized(Attention(config), seed=0)
    x, layout = torch.randn(6, 8), Flat.from_lengths([4, 2])
    torch.manual_seed(0)
    with torch.no_grad():
        still = module(x, layout, None, None)
        assert torch.equal(module(x, layout, None, None), still)
        module.train()
        assert not torch.allclose(module(x, layout, None, None), still)
