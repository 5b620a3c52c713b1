"""A model for other tools: written in their form, and kept only if it answers as the original does.

    made = export("runs/reviews", "reviews-onnx", "onnx-int8")
    made.comparison.agreement          # 0.991: the share of valid texts with the same label as before

    onnx        model.onnx in float32, tokenizer.json, config.json: for onnxruntime and tokenizers, without torch
    onnx-int8   the same with weights in eight bits: a quarter of the size, and faster
    hf          a `transformers` folder
    lab         the lab's .pt file
    base        a headstart folder for others to start from: the backbone without its head, in bf16, and the tokenizer

An export is compared with the original before it takes its name. In float32 no log-probability of a valid text may
move by more than 1e-4; in int8 accuracy on valid may fall by a tolerance; `hf` and `lab` are read back, and every
tensor must be the same bits; in a base, the same rounded to bf16. One that fails is refused, in numbers, and leaves
nothing behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch

from headstart.batches.batch import Ints
from headstart.checkpoints.exchange import open_model, write_transformers
from headstart.checkpoints.folder import WEIGHTS, Checkpoint, load, write_files
from headstart.checkpoints.lab import read_lab, write_lab
from headstart.errors import ConfigError, DataError, ModelError, OutputError
from headstart.files import new_file, new_folder
from headstart.metrics import Floats
from headstart.model.model import Model
from headstart.reading.examples import Example, Examples, Text, read_examples
from headstart.runs.predictions import read_scored
from headstart.runs.run import PREDICTIONS
from headstart.use.classifier import TextClassifier
from headstart.use.onnx import MODEL, OnnxClassifier, need_onnx, write_onnx

Form = Literal["onnx", "onnx-int8", "hf", "lab", "base"]
EXACT = 1e-4  # how far a log-probability may move when the same sums are taken in another order
TIMED = 25  # texts that are answered one by one, for the time that one takes


@dataclass(frozen=True)
class Measured:
    """What one form of the model costs, and how often it is right on valid."""

    size: int  # of the weights, in bytes
    accuracy: float
    milliseconds: float  # for one text, the median
    texts_per_second: float  # for many


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
        """How much accuracy fell; below zero where it rose."""
        return self.original.accuracy - self.export.accuracy


@dataclass(frozen=True)
class Exported:
    """What was written; `comparison` is None where there were no valid texts, and tensors alone were compared."""

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

    Valid texts are those of the run, or `valid`, a file or what was read of it; ONNX needs them, the other forms use
    them if they are there. `tolerance` is how far accuracy may fall in int8: 0.01 is one point.
    """
    if not 0 <= tolerance < 1:
        raise ConfigError("export", [f"tolerance is {tolerance}, and must be from 0 to below 1: 0.01 is one point"])
    checkpoint = open_model(source)
    if form in ("onnx", "onnx-int8"):
        return _to_onnx(checkpoint, source, Path(out), form, valid, tolerance, log)
    if form == "base":
        return _to_base(checkpoint, source, Path(out))
    classifier = _classifier(checkpoint)
    examples = None if classifier is None else _valid_texts(source, valid, log)
    gate = None if classifier is None or examples is None else _Gate(classifier, examples)
    return _to_hf(checkpoint, Path(out), gate) if form == "hf" else _to_lab(checkpoint, Path(out), gate)


def _to_onnx(
    checkpoint: Checkpoint,
    source: str | Path,
    out: Path,
    form: Form,
    valid: str | Path | Examples | None,
    tolerance: float,
    log: Callable[[str], None],
) -> Exported:
    need_onnx()
    classifier = TextClassifier(checkpoint, "cpu", where=str(source))
    examples = _valid_texts(source, valid, log)
    if examples is None:
        raise DataError(
            source,
            "holds no valid texts to compare the export with",
            fix="give a run folder, which has them in predictions.parquet, or labelled texts with --valid FILE",
        )
    with new_folder(out) as unfinished:
        gate = _Gate(classifier, examples)
        write_onnx(classifier, unfinished, int8=form == "onnx-int8")
        comparison = gate.compare(OnnxClassifier.load(unfinished), (unfinished / MODEL).stat().st_size)
        _judge(comparison, tolerance if form == "onnx-int8" else None)
    kind = "int8" if form == "onnx-int8" else "float32"
    return Exported(form, f"{kind} ONNX with its tokenizer, for onnxruntime", comparison)


def _to_hf(checkpoint: Checkpoint, out: Path, gate: _Gate | None) -> Exported:
    with new_folder(out) as unfinished:
        family = write_transformers(checkpoint, unfinished)
        back = open_model(unfinished)
        _same_tensors(checkpoint.model, back.model)
        size = (unfinished / WEIGHTS).stat().st_size
        comparison = None if gate is None else gate.compare(TextClassifier(back, "cpu"), size)
        if comparison is not None:
            _judge(comparison, None)
    return Exported("hf", f"{family.architecture(checkpoint.model.head_config)}, for transformers", comparison)


