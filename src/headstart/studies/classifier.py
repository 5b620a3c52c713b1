"""What a classifier is made of: a base with its tokenizer, a head on it, and the labelled texts as ids."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headstart.batches.examples import EncodedExamples, EncodingCache
from headstart.checkpoints.exchange import open_model
from headstart.checkpoints.folder import Checkpoint, check_tokenizer
from headstart.config import ClassifierConfig
from headstart.errors import ConfigError
from headstart.model.model import Model
from headstart.model.presets import PRESETS, usual_head
from headstart.reading.examples import Examples
from headstart.studies.settings import FinetuneSettings
from headstart.studies.splits import draw_budget, read_splits
from headstart.tokenizers.tokenizer import Tokenizer

# --- the texts ---


@dataclass(frozen=True)
class Data:
    """The splits as texts and as ids, with the classes of the training set."""

    examples: dict[str, Examples]
    encoded: dict[str, EncodedExamples]
    class_names: tuple[str, ...]
    encoding_seconds: dict[str, float]  # of each split

    def fingerprint(self) -> dict[str, str]:
        """A digest of each split's ids and labels."""
        return {name: _digest(part) for name, part in self.encoded.items()}


def load_data(
    settings: FinetuneSettings,
    tokenizer: Tokenizer,
    window: int,
    log: Callable[[str], None] = lambda text: None,
    splits: Mapping[str, Examples] | None = None,
    encode: EncodingCache | None = None,
) -> Data:
    """Read and encode the splits; every label is one that the training set has, whatever the budget."""
    examples = dict(read_splits(settings, log) if splits is None else splits)
    class_names = examples["train"].class_names
    examples["train"] = draw_train(examples["train"], settings)
    encode, encoded, seconds = encode or EncodingCache(), {}, {}
    for name, texts in examples.items():
        encoded[name], seconds[name] = encode(texts, tokenizer, class_names, window)
        if truncated := encoded[name].truncated:
            log(f"{name}: {truncated} of {len(encoded[name])} texts are longer than {window} tokens and were cut")
    return Data(examples, encoded, class_names, seconds)


def draw_train(train: Examples, settings: FinetuneSettings) -> Examples:
    """The training texts of a label budget; all of them, where there is none."""
    return train if settings.labels is None else draw_budget(train, settings.labels, settings.seed)


def _digest(part: EncodedExamples) -> str:
    digest = hashlib.sha256()
    for array in (part.ids, part.starts, part.labels):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


# --- the model ---


def open_base(init: str, tokenizer_path: str | None, mode: str) -> Checkpoint:
    """The model to start from, with a tokenizer; a preset has an architecture and nothing else."""
    own = None if tokenizer_path is None else Tokenizer.load(tokenizer_path)
    if init in PRESETS and not Path(init).is_dir():
        if mode != "scratch":
            raise ConfigError(
                "finetune", [f"init {init!r} is a preset without weights: use --mode scratch, or a model folder"]
            )
        if own is None:
            raise ConfigError("finetune", [f"init {init!r} is a preset without a tokenizer: add --tokenizer"])
        config = replace(PRESETS[init], vocabulary=own.size)
        return Checkpoint(Model.empty(config), tokenizer=own)
    checkpoint = open_model(init, tokenizer=own is None)
    tokenizer = own or checkpoint.tokenizer
    if tokenizer is None:
        raise ConfigError("finetune", [f"{init} has no tokenizer of its own: add --tokenizer"])
    check_tokenizer(checkpoint.model.config, tokenizer)
    return Checkpoint(checkpoint.model, tokenizer=tokenizer)


def build_classifier(base: Model, settings: FinetuneSettings, classes: int) -> Model:
    """The base under a classifier head, or its architecture with fresh weights, both initialised by the seed."""
    config = base.config.with_window(settings.window)
    if settings.backbone_dropout is not None:
        config = replace(config, dropout=settings.backbone_dropout, attention_dropout=settings.backbone_dropout)
    head = usual_head(config, "classifier", classes)
    assert isinstance(head, ClassifierConfig)
    if settings.mode == "contrastive":  # the cosine of two texts is of all their tokens
        head = replace(head, pool="mean", pooler="none")
    changes: dict[str, Any] = {name: getattr(settings, name) for name in ("dropout", "pool", "pooler", "read")}
    head = replace(head, **{name: value for name, value in changes.items() if value is not None})
    torch.manual_seed(settings.seed)
    if settings.mode == "scratch":
        return Model.build(config, head)
    model = base.with_config(config).with_head(head)
    if settings.mode == "contrastive":
        assert model.head is not None
        model.head.requires_grad_(False)  # it is fitted, not trained
    return model.freeze() if settings.mode == "frozen" else model
