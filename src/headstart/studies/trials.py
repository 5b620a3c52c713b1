"""The trials of a sweep: how one is run, what came of it, and the record of all of them."""

from __future__ import annotations

import gc
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch

from headstart.batches.examples import EncodingCache
from headstart.checkpoints.folder import Checkpoint
from headstart.errors import HeadstartError, MissingExtra, OutputError, is_out_of_memory
from headstart.files import read_json, write_json
from headstart.reading.examples import Examples
from headstart.runs.events import OnEvent
from headstart.runs.predictions import read_correct
from headstart.runs.run import PREDICTIONS, RunFolder
from headstart.runs.study import StudyFolder
from headstart.runs.sweep import Sweep, Trial, plain, shown
from headstart.studies.classifier import open_base
from headstart.studies.corrections import p_values_against_best
from headstart.studies.finetune import finetune
from headstart.studies.fingerprints import base_fingerprint, settings_key
from headstart.studies.settings import FinetuneSettings, SweepSettings
from headstart.training.driver import open_run
from headstart.wording import plural, reason

ALWAYS_SHOWN = ("epochs", "mode", "batch_size", "dropout", "lr")  # in the table, whether swept or not
REPLACED_BY = {"epochs": "steps", "batch_size": "tokens"}  # where the second is set, the first has no effect
MAY_CHANGE = ("grid", "trials", "keep_models")  # when a sweep is resumed
ENDED = "ended.json"  # in the folder of a run that did not finish: {"error": …} or {"pruned": epoch}
POLL = 0.5  # seconds between looks at what other processes do