def _to_lab(checkpoint: Checkpoint, out: Path, gate: _Gate | None) -> Exported:
    if out.exists():
        raise OutputError(f"{out} exists: name another file, or remove this one")
    with new_file(out) as unfinished:
        write_lab(checkpoint.model, unfinished)
        back = read_lab(unfinished, heads=checkpoint.model.config.heads)
        _same_tensors(checkpoint.model, back.model)
        comparison = None
        if gate is not None:  # the lab's file has weights alone
            whole = Checkpoint(back.model, checkpoint.class_names, checkpoint.tokenizer, checkpoint.temperature)
            comparison = gate.compare(TextClassifier(whole, "cpu"), unfinished.stat().st_size)
            _judge(comparison, None)
    return Exported("lab", "a state dict for the lab's classes", comparison)


def _to_base(checkpoint: Checkpoint, source: str | Path, out: Path) -> Exported:
    if checkpoint.tokenizer is None:
        raise ModelError(f"{source} has no tokenizer, and nobody can start from weights alone: export a run folder")
    base = Checkpoint(checkpoint.model.with_head(None), tokenizer=checkpoint.tokenizer)
    with new_folder(out) as unfinished:
        write_files(base, unfinished, dtype=torch.bfloat16)
        _same_tensors(base.model, load(unfinished).model, rounded=torch.bfloat16)
    parameters = sum(p.numel() for p in base.model.parameters())
    return Exported("base", f"a {base.model.config.family} backbone of {parameters:,} parameters, to start from", None)


def _classifier(checkpoint: Checkpoint) -> TextClassifier | None:
    """The model ready to answer, where it is one that can: `hf` and `lab` take language models as well."""
    try:
        return TextClassifier(checkpoint, "cpu")
    except ModelError:
        return None


# --- the gate -------------------------------------------------------------------------------------------------------


class Answers(Protocol):
    """A model in any form."""

    def logits(self, texts: Sequence[Text], /) -> Floats: ...


class _Gate:
    """The original's answers on valid texts, taken once, and what an export of it is held against."""

    def __init__(self, classifier: TextClassifier, examples: Examples) -> None:
        self.texts: list[Text] = [row.text if row.second is None else (row.text, row.second) for row in examples.rows]
        self.labels = classifier.encode_examples(examples).labels
        size = sum(tensor.numel() * tensor.element_size() for tensor in classifier.model.state_dict().values())
        self.answers, self.original = _measure(classifier, size, self.texts, self.labels)

    def compare(self, exported: Answers, size: int) -> Comparison:
        answers, measured = _measure(exported, size, self.texts, self.labels)
        return Comparison(
            len(self.texts),
            self.original,
            measured,
            float((answers.argmax(1) == self.answers.argmax(1)).mean()),
            float(np.abs(answers - self.answers).max()),
        )


def _measure(model: Answers, size: int, texts: Sequence[Text], labels: Ints) -> tuple[Floats, Measured]:
    """(n, C) log-probabilities of the texts, and what they cost."""
    some = [texts[i] for i in np.linspace(0, len(texts) - 1, min(TIMED, len(texts))).astype(int)]
    model.logits(some[:1])  # the first call of any runtime is slow
    one_by_one = [_seconds(lambda text=text: model.logits([text])) for text in some]  # type: ignore[misc]
    begin = time.perf_counter()
    answers = model.logits(texts)
    seconds = time.perf_counter() - begin
    accuracy = float((answers.argmax(1) == labels).mean())
    return answers, Measured(size, accuracy, float(np.median(one_by_one)) * 1000, len(texts) / seconds)


def _seconds(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _judge(found: Comparison, tolerance: float | None) -> None:
    """Raise where the export is too far from the original; without a tolerance the two must be as good as equal."""
    on = f"on {found.texts:,} valid texts"
    if tolerance is None and not found.difference <= EXACT:  # NaN is refused too
        raise ModelError(
            f"the export was refused: {on} its log-probabilities differ from the original's by up to "
            f"{found.difference:.1e}, and {EXACT:.0e} is allowed; nothing was left behind. Try another version of "
            "onnxruntime and torch, or use the model as it is"
        )
    if tolerance is not None and (np.isnan(found.difference) or found.lost > tolerance + 1e-9):
        raise ModelError(
            f"the export was refused: {on} its accuracy is {found.export.accuracy:.4f} and the original's "
            f"{found.original.accuracy:.4f}, {found.lost:.4f} lower, and {tolerance:.4f} is allowed; they agree on "
            f"{found.agreement:.1%} of the texts; nothing was left behind. Allow more with --tolerance, or export "
            "--to onnx, which keeps float32"
        )


def _same_tensors(before: Model, after: Model, rounded: torch.dtype = torch.float32) -> None:
    """Raise unless every tensor came back with the same bits, or with those of the original rounded."""
    back = after.state_dict()
    for name, tensor in before.state_dict().items():
        if name not in back or not tensor.to(rounded).float().equal(back[name]):
            raise ModelError(
                f"the export was refused: read back, the tensor {name!r} is not what was written; nothing was left "
                "behind. Is the disk sound?"
            )


def _valid_texts(
    source: str | Path, valid: str | Path | Examples | None, log: Callable[[str], None]
) -> Examples | None:
    """The labelled texts that were given, or those that the run was chosen on; None where there are none."""
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
