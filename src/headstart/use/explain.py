"""The weight of each word of a text for a label, and how far the weights can be trusted.

    explain(reviews, "A tender, witty book.")
    # Explanation(label='pos', words=(Word('A', 0, 1, weight=0.02), Word('tender', 2, 8, weight=1.71), …), …)

Two methods give weights:

    gradients   integrated gradients: the change of the logit from a text of mask tokens to this one, by word
    occlusion   how far the logit falls when a single word is masked

Neither can be taken on trust. So every explanation says how much faster the label's probability falls when the top
words are deleted than when as many random ones are (`Faithfulness`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headstart.batches.batch import rng
from headstart.batches.examples import EncodedExamples
from headstart.errors import ConfigError, did_you_mean
from headstart.metrics import Floats
from headstart.model.attention import Attention, plain_attention, square_mask
from headstart.model.layout import Flat
from headstart.model.model import Model
from headstart.reading.examples import Text
from headstart.training.inference import classify
from headstart.use.classifier import TextClassifier, calibrated
from headstart.use.explanation import METHODS, AttentionMaps, Explanation, Faithfulness, Method
from headstart.use.integrated_gradients import integrated_gradients, this_thread_only
from headstart.use.words import TokenizedText, tokenize

ORDERS = 12  # random orders of deletion
POINTS = 8  # points of a deletion curve


def explain(
    classifier: TextClassifier,
    text: Text,
    *,
    label: str | None = None,
    method: Method = "gradients",
    attention: bool = False,
    orders: int = ORDERS,
) -> Explanation:
    """The weights of a text's words for its likeliest label, or for `label`.

    `attention` adds the attention maps of every layer and head. `orders` is the number of random orders that the
    faithfulness score compares with; 0 leaves the score out, which saves most of the time.
    """
    names = classifier.class_names
    _check(label, names, method, orders)
    tokenized = tokenize(classifier, text)
    predicted = predict_without(classifier, tokenized, [np.zeros_like(tokenized.word_of, dtype=bool)])
    [probabilities] = calibrated(predicted, classifier.temperature)
    number = int(probabilities.argmax()) if label is None else names.index(label)
    completeness = None
    if method == "gradients":
        weights, completeness = integrated_gradients(classifier, tokenized, number)
    else:
        weights = occlusion(classifier, tokenized, number)
    return Explanation(
        text=text,
        label=names[number],
        method=method,
        probabilities=dict(zip(names, map(float, probabilities), strict=True)),
        words=tuple(replace(word, weight=float(w)) for word, w in zip(tokenized.words, weights, strict=True)),
        completeness=completeness,
        faithfulness=faithfulness(classifier, tokenized, number, weights, orders=orders) if orders else None,
        truncated=tokenized.truncated,
        attention=attention_maps(classifier, tokenized) if attention else None,
    )


def _check(label: str | None, names: Sequence[str], method: str, orders: int) -> None:
    problems = []
    if label is not None and label not in names:
        problems.append(f"label is {label!r}: {did_you_mean(label, names)}")
    if method not in METHODS:
        problems.append(f"method is {method!r}: {did_you_mean(method, METHODS)}")
    if orders < 0:
        problems.append(f"orders is {orders}, and must be at least 0")
    if problems:
        raise ConfigError("explain", problems)


def occlusion(classifier: TextClassifier, text: TokenizedText, label: int) -> Floats:
    """(words,): by how much a label's logit falls when one word is masked, or deleted where there is no mask token."""
    words = [text.word_of == number for number in range(len(text.words))]  # each (L,)
    masks = [np.zeros_like(text.word_of, dtype=bool), *words]
    logits = log_odds(predict_without(classifier, text, masks, replacement=classifier.tokenizer.mask), label)
    fall: Floats = logits[0] - logits[1:]
    return fall


def log_odds(log_probabilities: Floats, label: int) -> Floats:
    """(n, C) → (n,): a label's logit, log p / (1 - p).

    >>> log_odds(np.log([[0.25, 0.75], [0.5, 0.5]]), 1).round(3).tolist()  # log 3, log 1
    [1.099, 0.0]
    """
    others = np.delete(log_probabilities, label, axis=1)
    odds: Floats = log_probabilities[:, label] - np.logaddexp.reduce(others, axis=1)
    return odds


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
    predicted = predict_without(
        classifier, text, [np.isin(text.word_of, order[:k]) for order in ranked for k in deleted]
    )
    probabilities = calibrated(predicted, classifier.temperature)[:, label]
    means = probabilities.reshape(len(ranked), -1).mean(1)  # (1 + orders,)
    std = float(means[1:].std(ddof=1)) if orders > 1 else 0.0
    return Faithfulness(float(means[0]), float(means[1:].mean()), std)


def predict_without(
    classifier: TextClassifier,
    text: TokenizedText,
    masks: Sequence[NDArray[np.bool_]],
    *,
    replacement: int | None = None,
) -> Floats:
    """(n, C) log-probabilities, in float32, of a text without the tokens that each (L,) mask marks.

    They are deleted, or replaced by a `replacement` token.
    """
    if replacement is None:
        kept = [~mask for mask in masks]
        rows = [text.ids[tokens] for tokens in kept]
    else:
        kept = [np.ones_like(mask) for mask in masks]
        rows = [np.where(mask, replacement, text.ids) for mask in masks]
    # Where every word is deleted and there are no special tokens: as an empty text.
    rows = [row if len(row) else classifier.encode([""]).ids.astype(np.int64) for row in rows]
    segments = None if text.segments is None else [text.segments[tokens] for tokens in kept]
    return classify(classifier.model, EncodedExamples.from_rows(rows, segments), torch.float32)


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
