"""Fine-tuning: a pretrained backbone under a new head, on labelled texts; or the same architecture from scratch.

full      everything trains
frozen    the backbone is fixed, its features are computed once, the head trains
scratch   fresh weights throughout: what the pretraining is to be compared with
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headstart.batches.batch import pick_window
from headstart.batches.examples import EncodedExamples, ExampleBatches
from headstart.checkpoints.exchange import open_model
from headstart.checkpoints.folder import Checkpoint
from headstart.config import ClassifierConfig
from headstart.errors import ConfigError, ModelError
from headstart.files import write_text
from headstart.metrics import Floats, Scores, fit_temperature, score
from headstart.model.model import Model
from headstart.model.presets import PRESETS, usual_head
from headstart.parallel import SINGLE, Parallel
from headstart.reading.examples import Examples
from headstart.runs.events import OnEvent
from headstart.runs.predictions import Predictions
from headstart.studies.settings import FinetuneSettings
from headstart.studies.splits import draw_budget, read_splits
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.training.driver import open_run, training_manifest, training_result
from headstart.training.hardware import pick_device, pick_precision
from headstart.training.inference import classify, frozen_features
from headstart.training.loop import Loop
from headstart.training.objectives import Classification, FrozenClassification, Objective

Predict = Callable[[Model, str], Floats]  # (model, split) → (I, C) log-probabilities


@dataclass(frozen=True)
class Data:
    """The splits as texts and as ids, with the classes of the training set."""

    examples: dict[str, Examples]
    encoded: dict[str, EncodedExamples]
    class_names: tuple[str, ...]

    def fingerprint(self) -> dict[str, str]:
        """A digest of each split's ids and labels."""
        return {name: _digest(part) for name, part in self.encoded.items()}


def finetune(
    settings: FinetuneSettings,
    out: str | Path,
    *,
    splits: Mapping[str, Examples] | None = None,
    resume: bool = False,
    keep_model: bool = True,
    on_event: OnEvent | None = None,
    log: Callable[[str], None] = lambda text: None,
    parallel: Parallel = SINGLE,
) -> dict[str, Any]:
    """Run it, write the run folder (with the weights, if `keep_model`), and return what `result.json` holds.

    `splits` are the texts, where they are read already.
    """
    device = pick_device(settings.device, parallel)
    base = open_base(settings)
    assert base.tokenizer is not None
    data = load_data(settings, base.tokenizer, pick_window(settings.window, base.model.config), log, splits)
    parallel.require_same("data", str(data.fingerprint()))
    frozen = settings.mode == "frozen"
    with open_run(out, "finetune", settings.to_mapping(), resume=resume, parallel=parallel) as run:
        if run.done:
            log(f"{run.path} is done already")
            return run.result_json()
        log(f"run folder: {run.path}")
        # A frozen backbone runs once: bf16 would save no time, and its features may differ by little.
        precision = pick_precision(settings, device, log, exact=frozen)
        model = build_classifier(base.model, settings, len(data.class_names)).to(device)
        encoded = data.encoded.items()
        features = {name: frozen_features(model, part, precision, parallel) for name, part in encoded if frozen}

        def predict(model: Model, split: str) -> Floats:
            return classify(model, data.encoded[split], precision, features.get(split), parallel=parallel)

        def validate(model: Model) -> Scores:
            return score(predict(model, "valid"), data.encoded["valid"].labels)

        objective, batches = _objective(settings, data, features), _batches(settings, data, base.tokenizer)
        loop = Loop(model, objective, batches, settings, validate, "accuracy", precision, parallel)
        run.train(loop, on_event=on_event, log=log)
        model = loop.parallel_model.unwrapped()
        result, predictions = _score_splits(settings, model, data, predict)
        result |= training_result(loop)
        manifest = {"data": data.fingerprint(), "tokenizer": base.tokenizer.fingerprint}
        manifest |= training_manifest(loop, model, precision, frozen=frozen)
        if settings.prediction_files and parallel.is_main:
            _write_prediction_files(run.path, predictions)
        checkpoint = Checkpoint(model.cpu(), data.class_names, base.tokenizer, result["temperature"])
        run.finish(checkpoint if keep_model else None, result, manifest, predictions)
        return result


def load_data(
    settings: FinetuneSettings,
    tokenizer: Tokenizer,
    window: int,
    log: Callable[[str], None] = lambda text: None,
    splits: Mapping[str, Examples] | None = None,
) -> Data:
    """Read and encode the splits; every label is one that the training set has, whatever the budget."""
    examples = dict(read_splits(settings, log) if splits is None else splits)
    class_names = examples["train"].class_names
    if settings.labels is not None:
        examples["train"] = draw_budget(examples["train"], settings.labels, settings.seed)
    encoded = {name: EncodedExamples.of(examples[name], tokenizer, class_names, window) for name in examples}
    for name, part in encoded.items():
        if part.truncated:
            log(f"{name}: {part.truncated} of {len(part)} texts are longer than {window} tokens and were cut")
    return Data(examples, encoded, class_names)


