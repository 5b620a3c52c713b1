"""What a model answers, without training it: on a labelled set, row by row, and on text, token by token."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from headstart.batches.batch import Batch, Batches, Ints
from headstart.batches.examples import EncodedExamples, length_sorted_batches
from headstart.config import Pool
from headstart.errors import NotFinite
from headstart.metrics import Floats, Scores
from headstart.model.heads import ClassifierHead
from headstart.model.model import Model
from headstart.parallel import SINGLE, Parallel
from headstart.training.hardware import autocast
from headstart.training.objectives import Objective, layout_of

TOKENS = {"cpu": 1024, "cuda": 32768}  # of a batch that is only scored, where that runs fastest


@torch.no_grad()
def classify(
    model: Model,
    data: EncodedExamples,
    precision: torch.dtype,
    features: Tensor | None = None,
    *,
    parallel: Parallel = SINGLE,
    on_batch: Callable[[int], None] = lambda rows: None,
) -> Floats:
    """(n, C) log-probabilities of every row; from `features` (n, D), where a frozen backbone gave them.

    `on_batch` is called with the number of rows of each batch that is done.
    """
    was_training = model.training
    model.eval()
    out = np.zeros((len(data), model.head.config.classes if isinstance(model.head, ClassifierHead) else 0))
    for rows, batch, own in _own_batches(data, model.device, parallel):
        with autocast(precision, model.device):
            if features is None:
                logits = model(batch.ids, layout_of(batch), batch.segments)  # (S, C)
            else:
                assert isinstance(model.head, ClassifierHead)
                logits = model.head(features[batch.rows])
        if own:
            out[rows] = torch.log_softmax(logits.double(), dim=-1).cpu().numpy()
        on_batch(len(rows))
    model.train(was_training)
    if parallel.world_size > 1:
        out = parallel.all_reduce(torch.from_numpy(out).to(model.device)).cpu().numpy()  # zeros in the rows of others
    check_finite(out)
    return out


@torch.no_grad()
def frozen_features(model: Model, data: EncodedExamples, precision: torch.dtype, parallel: Parallel = SINGLE) -> Tensor:
    """(n, D): what the classifier head receives for each row, which a frozen backbone never changes."""
    assert isinstance(model.head, ClassifierHead)
    model.eval()
    out = torch.zeros(len(data), model.config.width, device=model.device)
    for _, batch, own in _own_batches(data, model.device, parallel):
        with autocast(precision, model.device):
            features = model.head.features(batch.ids, layout_of(batch), batch.segments, model.backbone)  # (S, D)
        if own:
            out[batch.rows] = features.float()
    out = parallel.all_reduce(out)
    check_finite(out)
    return out


@torch.no_grad()
def pooled_layers(
    model: Model,
    data: EncodedExamples,
    choices: Sequence[tuple[int | Literal["all"], Pool]],
    parallel: Parallel = SINGLE,
) -> Tensor:
    """(choices, n, D): each row's vector by a layer (counted from 1, or the mean of `all`) and a pooling."""
    model.eval()
    out = torch.zeros(len(choices), len(data), model.config.width, device=model.device)
    for _, batch, own in _own_batches(data, model.device, parallel):
        layout = layout_of(batch)
        states = model.backbone.every_layer(batch.ids, layout, batch.segments)  # L + 1 times (N, D)
        if own:
            for k, (layer, pool) in enumerate(choices):
                state = states[-1] if layer == "all" else states[layer - 1]
                out[k, batch.rows] = layout.pool(state, pool)
    out = parallel.all_reduce(out)
    check_finite(out)
    return out


def check_finite(scores: Any) -> None:
    """Raise unless all that a model gave (a tensor, an array, numbers) is finite: no answer can be made of the rest."""
    if not torch.as_tensor(scores).isfinite().all():
        raise NotFinite(
            "the model's scores are no finite numbers: its weights are damaged, or its training diverged; train it "
            "again with a lower lr, or take another copy"
        )


def tokens_for(device: torch.device) -> int:
    """How many tokens to score at once."""
    return TOKENS.get(device.type, TOKENS["cpu"])


def _own_batches(data: EncodedExamples, device: torch.device, parallel: Parallel) -> Iterator[tuple[Ints, Batch, bool]]:
    """The rows and the batches that this process runs, and whether each is its own."""
    rows = list(length_sorted_batches(data, tokens_for(device)))
    for index, own in _own_indices(len(rows), parallel):
        yield rows[index], data.batch(rows[index]).to(device), own


def _own_indices(count: int, parallel: Parallel) -> Iterator[tuple[int, bool]]:
    """Which of `count` batches this process runs. A sharded model gathers its weights in every forward pass, so all
    processes run as many: where they do not divide, some run the last once more, which is not their own.

    >>> list(_own_indices(3, Parallel(rank=1, world_size=2)))
    [(1, True), (2, False)]
    """
    for index in range(parallel.rank, count + -count % parallel.world_size, parallel.world_size):
        yield min(index, count - 1), index < count


@torch.no_grad()
def language_model_scores(
    model: Model,
    objective: Objective,
    batches: Batches,
    precision: torch.dtype,
    *,
    tokens_per_byte: float | None = None,
    parallel: Parallel = SINGLE,
) -> Scores:
    """Loss and perplexity over a whole pass; bits per byte too where every token is predicted from those before.

    The bits of a text are those of its tokens, whatever the tokenizer: only per byte can two models be compared.
    """
    was_training = model.training
    model.eval()
    sums: dict[str, float] = {}
    counts = dict.fromkeys(objective.parts, 0.0)
    for step, own in _own_indices(batches.steps(0), parallel):
        batch = batches.batch(0, step)
        with autocast(precision, model.device):
            found = objective.evaluation_sums(model, batch.to(model.device))
        for name, value in found.items():
            sums[name] = sums.get(name, 0.0) + own * value.item()
        for name, count in objective.counts(batch).items():
            counts[name] += own * count
    model.train(was_training)
    totals = torch.tensor([*sums.values(), *counts.values()], dtype=torch.float64, device=model.device)
    numbers = parallel.all_reduce(totals).tolist()
    check_finite(numbers)
    sums, counts = dict(zip(sums, numbers, strict=False)), dict(zip(counts, numbers[len(sums) :], strict=True))
    scores = objective.scores(sums, counts)
    if tokens_per_byte is not None:
        scores["bits_per_byte"] = scores["loss"] / math.log(2) * tokens_per_byte
    return scores
