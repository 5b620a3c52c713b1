"""Integrated gradients (Sundararajan, Taly & Yan 2017): a label's logit, shared among the words of a text.

Token embeddings move along the straight line from a baseline to the text; a token's weight is the integral of the
gradient along its part of the way. The weights sum to the change of the logit, which is checked (`Completeness`).
The baseline of a word is the mask token; without one the padding token, else the zero vector. Positions, segments
and special tokens stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import get_ident
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headstart.metrics import Floats
from headstart.model.layout import Flat
from headstart.training.inference import check_finite, tokens_for
from headstart.use.classifier import TextClassifier
from headstart.use.explanation import Completeness
from headstart.use.words import TokenizedText

Interval = tuple[float, float]
NODES = 4  # Gauss-Legendre points in each interval
MAX_STEPS = 512  # points in all intervals together


class _Path:
    """The straight line from the baseline (position 0) to the text (position 1), in token embeddings."""

    def __init__(self, classifier: TextClassifier, text: TokenizedText, label: int) -> None:
        self.classifier, self.text, self.label = classifier, text, label
        ids = torch.from_numpy(text.ids).to(classifier.device)
        in_word = torch.from_numpy(text.word_of >= 0).to(classifier.device)
        table = classifier.model.backbone.embeddings.tokens.weight.detach()  # (V, D)
        blank = next((i for i in (classifier.tokenizer.mask, classifier.tokenizer.pad) if i is not None), None)
        blank_vector = torch.zeros_like(table[0]) if blank is None else table[blank]
        self.direction = torch.where(in_word[:, None], table[ids] - blank_vector, 0.0)  # (L, D); 0 for special tokens
        self.baseline = table[ids] - self.direction  # (L, D)

    @torch.no_grad()
    def logits(self, positions: Sequence[float]) -> dict[float, float]:
        """The label's logit at each position."""
        logits = [logit for batch in self._batches(positions) for logit in self._logits(batch).tolist()]
        check_finite(logits)
        return dict(zip(positions, logits, strict=True))

    @torch.enable_grad()
    def gradients(self, positions: Sequence[float]) -> Floats:
        """(n, L): the derivative of the logit along the path at each position, by token."""
        parts = []
        for batch in self._batches(positions):
            [gradient] = torch.autograd.grad(self._logits(batch.requires_grad_()).sum(), batch)
            parts.append((gradient * self.direction).sum(-1).double().cpu().numpy())
        gradients = np.concatenate(parts)
        check_finite(gradients)  # one may overflow where the logits do not
        return gradients

    def _batches(self, positions: Sequence[float]) -> Iterator[Tensor]:
        """(n, L, D) embeddings, as many positions at once as suit the device."""
        size = max(1, tokens_for(self.classifier.device) // len(self.direction))
        for batch in torch.split(torch.tensor(positions).to(self.direction), size):
            yield self.baseline + batch[:, None, None] * self.direction

    def _logits(self, embeddings: Tensor) -> Tensor:
        """(n, L, D) → (n,): the label's logit with these vectors in place of the token embeddings."""
        count, length, _ = embeddings.shape
        ids, segments = (
            None if row is None else torch.from_numpy(np.tile(row, count)).to(embeddings.device)
            for row in (self.text.ids, self.text.segments)
        )
        model = self.classifier.model
        replace = this_thread_only(lambda *_: embeddings.flatten(0, 1))
        with model.backbone.embeddings.tokens.register_forward_hook(replace):
            logits: Tensor = model(
                ids, Flat.from_lengths([length] * count, embeddings.device), segments
            ).float()  # (n, C)
        others = torch.arange(logits.shape[1], device=logits.device) != self.label
        return logits[:, self.label] - logits[:, others].logsumexp(1)


def integrated_gradients(
    classifier: TextClassifier, text: TokenizedText, label: int, *, max_steps: int = MAX_STEPS
) -> tuple[Floats, Completeness]:
    """(words,): the weight of each word for a label's logit, and the check that they are complete.

    A classifier's logit often rises in one short part of the path. So the path is integrated in intervals, and an
    interval is halved where its integral misses the change of the logit, until all together are within 1 % of the
    total change, or `max_steps` points are used up.
    """
    path = _Path(classifier, text, label)
    nodes, node_weights = np.polynomial.legendre.leggauss(NODES)  # on [-1, 1]
    nodes, node_weights = (nodes + 1) / 2, node_weights / 2  # on [0, 1]
    logit = path.logits([0.0, 1.0])
    new: list[Interval] = [(0.0, 1.0)]
    integrals: dict[Interval, Floats] = {}  # (L,) each token's part in the change of the logit over an interval
    steps = 0
    while True:
        gradients = path.gradients([low + (high - low) * node for low, high in new for node in nodes])
        for (low, high), gradient in zip(new, gradients.reshape(len(new), NODES, -1), strict=True):
            integrals[low, high] = (high - low) * node_weights @ gradient
        steps += len(gradients)
        by_token: Floats = np.sum(list(integrals.values()), axis=0)
        completeness = Completeness(float(by_token.sum()), logit[0.0], logit[1.0], steps)
        errors = {(a, b): abs(logit[b] - logit[a] - integral.sum()) for (a, b), integral in integrals.items()}
        if sum(errors.values()) <= completeness.allowed or steps >= max_steps:
            break
        limit = completeness.allowed / 2 / len(errors)
        middles = {interval: sum(interval) / 2 for interval, error in errors.items() if error > limit}
        logit |= path.logits(list(middles.values()))
        new = [half for (low, high), middle in middles.items() for half in ((low, middle), (middle, high))]
        integrals = {interval: integral for interval, integral in integrals.items() if interval not in middles}
    in_word = text.word_of >= 0
    weights: Any = np.bincount(text.word_of[in_word], by_token[in_word], minlength=len(text.words))
    return weights, completeness


def this_thread_only(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that acts only in the thread that made it: in another, the model may be computing a prediction."""
    thread = get_ident()
    return lambda *arguments: hook(*arguments) if get_ident() == thread else None
