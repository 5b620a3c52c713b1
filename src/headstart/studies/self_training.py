"""Unlabelled texts for a classifier: first the base reads them, then the model's own sure answers become labels.

1. The base is pretrained a little further, on the unlabelled and the training texts, by the objective of its head.
2. Round 0 is the teacher: an ordinary run on the labels, from that base.
3. Each further round labels the unlabelled texts by the model of the round before, keeps the answers that are sure,
   no more of a class than its share of the labels, and trains a student on both, from the base and not from its
   teacher; part of each text's tokens is hidden from it. Labelled texts of classes with few sure answers are repeated,
   so that every class keeps its share.
4. The rounds end where valid improves no more, and the best on valid is the answer. Test has no part in it.

RUN/self-training/KEY/   adapted/, round-0/, labels-1.json, round-1/, …; removed when the run is done

Every stage is a run folder, so that what is killed goes on where it was. The key is a digest of the texts and the
settings: an unlabelled file that changed begins anew.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headstart.batches.batch import Ints, pick_window
from headstart.batches.examples import EncodedExamples
from headstart.checkpoints import folder as model_folder
from headstart.checkpoints.folder import Checkpoint
from headstart.files import read_json, write_json
from headstart.model.model import Model
from headstart.reading.examples import Examples
from headstart.runs.events import OnEvent
from headstart.runs.run import EVENTS, RunFolder
from headstart.studies.classifier import Data, open_base
from headstart.studies.corpus import write_texts
from headstart.studies.distillation import ROUND_PASSES, student_settings
from headstart.studies.finetune import STAGES, Ended, finetune, predict_test
from headstart.studies.fingerprints import settings_key, split_fingerprints
from headstart.studies.pretrain import DIRECTION_OF, HEAD_OF, pretrain
from headstart.studies.settings import UNLABELLED, FinetuneSettings, PretrainSettings
from headstart.studies.unlabelled import not_in, sure_answers
from headstart.training.driver import Run
from headstart.training.hardware import pick_device
from headstart.training.inference import classify
from headstart.training.settings import HardwareSettings
from headstart.wording import plural

ADAPT_STEPS, ROUNDS, CONFIDENCE = 100, 3, 0.9  # where a setting says nothing
# Of the pretraining on the texts; the learning rate, times the width, is about that of fine-tuning.
BATCH, WINDOW, RATE, MASK_RATE = 16, 128, 0.05, 0.3


@dataclass(frozen=True)
class Round:
    """A teacher (0) or a student, and how it did on valid."""

    number: int
    sure: int  # answers that became labels
    accuracy: float
    loss: float

    @property
    def score(self) -> tuple[float, float]:
        return self.accuracy, -self.loss


def self_train(
    run: Run,
    data: Data,
    unlabelled: Examples,
    settings: FinetuneSettings,
    base: Checkpoint,
    precision: torch.dtype,
    on_event: OnEvent | None,
    log: Callable[[str], None],
) -> Ended:
    """Do the stages that are not done; the model of the best round, which reads test as every classifier does."""
    stages = _Stages(run, data, unlabelled, settings, base, precision, on_event, log)
    rounds = list(stages.rounds())
    best = max(rounds, key=lambda each: each.score)  # the first of equals
    run.began = time.time() - stages.seconds  # those that another process did before it was killed count as well
    folder = RunFolder(stages.folder / f"round-{best.number}")
    if run.parallel.is_main:
        shutil.copyfile(folder.path / EVENTS, run.path / EVENTS)
    log(f"round {best.number} is the best on valid, and is kept")
    model = model_folder.load(folder.path / "model").model.to(pick_device(settings.device, run.parallel))
    valid = classify(model, data.encoded["valid"], precision, parallel=run.parallel)
    predicted, cost = predict_test(model, data, precision, run.parallel)
    own = folder.result_json()
    about = {"texts": len(unlabelled.rows), "adapt_steps": stages.adapt_steps, "best": best.number}
    result = {name: own[name] for name in ("epochs", "steps", "best", "temperature")}
    result |= {"cost": cost, "self_training": {**about, "rounds": [asdict(each) for each in rounds]}}
    return Ended(model, {"valid": valid, **predicted}, result, stages.manifest(folder))


@dataclass(frozen=True, eq=False)
class _Stages:
    run: Run
    data: Data
    unlabelled: Examples
    settings: FinetuneSettings
    base: Checkpoint
    precision: torch.dtype
    on_event: OnEvent | None
    log: Callable[[str], None]

    @cached_property
    def folder(self) -> Path:
        parts = {name: self.data.examples[name] for name in ("train", "valid")}
        prints = split_fingerprints({**parts, "unlabelled": self.unlabelled})
        return self.run.path / STAGES / settings_key([self.settings.to_mapping(), prints])

    @property
    def adapt_steps(self) -> int:
        return ADAPT_STEPS if self.settings.adapt_steps is None else self.settings.adapt_steps

    # --- the stages ---

    def rounds(self) -> Iterator[Round]:
        """The teacher, then students as long as each is better on valid than all before it."""
        base = self._adapted()
        wanted = ROUNDS if self.settings.rounds is None else self.settings.rounds
        labels: Mapping[str, list[int]] = {"rows": [], "labels": []}
        best = self._train(0, base, labels)
        yield best
        for number in range(1, wanted + 1):
            before, labels = labels, self._sure_answers(number)
            if not labels["rows"]:
                self.log(f"round {number}: the model is sure of none of its answers")
                return
            if before == labels:
                self.log(f"round {number}: the answers are those of the round before")
                return
            student = self._train(number, base, labels)
            yield student
            if student.score <= best.score:
                return
            best = student

    def _adapted(self) -> Checkpoint:
        """The base, pretrained a little further on the texts of the task, without those of valid and test."""
        if not self.adapt_steps:
            return self.base
        folder, tokenizer = self.folder / "adapted", self.base.tokenizer
        assert tokenizer is not None
        if not RunFolder(folder).done:
            rows = (*self.unlabelled.rows, *self.data.examples["train"].rows)
            texts = (text for row in rows for text in (row.text, row.second) if text is not None)
            if self.run.parallel.is_main:
                write_texts(texts, self.folder)
                if not (self.folder / "tokenizer").is_dir():
                    tokenizer.save(self.folder / "tokenizer")
            self.run.parallel.barrier()
            self.log(f"pretraining on {len(rows):,} texts of the task: {plural(self.adapt_steps, 'step')}")
            pretrain(self._pretraining(), folder, resume=True, on_event=self.on_event, parallel=self.run.parallel)
            self.run.parallel.barrier()  # the main process has written it
        return replace(open_base(str(folder), None, "full"), tokenizer=tokenizer)

    def _pretraining(self) -> PretrainSettings:
        settings, config = self.settings, self.base.model.config
        given = {f.name: getattr(settings, f.name) for f in fields(HardwareSettings)}
        return PretrainSettings(
            corpus=(str(next(self.folder.glob("texts-*.jsonl")).resolve()),),
            column="text",
            init=settings.init,
            tokenizer=str((self.folder / "tokenizer").resolve()),
            objective=_objective(self.base.model),
            mask_rate=MASK_RATE,
            window=min(WINDOW, pick_window(settings.window, config)),
            batch_size=BATCH,
            steps=self.adapt_steps,
            lr=RATE / config.width,
            seed=settings.seed,
            **given,
        )

    def _sure_answers(self, number: int) -> Mapping[str, list[int]]:
        """Which unlabelled texts get a label in this round, and which, by the model of the round before."""
        file = self.folder / f"labels-{number}.json"
        if not file.is_file():
            began = time.monotonic()
            teacher = RunFolder(self.folder / f"round-{number - 1}")
            model = model_folder.load(teacher.path / "model").model
            model = model.to(pick_device(self.settings.device, self.run.parallel))
            answers = classify(model, self._encoded, self.precision, parallel=self.run.parallel)
            labels = self.data.encoded["train"].labels
            confidence = CONFIDENCE if self.settings.confidence is None else self.settings.confidence
            chosen, given = sure_answers(answers / teacher.result_json()["temperature"], labels, confidence)
            took = time.monotonic() - began
            if self.run.parallel.is_main:
                write_json(file, {"rows": chosen.tolist(), "labels": given.tolist(), "seconds": took})
            self.run.parallel.barrier()
        found = read_json(file)
        return {name: found[name] for name in ("rows", "labels")}

    def _train(self, number: int, base: Checkpoint, labels: Mapping[str, list[int]]) -> Round:
        """A run from the base on the labels and those that the model gave itself."""
        train, names = self.data.examples["train"], self.data.class_names
        added = [
            replace(self._candidates.rows[row], label=names[label])
            for row, label in zip(labels["rows"], labels["labels"], strict=True)
        ]
        if number:
            of = f"{len(self._candidates.rows):,} answers"
            self.log(f"round {number}: {len(added):,} of {of} are sure and become labels")
        repeated = rows_to_repeat(self.data.encoded["train"].labels, np.array(labels["labels"], dtype=np.int64))
        rows = (*train.rows, *added, *(train.rows[row] for row in repeated))
        result = finetune(
            self._round_settings(number, len(rows)),
            self.folder / f"round-{number}",
            splits={"train": Examples(rows), "valid": self.data.examples["valid"]},
            base=base,
            resume=True,
            on_event=self.on_event,
            parallel=self.run.parallel,
        )
        self.run.parallel.barrier()  # the main process has written the model
        self.log(f"round {number}: valid accuracy {result['valid']['accuracy']:.4f}")
        return Round(number, len(added), result["valid"]["accuracy"], result["valid"]["loss"])

    def _round_settings(self, number: int, rows: int) -> FinetuneSettings:
        """Those of the run on labelled texts alone; a student trains for about as many steps."""
        labelled = len(self.data.examples["train"].rows)
        settings = student_settings(self.settings, labelled, rows, ROUND_PASSES) if number else self.settings
        changes: dict[str, Any] = {**dict.fromkeys(UNLABELLED), "labels": None, "prediction_files": False}
        return replace(settings, **changes)

    # --- the texts ---

    @cached_property
    def _candidates(self) -> Examples:
        return not_in(self.unlabelled, self.data.examples["train"])

    @cached_property
    def _encoded(self) -> EncodedExamples:
        assert self.base.tokenizer is not None
        window = pick_window(self.settings.window, self.base.model.config)
        return EncodedExamples.of(self._candidates, self.base.tokenizer, self.data.class_names, window)

    # --- the record ---

    @property
    def _done(self) -> list[RunFolder]:
        return [RunFolder(path.parent) for path in sorted(self.folder.glob("*/manifest.json"))]

    @property
    def seconds(self) -> float:
        """That all stages took, in whichever process."""
        labelling = [read_json(path)["seconds"] for path in self.folder.glob("labels-*.json")]
        return float(sum(labelling)) + sum(run.manifest().seconds or 0.0 for run in self._done)

    def manifest(self, best: RunFolder) -> dict[str, Any]:
        """That of the best round, with the tokens and the work of all stages."""
        own, all_stages = best.manifest(), [run.manifest() for run in self._done]
        prints = split_fingerprints({"unlabelled": self.unlabelled})
        return {
            "data": {**self.data.fingerprint(), **prints},
            "parameters": own.parameters,
            "tokens": sum(each.tokens or 0 for each in all_stages),
            "flops": sum(each.flops or 0.0 for each in all_stages),
            "precision": own.precision,
            "compiled": own.compiled,
        }


def rows_to_repeat(labels: Ints, added: Ints) -> Ints:
    """Which labelled rows a student sees again, so that its classes have the shares that they have among the labels.

    Sure answers are of easy classes: without it, those of which the model is never sure would be forgotten.

    >>> rows_to_repeat(np.array([0, 1, 2, 0, 1, 2]), np.array([0, 0, 1, 0])).tolist()
    [1, 4, 2, 5, 2]
    """
    if not len(added):
        return np.zeros(0, dtype=np.int64)
    own = np.bincount(labels)
    there = own + np.bincount(added, minlength=len(own))
    wanted = np.round(own * (there / own).max()).astype(int)
    repeated = (np.resize(np.flatnonzero(labels == k), wanted[k] - there[k]) for k in range(len(own)))
    return np.concatenate(list(repeated))


def _objective(model: Model) -> Any:
    """What the base learned by its head; where it has none for text, what its direction allows."""
    kind = None if model.head_config is None else model.head_config.kind
    known = next((objective for objective, head in HEAD_OF.items() if head == kind), None)
    return known or next((each for each, way in DIRECTION_OF.items() if way == model.config.direction), "masked")
