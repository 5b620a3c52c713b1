"""How good a model is: on a labelled set, row by row, and on text, token by token."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.batches.batch import Batches
from headstart.batches.encoding import Encoded, in_order
from headstart.model.heads import ClassifierHead
from headstart.model.model import Model
from headstart.training.distributed import sum_over, team
from headstart.training.objectives import Objective, layout_of
from headstart.training.precision import Precision, autocast

Floats = NDArray[np.float64]
Scores = dict[str, float]
TOKENS = {"cpu": 1024, "cuda": 32768}  # of a batch that is only scored, where that runs fastest


def score(log_probabilities: Floats, labels: NDArray[np.int64]) -> Scores:
    """Accuracy, macro-F1 and mean loss of (n, C) log-probabilities.

    >>> half = np.log([[0.9, 0.1], [0.6, 0.4]])
    >>> {name: round(value, 3) for name, value in score(half, np.array([0, 1])).items()}
    {'accuracy': 0.5, 'macro_f1': 0.333, 'loss': 0.511}
    """
    predicted = log_probabilities.argmax(1)
    return {
        "accuracy": float((predicted == labels).mean()),
        "macro_f1": macro_f1(predicted, labels, log_probabilities.shape[1]),
        "loss": float(-log_probabilities[np.arange(len(labels)), labels].mean()),
    }


def macro_f1(predicted: NDArray[np.int64], labels: NDArray[np.int64], classes: int) -> float:
    """The mean over classes of F1; a class that is neither there nor predicted is left out."""
    found = []
    for k in range(classes):
        hits = int(((predicted == k) & (labels == k)).sum())
        either = int((predicted == k).sum()) + int((labels == k).sum())
        if either:
            found.append(2 * hits / either)
    return float(np.mean(found))


def fit_temperature(log_probabilities: Floats, labels: NDArray[np.int64]) -> float:
    """What to divide logits by so that the loss is least on these rows.

    Each right class counts as almost sure, by one row in n + 2: a set without a mistake would ask for certainty.

    >>> rows = np.log([[0.99, 0.01]] * 3 + [[0.01, 0.99]])
    >>> round(fit_temperature(rows, np.array([0, 0, 0, 0])), 1)  # three right of four, and 99 % sure of each
    5.2
    """
    from scipy.optimize import minimize_scalar

    count, classes = log_probabilities.shape
    aim = np.full((count, classes), 1 / (count + 2) / classes)
    aim[np.arange(count), labels] += 1 - 1 / (count + 2)

    def loss(logarithm: float) -> float:
        scaled = log_probabilities / np.exp(logarithm)
        scaled = scaled - scaled.max(1, keepdims=True)
        return float(-(aim * (scaled - np.log(np.exp(scaled).sum(1, keepdims=True)))).sum())

    return float(np.exp(minimize_scalar(loss, bounds=(np.log(0.05), np.log(50)), method="bounded").x))


@torch.no_grad()
def classify(
    model: Model,
    data: Encoded,
    precision: Precision,
    features: torch.Tensor | None = None,
    *,
    tokens: int | None = None,
) -> Floats:
    """(n, C) log-probabilities of every row; from `features` (n, D), where a frozen backbone gave them."""
    was_training = model.training
    model.eval()
    out = np.zeros((len(data), model.head.config.classes if isinstance(model.head, ClassifierHead) else 0))
    for rows, batch, mine in _batches(data, model.device, tokens):
        with autocast(precision, model.device):
            if features is None:
                logits = model(batch.ids, layout_of(batch), batch.segments)
            else:
                assert isinstance(model.head, ClassifierHead)
                logits = model.head(features[batch.rows])
        if mine:
            out[rows] = torch.log_softmax(logits.double(), dim=-1).cpu().numpy()
    model.train(was_training)
    return sum_over(torch.from_numpy(out).to(model.device)).cpu().numpy() if team().size > 1 else out


@torch.no_grad()
def frozen_features(model: Model, data: Encoded, precision: Precision) -> torch.Tensor:
    """(n, D): what the classifier head receives for each row, which a frozen backbone never changes."""
    assert isinstance(model.head, ClassifierHead)
    model.eval()
    out = torch.zeros(len(data), model.config.width, device=model.device)
    for _, batch, mine in _batches(data, model.device):
        with autocast(precision, model.device):
            found = model.head.features(batch.ids, layout_of(batch), batch.segments, model.backbone)
        if mine:
            out[batch.rows] = found.float()
    return sum_over(out)


def tokens_for(device: torch.device) -> int:
    """How many tokens to score at once."""
    return TOKENS.get(device.type, TOKENS["cpu"])


def _batches(data: Encoded, device: torch.device, tokens: int | None = None) -> Iterable[Any]:
    """This process's part of the batches, and whether each is really its own: all processes run as many."""
    every = list(in_order(data, tokens or tokens_for(device)))
    for number, mine in _turns(len(every)):
        yield every[number], data.batch(every[number]).to(device), mine


def _turns(count: int) -> Iterable[tuple[int, bool]]:
    """Which of so many this process takes, as many as any other; one that is not its own fills the last turn up.

    >>> list(_turns(3))
    [(0, True), (1, True), (2, True)]
    """
    now = team()
    for number in range(now.rank, count + -count % now.size, now.size):
        yield min(number, count - 1), number < count


@torch.no_grad()
def language_model_scores(
    model: Model, objective: Objective, batches: Batches, precision: Precision, *, tokens_per_byte: float | None = None
) -> Scores:
    """Loss and perplexity over a whole pass; bits per byte too where every token is predicted from those before.

    The bits of a text are those of its tokens, whatever the tokenizer: only per byte can two models be compared.
    """
    was_training = model.training
    model.eval()
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    for step, mine in _turns(batches.steps(0)):
        batch = batches.batch(0, step)
        for name, count in objective.counts(batch).items():
            counts[name] = counts.get(name, 0.0) + count * mine
        with autocast(precision, model.device):
            parts = objective.sums(model, batch.to(model.device))
        for name, value in parts.items():
            sums[name] = sums.get(name, 0.0) + value.item() * mine
    model.train(was_training)
    for numbers in (sums, counts):
        added = sum_over(torch.tensor(list(numbers.values()), dtype=torch.float64, device=model.device))
        numbers.update(zip(numbers, added.tolist(), strict=True))
    means = {name: sums[name] / max(counts[name], 1.0) for name in sums}
    scores = {"loss": sum(means.values())}
    if len(means) > 1:
        scores |= {f"{name}_loss": value for name, value in means.items()}
    by_token = means.get("loss", means.get("masked", 0.0))
    scores["perplexity"] = math.exp(min(by_token, 700.0))
    if tokens_per_byte is not None:
        scores["bits_per_byte"] = by_token / math.log(2) * tokens_per_byte
    return scores
