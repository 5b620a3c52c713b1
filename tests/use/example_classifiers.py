"""Classifiers small enough to be trained in a test: made-up reviews in which two words carry the opinion."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from headstart.batches.examples import EncodedExamples
from headstart.checkpoints.folder import Checkpoint
from headstart.model.model import Model
from headstart.model.presets import preset, usual_head
from headstart.reading.examples import Example, Examples
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.training.objectives import layout_of
from tests.studies.example_data import make_tokenizer, reviews

LABELS = ("neg", "pos")
SIZES = {"width": 32, "layers": 2, "heads": 2, "feed_forward": 48, "window": 32, "dropout": 0.0}


def fresh(name: str, tokenizer: Tokenizer, classes: int = 2, seed: int = 0, **changes: Any) -> Model:
    """A model of a preset's kind, in miniature, with a classifier's head."""
    torch.manual_seed(seed)
    config = preset(name, **{**SIZES, "vocabulary": tokenizer.size, **changes})
    return Model.build(config, usual_head(config, "classifier", classes)).eval()


@cache
def reviewer(name: str) -> Checkpoint:
    """A model of a preset's kind that tells good reviews from bad: `small` is bidirectional, `lab` causal.

    Words are hidden from it at random, from none to all of a text, so that a mask means to it what it should: nothing.
    """
    tokenizer = make_tokenizer()
    mask = torch.tensor(tokenizer.mask)
    model = fresh(name, tokenizer)
    rows = [Example(text, label, None, "made", n) for n, (label, text) in enumerate(reviews(256, 7))]
    data = EncodedExamples.of(Examples(tuple(rows)), tokenizer, LABELS, model.config.window)
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(150):
        batch = data.batch((step * 64 + torch.arange(64).numpy()) % len(data))
        assert batch.labels is not None
        hidden = torch.rand(64)[layout_of(batch).sequence] > 2 * torch.rand(len(batch.ids))
        ids = torch.where(hidden & (batch.ids > 5), mask, batch.ids)  # five are special
        loss = F.cross_entropy(model(ids, layout_of(batch)), batch.labels)
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
    return Checkpoint(model, LABELS, tokenizer, temperature=2.0)
