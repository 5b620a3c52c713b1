"""Architectures by name. Sizes are those of the published models; `small` and `base` are our own recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headstart.config import HEADS, ClassifierConfig, Family, HeadConfig, ModelConfig
from headstart.errors import ConfigError, did_you_mean


def _bert(width: int, layers: int, heads: int) -> ModelConfig:
    return ModelConfig(
        vocabulary=30_522,
        width=width,
        layers=layers,
        heads=heads,
        feed_forward=4 * width,
        segments=2,
        norm_epsilon=1e-12,
        pooler=True,
        family="bert",
    )


def _modern(width: int, layers: int, feed_forward: int, window: int) -> ModelConfig:
    """Pre-norm, rotary positions, a gated feed-forward, no biases, a tied head; heads of width 64."""
    return ModelConfig(
        vocabulary=50_001,
        width=width,
        layers=layers,
        heads=width // 64,
        feed_forward=feed_forward,
        window=window,
        positions="rotary",
        norm="pre",
        gated=True,
        bias=False,
        attention_dropout=0.0,
    )


_BERT_BASE = _bert(768, 12, 12)
_ROBERTA = replace(_BERT_BASE, vocabulary=50_265, segments=1, position_offset=2, norm_epsilon=1e-5, family="roberta")

PRESETS: dict[str, ModelConfig] = {
    "lab": ModelConfig(
        vocabulary=50_001,
        width=200,
        layers=4,
        heads=2,
        feed_forward=200,
        direction="causal",
        positions="sinusoidal",
        activation="relu",
        embedding_scale=True,
        embedding_norm=False,
        tied=False,
        dropout=0.0,
        attention_dropout=0.0,
        family="lab",
    ),
    "bert-tiny": _bert(128, 2, 2),
    "bert-mini": _bert(256, 4, 4),
    "bert-small": _bert(512, 4, 8),
    "bert-medium": _bert(512, 8, 8),
    "bert-base": _BERT_BASE,
    "minilm-l6": _bert(384, 6, 12),
    "distilbert": replace(_BERT_BASE, layers=6, segments=0, pooler=False, family="distilbert"),
    "roberta-base": _ROBERTA,
    "camembert-base": replace(_ROBERTA, vocabulary=32_005, family="camembert"),
    "mpnet-base": replace(_ROBERTA, vocabulary=30_527, segments=0, positions="relative", family="mpnet"),
    "gpt2": replace(
        _BERT_BASE,
        vocabulary=50_257,
        window=1024,
        direction="causal",
        segments=0,
        norm="pre",
        norm_epsilon=1e-5,
        activation="gelu-tanh",
        embedding_norm=False,
        pooler=False,
        family="gpt2",
    ),
    "small": _modern(384, 6, 1024, 512),
    "base": _modern(768, 12, 2048, 1024),
}


def preset(name: str, **changes: Any) -> ModelConfig:
    """A preset by name, with settings changed where asked.

    >>> preset("lab", vocabulary=1000).vocabulary
    1000
    """
    if name not in PRESETS:
        raise ConfigError("preset", [f"unknown preset {name!r}: {did_you_mean(name, PRESETS)}"])
    config = PRESETS[name]
    return ModelConfig.from_mapping(config.to_mapping() | changes, f"preset {name}") if changes else config


GENERATOR = 0.25  # the share that works well by Clark et al. 2020, where a quarter to a half do


def generator_of(config: ModelConfig, share: float) -> ModelConfig:
    """The generator for a model that learns from replaced tokens: as deep, and about `share` of its width.

    A head is a multiple of 8 wide, as fast kernels want it; and the generator is never larger than the model.

    >>> small = generator_of(PRESETS["small"], 0.25)
    >>> small.width, small.heads, small.feed_forward, small.layers
    (96, 2, 256, 6)
    """
    heads = max(1, round(share * config.heads))
    width = heads * max(8, 8 * round(share * config.width / heads / 8))
    if width >= config.width:
        return replace(config, pooler=False)
    feed_forward = max(1, round(config.feed_forward * width / config.width))
    return replace(config, width=width, heads=heads, feed_forward=feed_forward, pooler=False)


# How each family's own classifier reads a text; what a fresh backbone of ours does best stands last.
CLASSIFIERS: dict[Family, dict[str, Any]] = {
    "bert": {"pool": "first", "pooler": "backbone"},
    "roberta": {"pool": "first", "pooler": "tanh"},
    "camembert": {"pool": "first", "pooler": "tanh"},
    "distilbert": {"pool": "first", "pooler": "relu"},
    "mpnet": {"pool": "first", "pooler": "tanh"},
    "gpt2": {"pool": "last", "bias": False},
    "lab": {"pool": "last"},
    "headstart": {"pool": "mean"},
}


def usual_head(config: ModelConfig, kind: str, classes: int = 2) -> HeadConfig:
    """A head of the given kind as the config's family has it.

    >>> usual_head(PRESETS["lab"], "classifier", 5).pool
    'last'
    """
    if kind not in HEADS:
        raise ConfigError("head", [f"unknown head {kind!r}: {did_you_mean(kind, HEADS)}"])
    if kind != "classifier":
        return HEADS[kind]()  # type: ignore[call-arg]
    settings = CLASSIFIERS[config.family]
    if settings.get("pooler") == "backbone" and not config.pooler:
        settings = {**settings, "pooler": "none"}
    if config.direction == "causal" and settings["pool"] == "first":  # which sees only itself
        settings = {**settings, "pool": "last"}
    return ClassifierConfig(classes=classes, **settings)
