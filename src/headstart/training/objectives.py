"""What a model is trained for: its losses, each a sum and a count.

A step's loss is its sum over its count. Both add up over the parts of a batch, and the count is known before the model
runs; so micro-batches, or several processes, each divide by the count of the whole step and their gradients add up to
exactly that of the large batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.batches.batch import IGNORE_INDEX, Batch
from headstart.errors import ModelError
from headstart.metrics import Scores
from headstart.model.heads import (
    CausalMaskedHead,
    ClassifierHead,
    MaskedHead,
    MaskedNextSentenceHead,
    NextTokenHead,
    VocabularyHead,
)
from headstart.model.layout import Flat
from headstart.model.model import Model
from headstart.training.cross_entropy import chunked_cross_entropy, sampled_cross_entropy

CONTRASTIVE_TEMPERATURE = 0.1  # of supervised_contrastive: what a cosine is divided by


class Objective:
    """What a model with a `head` of this kind is trained for."""

    name: ClassVar[str]
    head: ClassVar[type[nn.Module]]
    parts: ClassVar[tuple[str, ...]] = ("loss",)  # that the loss is the sum of
    divisible: ClassVar[bool] = True  # whether the sums of micro-batches add up to that of the batch

    def counts(self, batch: Batch) -> dict[str, float]:
        """How many terms each part of the loss has in this batch."""
        raise NotImplementedError

    def sums(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        """Each part of the loss, summed over the batch. The loss of a step is Σ sum / count."""
        raise NotImplementedError

    def evaluation_sums(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        """What an evaluation adds up: the parts of the loss, and what else `scores` needs."""
        return self.sums(model, batch)

    def scores(self, sums: dict[str, float], counts: dict[str, float]) -> Scores:
        """What a language model comes to, from its sums and counts over a whole pass."""
        means = {name: sums[name] / max(counts[name], 1.0) for name in self.parts}
        scores = {"loss": sum(means.values())}
        if len(means) > 1:
            scores |= {f"{name}_loss": value for name, value in means.items()}
        by_token = means.get("loss", means.get("masked", 0.0))
        return {**scores, "perplexity": math.exp(min(by_token, 700.0))}

    def check(self, model: Model) -> None:
        """Refuse a model that has another head."""
        if not isinstance(model.head, self.head):
            kind = "none" if model.head_config is None else model.head_config.kind
            raise ModelError(f"{self.name} needs a head for it, and this model's head is {kind}: use with_head first")


def layout_of(batch: Batch) -> Flat:
    return Flat.from_starts(batch.starts, batch.longest, batch.ids.shape[0], causal=batch.causal)


def _vocabulary_loss(head: VocabularyHead, model: Model, vectors: Tensor, batch: Batch) -> Tensor:
    """Of the batch's targets, each expected at one of these vectors."""
    assert batch.targets is not None
    features, (weight, bias) = head.features(vectors), head.decoder(model.backbone)
    if batch.candidates is None or batch.log_chance is None:
        return chunked_cross_entropy(features, weight, bias, batch.targets)
    return sampled_cross_entropy(features, weight, bias, batch.targets, batch.candidates, batch.log_chance)


