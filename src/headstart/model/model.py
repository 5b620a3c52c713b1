"""A model: a backbone and a head. The head swap is an operation, and mutates nothing.

>>> from headstart.config import ClassifierConfig, NextTokenConfig
>>> from headstart.model.presets import preset
>>> language_model = Model.build(preset("lab", vocabulary=100), NextTokenConfig())
>>> classifier = language_model.with_head(ClassifierConfig(classes=2, pool="last"))
>>> classifier.backbone is language_model.backbone  # what it has learned is what the new head stands on
True
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headstart.config import HeadConfig, ModelConfig
from headstart.errors import ModelError
from headstart.model.backbone import Backbone
from headstart.model.heads import ClassifierHead, build_head
from headstart.model.initialisation import initialise
from headstart.model.layout import Layout


class Model(nn.Module):
    """A backbone with the head that `head` describes, freshly drawn; without a head it gives the bare vectors."""

    def __init__(self, backbone: Backbone, head: HeadConfig | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        self.head_config = head
        self.head = None if head is None else build_head(backbone.config, head)
        if self.head is not None:
            initialise(self.head, backbone.config)

    @classmethod
    def build(cls, config: ModelConfig, head: HeadConfig | None = None) -> Self:
        """A model with fresh weights throughout, drawn from torch's global generator."""
        backbone = Backbone(config)
        initialise(backbone, config)
        return cls(backbone, head)

    @classmethod
    def hollow(cls, config: ModelConfig, head: HeadConfig | None = None) -> Self:
        """A model whose parameters have shapes and no memory yet, for counting, or to be filled from a file."""
        with torch.device("meta"), _Undrawn():
            return cls(Backbone(config), head)

    @property
    def config(self) -> ModelConfig:
        return self.backbone.config

    @property
    def device(self) -> torch.device:
        return self.backbone.embeddings.tokens.weight.device

    def with_head(self, head: HeadConfig | None) -> Model:
        """The same backbone under a new head, drawn afresh; this model stays as it is."""
        swapped = Model(self.backbone, head)
        like = self.backbone.embeddings.tokens.weight
        return swapped.to(like.device, like.dtype).train(self.training)

    def freeze(self) -> Self:
        """Fix the backbone: no gradients, and no dropout in it even while the head trains."""
        self.backbone.requires_grad_(False)
        return self.train(self.training)

    @property
    def frozen(self) -> bool:
        return not any(p.requires_grad for p in self.backbone.parameters())

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def forward(self, ids: Tensor, layout: Layout, segments: Tensor | None = None) -> Any:
        """What the head makes of the batch: logits of its kind (see heads.py), or vectors where there is no head."""
        if isinstance(self.head, ClassifierHead):
            return self.head(self.head.features(ids, layout, segments, self.backbone))
        vectors = self.backbone(ids, layout, segments)
        return vectors if self.head is None else self.head(vectors, layout, self.backbone)

    def log_probabilities(self, ids: Tensor, layout: Layout, segments: Tensor | None = None) -> Tensor:
        """(S, C): the log-probability of each class, for a model with a classifier head."""
        if not isinstance(self.head, ClassifierHead):
            raise ModelError("only a classifier gives log-probabilities of classes: swap the head first")
        return torch.log_softmax(self(ids, layout, segments).float(), dim=-1)


class _Undrawn(TorchFunctionMode):
    """Nothing is drawn where there is no memory: torch would import its compiler for it, which takes seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.Tensor.normal_, nn.init.normal_):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
