"""Fine-tuning: a pretrained backbone under a new head, on labelled texts; or the same architecture from scratch.

full          everything trains
frozen        the backbone is fixed, its features are computed once, the head trains; or it is a linear probe
scratch       fresh weights throughout: what the pretraining is to be compared with
contrastive   the backbone learns which texts are of one class; then logistic regression on its vectors is the head
"""

from __future__ import annotations

import copy
import math
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headstart.bases import note_local
from headstart.batches.batch import pick_window
from headstart.batches.examples import EncodedExamples, EncodingCache, ExampleBatches
from headstart.checkpoints.folder import Checkpoint
from headstart.errors import ConfigError
from headstart.files import write_text
from headstart.metrics import Floats, Scores, fit_temperature, score
from headstart.model.model import Model
from headstart.parallel import SINGLE, Parallel
from headstart.reading.examples import Examples
from headstart.runs.events import OnEvent
from headstart.runs.predictions import Predictions
from headstart.runs.run import RunFolder
from headstart.studies.classifier import Data, build_classifier, draw_train, load_data, open_base
from headstart.studies.distillation import check_teachers, student_settings, teach
from headstart.studies.fingerprints import split_fingerprints
from headstart.studies.probe import fit_head, fit_probe
from headstart.studies.settings import FinetuneSettings
from headstart.studies.splits import read_splits
from headstart.studies.unlabelled import not_in, unlabelled_texts
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.training.driver import Run, count_parameters, open_run, training_manifest, training_result
from headstart.training.hardware import pick_device, pick_precision
from headstart.training.inference import classify, frozen_features
from headstart.training.loop import Loop
from headstart.training.objectives import Classification, Contrastive, Distillation, FrozenClassification, Objective

STAGES = "self-training"  # in the folder of a run with unlabelled texts or teachers, while it is in progress


@dataclass(frozen=True)
class Ended:
    """A classifier at the end of its training, and what is to be written of it."""

    model: Model
    predicted: dict[str, Floats]  # (I, C) log-probabilities of valid, and of test where there is one
    result: dict[str, Any]
    manifest: dict[str, Any]


def finetune(
    settings: FinetuneSettings,
    out: str | Path,
    *,
    splits: Mapping[str, Examples] | None = None,
    unlabelled: Examples | None = None,
    teachers_answers: Path | None = None,
    encode: EncodingCache | None = None,
    base: Checkpoint | None = None,
    resume: bool = False,
    keep_model: bool = True,
    on_event: OnEvent | None = None,
    log: Callable[[str], None] = lambda text: None,
    parallel: Parallel = SINGLE,
) -> dict[str, Any]:
    """Run it, write the run folder (with the weights, if `keep_model`), and return what `result.json` holds.

    `splits` and `unlabelled` are the texts and `base` is what `open_base` gives, where they are read already; none of
    them is changed. Runs of a study share `encode`, which knows texts that were encoded before, and the folder
    `teachers_answers`; their teachers are checked already.
    """
    device = pick_device(settings.device, parallel)
    if settings.mode == "contrastive" and parallel.world_size > 1:
        problem = f"mode contrastive compares all texts of a batch: it takes one process, and not {parallel.world_size}"
        raise ConfigError("finetune", [problem])
    if base is None:
        note_local(settings.init, log)
        base = open_base(settings.init, settings.tokenizer, settings.mode)
    else:
        base = replace(base, model=copy.deepcopy(base.model))
    assert base.tokenizer is not None
    training, held_out = settings, None
    if settings.refit and not settings.is_probe:
        splits = read_splits(settings, log) if splits is None else splits
        held_out = _train_without_valid(settings, Path(out), splits, base, on_event, log, parallel)
        training = replace(settings, weights="last", epochs=_best_epoch(settings, held_out))
        splits = {**splits, "train": Examples((*splits["train"].rows, *splits["valid"].rows))}
    if settings.unlabelled is not None and unlabelled is None:
        splits = read_splits(settings, log) if splits is None else splits
        unlabelled = unlabelled_texts(settings, splits, log)
    if settings.teacher and teachers_answers is None:
        splits = read_splits(settings, log) if splits is None else splits
        check_teachers(settings.teacher, {**splits, "train": draw_train(splits["train"], settings)}, log)
    window = pick_window(settings.window, base.model.config)
    data = load_data(settings, base.tokenizer, window, log, splits, encode)
    parallel.require_same("data", str(data.fingerprint()))
    with open_run(out, "finetune", settings.to_mapping(), resume=resume, parallel=parallel) as run:
        if run.done:
            log(f"{run.path} is done already")
            return run.result_json()
        log(f"run folder: {run.path}")
        # A frozen backbone runs once: bf16 would save no time, and its features may differ by little.
        precision = pick_precision(settings, device, log, exact=settings.mode == "frozen")
        stage_log = run.stage_log(log)
        if settings.teacher:
            shared = teachers_answers or run.path / STAGES
            ended = _distil(run, data, unlabelled, settings, base, device, precision, shared, on_event, stage_log)
        elif unlabelled is not None:
            ended = _self_train(run, data, unlabelled, settings, base, precision, on_event, stage_log)
        else:
            model = build_classifier(base.model, settings, len(data.class_names)).to(device)
            ended = (
                _fit_probe(run, model, data, settings, log)
                if settings.is_probe
                else _train(run, model, data, training, precision, base.tokenizer, on_event, log, held_out)
            )
        if held_out is not None:
            ended = _with_held_out(ended, held_out, data)
        result, predictions = _result(settings, data, ended)
        if held_out is not None:
            result["rows"]["train"] -= result["rows"]["valid"]  # which it was trained on as well
        manifest = {"data": data.fingerprint(), "tokenizer": base.tokenizer.fingerprint, **ended.manifest}
        if settings.prediction_files and parallel.is_main:
            _write_prediction_files(run.path, predictions)
        checkpoint = Checkpoint(ended.model.cpu(), data.class_names, base.tokenizer, result["temperature"])
        run.finish(checkpoint if keep_model else None, result, manifest, predictions)
        if (settings.teacher or unlabelled is not None) and parallel.is_main:
            shutil.rmtree(run.path / STAGES, ignore_errors=True)
        return result


