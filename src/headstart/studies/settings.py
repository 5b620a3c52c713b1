"""The settings of each study: what the command line offers and a recipe may hold. Nothing here knows torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headstart.config import Pool
from headstart.training.settings import Schedule, TrainingSettings, setting


@dataclass(frozen=True)
class FinetuneSettings(TrainingSettings):
    """What fine-tuning takes beside what every training takes."""

    data: str = setting("", "Labelled texts to train on: csv, tsv, jsonl, parquet, `label ||| text`, or a folder.")
    valid: str | None = setting(None, "Labelled texts to choose on; by default a tenth of the training data.")
    test: str | None = setting(None, "Labelled texts that are scored once, at the end.")
    init: str = setting("", "A model folder to start from; or a preset, with --mode scratch and a tokenizer.")
    tokenizer: str | None = setting(None, "A tokenizer folder, where the model has none of its own.")
    mode: Literal["full", "frozen", "scratch"] = setting("full", "Train everything, the head alone, or from scratch.")
    text: str | None = setting(None, "Name of the column with the text.")
    second: str | None = setting(None, "Name of the column with the second text of a pair.")
    label: str | None = setting(None, "Name of the column with the label.")
    window: int | None = setting(None, "Longest text in tokens; by default what the model can take.", least=1)
    pool: Pool | None = setting(None, "Which token's vector stands for the text; by default as the family does it.")
    pooler: Literal["none", "backbone", "tanh", "relu"] | None = setting(
        None, "What the vector passes through before the last layer; by default as the family does it."
    )
    dropout: float = setting(0.1, "Dropout before the last layer.", least=0, below=1)
    backbone_dropout: float | None = setting(None, "Dropout in the backbone; by default as it was.", least=0, below=1)
    smoothing: float = setting(0.0, "Label smoothing.", least=0, below=1)
    balanced: bool = setting(False, "Weigh each class by the inverse of its share.")
    tokens: int | None = setting(None, "Tokens a step, instead of --batch-size texts.", least=1)
    prediction_files: bool = setting(False, "Write `label ||| text` files of the predictions too.")
    lr: float = setting(1e-5, "Peak learning rate.", above=0)

    @classmethod
    def rules(cls, value: Mapping[str, Any], well: Callable[..., bool]) -> Iterator[str]:
        yield from super().rules(value, well)
        if not value.get("data"):
            yield "data is missing: name the file to train on with --data"
        if not value.get("init"):
            yield "init is missing: name a model folder, or a preset for --mode scratch, with --init"


@dataclass(frozen=True)
class PretrainSettings(TrainingSettings):
    """What pretraining takes beside what every training takes."""

    store: str = setting("", "The token store to train on, as `headstart tokens` writes it.")
    objective: Literal["causal", "masked", "masked+next-sentence"] = setting(
        "causal", "What the model learns from text."
    )
    model: str | None = setting(None, "A preset to begin with fresh weights, such as lab or small.")
    init: str | None = setting(None, "A model folder to go on from instead, with its weights.")
    change: tuple[str, ...] = setting(
        (), "A setting of the preset to change, as width=128; may be given several times."
    )
    tokenizer: str | None = setting(None, "The tokenizer folder; by default the one in the store or the model folder.")
    window: int | None = setting(None, "Tokens a sequence; by default what the model can take.", least=2)
    across: bool = setting(False, "Causal: let a sequence reach over the edge of a document into the next.")
    mask_rate: float = setting(0.15, "Masked: share of the tokens to hide.", above=0, below=1)
    whole_words: bool = setting(False, "Masked: hide words as a whole.")
    epochs: int = setting(1, "Passes over the training data.", least=1)
    batch_size: int = setting(32, "Sequences a step.", least=1)
    lr: float = setting(1e-3, "Peak learning rate.", above=0)
    schedule: Schedule = setting("cosine", "How the learning rate falls after the warm-up.")
    warmup: float = setting(0.02, "Share of the steps in which the learning rate rises.", least=0, below=1)
    beta2: float = setting(0.98, "Decay of the mean of squared gradients.", least=0, below=1)
    weights: Literal["best", "last"] = setting("last", "Which weights to keep: the best on valid, or the last.")

    @classmethod
    def rules(cls, value: Mapping[str, Any], well: Callable[..., bool]) -> Iterator[str]:
        yield from super().rules(value, well)
        if not value.get("store"):
            yield "store is missing: name the token store with --store"
        if (value.get("model") is None) == (value.get("init") is None):
            yield "name a preset with --model for fresh weights, or a folder with --init to go on from: one of the two"
        if value.get("init") is not None and value.get("change"):
            yield "--change is for a preset; the sizes of a model that has weights are what they are"
