"""A model in the form of another tool, kept only if it predicts as the original does.

    exported = export("runs/reviews", "reviews-onnx", "onnx-int8")
    exported.comparison.agreement      # 0.991: the share of valid texts with the same label as before

    onnx        model.onnx in float32, tokenizer.json, config.json: for onnxruntime and tokenizers, without torch
    onnx-int8   the same with int8 weights: a quarter of the size, and faster
    hf          a `transformers` folder
    lab         the lab's .pt file
    base        a headstart folder for others to start from, in bf16: the backbone and the tokenizer, and the
                language-model head where it is tied to the embedding and so costs next to nothing;
                from a run, pretraining.json has its scores

An export is compared with the original before it takes its name. In float32 no log-probability of a valid text may
differ by more than 1e-4; in int8 accuracy on valid may fall by a tolerance; `hf` and `lab` are read back, and every
tensor must be equal bit for bit; in a base, equal after rounding to bf16. An export that fails is refused, in
numbers, and nothing is left of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from headstart.checkpoints.exchange import open_model, write_transformers
from headstart.checkpoints.folder import WEIGHTS, Checkpoint, load, write_files
from headstart.checkpoints.lab import read_lab, write_lab
from headstart.config import (
    CausalMaskedConfig,
    ClassifierConfig,
    MaskedConfig,
    MaskedNextSentenceConfig,
    NextTokenConfig,
)
from headstart.errors import ConfigError, DataError, ModelError, OutputError
from headstart.files import new_file, new_folder, write_json
from headstart.metrics import Floats
from headstart.model.model import Model
from headstart.reading.examples import Example, Examples, Text, read_examples
from headstart.runs.predictions import read_scored
from headstart.runs.run import PREDICTIONS, RunFolder
from headstart.use.classifier import TextClassifier
from headstart.use.onnx import MODEL, OnnxClassifier, require_onnx, write_onnx

Form = Literal["onnx", "onnx-int8", "hf", "lab", "base"]
PRETRAINING = "pretraining.json"  # in a base that was exported from its run: the scores, steps, tokens and seconds
EXACT = 1e-4  # largest difference of a log-probability in float32, where sums are taken in another order
TIMED = 25  # texts that are predicted one at a time, to measure the latency


@dataclass(frozen=True)
class Measured:
    """Size, speed and accuracy of one form of the model."""

    size: int  # bytes of the weights
    accuracy: float
    milliseconds: float  # for one text, the median
    texts_per_second: float  # for all texts at once


@dataclass(frozen=True)
class Comparison:
    """The original and its export on the same valid texts."""

    texts: int
    original: Measured
    export: Measured
    agreement: float  # share of texts that get the same label from both
    difference: float  # the largest between two log-probabilities, before the temperature

    @property
    def lost(self) -> float:
        """By how much accuracy fell; negative where it rose."""
        return self.original.accuracy - self.export.accuracy


@dataclass(frozen=True)
class Exported:
    """What was written; `comparison` is None where there were no valid texts, and only tensors were compared."""

    form: Form
    what: str
    comparison: Comparison | None


def export(
    source: str | Path,
    out: str | Path,
    form: Form,
    *,
    valid: str | Path | Examples | None = None,
    tolerance: float = 0.01,
    log: Callable[[str], None] = lambda text: None,
) -> Exported:
    """Write the model of a run folder or a model folder to `out`, or raise `ModelError` and leave nothing there.

    Valid texts are those of the run, or `valid`; ONNX needs them, the other forms use them if there are any.
    `tolerance` is how far accuracy may fall in int8: 0.01 is one point.
    """
    if not 0 <= tolerance < 1:
        raise ConfigError("export", [f"tolerance is {tolerance}, and must be from 0 to below 1: 0.01 is one point"])
    checkpoint, out = open_model(source), Path(out)
    if form == "base":
        return _to_base(checkpoint, source, out)
    is_onnx = form in ("onnx", "onnx-int8")
    if is_onnx:
        require_onnx()
    reference = None
    if is_onnx or (isinstance(checkpoint.model.head_config, ClassifierConfig) and checkpoint.tokenizer is not None):
        classifier = TextClassifier(checkpoint, "cpu", where=str(source))
        examples = _valid_texts(source, valid, log)
        reference = None if examples is None else _Reference(classifier, examples)
    if not is_onnx:
        return _to_hf(checkpoint, out, reference) if form == "hf" else _to_lab(checkpoint, out, reference)
    if reference is None:
        raise DataError(
            source,
            "holds no valid texts to compare the export with",
            fix="give a run folder, which has them in predictions.parquet, or labelled texts with --valid FILE",
        )
    return _to_onnx(reference, out, form, tolerance)


def _to_onnx(reference: _Reference, out: Path, form: Form, tolerance: float) -> Exported:
    int8 = form == "onnx-int8"
    with new_folder(out) as unfinished:
        write_onnx(reference.classifier, unfinished, int8=int8)
        comparison = reference.compare(OnnxClassifier.load(unfinished), (unfinished / MODEL).stat().st_size)
        _check_accuracy(comparison, tolerance) if int8 else _check_equal(comparison)
    return Exported(form, f"{'int8' if int8 else 'float32'} ONNX with its tokenizer, for onnxruntime", comparison)


def _to_hf(checkpoint: Checkpoint, out: Path, reference: _Reference | None) -> Exported:
    with new_folder(out) as unfinished:
        family = write_transformers(checkpoint, unfinished)
        read_back = open_model(unfinished)
        comparison = _check_read_back(checkpoint, read_back, reference, (unfinished / WEIGHTS).stat().st_size)
    return Exported("hf", f"{family.architecture(checkpoint.model.head_config)}, for transformers", comparison)


def _to_lab(checkpoint: Checkpoint, out: Path, reference: _Reference | None) -> Exported:
    if out.exists():
        raise OutputError(f"{out} exists: name another file, or remove this one")
    with new_file(out) as unfinished:
        write_lab(checkpoint.model, unfinished)
        weights = read_lab(unfinished, heads=checkpoint.model.config.heads).model
        read_back = replace(checkpoint, model=weights)  # the lab's file has nothing but weights
        comparison = _check_read_back(checkpoint, read_back, reference, unfinished.stat().st_size)
    return Exported("lab", "a state dict for the lab's classes", comparison)


def _to_base(checkpoint: Checkpoint, source: str | Path, out: Path) -> Exported:
    if checkpoint.tokenizer is None:
        raise ModelError(f"{source} has no tokenizer, and nobody can start from weights alone: export a run folder")
    model = checkpoint.model
    head = model.head_config
    kinds = NextTokenConfig | MaskedConfig | CausalMaskedConfig | MaskedNextSentenceConfig
    if not (model.config.tied and isinstance(head, kinds)):
        model = model.with_head(None)
    base = Checkpoint(model, tokenizer=checkpoint.tokenizer)
    with new_folder(out) as unfinished:
        write_files(base, unfinished, dtype=torch.bfloat16)
        run = RunFolder(source)
        if run.done and run.settings().get("study") == "pretrain":
            write_json(unfinished / PRETRAINING, {**run.result_json(), "seconds": run.manifest().seconds})
        _check_tensors(base.model, load(unfinished).model, rounded=torch.bfloat16)
    parameters = sum(p.numel() for p in model.parameters())
    kept = "without a head" if model.head_config is None else f"with its {model.head_config.kind} head"
    left_out = ""
    if model.head_config is None and head is not None:
        reasons = {"classifier": "a new one is trained on labels", "replaced": "it is of use in pretraining alone"}
        why = reasons.get(head.kind, "it is not tied")
        left_out = f" (the {head.kind} head was left out: {why})"
    what = f"a {model.config.family} base of {parameters:,} parameters, {kept}{left_out}"
    return Exported("base", what, None)


# --- comparing ------------------------------------------------------------------------------------------------------


class _Reference:
    """The original's predictions on valid texts, which its export is compared with."""

    def __init__(self, classifier: TextClassifier, examples: Examples) -> None:
        self.classifier = classifier
        self.texts: list[Text] = [row.text if row.second is None else (row.text, row.second) for row in examples.rows]
        self.labels = classifier.encode_examples(examples).labels
        size = sum(tensor.numel() * tensor.element_size() for tensor in classifier.model.state_dict().values())
        self.predicted, self.measured = self._measure(classifier, size)

    def compare(self, exported: TextClassifier | OnnxClassifier, size: int) -> Comparison:
        predicted, measured = self._measure(exported, size)
        return Comparison(
            len(self.texts),
            self.measured,
            measured,
            float((predicted.argmax(1) == self.predicted.argmax(1)).mean()),
            float(np.abs(predicted - self.predicted).max()),
        )

    def _measure(self, model: TextClassifier | OnnxClassifier, size: int) -> tuple[Floats, Measured]:
        """(n, C) log-probabilities of the texts, and the cost."""
        sample = np.linspace(0, len(self.texts) - 1, min(TIMED, len(self.texts))).astype(int)
        model.logits(self.texts[:1])  # the first call of any runtime is slow
        latencies = [_timed(model, [self.texts[i]])[1] for i in sample]
        predicted, seconds = _timed(model, self.texts)
        accuracy = float((predicted.argmax(1) == self.labels).mean())
        milliseconds = float(np.median(latencies)) * 1000
        return predicted, Measured(size, accuracy, milliseconds, len(self.texts) / seconds)