def _distil(
    run: Run,
    data: Data,
    unlabelled: Examples | None,
    settings: FinetuneSettings,
    base: Checkpoint,
    device: torch.device,
    precision: torch.dtype,
    teachers_answers: Path,
    on_event: OnEvent | None,
    log: Callable[[str], None],
) -> Ended:
    """Train a student on what its teachers answer; test and valid are as in every run."""
    assert base.tokenizer is not None
    train = data.examples["train"]
    more = None if unlabelled is None else not_in(unlabelled, train)
    lesson = teach(
        settings, data.examples, more, data.class_names, device, precision, run.parallel, teachers_answers, log
    )
    window = pick_window(settings.window, base.model.config)
    encoded = EncodedExamples.of(lesson.examples, base.tokenizer, data.class_names, window)
    student_data = replace(data, encoded={**data.encoded, "train": encoded})
    rows = len(lesson.examples.rows)
    ended = _train(
        run,
        build_classifier(base.model, settings, len(data.class_names)).to(device),
        student_data,
        student_settings(settings, len(train.rows), rows),
        precision,
        base.tokenizer,
        on_event,
        log,
        targets=torch.from_numpy(lesson.targets).float().to(device),
    )
    about = {"teachers": lesson.teachers, "texts": rows - len(train.rows)}
    prints = {} if unlabelled is None else split_fingerprints({"unlabelled": unlabelled})
    return replace(
        ended,
        result={**ended.result, "distillation": about},
        manifest={**ended.manifest, "data": {**data.fingerprint(), **prints}},
    )


def _self_train(run: Run, *arguments: Any) -> Ended:
    from headstart.studies.self_training import self_train  # which trains by `finetune`

    return self_train(run, *arguments)


def _train_without_valid(
    settings: FinetuneSettings,
    out: Path,
    splits: Mapping[str, Examples],
    base: Checkpoint,
    on_event: OnEvent | None,
    log: Callable[[str], None],
    parallel: Parallel,
) -> RunFolder:
    """The run before a refit, on train alone: it says for how many epochs, and what the model knows of valid."""
    folder = out.parent / ".without-valid" / out.name
    parts = {name: splits[name] for name in ("train", "valid")}
    alone = replace(settings, refit=None)
    finetune(
        alone, folder, splits=parts, base=base, resume=True, keep_model=False, on_event=on_event, log=log,
        parallel=parallel,
    )  # fmt: skip
    return RunFolder(folder)


def _best_epoch(settings: FinetuneSettings, run: RunFolder) -> int:
    best = run.result_json()["best"] if settings.weights == "best" else None
    return settings.epochs if best is None else max(1, math.ceil(best["epoch"]))


def _with_held_out(ended: Ended, run: RunFolder, data: Data) -> Ended:
    """What is said of valid is what the run before the refit said, which did not learn from it."""
    valid = run.predictions(data.class_names).split("valid")
    predicted = {**ended.predicted, "valid": np.log(np.maximum(valid.probabilities.astype(np.float64), 1e-12))}
    temperature = run.result_json()["temperature"]
    return replace(ended, predicted=predicted, result={**ended.result, "temperature": temperature})


