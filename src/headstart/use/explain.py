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
from dataclasses import replace

from headstart.errors import ConfigError, did_you_mean
from headstart.reading.examples import Text
from headstart.use.attention_maps import attention_maps
from headstart.use.classifier import TextClassifier, calibrated
from headstart.use.explanation import METHODS, Explanation, Method
from headstart.use.generate import check_finite
from headstart.use.integrated_gradients import integrated_gradients
from headstart.use.perturbation import ORDERS, faithfulness, occlusion, predict_ids
from headstart.use.words import tokenize


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
    segments = None if tokenized.segments is None else [tokenized.segments]
    predicted = predict_ids(classifier, [tokenized.ids], segments)
    [probabilities] = calibrated(predicted, classifier.temperature)
    check_finite(probabilities)
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
