"""What a model answers, without training it: on a labelled set, row by row, and on text, token by token."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from headstart.batches.batch import Batches
from headstart.batches.encoding import EncodedExamples, length_sorted_batches
from headstart.metrics import Floats, Scores
from headstart.model.heads import ClassifierHead
from headstart.model.model import Model
from headstart.training.distributed import sum_over, team
from headstart.training.objectives import Objective, layout_of
from headstart.training.precision import Precision, autocast

TOKENS = {"cpu": 1024, "cuda": 32768}  # of a batch that is only scored, where that runs fastest


@torch.no_grad()
def classify(
    model: Model,
    data: EncodedExamples,
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
    return sum_over(torch.from_numpy(out).to(model.device)).cpu().numpy() if team().world_size > 1 else out


@torch.no_grad()
def frozen_features(model: Model, data: EncodedExamples, precision: Precision) -> torch.Tensor:
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


def _batches(data: EncodedExamples, device: torch.device, tokens: int | None = None) -> Iterable[Any]:
    """This process's part of the batches, and whether each is really its own: all processes run as many."""
    every = list(length_sorted_batches(data, tokens or tokens_for(device)))
    for number, mine in _turns(len(every)):
        yield every[number], data.batch(every[number]).to(device), mine


def _turns(count: int) -> Iterable[tuple[int, bool]]:
    """Which of so many this process takes, as many as any other; one that is not its own fills the last turn up.

    >>> list(_turns(3))
    [(0, True), (1, True), (2, True)]
    """
    now = team()
    for number in range(now.rank, count + -count % now.world_size, now.world_size):
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
