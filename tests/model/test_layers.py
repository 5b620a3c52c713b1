"""A layer against torch's own, and its parts against their formulas."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from headstart.config import Activation, ModelConfig, Norm
from headstart.model.attention import square_mask
from headstart.model.layers import ACTIVATIONS, FeedForward, Layer, layer_norm
from headstart.model.layout import Dense, Flat

from .strategies import SEEDS, configs, randomized


def config(**changes: object) -> ModelConfig:
    settings = {"vocabulary": 5, "width": 8, "layers": 1, "heads": 2, "feed_forward": 6}
    return ModelConfig.from_mapping(settings | changes, "test")


@pytest.mark.parametrize("x", [-3.0, -1.0, -0.1, 0.0, 0.5, 1.0, 4.0])
def test_activations_are_their_formulas(x: float) -> None:
    expected: dict[Activation, float] = {
        "relu": max(x, 0.0),
        "gelu": x * (1 + math.erf(x / math.sqrt(2))) / 2,
        "gelu-tanh": x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
        "silu": x / (1 + math.exp(-x)),
    }
    for name, value in expected.items():
        assert ACTIVATIONS[name](torch.tensor(x, dtype=torch.float64)).item() == pytest.approx(value, abs=1e-12)


def test_every_activation_of_the_config_is_there() -> None:
    assert set(ACTIVATIONS) == set(get_args(Activation))


def test_a_norm_takes_its_epsilon_and_its_bias_from_the_config() -> None:
    norm = layer_norm(config(norm_epsilon=0.5))
    x = torch.tensor([[1.0, 3.0] * 4])  # mean 2, variance 1
    assert norm(x).tolist() == [pytest.approx([-1 / math.sqrt(1.5), 1 / math.sqrt(1.5)] * 4)]
    assert norm.bias is not None
    assert layer_norm(config(bias=False)).bias is None


@given(SEEDS, st.sampled_from(get_args(Activation)), st.booleans())
@settings(max_examples=20)
def test_a_plain_feed_forward_is_down_of_activation_of_up(seed: int, activation: Activation, bias: bool) -> None:
    part = randomized(FeedForward(config(activation=activation, bias=bias)), seed).double()
    x = torch.randn(3, 8, dtype=torch.float64)
    inner = x @ part.up.weight.T + (part.up.bias if bias else 0)
    expected = ACTIVATIONS[activation](inner) @ part.down.weight.T + (part.down.bias if bias else 0)
    torch.testing.assert_close(part(x), expected, rtol=0, atol=1e-12)


@given(SEEDS, st.sampled_from(get_args(Activation)), st.booleans())
@settings(max_examples=20)
def test_a_gated_feed_forward_holds_the_gate_first(seed: int, activation: Activation, bias: bool) -> None:
    part = randomized(FeedForward(config(activation=activation, bias=bias, gated=True)), seed).double()
    x = torch.randn(3, 8, dtype=torch.float64)
    gate = x @ part.up.weight[:6].T + (part.up.bias[:6] if bias else 0)
    up = x @ part.up.weight[6:].T + (part.up.bias[6:] if bias else 0)
    expected = (ACTIVATIONS[activation](gate) * up) @ part.down.weight.T + (part.down.bias if bias else 0)
    torch.testing.assert_close(part(x), expected, rtol=0, atol=1e-12)


def torchs_own(layer: Layer, c: ModelConfig) -> nn.TransformerEncoderLayer:
    """`nn.TransformerEncoderLayer` with the weights of ours."""
    theirs = nn.TransformerEncoderLayer(
        c.width,
        c.heads,
        c.feed_forward,
        c.dropout,
        ACTIVATIONS[c.activation],
        c.norm_epsilon,
        batch_first=True,
        norm_first=c.norm == "pre",
        bias=c.bias,
        dtype=torch.float64,
    )
    ours = layer.state_dict()
    names = {
        "self_attn.in_proj_": "attention.qkv.",
        "self_attn.out_proj.": "attention.out.",
        "linear1.": "feed_forward.up.",
        "linear2.": "feed_forward.down.",
        "norm1.": "attention_norm.",
        "norm2.": "feed_forward_norm.",
    }
    theirs.load_state_dict(
        {a + end: ours[b + end] for a, b in names.items() for end in ("weight", "bias") if c.bias or end == "weight"}
    )
    return theirs.eval()


@settings(max_examples=60)
@given(st.data(), SEEDS)
def test_a_layer_is_torchs_own(data: st.DataObject, seed: int) -> None:
    """Post- and pre-norm, causal or not, every activation, with and without biases; values and gradients."""
    c: ModelConfig = data.draw(configs(positions="none", gated=False))
    layer = randomized(Layer(c), seed).double()
    theirs = torchs_own(layer, c)
    x = torch.randn(2, 6, c.width, dtype=torch.float64, requires_grad=True)
    mask = square_mask(6).double() if c.direction == "causal" else None
    expected: Tensor = theirs(x, src_mask=mask)
    ours: Tensor = layer(x, Dense(torch.ones(2, 6, dtype=torch.bool)), None, None)[0]
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)
    weight = torch.randn_like(ours)
    (gradient,) = torch.autograd.grad((ours * weight).sum(), x)
    (expected_gradient,) = torch.autograd.grad((expected * weight).sum(), x)
    torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=1e-9)


@pytest.mark.parametrize("silent", ["attention.out", "feed_forward.down"])
@pytest.mark.parametrize("norm", get_args(Norm))
def test_both_halves_of_a_layer_drop_in_training_alone(norm: Norm, silent: str) -> None:
    """One half is silenced, so that what moves in training is the other."""
    layer = randomized(Layer(config(norm=norm, dropout=0.5, attention_dropout=0.0)), seed=1)
    for parameter in layer.get_submodule(silent).parameters():
        parameter.data.zero_()
    x, layout = torch.randn(6, 8), Flat.from_lengths([4, 2])
    torch.manual_seed(0)
    with torch.no_grad():
        still, _ = layer(x, layout, None, None)
        assert torch.equal(layer(x, layout, None, None)[0], still)
        assert not torch.allclose(layer.train()(x, layout, None, None)[0], still)
