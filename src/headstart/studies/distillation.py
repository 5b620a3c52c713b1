"""Knowledge distillation (Hinton et al. 2015): a student learns what a larger model, or several models, answer.

1. Every teacher gives each training text and each unlabelled text its calibrated probabilities; several are averaged.
2. They are the target of an unlabelled text. The target of a labelled one is the mean of them and of its label.
3. The student is trained on all of these texts by the cross-entropy with its targets; part of each text's tokens is
   hidden from it, as in self-training.

A teacher that learned from a text of valid or test would pass it on, so it is refused where its run says what it read.
The teacher `tfidf` is the linear model: it is fitted to the student's own labels, and so never knows more than it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headstart.batches.batch import pick_window
from headstart.batches.examples import EncodedExamples
from headstart.checkpoints.exchange import open_model
from headstart.checkpoints.folder import Checkpoint, check_tokenizer, read_safetensors, write_safetensors
from headstart.config import ClassifierConfig
from headstart.errors import ConfigError, HeadstartError, listed_names
from headstart.files import new_file
from headstart.metrics import Floats, softmax
from headstart.parallel import Parallel
from headstart.reading.examples import Example, Examples
from headstart.reading.split import content_hash
from headstart.runs.run import LINEAR, RUN, RunFolder
from headstart.studies.baselines import baseline
from headstart.studies.fingerprints import base_fingerprint, settings_key, split_fingerprints
from headstart.studies.linear_model import LinearModel
from headstart.studies.locks import POLL, run_lock, wait_for_lock
from headstart.studies.settings import DATA, TFIDF, FinetuneSettings
from headstart.studies.splits import draw_budget, read_splits
from headstart.studies.unlabelled import HELD_OUT
from headstart.training.inference import classify
from headstart.wording import plural

TEACHER_SHARE = 0.5  # of a labelled text's target; the rest is its label
STUDENT_DROPOUT = 0.1  # of the tokens of a student's texts, where a setting says nothing
LEAST_PASSES = 4  # of a student over its texts
ROUND_PASSES = 2  # of each of the several students of self-training
INTERVAL = 10.0  # seconds between two lines while a teacher answers, which takes a large one minutes

Log = Callable[[str], None]
Classifier = Checkpoint | LinearModel


@dataclass(frozen=True)
class Lesson:
    """What a student learns from: labelled texts, then unlabelled ones, which have the teachers' label."""

    examples: Examples
    targets: Floats  # (rows, C)
    teachers: tuple[dict[str, Any], ...]  # what the student's result says of each


# --- before anything is trained ---


def check_teachers(folders: Sequence[str], splits: Mapping[str, Examples], log: Log = lambda text: None) -> None:
    """Refuse teachers of other classes, and those that learned from texts of valid or test."""
    for folder in folders:
        if folder != TFIDF:
            _open(folder, splits["train"].class_names)
            _check_texts(folder, splits, log)


def teacher_fingerprints(folders: Sequence[str]) -> list[str]:
    """A digest of each teacher's files. The linear model follows from the student's own texts: its name is enough."""
    files = (path / LINEAR if (path / LINEAR).is_file() else path for path in map(Path, folders))
    return [name if name == TFIDF else base_fingerprint(str(file)) for name, file in zip(folders, files, strict=True)]


