"""Small models, heads and batches drawn at random: what the property tests of this folder share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar, get_args

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from headstart.config import (
    Activation,
    CausalMaskedConfig,
    ClassifierConfig,
    Direction,
    Family,
    HeadConfig,
    MaskedConfig,
    MaskedNextSentenceConfig,
    ModelConfig,
    NextSentenceConfig,
    NextTokenConfig,
    Norm,
    Pool,
    Positions,
    ReplacedConfig,
)
from headstart.model.layout import Dense, Flat

VOCABULARY = 13
WINDOW = 12

M = TypeVar("M", bound=nn.Module)
SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def configs(draw: st.DrawFn, /, **fixed: Any) -> ModelConfig:
    """Any small model that a config can describe; `fixed` holds what the test needs."""
    kinds = [k for k in get_args(Positions) if not (k == "relative" and fixed.get("direction") in ("causal", "both"))]
    positions = fixed.get("positions") or draw(st.sampled_from(kinds))
    directions = ["bidirectional"] if positions == "relative" else get_args(Direction)
    direction = fixed.get("direction") or draw(st.sampled_from(directions))
    heads = draw(st.integers(1, 3))
    settings: dict[str, Any] = {
        "vocabulary": VOCABULARY,
        "width": heads * draw(st.sampled_from([4, 6])),
        "layers": draw(st.integers(1, 3)),
        "heads": heads,
        "feed_forward": draw(st.integers(1, 9)),
        "window": WINDOW,
        "direction": direction,
        "positions": positions,
        "position_offset": draw(st.integers(0, 3)),
        "relative_buckets": draw(st.sampled_from([4, 8, 32])),
        "segments": draw(st.integers(0, 3)),
        "norm": draw(st.sampled_from(get_args(Norm))),
        "norm_epsilon": draw(st.sampled_from([1e-5, 1e-12])),
        "activation": draw(st.sampled_from(get_args(Activation))),
        "family": draw(st.sampled_from(get_args(Family))),
        "dropout": draw(st.sampled_from([0.0, 0.1])),
        "attention_dropout": draw(st.sampled_from([0.0, 0.1])),
    }
    switches = ("gated", "bias", "embedding_scale", "embedding_norm", "pooler", "tied")
    settings |= {switch: draw(st.booleans()) for switch in switches}
    return ModelConfig(**(settings | fixed))


def heads_of(config: ModelConfig) -> st.SearchStrategy[HeadConfig]:
    """Every head that such a backbone can honestly carry."""
    causal = config.direction == "causal"
    classifiers = st.builds(
        ClassifierConfig,
        classes=st.integers(2, 5),
        pool=st.sampled_from([pool for pool in get_args(Pool) if not (causal and pool == "first")]),
        pooler=st.sampled_from(["none", "tanh", "relu"] + ["backbone"] * config.pooler),
        read=st.sampled_from(["last", "all"]),
        bias=st.booleans(),
    )
    replaced = [ReplacedConfig(), ReplacedConfig(generator=0.25), ReplacedConfig(generator=1.0)]
    rest: list[HeadConfig] = [NextTokenConfig()] if causal else [MaskedConfig(), *replaced]
    if config.direction == "both":
        rest.append(CausalMaskedConfig())
    if config.pooler and not causal:
        rest += [NextSentenceConfig(), MaskedNextSentenceConfig()]
    return classifiers | st.sampled_from(rest)


@dataclass(frozen=True)
class Batch:
    """The same sequences end to end, as a padded block, and one at a time."""

    lengths: list[int]
    ids: Tensor  # (N,)
    segments: Tensor | None  # (N,)

    @property
    def flat(self) -> Flat:
        return Flat.from_lengths(self.lengths)

    @property
    def dense(self) -> Dense:
        return Dense(torch.arange(max(self.lengths)) < torch.tensor(self.lengths)[:, None])

    def padded(self, values: Tensor, filling: int = 0) -> Tensor:
        """(N, …) → (S, L, …)"""
        return nn.utils.rnn.pad_sequence(self.split(values), batch_first=True, padding_value=filling)

    def split(self, values: Tensor) -> list[Tensor]:
        return list(torch.split(values, self.lengths))


@st.composite
def batches(draw: st.DrawFn, config: ModelConfig, *, least: int = 1, sequences: int = 4) -> Batch:
    """Sequences of at least `least` tokens, with segments where the model has a table of them."""
    lengths = draw(st.lists(st.integers(least, config.window), min_size=1, max_size=sequences))
    drawn = torch.Generator().manual_seed(draw(SEEDS))
    ids = torch.randint(config.vocabulary, (sum(lengths),), generator=drawn)
    segments = torch.randint(config.segments, (sum(lengths),), generator=drawn) if config.segments else None
    return Batch(lengths, ids, segments)


def randomized(module: M, seed: int, scale: float = 0.4) -> M:
    """Every parameter drawn anew, biases and norms too: zeros and ones would hide a mistake."""
    drawn = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=drawn, dtype=torch.float64)
            parameter.copy_(scale * noise + (parameter.dim() == 1))
    return module.eval()
