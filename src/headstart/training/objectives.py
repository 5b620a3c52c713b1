"""What a model is trained for: four losses, each a sum and a count.

A step's loss is its sum over its count. Both add up over the parts of a batch, and the count is known before the model
runs; so micro-batches, or several processes, each divide by the count of the whole step and their gradients add up to
exactly that of the large batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.batches.batch import IGNORE_INDEX, Batch
from headstart.errors import ModelError
from headstart.model.heads import (
    ClassifierHead,
    MaskedHead,
    MaskedNextSentenceHead,
    NextTokenHead,
    VocabularyHead,
)
from headstart.model.layout import Flat
from headstart.model.model import Model
from headstart.training.cross_entropy import chunked_cross_entropy


class Objective(Protocol):
    def counts(self, batch: Batch) -> dict[str, float]:
        """How many terms each part of the loss has in this batch."""

    def sums(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        """Each part of the loss, summed over the batch. The loss of a step is Σ sum / count."""

    def check(self, model: Model) -> None:
        """Refuse a model that this objective cannot be asked of."""


def layout_of(batch: Batch) -> Flat:
    return Flat.from_starts(batch.starts, batch.longest, batch.ids.shape[0])


def _vocabulary(head: VocabularyHead, model: Model, vectors: Tensor, targets: Tensor) -> Tensor:
    return chunked_cross_entropy(head.features(vectors), *head.decoder(model.backbone), targets)


def _needs(model: Model, kind: type, what: str) -> None:
    if not isinstance(model.head, kind):
        found = "none" if model.head_config is None else model.head_config.kind
        raise ModelError(f"{what} needs a head for it, and this model's head is {found}: use with_head first")


@dataclass(frozen=True)
class Causal:
    """The next token, at every token. The square mask keeps it honest; `build_head` refuses a backbone without."""

    def counts(self, batch: Batch) -> dict[str, float]:
        assert batch.targets is not None
        return {"loss": float((batch.targets != IGNORE_INDEX).sum())}

    def sums(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        assert isinstance(model.head, NextTokenHead)
        assert batch.targets is not None
        vectors = model.backbone(batch.ids, layout_of(batch))
        return {"loss": _vocabulary(model.head, model, vectors, batch.targets)}

    def check(self, model: Model) -> None:
        _needs(model, NextTokenHead, "next-token training")


@dataclass(frozen=True)
class MaskedTokens:
    """The tokens behind the masks; no other goes through the vocabulary."""

    def counts(self, batch: Batch) -> dict[str, float]:
        assert batch.targets is not None
        return {"loss": float(batch.targets.shape[0])}

    def sums(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        assert isinstance(model.head, MaskedHead)
        assert batch.targets is not None
        assert batch.masked is not None
        vectors = model.backbone(batch.ids, layout_of(batch), batch.segments, keep=batch.masked)
        return {"loss": _vocabulary(model.head, model, vectors, batch.targets)}

    def check(self, model: Model) -> None:
        _needs(model, MaskedHead, "masked training")


@dataclass(frozen=True)
class MaskedAndNextSentence:
    """BERT's two losses, added."""

    def counts(self, batch: Batch) -> dict[str, float]:
        assert batch.targets is not None
        assert batch.labels is not None
        return {"masked": float(batch.targets.shape[0]), "next_sentence": float(batch.labels.shape[0])}

    def sums(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        assert isinstance(model.head, MaskedNextSentenceHead)
        assert batch.targets is not None
        assert batch.masked is not None
        assert batch.labels is not None
        first = batch.starts[:-1]
        vectors = model.backbone(batch.ids, layout_of(batch), batch.segments, keep=torch.cat([first, batch.masked]))
        firsts, masked = vectors[: len(first)], vectors[len(first) :]
        follows = model.head.next_sentence.from_first_tokens(firsts, model.backbone)
        return {
            "masked": _vocabulary(model.head.masked, model, masked, batch.targets),
            "next_sentence": F.cross_entropy(follows.float(), batch.labels, reduction="sum"),
        }

    def check(self, model: Model) -> None:
        _needs(model, MaskedNextSentenceHead, "masked and next-sentence training")


@dataclass(frozen=True)
class Classification:
    """The class of each sequence; classes may be weighted, and labels smoothed."""

    class_weights: Sequence[float] | None = None
    smoothing: float = 0.0
    _moved: dict[torch.device, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def counts(self, batch: Batch) -> dict[str, float]:
        assert batch.labels is not None
        if self.class_weights is None:
            return {"loss": float(batch.labels.shape[0])}
        return {"loss": float(self._weights(batch.labels)[batch.labels].sum())}

    def sums(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        return self._loss(model(batch.ids, layout_of(batch), batch.segments), batch)

    def _loss(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        assert batch.labels is not None
        weights = None if self.class_weights is None else self._weights(batch.labels)
        loss = F.cross_entropy(
            logits.float(), batch.labels, weight=weights, reduction="sum", label_smoothing=self.smoothing
        )
        return {"loss": loss}

    def _weights(self, labels: Tensor) -> Tensor:
        """The weights where the labels are; carried there once."""
        if labels.device not in self._moved:
            self._moved[labels.device] = torch.tensor(self.class_weights, device=labels.device, dtype=torch.float32)
        return self._moved[labels.device]

    def check(self, model: Model) -> None:
        _needs(model, ClassifierHead, "classification")


@dataclass(frozen=True)
class FrozenClassification(Classification):
    """Classification on features that a frozen backbone gave once; row r of them is example r."""

    features: Tensor | None = None  # (rows, D)

    def sums(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        assert isinstance(model.head, ClassifierHead)
        assert self.features is not None
        assert batch.rows is not None
        return self._loss(model.head(self.features[batch.rows]), batch)