def _describe(names: Sequence[str], folders: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """Each teacher as it was named. How long one took to train is known of a run, not of a model."""
    runs = [RunFolder(Path(folder)) for folder in folders]
    seconds = [run.manifest().seconds if run.done else None for run in runs]
    described = zip(names, teacher_fingerprints(folders), seconds, strict=True)
    return tuple(dict(zip(("folder", "fingerprint", "seconds"), each, strict=True)) for each in described)


def _open(folder: str, class_names: Sequence[str]) -> Classifier:
    """A classifier of these classes, in whichever order: a network, or the linear model of a comparison."""
    path = Path(folder)
    classifier: Classifier = LinearModel.load(path / LINEAR) if (path / LINEAR).is_file() else open_model(folder)
    if isinstance(classifier, Checkpoint):
        head = classifier.model.head_config
        if not isinstance(head, ClassifierConfig):
            kind = "has no head" if head is None else f"is a {head.kind} model"
            raise ConfigError("teacher", [f"{folder} {kind}, and a teacher classifies: name a run of `finetune`"])
        if classifier.tokenizer is None:
            raise ConfigError("teacher", [f"{folder} has no tokenizer, so it cannot read the texts"])
        check_tokenizer(classifier.model.config, classifier.tokenizer)
    if set(classifier.class_names) != set(class_names):
        theirs, ours = (listed_names(names) for names in (classifier.class_names, class_names))
        raise ConfigError("teacher", [f"{folder} answers with {theirs}, and the training texts have {ours}"])
    return classifier


def _check_texts(folder: str, splits: Mapping[str, Examples], log: Log) -> None:
    """A text of valid or test that the student does not train on itself may not be one that its teacher learned."""
    try:
        learned = _learned_texts(Path(folder))
    except HeadstartError as error:
        log(f"teacher {folder}: whether it learned from texts of valid or test cannot be told ({error})")
        return
    other = learned - {content_hash(row.content) for row in splits["train"].rows}
    for name in (name for name in HELD_OUT if name in splits):
        shared = sum(content_hash(row.content) in other for row in splits[name].rows)
        if shared:
            problem = f"{folder} learned from {plural(shared, 'text')} of {name}: a student of it would be scored on "
            raise ConfigError("teacher", [problem + "what it was taught; train the teacher on the same split"])
    if other:
        log(f"teacher {folder} learned from {len(other):,} labelled texts that this run does not have")


def _learned_texts(folder: Path) -> set[int]:
    """The training texts of a run, read again by its settings."""
    run = RunFolder(folder)
    if not (folder / RUN).is_file():
        raise ConfigError("teacher", ["it is no run folder"])
    known = {name: value for name, value in run.settings().items() if name not in ("study", "kind")}
    settings = FinetuneSettings.from_mapping({"init": "none", **known}, folder.name)
    parts = read_splits(settings)
    train = parts["train"]
    if settings.labels is not None:
        train = draw_budget(train, settings.labels, settings.seed)
    rows = (*train.rows, *(parts["valid"].rows if settings.refit else ()))
    return {content_hash(row.content) for row in rows}


# --- the answers ---


def teach(
    settings: FinetuneSettings,
    splits: Mapping[str, Examples],
    unlabelled: Examples | None,
    class_names: Sequence[str],
    device: torch.device,
    precision: torch.dtype,
    parallel: Parallel,
    cache: Path,
    log: Log,
) -> Lesson:
    """The texts of a student with their targets; `splits` has what it trains on, a label budget being drawn.

    `cache` is a folder in which the linear model and the teachers' answers are kept.
    """
    train, more, names = splits["train"], () if unlabelled is None else unlabelled.rows, settings.teacher or ()
    folders = [_fit_tfidf(settings, splits, cache, parallel, log) if name == TFIDF else name for name in names]
    texts = replace(train, rows=tuple(replace(row, label=None) for row in (*train.rows, *more)))
    given = [split_fingerprints({"texts": texts}), list(class_names)]
    keys = (settings_key([fingerprint, *given]) for fingerprint in teacher_fingerprints(folders))
    files = [cache / f"answers-{key}.safetensors" for key in keys]
    waiting_for = 0  # teachers, as the user was told last
    while missing := [k for k, file in enumerate(files) if not parallel.broadcast(file.is_file())]:
        taken = False
        for k in missing:
            # Of the runs of a study side by side each takes a teacher that no other has.
            with run_lock(files[k]) if parallel.world_size == 1 else nullcontext(True) as ours:
                taken |= ours
                if ours and not parallel.broadcast(files[k].is_file()):
                    log(f"teacher {names[k]}: answers to {len(texts.rows):,} texts")
                    answers = _answers(folders[k], texts, class_names, device, precision, parallel, log)
                    if parallel.is_main:
                        with new_file(files[k]) as unfinished:
                            write_safetensors(unfinished, {"probabilities": torch.from_numpy(answers)})
                    parallel.barrier()
        if not taken:
            if len(missing) != waiting_for:
                waiting_for = len(missing)
                log(f"waiting for the answers of {plural(waiting_for, 'teacher')}, which other processes compute")
            time.sleep(POLL)
    mean = np.mean([read_safetensors(file)["probabilities"].numpy() for file in files], axis=0)
    examples, targets = _lesson(train, more, mean, class_names)
    return Lesson(examples, targets, _describe(names, folders))


def _fit_tfidf(
    settings: FinetuneSettings, splits: Mapping[str, Examples], cache: Path, parallel: Parallel, log: Log
) -> str:
    """The run folder of a linear model that is fitted to these texts; runs of a study with the same texts share it."""
    splits = {name: splits[name] for name in ("train", "valid")}
    own = {name: value for name, value in settings.to_mapping().items() if name in (*DATA, "labels")}
    if settings.labels is not None:
        own["seed"] = settings.seed
    folder = cache / f"{TFIDF}-{settings_key(split_fingerprints(splits))}"
    if parallel.is_main:
        with wait_for_lock(folder):
            if not RunFolder(folder).done:
                log(f"teacher {TFIDF}: a linear model is fitted to {len(splits['train'].rows):,} texts")
                baseline(TFIDF, splits, own, folder, keep_model=True)
    parallel.barrier()
    return str(folder)


def _answers(
    folder: str,
    texts: Examples,
    class_names: Sequence[str],
    device: torch.device,
    precision: torch.dtype,
    parallel: Parallel,
    log: Log,
) -> Floats:
    """(rows, C): a teacher's calibrated probabilities, in the order of these classes, in float32."""
    teacher = _open(folder, class_names)
    if isinstance(teacher, LinearModel):
        answers = teacher.log_probabilities([row.content for row in texts.rows])
    else:
        assert teacher.tokenizer is not None
        window = pick_window(None, teacher.model.config)
        encoded = EncodedExamples.of(texts, teacher.tokenizer, teacher.class_names, window)
        on_batch = _progress(folder, len(encoded), parallel, log)
        answers = classify(teacher.model.to(device), encoded, precision, parallel=parallel, on_batch=on_batch)
    order = [teacher.class_names.index(name) for name in class_names]
    return np.ascontiguousarray(softmax(answers / teacher.temperature)[:, order], dtype=np.float32)


def _progress(folder: str, total: int, parallel: Parallel, log: Log) -> Callable[[int], None]:
    """A callback for the batches of a teacher: a line every few seconds."""
    answered, last = 0, time.monotonic()

    def on_batch(rows: int) -> None:
        nonlocal answered, last
        answered += rows * parallel.world_size
        if time.monotonic() - last >= INTERVAL:
            last = time.monotonic()
            log(f"teacher {folder}: {min(answered, total):,} of {total:,} texts")

    return on_batch


def _lesson(
    train: Examples, more: Sequence[Example], answers: Floats, class_names: Sequence[str]
) -> tuple[Examples, Floats]:
    """All texts with a label, the teachers' where they have none of their own, and the target of each."""
    number = {name: k for k, name in enumerate(class_names)}
    labels = np.eye(len(class_names))[[number[row.label or ""] for row in train.rows]]
    own, other = answers[: len(labels)], answers[len(labels) :]
    targets = np.concatenate([TEACHER_SHARE * own + (1 - TEACHER_SHARE) * labels, other])
    labelled = (replace(row, label=class_names[k]) for row, k in zip(more, other.argmax(1), strict=True))
    return replace(train, rows=(*train.rows, *labelled)), targets


# --- the student ---


def student_settings(
    settings: FinetuneSettings, labelled: int, rows: int, least_passes: int = LEAST_PASSES
) -> FinetuneSettings:
    """Those of a run on the labelled texts alone, but for hidden tokens, and epochs over all of its texts."""
    dropout = STUDENT_DROPOUT if settings.student_dropout is None else settings.student_dropout
    return replace(
        settings,
        token_dropout=max(dropout, settings.token_dropout),
        epochs=_student_epochs(settings.epochs, labelled, rows, least_passes),
    )


def _student_epochs(epochs: int, labelled: int, rows: int, least_passes: int) -> int:
    """So many that a student with more rows trains for about as many steps as its teacher.

    >>> _student_epochs(20, 100, 400, least_passes=2), _student_epochs(20, 100, 10_000, least_passes=2)
    (5, 2)
    """
    return max(least_passes, math.ceil(epochs * labelled / rows))
