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
from headstart.batches.encoding import EncodedExamples
from headstart.batches.examples import ExampleBatches
from headstart.checkpoints.exchange import open_model
from headstart.checkpoints.folder import Checkpoint
from headstart.config import ClassifierConfig
from headstart.errors import ConfigError, ModelError
from headstart.files import new_file
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
from headstart.training.driver import open_run
from headstart.training.hardware import Precision, pick_device, pick_precision
from headstart.training.inference import classify, frozen_features
from headstart.training.loop import Loop
from headstart.training.objectives import Classification, FrozenClassification


@dataclass(frozen=True)
class Data:
    """The splits as texts and as ids, with the label table that the training set gives."""

    examples: dict[str, Examples]
    encoded: dict[str, EncodedExamples]
    labels: tuple[str, ...]

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
    """Run it, write the run folder (without the weights, if they are not to be kept), return what `result.json` has.

    `splits` are the texts, where whoever asks has read them already.
    """
    device = pick_device(settings.device, parallel)
    base = open_base(settings)
    window = pick_window(settings.window, base.model.config)
    assert base.tokenizer is not None
    data = load_data(settings, base.tokenizer, window, log, splits)
    parallel.require_same("data", str(data.fingerprint()))
    with open_run(out, "finetune", settings.to_mapping(), resume=resume, parallel=parallel) as run:
        if run.done:
            log(f"{run.path} is done already")
            return run.result_json()
        # A frozen backbone runs once: there is no time to win, and what its features differ in may be small.
        precision = pick_precision(settings, device, log, exact=settings.mode == "frozen")
        model = build_classifier(base.model, settings, len(data.labels)).to(device)
        features = _features(model, data, precision, parallel) if settings.mode == "frozen" else {}
        weights = _class_weights(data) if settings.balanced else None
        objective = (
            FrozenClassification(weights, settings.smoothing, features["train"])
            if settings.mode == "frozen"
            else Classification(weights, settings.smoothing)
        )

        def validate(model: Model) -> Scores:
            valid = data.encoded["valid"]
            return score(classify(model, valid, precision, features.get("valid"), parallel=parallel), valid.labels)

        batches = ExampleBatches(
            data.encoded["train"],
            settings.seed,
            settings.batch_size,
            settings.tokens,
            # What a frozen backbone makes of a text was computed before, of the whole of it.
            token_dropout=0.0 if settings.mode == "frozen" else settings.token_dropout,
            never_dropped=base.tokenizer.wrapping_tokens,
        )
        loop = Loop(model, objective, batches, settings, validate, "accuracy", precision, parallel)
        run.train(loop, on_event=on_event, log=log)
        model = loop.parallel_model.unwrapped()
        result, manifest, predicted = _scores(settings, model, data, precision, features, loop)
        manifest["tokenizer"] = base.tokenizer.fingerprint
        if settings.prediction_files and parallel.is_main:
            _write_predictions(run.path, data, predicted)
        checkpoint = Checkpoint(model.cpu(), data.labels, base.tokenizer, result["temperature"]) if keep_model else None
        texts = {name: part.rows for name, part in data.examples.items()}
        run.finish(checkpoint, result, manifest, Predictions.of(data.labels, texts, predicted))
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
    labels = examples["train"].class_names
    if settings.labels is not None:
        examples["train"] = draw_budget(examples["train"], settings.labels, settings.seed)
    encoded = {name: EncodedExamples.of(examples[name], tokenizer, labels, window) for name in examples}
    for name, part in encoded.items():
        if part.truncated:
            log(f"{name}: {part.truncated} of {len(part)} texts are longer than {window} tokens and were cut")
    return Data(examples, encoded, labels)


def build_classifier(base: Model, settings: FinetuneSettings, classes: int) -> Model:
    """The base under a classifier head, or its architecture with fresh weights; the seed decides what is drawn."""
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
    found = open_model(settings.init)
    tokenizer = own or found.tokenizer
    if tokenizer is None:
        raise ConfigError("finetune", [f"{settings.init} has no tokenizer of its own: add --tokenizer"])
    if tokenizer.size > found.model.config.vocabulary:
        raise ModelError(
            f"the tokenizer has {tokenizer.size} pieces and the model a vocabulary of {found.model.config.vocabulary}: "
            "they are not of one another"
        )
    return Checkpoint(found.model, tokenizer=tokenizer)


def _features(model: Model, data: Data, precision: Precision, parallel: Parallel) -> dict[str, torch.Tensor]:
    return {name: frozen_features(model, part, precision, parallel) for name, part in data.encoded.items()}


def _class_weights(data: Data) -> list[float]:
    counts = np.bincount(data.encoded["train"].labels, minlength=len(data.labels))
    return [float(w) for w in counts.sum() / (len(counts) * counts)]


def _digest(part: EncodedExamples) -> str:
    digest = hashlib.sha256()
    for array in (part.ids, part.starts, part.labels):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _scores(
    settings: FinetuneSettings,
    model: Model,
    data: Data,
    precision: Precision,
    features: Mapping[str, torch.Tensor],
    loop: Loop,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Floats]]:
    """What was trained, scored on valid and, this once, on test: the result, the manifest and every row's answer."""
    result: dict[str, Any] = {"valid": None, "test": None}
    best = loop.early_stopping.best
    predicted: dict[str, Floats] = {}
    for name in ("valid", "test"):
        if name in data.encoded:
            predicted[name] = classify(model, data.encoded[name], precision, features.get(name), parallel=loop.parallel)
            result[name] = score(predicted[name], data.encoded[name].labels)
    result |= {
        "temperature": fit_temperature(predicted["valid"], data.encoded["valid"].labels),
        "mode": settings.mode,
        "weights": "fresh" if settings.mode == "scratch" else f"from {settings.init}",
        "labels": list(data.labels),
        "rows": {name: len(part) for name, part in data.encoded.items()},
        "epochs": settings.epochs if settings.steps is None else None,
        "steps": loop.step,
        "best": None if best is None else {"epoch": best.epoch, "step": best.step},
    }
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    manifest = {
        "data": data.fingerprint(),
        "parameters": {"total": sum(p.numel() for p in model.parameters()), "trainable": trainable},
        "tokens": loop.tokens,
        "flops": _flops(model, loop.tokens, settings.mode == "frozen"),
        "precision": "float32" if precision.dtype is None else "bf16",
    }
    return result, manifest, predicted


def _write_predictions(folder: Path, data: Data, predicted: Mapping[str, Floats]) -> None:
    """`label ||| text`, a file for each split, as minBERT hands them in."""
    for name, rows in predicted.items():
        with new_file(folder / f"{name}-predictions.txt") as unfinished:
            lines = (
                f"{data.labels[best]} ||| {example.text}\n"
                for best, example in zip(rows.argmax(1), data.examples[name].rows, strict=True)
            )
            unfinished.write_text("".join(lines), encoding="utf-8")


def _flops(model: Model, tokens: int, frozen: bool) -> float:
    """6 for each token and parameter of the layers; 0 once a frozen backbone's features are kept."""
    return 0.0 if frozen else 6.0 * tokens * sum(p.numel() for p in model.backbone.layers.parameters())
