"""Classifiers small enough to be trained in a test: made-up reviews in which two words carry the opinion."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from headstart.batches.examples import EncodedExamples
from headstart.checkpoints.folder import Checkpoint
from headstart.config import ClassifierConfig
from headstart.model.model import Model
from headstart.model.presets import preset, usual_head
from headstart.reading.examples import Example, Examples
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.training.objectives import layout_of
from tests.studies.example_data import FILLER, make_tokenizer, reviews

LABELS = ("neg", "pos")
SIZES = {"width": 32, "layers": 2, "heads": 2, "feed_forward": 48, "window": 32, "dropout": 0.0}


def fresh(name: str, tokenizer: Tokenizer, classes: int = 2, seed: int = 0, pool: Any = None, **changes: Any) -> Model:
    """A model of a preset's kind, in miniature, with a classifier's head."""
    torch.manual_seed(seed)
    config = preset(name, **{**SIZES, "vocabulary": tokenizer.size, **changes})
    head = usual_head(config, "classifier", classes)
    assert isinstance(head, ClassifierConfig)
    return Model.build(config, replace(head, pool=pool or head.pool)).eval()


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


PLANTED = {"neg": "dull", "pos": "witty"}  # the one word that decides


def planted_text(draw: random.Random, label: str | None, *, count: int, at: int | None = None) -> str:
    """`count` words that say nothing, and the one that decides a label somewhere among them, or at a place."""
    words = draw.choices(FILLER, k=count)
    if label is not None:
        words.insert(draw.randrange(count + 1) if at is None else at, PLANTED[label])
    return " ".join(words)


@cache
def planted(name: str, pool: str) -> Checkpoint:
    """A model that has learned that one word decides wherever it stands, and that the other words say nothing."""
    tokenizer, draw = make_tokenizer(), random.Random(3)
    model = fresh(name, tokenizer, pool=pool)
    rows = []
    for number in range(768):
        label = draw.choice(LABELS)
        says = label if number % 3 else None  # a third of the texts has no such word, and either label
        rows.append(Example(planted_text(draw, says, count=draw.randint(0, 12)), label, None, "made", number))
    data = EncodedExamples.of(Examples(tuple(rows)), tokenizer, LABELS, model.config.window)
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(150):
        batch = data.batch((step * 64 + torch.arange(64).numpy()) % len(data))
        assert batch.labels is not None
        loss = F.cross_entropy(model(batch.ids, layout_of(batch)), batch.labels)
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
    return Checkpoint(model.eval(), LABELS, tokenizer)