def build_classifier(base: Model, settings: FinetuneSettings, classes: int) -> Model:
    """The base under a classifier head, or its architecture with fresh weights, both initialised by the seed."""
    config = base.config
    if settings.backbone_dropout is not None:
        config = replace(config, dropout=settings.backbone_dropout, attention_dropout=settings.backbone_dropout)
    head = usual_head(config, "classifier", classes)
    assert isinstance(head, ClassifierConfig)
    changes: dict[str, Any] = {name: getattr(settings, name) for name in ("dropout", "pool", "pooler", "read")}
    head = replace(head, **{name: value for name, value in changes.items() if value is not None})
    torch.manual_seed(settings.seed)
    if settings.mode == "scratch":
        return Model.build(config, head)
    if config != base.config:
        changed = Model.empty(config, base.head_config)
        changed.load_state_dict(base.state_dict(), assign=True)
        base = changed
    model = base.with_head(head)
    return model.freeze() if settings.mode == "frozen" else model


def open_base(settings: FinetuneSettings) -> Checkpoint:
    """The model to start from, with a tokenizer; a preset has an architecture and nothing else."""
    own = None if settings.tokenizer is None else Tokenizer.load(settings.tokenizer)
    if settings.init in PRESETS and not Path(settings.init).is_dir():
        if settings.mode != "scratch":
            raise ConfigError(
                "finetune",
                [f"init {settings.init!r} is a preset without weights: use --mode scratch, or a model folder"],
            )
        if own is None:
            raise ConfigError("finetune", [f"init {settings.init!r} is a preset without a tokenizer: add --tokenizer"])
        config = replace(PRESETS[settings.init], vocabulary=own.size)
        return Checkpoint(Model.empty(config), tokenizer=own)
    checkpoint = open_model(settings.init)
    tokenizer, vocabulary = own or checkpoint.tokenizer, checkpoint.model.config.vocabulary
    if tokenizer is None:
        raise ConfigError("finetune", [f"{settings.init} has no tokenizer of its own: add --tokenizer"])
    if tokenizer.size > vocabulary:
        raise ModelError(
            f"the tokenizer has {tokenizer.size} pieces and the model a vocabulary of {vocabulary}: "
            "they do not belong together"
        )
    return Checkpoint(checkpoint.model, tokenizer=tokenizer)


def _objective(settings: FinetuneSettings, data: Data, features: Mapping[str, torch.Tensor]) -> Objective:
    weights = None
    if settings.balanced:
        counts = np.bincount(data.encoded["train"].labels, minlength=len(data.class_names))
        weights = [float(weight) for weight in counts.sum() / (len(counts) * counts)]
    if settings.mode == "frozen":
        return FrozenClassification(weights, settings.smoothing, features["train"])
    return Classification(weights, settings.smoothing)


def _batches(settings: FinetuneSettings, data: Data, tokenizer: Tokenizer) -> ExampleBatches:
    return ExampleBatches(
        data.encoded["train"],
        settings.seed,
        settings.batch_size,
        settings.tokens,
        # The features of a frozen backbone are computed once, from whole texts.
        token_dropout=0.0 if settings.mode == "frozen" else settings.token_dropout,
        never_dropped=tokenizer.wrapping_tokens,
    )


def _digest(part: EncodedExamples) -> str:
    digest = hashlib.sha256()
    for array in (part.ids, part.starts, part.labels):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _score_splits(
    settings: FinetuneSettings, model: Model, data: Data, predict: Predict
) -> tuple[dict[str, Any], Predictions]:
    """The model scored on valid and, this once, on test."""
    predicted: dict[str, Floats] = {name: predict(model, name) for name in ("valid", "test") if name in data.encoded}
    result: dict[str, Any] = {
        "valid": None,
        "test": None,
        **{name: score(rows, data.encoded[name].labels) for name, rows in predicted.items()},
        "temperature": fit_temperature(predicted["valid"], data.encoded["valid"].labels),
        "mode": settings.mode,
        "weights": "fresh" if settings.mode == "scratch" else f"from {settings.init}",
        "labels": list(data.class_names),
        "rows": {name: len(part) for name, part in data.encoded.items()},
        "epochs": settings.epochs if settings.steps is None else None,
    }
    rows = {name: part.rows for name, part in data.examples.items()}
    return result, Predictions.of(data.class_names, rows, predicted)


def _write_prediction_files(folder: Path, predictions: Predictions) -> None:
    """`label ||| text`, a file for each split, as minBERT hands them in."""
    for name in ("valid", "test"):
        part = predictions.split(name)
        predicted = (part.class_names[k] for k in part.probabilities.argmax(1))
        lines = (f"{label} ||| {text}\n" for label, text in zip(predicted, part.texts, strict=True))
        if len(part):
            write_text(folder / f"{name}-predictions.txt", "".join(lines))
