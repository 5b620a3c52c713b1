"""Heads: from hidden states to logits. A head owns its parameters; the backbone it shares weights with is passed in.

    next token      (…, D) → (…, V)    the embedding transposed where tied, else a linear layer
    masked token    (…, D) → (…, V)    dense, activation, norm (BERT's transform), then the vocabulary
    causal+masked   (…, D) → (…, V)    the same, read one token earlier: as the next token, in both objectives
    replaced        (…, D) → (…,)      dense, activation, one logit; in training with a generator beside it
    next sentence   (S, D) → (S, 2)    on the pooled first token
    classifier      (S, D) → (S, C)    on the first, the last or the mean token

A vocabulary head is used in two steps, so that a loss can decode the tokens it needs, in chunks: `features` gives the
vectors, `decoder` the weight (V, D) and bias (V,) of the last linear layer.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from headstart.config import (
    CausalMaskedConfig,
    ClassifierConfig,
    HeadConfig,
    MaskedConfig,
    MaskedNextSentenceConfig,
    ModelConfig,
    NextSentenceConfig,
    NextTokenConfig,
    ReplacedConfig,
)
from headstart.errors import ModelError
from headstart.model.backbone import Backbone
from headstart.model.dropout import Dropout
from headstart.model.layers import ACTIVATIONS, layer_norm
from headstart.model.layout import Layout
from headstart.model.linear import Linear
from headstart.model.presets import generator_of


class VocabularyHead(nn.Module):
    """The weight is the embedding's where the config is tied, and a parameter of this head where it is not."""

    def __init__(self, config: ModelConfig, *, bias: bool) -> None:
        super().__init__()
        shape = (config.vocabulary, config.width)
        self.weight = None if config.tied else nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.zeros(config.vocabulary)) if bias else None

    def features(self, x: Tensor) -> Tensor:
        return x

    def decoder(self, backbone: Backbone) -> tuple[Tensor, Tensor | None]:
        return backbone.embeddings.tokens.weight if self.weight is None else self.weight, self.bias

    def forward(self, x: Tensor, layout: Layout, backbone: Backbone) -> Tensor:
        """(…, D) → (…, V)"""
        return nn.functional.linear(self.features(x), *self.decoder(backbone))


class NextTokenHead(VocabularyHead):
    """Tied, it is the embedding transposed and nothing else (GPT-2); untied, a linear layer with a bias (the lab)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, bias=not config.tied)


class TransformHead(VocabularyHead):
    """BERT's transform, then the vocabulary. `width` is that of the vectors it takes, where it is not that of the
    embeddings.
    """

    def __init__(self, config: ModelConfig, width: int | None = None) -> None:
        super().__init__(config, bias=True)
        self.dense = Linear(width or config.width, config.width, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]
        self.norm = layer_norm(config)

    def features(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x)))


class MaskedHead(TransformHead):
    """The token at the position that is read."""


class CausalMaskedHead(TransformHead):
    """The token after the position that is read, under the causal mask or, where that token is masked, without it."""


class Generator(nn.Module):
    """A small masked model over the token embeddings of a larger one, which is passed in: it reads them projected to
    its own width, and its head guesses among them.
    """

    def __init__(self, config: ModelConfig, share: float) -> None:
        super().__init__()
        small = generator_of(config, share)
        self.backbone = Backbone(small, shared=config.width)
        self.head = MaskedHead(replace(config, tied=True), small.width)

    def features(
        self, ids: Tensor, layout: Layout, segments: Tensor | None, masked: Tensor, backbone: Backbone
    ) -> Tensor:
        """(M, D): for each masked token the vector that the decoder takes."""
        embedded = backbone.embeddings.tokens(ids)  # (…, D)
        return self.head.features(self.backbone(embedded, layout, segments, keep=masked))

    def decoder(self, backbone: Backbone) -> tuple[Tensor, Tensor | None]:
        return self.head.decoder(backbone)


class ReplacedHead(nn.Module):
    """Was this token replaced? A logit for each; ELECTRA's two networks are this head's generator and the backbone."""

    def __init__(self, config: ModelConfig, head: ReplacedConfig) -> None:
        super().__init__()
        self.dense = Linear(config.width, config.width, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]
        self.out = Linear(config.width, 1)
        self.generator = None if head.generator is None else Generator(config, head.generator)

    def forward(self, x: Tensor, layout: Layout, backbone: Backbone) -> Tensor:
        """(…, D) → (…,)"""
        return self.out(self.activation(self.dense(x))).squeeze(-1)


class NextSentenceHead(nn.Module):
    """Class 0: the second segment follows the first. Class 1: it was drawn at random. BERT's order."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.out = Linear(config.width, 2)

    def forward(self, x: Tensor, layout: Layout, backbone: Backbone) -> Tensor:
        """(…, D) → (S, 2)"""
        return self.from_first_tokens(layout.pool(x, "first"), backbone)

    def from_first_tokens(self, x: Tensor, backbone: Backbone) -> Tensor:
        """(S, D), the first token of each pair → (S, 2)"""
        return self.out(backbone.pooled(x))


