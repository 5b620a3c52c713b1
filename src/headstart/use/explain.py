"""The weight of each word of a text for a label, and how far the weights can be trusted.

    explain(reviews, "A tender, witty book.")
    # Explanation(label='pos', words=(Word('A', 0, 1, weight=0.02, …), Word('tender', 2, 8, weight=1.71, …), …), …)

Weights are found by deleting words (`deletion.py`). No explanation can be taken on trust, so each says how much faster
the label's probability falls when the top words are deleted than when as many random ones are (`Faithfulness`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from threading import get_ident
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headstart.batches.batch import rng
from headstart.errors import ConfigError, did_you_mean
from headstart.metrics import Floats
from headstart.model.attention import Attention, plain_attention, square_mask
from headstart.model.layout import Flat
from headstart.model.model import Model
from headstart.reading.examples import Text
from headstart.use.classifier import TextClassifier, calibrated
from headstart.use.deletion import deletion_weights, predict_kept
from headstart.use.explanation import AttentionMaps, Completeness, Explanation, Faithfulness
from headstart.use.words import TokenizedText, tokenize

ORDERS = 12  # random orders of deletion
POINTS = 8  # points of a deletion curve


def explain(
    classifier: TextClassifier,
    text: Text,
    *,
    label: str | None = None,
    attention: bool = False,
    orders: int = ORDERS,
) -> Explanation:
    """The weights of a text's words for its likeliest label, or for `label`.

    `attention` adds the attention maps of every layer and head. `orders` is the number of random orders that the
    faithfulness score compares with; 0 leaves the score out, which saves time.
    """
    names = classifier.class_names
    _check(label, names, orders)
    tokenized = tokenize(classifier, text)
    predicted = predict_kept(classifier, tokenized, [np.arange(len(tokenized.ids))])
    [probabilities] = calibrated(predicted, classifier.temperature)
    number = int(probabilities.argmax()) if label is None else names.index(label)
    found = deletion_weights(classifier, tokenized, number)
    weights = found.weights
    words = zip(tokenized.words, weights.tolist(), found.alone.tolist(), found.left_out.tolist(), strict=True)
    return Explanation(
        text=text,
        label=names[number],
        probabilities=dict(zip(names, map(float, probabilities), strict=True)),
        words=tuple(replace(word, weight=w, alone=a, left_out=lost) for word, w, a, lost in words),
        completeness=Completeness(float(weights.sum()), found.empty, found.whole),
        faithfulness=faithfulness(classifier, tokenized, number, weights, orders=orders) if orders else None,
        truncated=tokenized.truncated,
        attention=attention_maps(classifier, tokenized) if attention else None,
    )


def _check(label: str | None, names: Sequence[str], orders: int) -> None:
    problems = []
    if label is not None and label not in names:
        problems.append(f"label is {label!r}: {did_you_mean(label, names)}")
    if orders < 0:
        problems.append(f"orders is {orders}, and must be at least 0")
    if problems:
        raise ConfigError("explain", problems)


def faithfulness(
    classifier: TextClassifier, text: TokenizedText, label: int, weights: Floats, *, orders: int = ORDERS
) -> Faithfulness | None:
    """Delete words by falling weight and see how fast the label's probability falls, compared with random orders.

    Of n words, k are deleted for each k from 1 to n - 1, or for `POINTS` numbers evenly between. The curves meet at
    k = 0 and k = n, so their mean distance is the area between them.
    """
    count = len(text.words)
    if count < 2:
        return None
    deleted = np.unique(np.linspace(1, count - 1, POINTS).round().astype(int))
    generator = rng(0, count)
    ranked = [np.argsort(-weights, kind="stable"), *(generator.permutation(count) for _ in range(orders))]
    kept = [np.flatnonzero(~np.isin(text.word_of, order[:k])) for order in ranked for k in deleted]
    predicted = predict_kept(classifier, text, kept)
    probabilities = calibrated(predicted, classifier.temperature)[:, label]
    means = probabilities.reshape(len(ranked), -1).mean(1)  # (1 + orders,)
    std = float(means[1:].std(ddof=1)) if orders > 1 else 0.0
    return Faithfulness(float(means[0]), float(means[1:].mean()), std)


def attention_maps(classifier: TextClassifier, text: TokenizedText) -> AttentionMaps:
    """The attention weights that a classifier gives a text."""
    ids = torch.from_numpy(text.ids).to(classifier.device)
    segments = None if text.segments is None else torch.from_numpy(text.segments).to(classifier.device)
    weights = attention_weights(classifier.model, ids, segments).float().cpu().numpy()
    return AttentionMaps(text.tokens, weights, causal=classifier.model.config.direction == "causal")


@torch.no_grad()
def attention_weights(model: Model, ids: Tensor, segments: Tensor | None = None) -> Tensor:
    """(layers, H, L, L) for one sequence, in the plain form; the fast kernels never materialise them."""
    by_layer: list[Tensor] = []

    def record(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        assert isinstance(module, Attention)
        x, _, angles, bias, _ = inputs
        q, k, v = (part.transpose(0, 1) for part in module.project(x, angles))  # each (H, L, K)
        mask = square_mask(len(x), x.device) if module.causal else None
        if bias is not None:
            mask = bias if mask is None else bias + mask
        by_layer.append(plain_attention(q, k, v, mask)[1])  # (H, L, L)

    with ExitStack() as hooks:
        for module in model.backbone.modules():
            if isinstance(module, Attention):
                hooks.enter_context(module.register_forward_pre_hook(this_thread_only(record)))
        model.backbone(ids, Flat.from_lengths([len(ids)], ids.device), segments)
    return torch.stack(by_layer)


def this_thread_only(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that acts only in the thread that made it: in another, the model may be computing a prediction."""
    thread = get_ident()
    return lambda *arguments: hook(*arguments) if get_ident() == thread else None
