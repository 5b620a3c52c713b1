"""Candidate ways to weigh the words of a text, for `faithfulness.py` to measure. `headstart explain` has the best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.batches.examples import EncodedExamples
from headstart.metrics import Floats
from headstart.model.layout import Flat
from headstart.training.inference import classify, tokens_for
from headstart.use.classifier import TextClassifier
from headstart.use.deletion import deletion_weights, log_odds, predict_kept
from headstart.use.words import TokenizedText

Mask = NDArray[np.bool_]
STEPS = 32  # points of integrated gradients


def predict_without(
    classifier: TextClassifier, text: TokenizedText, removed: Sequence[Mask], replacement: int | None = None
) -> Floats:
    """(n, C) log-probabilities of a text without the tokens that each (L,) mask marks: deleted, or replaced."""
    if replacement is None:
        return predict_kept(classifier, text, [np.flatnonzero(~mask) for mask in removed])
    rows = [np.where(mask, replacement, text.ids) for mask in removed]
    return classify(classifier.model, EncodedExamples.from_rows(rows), torch.float32)


@dataclass
class Question:
    """A text, the label asked about, and how often the text was read to answer (a gradient counts as two readings)."""

    classifier: TextClassifier
    text: TokenizedText
    label: int
    read: float = 0.0
    change: float | None = None  # what the weights should sum to

    @property
    def words(self) -> int:
        return len(self.text.words)

    @property
    def table(self) -> Tensor:
        return self.classifier.model.backbone.embeddings.tokens.weight.detach()

    @property
    def vectors(self) -> Tensor:
        """(L, D)"""
        return self.table[torch.from_numpy(self.text.ids)]

    def logits(self, removed: Sequence[Mask], replacement: int | None = None) -> Floats:
        """(n,): the label's logit without the tokens that each (L,) mask marks."""
        left = sum(len(mask) - (0 if replacement is not None else int(mask.sum())) for mask in removed)
        self.read += left / len(self.text.ids)
        return log_odds(predict_without(self.classifier, self.text, removed, replacement), self.label)

    def without(self, words: Sequence[Mask]) -> Floats:
        """(n,): the label's logit without the words that each (words,) mask marks."""
        return self.logits([np.append(mask, False)[self.text.word_of] for mask in words])

    def embedded(self, vectors: Tensor) -> Tensor:
        """(n, L, D) → (n,): the label's logit with these vectors in place of the token embeddings."""
        count, length, _ = vectors.shape
        self.read += count * (3 if vectors.requires_grad else 1)
        model = self.classifier.model
        with model.backbone.embeddings.tokens.register_forward_hook(lambda *_: vectors.flatten(0, 1)):
            ids = torch.from_numpy(np.tile(self.text.ids, count))
            logits: Tensor = model(ids, Flat.from_lengths([length] * count)).float()
        others = torch.arange(logits.shape[1]) != self.label
        return logits[:, self.label] - logits[:, others].logsumexp(1)

    def by_word(self, by_token: Any) -> Floats:
        inside = self.text.word_of >= 0
        weights: Any = np.bincount(self.text.word_of[inside], by_token[inside], minlength=self.words)
        return np.asarray(weights, dtype=np.float64)


# --- gradients ---


def gradient_times_input(question: Question) -> Floats:
    vectors = question.vectors[None].requires_grad_()
    [gradient] = torch.autograd.grad(question.embedded(vectors).sum(), vectors)
    return question.by_word((gradient * vectors.detach()).sum(-1)[0].double().numpy())


