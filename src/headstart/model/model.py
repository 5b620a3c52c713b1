"""A model: a backbone and a head. Swapping the head gives a new model over the same backbone.

>>> from headstart.config import ClassifierConfig, NextTokenConfig
>>> from headstart.model.presets import preset
>>> language_model = Model.build(preset("lab", vocabulary=100), NextTokenConfig())
>>> classifier = language_model.with_head(ClassifierConfig(classes=2, pool="last"))
>>> classifier.backbone is language_model.backbone
True
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headstart.config import HeadConfig, ModelConfig
from headstart.errors import ModelError, is_out_of_memory
from headstart.model.backbone import Backbone
from headstart.model.count import count
from headstart.model.heads import ClassifierHead, build_head
from headstart.model.initialisation import initialise
from headstart.model.layout import Layout
from headstart.wording import size


class Model(nn.Module):
    """A backbone with a freshly initialised head; without one it returns the hidden states."""

    def __init__(self, backbone: Backbone, head: HeadConfig | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        self.head_config = head
        self.head = None if head is None else build_head(backbone.config, head)
        if self.head is not None:
            initialise(self.head, backbone.config)

    @classmethod
    def build(cls, config: ModelConfig, head: HeadConfig | None = None) -> Self:
        """A model with fresh weights, drawn from torch's global generator."""
        needed = 4 * count(config, head).total
        if needed > (memory := physical_memory()):
            raise ModelError(f"{_too_large(config, head)}, and this machine has {size(memory)}: choose a smaller one")
        try:
            backbone = Backbone(config)
            initialise(backbone, config)
            return cls(backbone, head)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise ModelError(f"{_too_large(config, head)}, which is more than there is: choose a smaller one") from None

    @classmethod
    def empty(cls, config: ModelConfig, head: HeadConfig | None = None) -> Self:
        """A model on the meta device: shapes without memory, for counting, or for `load_state_dict(…, assign=True)`."""
        with torch.device("meta"), _SkipInitialisation():
            return cls(Backbone(config), head)

    @property
    def config(self) -> ModelConfig:
        return self.backbone.config

    @property
    def device(self) -> torch.device:
        return self.backbone.embeddings.tokens.weight.device

    def with_head(self, head: HeadConfig | None) -> Model:
        """The same backbone under a freshly initialised head; this model is unchanged."""
        swapped = Model(self.backbone, head)
        like = self.backbone.embeddings.tokens.weight
        return swapped.to(like.device, like.dtype).train(self.training)

    def with_config(self, config: ModelConfig) -> Model:
        """The same weights, shared with this model, under a config that needs no others: of dropout, or the window."""
        if config == self.config:
            return self
        model = Model.empty(config, self.head_config)
        model.load_state_dict(self.state_dict(), assign=True)
        return model.to(self.device).train(self.training)

    def truncated(self, layers: int) -> Model:
        """The first so many layers, without a head; the weights are shared with this model, which is unchanged."""
        model = Model.empty(replace(self.config, layers=layers))
        state = {f"backbone.{name}": value for name, value in self.backbone.state_dict().items()}
        model.load_state_dict({name: state[name] for name in model.state_dict()}, assign=True)
        return model.to(self.device).train(self.training)

    def freeze(self) -> Self:
        """Freeze the backbone: no gradients, and no dropout in it even while the head trains."""
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
        """The head's logits (see heads.py), or hidden states (…, D) without a head."""
        if isinstance(self.head, ClassifierHead):
            return self.head(self.head.features(ids, layout, segments, self.backbone))
        vectors = self.backbone(ids, layout, segments)
        return vectors if self.head is None else self.head(vectors, layout, self.backbone)

    def log_probabilities(self, ids: Tensor, layout: Layout, segments: Tensor | None = None) -> Tensor:
        """(S, C): the log-probability of each class, for a model with a classifier head."""
        if not isinstance(self.head, ClassifierHead):
            raise ModelError("only a classifier gives log-probabilities of classes: swap the head first")
        return torch.log_softmax(self(ids, layout, segments).float(), dim=-1)


# Where a container's limit stands: the second version of control groups, and the first.
MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def physical_memory() -> int:
    """Bytes of this machine's memory, or of the part that its container may use: beyond it, processes are killed."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in MEMORY_LIMITS:
        with suppress(OSError, ValueError):  # there is none, or it is "max"
            found.append(int(path.read_text(encoding="ascii")))
    return min(found)


def _too_large(config: ModelConfig, head: HeadConfig | None) -> str:
    parameters = count(config, head).total
    sizes = f"{config.layers:,} layers, width {config.width:,}, vocabulary {config.vocabulary:,}"
    return f"a model of {parameters:,} parameters ({sizes}) needs {size(4 * parameters)} for its weights alone"


class _SkipInitialisation(TorchFunctionMode):
    """Skip random initialisation on the meta device: torch would import its compiler for it, which takes seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.Tensor.normal_, nn.init.normal_):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
