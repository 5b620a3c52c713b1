"""A backbone of both directions: the layout of a batch says which one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.config import CausalMaskedConfig, ClassifierConfig, MaskedConfig, ModelConfig, NextTokenConfig
from headstart.errors import ConfigError, ModelError
from headstart.model.backbone import Backbone
from headstart.model.heads import build_head
from headstart.model.layout import Cached, Dense, Flat
from tests.model.strategies import SEEDS, VOCABULARY, Batch, batches, configs, randomized

SIZES: dict[str, Any] = {"vocabulary": VOCABULARY, "width": 8, "layers": 2, "heads": 2, "feed_forward": 6, "window": 40}


@settings(max_examples=40)
@given(st.data(), SEEDS, st.booleans())
@torch.no_grad()
def test_it_is_a_causal_backbone_or_a_bidirectional_one(data: st.DataObject, seed: int, causal: bool) -> None:
    """The same weights in a model of one direction: in every layout, and where some tokens alone are asked for."""
    c: ModelConfig = data.draw(configs(direction="both", window=40))
    batch: Batch = data.draw(batches(c))
    both = randomized(Backbone(c), seed).double()
    one = Backbone(replace(c, direction="causal" if causal else "bidirectional")).double().eval()
    one.load_state_dict(both.state_dict())
    flat, dense = Flat.from_lengths(batch.lengths, causal=causal), Dense(batch.dense.mask, causal=causal)
    expected = one(batch.ids, batch.flat, batch.segments)
    segments = None if batch.segments is None else batch.padded(batch.segments)
    torch.testing.assert_close(both(batch.ids, flat, batch.segments), expected, rtol=0, atol=1e-10)
    padded = both(batch.padded(batch.ids), dense, segments)[batch.dense.mask]
    torch.testing.assert_close(padded, expected, rtol=0, atol=1e-10)
    keep = torch.tensor(sorted(data.draw(st.sets(st.integers(0, len(batch.ids) - 1)))), dtype=torch.long)
    torch.testing.assert_close(both(batch.ids, flat, batch.segments, keep), expected[keep], rtol=0, atol=1e-10)
    last = flat.starts[1:] - 1
    torch.testing.assert_close(both(batch.ids, flat, batch.segments, last), expected[last], rtol=0, atol=1e-10)


@torch.no_grad()
def test_a_cache_is_causal() -> None:
    both = randomized(Backbone(ModelConfig(**SIZES, direction="both", positions="rotary")), 1).double()
    ids = torch.tensor([3, 1, 4, 1, 5, 9])
    at_once = both(ids, Flat.from_lengths([6], causal=True))
    layout = Cached(torch.ones(1, 4, dtype=torch.bool))
    first = both(ids[None, :4], layout)
    rest = both(ids[None, 4:], layout.next(2))
    torch.testing.assert_close(torch.cat([first, rest], 1)[0], at_once, rtol=0, atol=1e-10)


def test_a_causal_layout_on_a_bidirectional_backbone_is_refused() -> None:
    backbone = Backbone(ModelConfig(**SIZES))
    with pytest.raises(ModelError, match="a causal batch on a bidirectional model would read its own answers"):
        backbone(torch.zeros(4, dtype=torch.long), Flat.from_lengths([4], causal=True))


def test_the_heads_that_it_can_have() -> None:
    both = ModelConfig(**SIZES, direction="both")
    for head in (CausalMaskedConfig(), MaskedConfig(), ClassifierConfig(classes=2, pool="first")):
        build_head(both, head)
    with pytest.raises(ModelError, match="would read its own answer: choose direction = 'causal', or a causal"):
        build_head(both, NextTokenConfig())
    for direction in ("causal", "bidirectional"):
        with pytest.raises(ModelError, match=f"this one is {direction}: choose direction = 'both'"):
            build_head(replace(both, direction=direction), CausalMaskedConfig())


def test_relative_positions_are_for_one_direction() -> None:
    with pytest.raises(ConfigError, match="relative positions are for a bidirectional model"):
        ModelConfig(**SIZES, direction="both", positions="relative")