class Pruned(Exception):
    """Raised in an event callback to stop a run."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch


class TrialRunner:
    """Runs trials in the folder of a sweep, and writes its record. A trial is a combination of settings."""

    def __init__(
        self,
        settings: SweepSettings,
        out: Path,
        fingerprints: Mapping[str, str],
        on_event: OnEvent | None,
        log: Callable[[str], None],
    ) -> None:
        self.settings, self.out, self.fingerprints = settings, out, fingerprints
        self.on_event, self.log = on_event, log
        self.swept = tuple(axis.name for axis in settings.axes)
        self.record = Sweep("grid" if settings.grid else "search", self.swept, ())
        self.base_fingerprint = cache(base_fingerprint)
        self._open_base = lru_cache(maxsize=1)(open_base)  # one trial after the other starts from the same
        self._correct_on_valid = cache(lambda folder: read_correct(folder / PREDICTIONS, "valid"))

    def folder(self, combination: FinetuneSettings) -> Path:
        """The run folder of these settings, on these texts, from this base: the same whenever they are run."""
        values = [combination.to_mapping(), self.fingerprints, self.base_fingerprint(combination.init)]
        return self.out / "runs" / f"{combination.mode}-{settings_key(values)}"

    def outcome(self, combination: FinetuneSettings) -> dict[str, Any] | None:
        """What came of a trial, as the fields of `Trial`; None where it has not ended yet."""
        return read_outcome(self.folder(combination))

    def train(self, combination: FinetuneSettings, on_event: OnEvent | None) -> dict[str, Any]:
        """Run it to its end, whatever that is, and return its outcome."""
        base = self._open_base(combination.init, combination.tokenizer, combination.mode)
        return run_trial(combination, self.folder(combination), base=base, on_event=on_event, log=self.log)

    def trial(self, combination: FinetuneSettings, outcome: Mapping[str, Any]) -> Trial:
        no_effect = {name for name, other in REPLACED_BY.items() if getattr(combination, other) is not None}
        usual = (REPLACED_BY[name] if name in no_effect else name for name in ALWAYS_SHOWN)
        settings = {name: getattr(combination, name) for name in dict.fromkeys((*usual, *self.swept))}
        run = self.folder(combination).relative_to(self.out).as_posix()
        return Trial(**{"run": run, **outcome, "settings": settings})

    def log_start(self, title: str, combination: FinetuneSettings) -> None:
        values = ", ".join(f"{plain(name)} {shown(getattr(combination, name))}" for name in self.swept)
        self.log(f"{title}: {values}")

    def log_end(self, title: str, outcome: Mapping[str, Any]) -> None:
        if outcome.get("error"):
            self.log(f"{title} failed: {outcome['error']}")
        elif outcome.get("pruned"):
            self.log(f"{title} was pruned at epoch {outcome['pruned']}")
        else:
            self.log(f"{title}: valid accuracy {outcome['valid']['accuracy']:.4f}")

    def wait_for_others(self, count: int) -> None:
        self.log(f"waiting for {plural(count, 'trial')} that other processes have")
        time.sleep(POLL)

    def write_record(self, trials: Sequence[Trial]) -> None:
        """Mark the best, write sweep.json, and remove the weights of trials that are not the best."""
        texts = None
        best = max(trials, key=lambda trial: trial.score, default=None)
        if best is not None and best.valid is not None:
            trials = [replace(trial, best=trial is best) for trial in trials]
            if not self.settings.keep_models:
                # What is worse than the best now stays worse: no other process will keep it either.
                for trial in trials:
                    if trial.score < best.score:
                        shutil.rmtree(self.out / trial.run / "model", ignore_errors=True)
            texts, trials = self._with_p_values(trials, best.run)
        self.record = replace(self.record, swept=self.swept, trials=tuple(trials), texts=texts)
        StudyFolder(self.out).write_sweep(self.record)

    def _with_p_values(self, trials: Sequence[Trial], best: str) -> tuple[int | None, Sequence[Trial]]:
        """How many texts valid has, and each trial with the p-value of its difference from the best on them.

        Trials whose predictions lie on another machine have none.
        """
        correct = {
            trial.run: self._correct_on_valid(self.out / trial.run) for trial in trials if trial.valid is not None
        }
        correct_of_best = correct.pop(best)
        if correct_of_best is None:
            return None, trials
        others = {run: answers for run, answers in correct.items() if answers is not None}
        p_values = dict(zip(others, p_values_against_best(correct_of_best, list(others.values())), strict=True))
        return len(correct_of_best), [replace(trial, chance=p_values.get(trial.run)) for trial in trials]


def run_trial(
    settings: FinetuneSettings,
    folder: Path,
    *,
    splits: Mapping[str, Examples] | None = None,
    encode: EncodingCache | None = None,
    base: Checkpoint | None = None,
    keep_model: bool = True,
    on_event: OnEvent | None = None,
    log: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Fine-tune to the end, whatever that is, and return the outcome: a trial that fails does not end its study."""
    (folder / ENDED).unlink(missing_ok=True)
    _free_gpu_memory()
    began = time.monotonic()
    ended: dict[str, Any] = {}
    try:
        with open_run(folder, "finetune", settings.to_mapping(), resume=True):
            pass  # so that its settings are recorded, should it fail before it begins
        finetune(
            settings,
            folder,
            splits=splits,
            encode=encode,
            base=base,
            resume=True,
            keep_model=keep_model,
            on_event=on_event,
            log=log,
        )
    except Pruned as pruned:
        ended = {"pruned": pruned.epoch}
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    except (OutputError, MissingExtra):  # a full disk fails the next trial as well
        raise
    except HeadstartError as error:
        ended = {"error": str(error)}
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        ended = {"error": f"out of memory: {reason(error)}"}
    if ended:
        write_json(folder / ENDED, {**ended, "seconds": time.monotonic() - began})
    outcome = read_outcome(folder)
    assert outcome is not None
    return outcome


def read_outcome(folder: Path) -> dict[str, Any] | None:
    run = RunFolder(folder)
    if run.done:
        result, manifest = run.result(), run.manifest()
        memory = manifest.peak_memory
        return {
            "valid": result.valid,
            "test": result.test,
            "seconds": manifest.seconds,
            "memory": memory.get("gpu") or memory["resident"],
        }
    try:
        ended: dict[str, Any] = json.loads((folder / ENDED).read_text(encoding="utf-8"))
    except FileNotFoundError:  # or removed at this moment, by a process that tries again
        return None
    ended.pop("seconds", None)
    return ended


def seconds_of(folder: Path) -> float:
    """That a trial took which has ended, be it in an error."""
    run = RunFolder(folder)
    took = run.manifest().seconds if run.done else read_json(folder / ENDED).get("seconds")
    return float(took or 0.0)


def _free_gpu_memory() -> None:
    """So that a trial has the memory that it would have as the only one."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()
