"""Fresh weights: every parameter is drawn, and each family's as the family draws it."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from headstart.config import ClassifierConfig, Family, MaskedConfig, ModelConfig, NextTokenConfig
from headstart.model.initialisation import initialise
from headstart.model.model import Model

from .strategies import SEEDS, configs, heads_of


def config(family: str, **changes: object) -> ModelConfig:
    sizes = {"vocabulary": 300, "width": 128, "layers": 8, "heads": 4, "feed_forward": 256, "window": 64}
    return ModelConfig.from_mapping(sizes | {"family": family} | changes, "test")


def drawn(c: ModelConfig) -> dict[str, Tensor]:
    torch.manual_seed(0)
    head = NextTokenConfig() if c.direction == "causal" else MaskedConfig()
    return Model.build(c, head).state_dict()


@settings(max_examples=80)
@given(st.data(), SEEDS)
def test_every_parameter_is_drawn_anew(data: st.DataObject, seed: int) -> None:
    """Whatever stood there before, even where it was no number."""
    c: ModelConfig = data.draw(configs())
    model = Model.build(c, data.draw(st.none() | heads_of(c)))

    def draw_over(value: float) -> dict[str, Tensor]:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(value)
        torch.manual_seed(seed)
        initialise(model, c)
        return {name: p.detach().clone() for name, p in model.named_parameters()}

    over_nan, over_seven = draw_over(math.nan), draw_over(7.0)
    for name, parameter in over_nan.items():
        assert parameter.isfinite().all(), name
        assert torch.equal(parameter, over_seven[name]), name


@pytest.mark.parametrize("family", [family for family in get_args(Family) if family != "lab"])
def test_normal_weights_zero_biases_and_plain_norms(family: str) -> None:
    causal = family in ("gpt2", "headstart")
    c = config(family, direction="causal" if causal else "bidirectional", pooler=not causal, segments=2, tied=False)
    narrow = 0.02 / math.sqrt(2 * c.layers) if causal else 0.02
    for name, value in drawn(c).items():
        if "norm" in name:
            assert (value == (1 if name.endswith("weight") else 0)).all(), name
        elif name.endswith("bias"):
            assert not value.any(), name
        else:
            back = name.endswith(("attention.out.weight", "feed_forward.down.weight"))
            std = narrow if back else 0.02
            # four standard errors: of a mean std / √n, of a standard deviation std / √(2 n)
            assert value.mean().abs() < 4 * std / math.sqrt(value.numel()), name
            assert value.std().item() == pytest.approx(std, abs=4 * std / math.sqrt(2 * value.numel())), name


def test_relative_positions_are_drawn_like_the_rest() -> None:
    value = drawn(config("mpnet", positions="relative"))["backbone.relative.weight"]
    assert value.std().item() == pytest.approx(0.02, rel=0.3)


def uniform_within(value: Tensor, bound: float) -> bool:
    """Within the bound, close to it at both ends, and with the spread of a uniform draw."""
    near = 0.9 * bound
    spread = abs(value.std().item() - bound / math.sqrt(3)) < 0.1 * bound
    return bool(value.abs().max() <= bound) and bool(value.max() > near) and bool(value.min() < -near) and spread


def test_the_labs_weights_are_drawn_as_the_lab_draws_them() -> None:
    c = config("lab", direction="causal", tied=False, positions="sinusoidal", embedding_norm=False)
    state = drawn(c)
    assert uniform_within(state["backbone.embeddings.tokens.weight"], 0.1)
    assert uniform_within(state["head.weight"], 0.1)
    assert not state["head.bias"].any()
    for layer in range(c.layers):
        stem = f"backbone.layers.{layer}."
        assert uniform_within(state[stem + "attention.qkv.weight"], math.sqrt(6 / (c.width + 3 * c.width)))
        assert uniform_within(state[stem + "attention.out.weight"], 1 / math.sqrt(c.width))
        assert uniform_within(state[stem + "feed_forward.up.weight"], 1 / math.sqrt(c.width))
        assert uniform_within(state[stem + "feed_forward.up.bias"], 1 / math.sqrt(c.width))
        assert uniform_within(state[stem + "feed_forward.down.weight"], 1 / math.sqrt(c.feed_forward))
        assert not state[stem + "attention.qkv.bias"].any()
        assert not state[stem + "attention.out.bias"].any()
        assert (state[stem + "attention_norm.weight"] == 1).all()


def test_the_labs_layers_spread_like_torchs_own() -> None:
    """The same question put to `nn.TransformerEncoderLayer` itself, since that is what the lab built."""
    c = config("lab", direction="causal", tied=False)
    torch.manual_seed(1)
    theirs = nn.TransformerEncoderLayer(c.width, c.heads, c.feed_forward).state_dict()
    ours = drawn(c)
    names = {
        "self_attn.in_proj_": "attention.qkv.",
        "self_attn.out_proj.": "attention.out.",
        "linear1.": "feed_forward.up.",
        "linear2.": "feed_forward.down.",
        "norm1.": "attention_norm.",
        "norm2.": "feed_forward_norm.",
    }
    for a, b in names.items():
        for end in ("weight", "bias"):
            one, two = theirs[a + end], ours[f"backbone.layers.0.{b}{end}"]
            assert two.std().item() == pytest.approx(one.std().item(), rel=0.15), b + end
            assert two.mean().item() == pytest.approx(one.mean().item(), abs=0.02), b + end


def test_a_classifier_on_the_labs_model_is_uniform() -> None:
    torch.manual_seed(0)
    c = config("lab", direction="causal")
    state = Model.build(c, ClassifierConfig(classes=20, pool="last")).state_dict()
    assert uniform_within(state["head.out.weight"], 0.1)
    assert not state["head.out.bias"].any()


def test_a_new_head_leaves_the_backbone_alone() -> None:
    model = Model.build(config("bert"))
    before = {name: p.clone() for name, p in model.backbone.named_parameters()}
    model.with_head(MaskedConfig())
    assert all(torch.equal(p, before[name]) for name, p in model.backbone.named_parameters())


def test_a_model_can_be_drawn_on_the_meta_device() -> None:
    for family in get_args(Family):
        with torch.device("meta"):
            model = Model.build(config(family), ClassifierConfig(classes=2, pool="mean"))
        assert {p.device.type for p in model.parameters()} == {"meta"}