class MaskedNextSentenceHead(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.masked = MaskedHead(config)
        self.next_sentence = NextSentenceHead(config)

    def forward(self, x: Tensor, layout: Layout, backbone: Backbone) -> tuple[Tensor, Tensor]:
        """(…, D) → (…, V) and (S, 2)"""
        return self.masked(x, layout, backbone), self.next_sentence(x, layout, backbone)


class ClassifierHead(nn.Module):
    def __init__(self, config: ModelConfig, head: ClassifierConfig) -> None:
        super().__init__()
        self.config = head
        fresh = head.pooler in ("tanh", "relu")
        self.dense = Linear(config.width, config.width) if fresh else None
        self.dropout = Dropout(head.dropout)
        self.out = Linear(config.width, head.classes, bias=head.bias)

    def features(self, ids: Tensor, layout: Layout, segments: Tensor | None, backbone: Backbone) -> Tensor:
        """ids → (S, D): fixed while the backbone is frozen, so it can be computed once."""
        keep = layout.pool_index(self.config.pool)
        x = backbone(ids, layout, segments, keep, mean=self.config.read == "all")
        if keep is None:
            x = layout.pool(x, self.config.pool)
        return backbone.pooled(x) if self.config.pooler == "backbone" else x

    def forward(self, x: Tensor) -> Tensor:
        """(S, D) → (S, C): what is trained even when the backbone is frozen."""
        x = self.dropout(x)
        if self.dense is not None:
            x = self.dense(x)
            x = self.dropout(torch.tanh(x) if self.config.pooler == "tanh" else torch.relu(x))
        return self.out(x)


Head = (
    NextTokenHead
    | MaskedHead
    | CausalMaskedHead
    | ReplacedHead
    | NextSentenceHead
    | MaskedNextSentenceHead
    | ClassifierHead
)


def build_head(config: ModelConfig, head: HeadConfig) -> Head:
    """The module for a head's config; a ModelError where it makes no sense on this backbone."""
    causal = config.direction == "causal"
    needs_pooler = isinstance(head, NextSentenceConfig | MaskedNextSentenceConfig) or (
        isinstance(head, ClassifierConfig) and head.pooler == "backbone"
    )
    if isinstance(head, NextTokenConfig) and not causal:
        other = "causal+masked" if config.direction == "both" else "masked"
        raise ModelError(
            "a next-token head on a bidirectional backbone would read its own answer: "
            f"choose direction = 'causal', or a {other} head"
        )
    if isinstance(head, CausalMaskedConfig) and config.direction != "both":
        raise ModelError(
            "a causal+masked head needs a backbone that is used in both directions, and this one is "
            f"{config.direction}: choose direction = 'both'"
        )
    if isinstance(head, MaskedConfig | ReplacedConfig | MaskedNextSentenceConfig | NextSentenceConfig) and causal:
        raise ModelError(
            f"a {head.kind} head needs both sides of a token, and a causal backbone sees one: "
            "choose direction = 'bidirectional', or a next-token head"
        )
    if isinstance(head, ClassifierConfig) and causal and head.pool == "first":
        raise ModelError(
            "the first token of a causal model sees only itself, so every text would get one answer: "
            "choose pool = 'last' or 'mean'"
        )
    if needs_pooler and not config.pooler:
        raise ModelError(
            f"a {head.kind} head on the backbone's pooler needs a backbone that has one: set pooler = true"
        )
    match head:
        case NextTokenConfig():
            return NextTokenHead(config)
        case MaskedConfig():
            return MaskedHead(config)
        case CausalMaskedConfig():
            return CausalMaskedHead(config)
        case ReplacedConfig():
            return ReplacedHead(config, head)
        case NextSentenceConfig():
            return NextSentenceHead(config)
        case MaskedNextSentenceConfig():
            return MaskedNextSentenceHead(config)
        case ClassifierConfig():
            return ClassifierHead(config, head)