def _train(
    run: Run,
    model: Model,
    data: Data,
    settings: FinetuneSettings,
    precision: torch.dtype,
    tokenizer: Tokenizer,
    on_event: OnEvent | None,
    log: Callable[[str], None],
    held_out: RunFolder | None = None,
    targets: torch.Tensor | None = None,
) -> Ended:
    """Train by steps: everything, the head on the features of a frozen backbone, or the backbone without its head,
    which is then fitted to it. `held_out` is the run before a refit, `targets` (rows, C) are what teachers answered.
    """
    frozen, parallel = settings.mode == "frozen", run.parallel
    features = {
        name: frozen_features(model, data.encoded[name], precision, parallel) for name in ("train", "valid") if frozen
    }
    chosen_before: float | None = None if held_out is None else held_out.result_json().get("strength")
    strength: float | None = None

    def predict_valid(model: Model) -> Floats:
        nonlocal strength
        if settings.mode == "contrastive":
            balanced = settings.balanced
            strength = fit_head(model, data.encoded, precision, balanced=balanced, strength=chosen_before)
        return classify(model, data.encoded["valid"], precision, features.get("valid"), parallel=parallel)

    evaluated: dict[int, Floats] = {}  # what was last predicted for valid, by step

    def validate(model: Model) -> Scores:
        evaluated.clear()
        evaluated[loop.step] = predict_valid(model)
        return score(evaluated[loop.step], data.encoded["valid"].labels)

    objective, batches = _objective(settings, data, features, targets), _batches(settings, data, tokenizer)
    loop = Loop(model, objective, batches, settings, validate, "accuracy", precision, parallel)
    run.train(loop, on_event=on_event, log=log)
    model = loop.parallel_model.unwrapped()
    best = loop.early_stopping.best if settings.weights == "best" else None
    valid = None if best is None else evaluated.get(best.step)
    if valid is None:  # the weights that are kept were not the last to be scored
        valid = predict_valid(model)
    result = {"epochs": settings.epochs if settings.steps is None else None, **training_result(loop)}
    result |= {} if strength is None else {"strength": strength}  # of the regression that is the head
    result["temperature"] = fit_temperature(valid, data.encoded["valid"].labels)
    predicted, result["cost"] = predict_test(model, data, precision, parallel)
    return Ended(model, {"valid": valid, **predicted}, result, training_manifest(loop, model, precision, frozen=frozen))


def _fit_probe(run: Run, model: Model, data: Data, settings: FinetuneSettings, log: Callable[[str], None]) -> Ended:
    """Fit logistic regression on the vectors of the backbone."""
    probe = fit_probe(model, data.examples, data.encoded, len(data.class_names), settings, log, run.parallel)
    result = {"steps": None, "temperature": probe.temperature, "tuning": probe.tuning.to_json()}
    predicted, result["cost"] = predict_test(probe.model, data, torch.float32, run.parallel)
    tokens = sum(len(data.encoded[name].ids) for name in ("train", "valid"))
    layers = sum(p.numel() for p in probe.model.backbone.layers.parameters())
    manifest = {
        "parameters": count_parameters(probe.model),
        "tokens": tokens,
        "flops": 2.0 * tokens * layers,  # the forward pass alone
        "precision": "float32",
    }
    return Ended(probe.model, {"valid": probe.valid, **predicted}, result, manifest)


def predict_test(
    model: Model, data: Data, precision: torch.dtype, parallel: Parallel
) -> tuple[dict[str, Floats], dict[str, Any]]:
    """Test is read this once, by the whole model; and what it takes to classify a text, from its words to its label."""
    cost: dict[str, Any] = {"predict_seconds": None, "bytes": 4 * sum(p.numel() for p in model.parameters())}
    if "test" not in data.encoded:
        return {}, cost
    began = time.perf_counter()
    predicted = classify(model, data.encoded["test"], precision, parallel=parallel)
    cost["predict_seconds"] = (time.perf_counter() - began + data.encoding_seconds["test"]) / len(predicted)
    return {"test": predicted}, cost


def _objective(
    settings: FinetuneSettings, data: Data, features: Mapping[str, torch.Tensor], targets: torch.Tensor | None
) -> Objective:
    if targets is not None:
        return Distillation(targets=targets)
    weights = None
    if settings.balanced:
        counts = np.bincount(data.encoded["train"].labels, minlength=len(data.class_names))
        weights = [float(weight) for weight in counts.sum() / (len(counts) * counts)]
    if settings.mode == "frozen":
        return FrozenClassification(weights, settings.smoothing, features["train"])
    if settings.mode == "contrastive":
        return Contrastive()
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
        class_pairs=settings.mode == "contrastive",
    )


def _result(settings: FinetuneSettings, data: Data, ended: Ended) -> tuple[dict[str, Any], Predictions]:
    """What result.json and predictions.parquet hold."""
    result: dict[str, Any] = {
        "valid": None,
        "test": None,
        **{name: score(rows, data.encoded[name].labels) for name, rows in ended.predicted.items()},
        "mode": settings.mode,
        "weights": "fresh" if settings.mode == "scratch" else f"from {settings.init}",
        "labels": list(data.class_names),
        "rows": {name: len(part) for name, part in data.encoded.items()},
        **ended.result,
    }
    rows = {name: part.rows for name, part in data.examples.items()}
    return result, Predictions.of(data.class_names, rows, ended.predicted)


def _write_prediction_files(folder: Path, predictions: Predictions) -> None:
    """`label ||| text`, a file for each split, as minBERT hands them in."""
    for name in ("valid", "test"):
        part = predictions.split(name)
        predicted = (part.class_names[k] for k in part.probabilities.argmax(1))
        lines = (f"{label} ||| {text}\n" for label, text in zip(predicted, part.texts, strict=True))
        if len(part):
            write_text(folder / f"{name}-predictions.txt", "".join(lines))