class TokenObjective(Objective):
    """A token for each target."""

    def counts(self, batch: Batch) -> dict[str, float]:
        assert batch.targets is not None
        return {"loss": float((batch.targets != IGNORE_INDEX).sum())}

    def sums(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        assert isinstance(model.head, VocabularyHead)
        vectors = model.backbone(batch.ids, layout_of(batch), batch.segments, keep=batch.masked)  # (N, D) or (M, D)
        return {"loss": _vocabulary_loss(model.head, model, vectors, batch)}


class Causal(TokenObjective):
    """The next token, at every token. The causal mask hides the answer; `build_head` refuses a backbone without it."""

    name = "next-token training"
    head = NextTokenHead


class MaskedTokens(TokenObjective):
    """The tokens that were masked; the loss is of these positions alone."""

    name = "masked training"
    head = MaskedHead


class CausalAndMasked(TokenObjective):
    """The next token in every batch: at every token of a causal one, and before the masked tokens of all others."""

    name = "causal and masked training"
    head = CausalMaskedHead

    def sums(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        if batch.causal == (batch.masked is not None):
            raise ModelError(
                "a batch is causal, with a target at every token, or has masked tokens: one of both, else a token "
                "would see its own answer"
            )
        return super().sums(model, batch)


class MaskedAndNextSentence(Objective):
    """BERT's two losses, added."""

    name = "masked and next-sentence training"
    head = MaskedNextSentenceHead
    parts = ("masked", "next_sentence")

    def counts(self, batch: Batch) -> dict[str, float]:
        assert batch.targets is not None
        assert batch.labels is not None
        return {"masked": float(batch.targets.shape[0]), "next_sentence": float(batch.labels.shape[0])}

    def sums(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        assert isinstance(model.head, MaskedNextSentenceHead)
        assert batch.masked is not None
        assert batch.labels is not None
        first = batch.starts[:-1]  # (S,)
        vectors = model.backbone(batch.ids, layout_of(batch), batch.segments, keep=torch.cat([first, batch.masked]))
        first_vectors, masked_vectors = vectors[: len(first)], vectors[len(first) :]  # (S, D), (M, D)
        follows = model.head.next_sentence.from_first_tokens(first_vectors, model.backbone)  # (S, 2)
        return {
            "masked": _vocabulary_loss(model.head.masked, model, masked_vectors, batch),
            "next_sentence": F.cross_entropy(follows.float(), batch.labels, reduction="sum"),
        }


@dataclass(frozen=True)
class Classification(Objective):
    """The class of each sequence; classes may be weighted, and labels smoothed."""

    name = "classification"
    head = ClassifierHead

    class_weights: Sequence[float] | None = None
    smoothing: float = 0.0
    _weights_by_device: dict[torch.device, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

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
        """(C,): the class weights on the device of the labels, copied there once."""
        device = labels.device
        if device not in self._weights_by_device:
            self._weights_by_device[device] = torch.tensor(self.class_weights, device=device, dtype=torch.float32)
        return self._weights_by_device[device]


@dataclass(frozen=True)
class FrozenClassification(Classification):
    """Classification on features that a frozen backbone gave once; row r of them is example r."""

    features: Tensor | None = None  # (rows, D)

    def sums(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        assert isinstance(model.head, ClassifierHead)
        assert self.features is not None
        assert batch.rows is not None
        return self._loss(model.head(self.features[batch.rows]), batch)


@dataclass(frozen=True)
class Distillation(Classification):
    """Classification by the probabilities that teachers gave; row r of them is example r."""

    name = "distillation"

    targets: Tensor | None = None  # (rows, C)

    def _loss(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        assert self.targets is not None
        assert batch.labels is not None
        assert batch.rows is not None
        losses = F.cross_entropy(logits.float(), self.targets[batch.rows], reduction="none")  # (S,)
        return {"loss": losses.masked_fill(batch.labels == IGNORE_INDEX, 0.0).sum()}  # padding has no target


class Contrastive(Objective):
    """Vectors of texts of one class close to each other, and far from all others: no head has a part in it."""

    name = "contrastive training"
    head = ClassifierHead
    divisible = False  # each text is compared with every other of its batch

    def counts(self, batch: Batch) -> dict[str, float]:
        assert batch.labels is not None
        return {"loss": float(same_class(batch.labels).any(1).sum())}

    def sums(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        assert isinstance(model.head, ClassifierHead)
        assert batch.labels is not None
        vectors = model.head.features(batch.ids, layout_of(batch), batch.segments, model.backbone)  # (S, D)
        return {"loss": supervised_contrastive(vectors.float(), batch.labels)}


def supervised_contrastive(vectors: Tensor, labels: Tensor, temperature: float = CONTRASTIVE_TEMPERATURE) -> Tensor:
    """The loss of Khosla et al. (2020), summed over the texts that have another of their class in the batch.

    For each of them it is the mean over these others of -log p, where p, a softmax over all other texts by their cosine
    divided by the temperature, is the probability of finding that one.

    >>> labels = torch.tensor([0, 0, 1, 1])
    >>> apart = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]])
    >>> supervised_contrastive(apart, labels).item() < 1e-6
    True
    >>> mixed = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    >>> round(supervised_contrastive(mixed, labels, temperature=1.0).item(), 3)  # 4 log(1 + e^2 + 1)
    8.958
    """
    vectors = F.normalize(vectors, dim=-1)
    cosines = vectors @ vectors.T / temperature  # (S, S)
    real = labels != IGNORE_INDEX  # not padding
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    log_p = cosines.masked_fill(itself | ~real, torch.finfo(cosines.dtype).min).log_softmax(-1)
    same = same_class(labels)
    found = log_p.masked_fill(~same, 0.0).sum(1) / same.sum(1).clamp(min=1)
    return -found.sum()


def same_class(labels: Tensor) -> Tensor:
    """(S, S): whether two different texts are of one class; padding is of none."""
    same = (labels[:, None] == labels) & (labels != IGNORE_INDEX)
    return same.fill_diagonal_(False)