def _timed(model: TextClassifier | OnnxClassifier, texts: Sequence[Text]) -> tuple[Floats, float]:
    began = time.perf_counter()
    return model.logits(texts), time.perf_counter() - began


def _check_read_back(
    original: Checkpoint, read_back: Checkpoint, reference: _Reference | None, size: int
) -> Comparison | None:
    """Raise unless what was written is the same model: every tensor, and the predictions where they can be compared."""
    _check_tensors(original.model, read_back.model)
    if reference is None:
        return None
    comparison = reference.compare(TextClassifier(read_back, "cpu"), size)
    _check_equal(comparison)
    return comparison


def _check_equal(comparison: Comparison) -> None:
    if not comparison.difference <= EXACT:  # NaN is refused too
        raise ModelError(
            f"the export was refused: on {comparison.texts:,} valid texts its log-probabilities differ from the "
            f"original's by up to {comparison.difference:.1e}, and {EXACT:.0e} is allowed; nothing was left behind. "
            "Try another version of onnxruntime and torch, or use the model as it is"
        )


def _check_accuracy(comparison: Comparison, tolerance: float) -> None:
    if np.isnan(comparison.difference) or comparison.lost > tolerance + 1e-9:
        raise ModelError(
            f"the export was refused: on {comparison.texts:,} valid texts its accuracy is "
            f"{comparison.export.accuracy:.4f} and the original's {comparison.original.accuracy:.4f}, "
            f"{comparison.lost:.4f} lower, and {tolerance:.4f} is allowed; they agree on {comparison.agreement:.1%} of "
            "the texts; nothing was left behind. Allow more with --tolerance, or export --to onnx, which keeps float32"
        )


def _check_tensors(before: Model, after: Model, rounded: torch.dtype = torch.float32) -> None:
    """Raise unless every tensor is equal bit for bit, after rounding the original."""
    read_back = after.state_dict()
    for name, tensor in before.state_dict().items():
        if name not in read_back or not tensor.to(rounded).float().equal(read_back[name]):
            raise ModelError(
                f"the export was refused: read back, the tensor {name!r} is not what was written; nothing was left "
                "behind. Is the disk sound?"
            )


def _valid_texts(
    source: str | Path, valid: str | Path | Examples | None, log: Callable[[str], None]
) -> Examples | None:
    """The given labelled texts, or those of the run's valid set; None where there are none."""
    if valid is not None:
        examples = valid if isinstance(valid, Examples) else read_examples(valid)
        for line in examples.notes:
            log(line)
        return examples
    path = Path(source) / PREDICTIONS
    if not path.is_file():
        return None
    try:
        scored = read_scored(path, "valid")
    except DataError as error:
        raise DataError(path, error.problem, fix="give --valid FILE") from None
    rows = tuple(Example(row.text, row.label, row.second, str(path), row.line) for row in scored)
    return Examples(rows) if rows else None