def integrated_gradients(question: Question, baseline: str) -> Floats | None:
    """From a text whose every word is the baseline; None where the tokenizer has no such token."""
    tokenizer, end = question.classifier.tokenizer, question.vectors
    tokens = {"mask": tokenizer.mask, "padding": tokenizer.pad, "unknown": tokenizer.unknown}
    vectors = {"zero": torch.zeros_like(end[0]), "mean": question.table.mean(0)}
    vectors |= {name: question.table[token] for name, token in tokens.items() if token is not None}
    if baseline not in vectors:
        return None
    inside = torch.from_numpy(question.text.word_of >= 0)
    direction = torch.where(inside[:, None], end - vectors[baseline], 0.0)
    nodes, weights = (torch.from_numpy(x).float() for x in np.polynomial.legendre.leggauss(STEPS))
    total, size = torch.zeros(len(end)), max(1, tokens_for(torch.device("cpu")) // len(end))
    for at, weight in zip(torch.split((nodes + 1) / 2, size), torch.split(weights / 2, size), strict=True):
        points = (end - (1 - at[:, None, None]) * direction).requires_grad_()
        [gradient] = torch.autograd.grad(question.embedded(points).sum(), points)
        total += ((gradient * direction).sum(-1) * weight[:, None]).sum(0)
    with torch.no_grad():
        start, stop = question.embedded(torch.stack([end - direction, end])).tolist()
    question.change = stop - start
    return question.by_word(total.double().numpy())


# --- words deleted ---


def leave_one_out(question: Question, replacement: str | None = None) -> Floats | None:
    tokenizer = question.classifier.tokenizer
    token = {None: None, "mask": tokenizer.mask, "unknown": tokenizer.unknown}[replacement]
    if replacement is not None and token is None:
        return None
    logits = question.logits([question.text.word_of == n for n in range(-2, question.words) if n != -1], token)
    fall: Floats = logits[0] - logits[1:]  # of the first nothing is removed: no word has number -2
    return fall


def leave_one_out_by_token(question: Question) -> Floats:
    """Each token in turn; the losses are summed over the tokens of a word."""
    places = np.arange(len(question.text.ids))
    logits = question.logits([places == n for n in range(-1, len(places))])
    return question.by_word(logits[0] - logits[1:])


def leave_one_out_mean(question: Question) -> Floats:
    """A word's tokens are replaced by the mean of all embeddings."""
    word_of, mean, end = torch.from_numpy(question.text.word_of), question.table.mean(0), question.vectors
    rows = [torch.where((word_of == n)[:, None], mean, end) for n in range(-2, question.words) if n != -1]
    with torch.no_grad():
        logits = np.array([question.embedded(row[None]).item() for row in rows])
    fall: Floats = logits[0] - logits[1:]
    return fall


def one_word_alone(question: Question) -> Floats:
    logits = question.without([np.ones(question.words, bool), *~np.eye(question.words, dtype=bool)])
    rise: Floats = logits[1:] - logits[0]
    return rise


def shipped(question: Question) -> Floats:
    found = deletion_weights(question.classifier, question.text, question.label)
    question.read += question.words + 1 + 3 * question.words / len(question.text.ids)  # left out, and alone
    question.change = found.whole - found.empty
    return found.weights


def random_halves(question: Question) -> Floats:
    """Least squares on random halves of the words, as many as there are words, and the other halves."""
    count, generator = question.words, np.random.default_rng(0)
    half = [generator.permutation(count) < (count + n % 2) // 2 for n in range(count)]
    removed = np.array([*half, *(~mask for mask in half)])
    logits = question.without(list(removed))
    x = 0.5 - removed
    gram = x.T @ x + 0.05 * len(x) * np.eye(count)  # a slight penalty
    weights: Floats = np.linalg.solve(gram, x.T @ (logits - logits.mean()))
    return weights


def shapley(question: Question, orders: int) -> Floats:
    """Words are added one at a time in random orders, each also backwards; a weight is what a word adds, on average."""
    count, generator = question.words, np.random.default_rng(0)
    drawn = [generator.permutation(count) for _ in range(orders // 2)]
    ranks = [rank for order in drawn for rank in (np.argsort(order), np.argsort(order[::-1]))]
    logits = question.without([rank >= k for rank in ranks for k in range(count + 1)]).reshape(orders, -1)
    question.change = logits[0, -1] - logits[0, 0]
    gains = np.diff(logits, axis=1)
    weights: Floats = np.mean([gain[rank] for gain, rank in zip(gains, ranks, strict=True)], axis=0)
    return weights


def random_weights(question: Question) -> Floats:
    return np.random.default_rng(question.text.ids).random(question.words)


SHIPPED = "left out ¾, alone ¼"
METHODS: dict[str, Callable[[Question], Floats | None]] = {
    "random order": random_weights,
    "gradient × input": gradient_times_input,
    "integrated gradients from zero": partial(integrated_gradients, baseline="zero"),
    "… from padding": partial(integrated_gradients, baseline="padding"),
    "… from the mask": partial(integrated_gradients, baseline="mask"),
    "… from unknown": partial(integrated_gradients, baseline="unknown"),
    "… from the mean embedding": partial(integrated_gradients, baseline="mean"),
    "word left out: removed": leave_one_out,
    "… removed token by token": leave_one_out_by_token,
    "… replaced by the mask": partial(leave_one_out, replacement="mask"),
    "… replaced by unknown": partial(leave_one_out, replacement="unknown"),
    "… replaced by the mean embedding": leave_one_out_mean,
    "word alone": one_word_alone,
    SHIPPED: shipped,
    "random halves": random_halves,
    "Shapley values, 8 orders": partial(shapley, orders=8),
}
