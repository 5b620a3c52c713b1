"""The trials of a sweep: how one is run, what came of it, and the table that they make."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from headstart.errors import HeadstartError, MissingExtra, OutputError
from headstart.files import write_json
from headstart.runs.events import OnEvent
from headstart.runs.predictions import read_correct
from headstart.runs.run import PREDICTIONS, RunFolder
from headstart.runs.study import StudyFolder
from headstart.runs.sweep import Sweep, Trial, plain, shown
from headstart.studies.claims import fingerprint_of, key_of
from headstart.studies.finetune import finetune
from headstart.studies.settings import FinetuneSettings, SweepSettings
from headstart.studies.statistics import p_values_against_best
from headstart.training.driver import open_run
from headstart.wording import plural, reason

ALWAYS = ("epochs", "mode", "batch_size", "dropout", "lr")  # shown of every run, whether swept or not
INSTEAD = {"epochs": "steps", "batch_size": "tokens"}  # where the second is set, the first is not looked at
FREE = ("grid", "trials", "keep_models")  # may change when a sweep is gone on with
ENDED = "ended.json"  # in the folder of a run that did not come to its end: {"error": …} or {"pruned": epoch}
POLL = 0.5  # seconds between looks at what other processes do


class Pruned(Exception):
    """Raised by the listener in the midst of a run that is not worth its time."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch


class Trials:
    """The folder: where the runs lie, how one is run, what the table is made of."""

    def __init__(
        self,
        settings: SweepSettings,
        out: Path,
        digests: Mapping[str, str],
        on_event: OnEvent | None,
        log: Callable[[str], None],
    ) -> None:
        self.settings, self.out, self.digests, self.on_event, self.log = settings, out, digests, on_event, log
        self.swept = tuple(axis.name for axis in settings.axes)
        self.found = Sweep("grid" if settings.grid else "search", self.swept, ())
        self.base = cache(fingerprint_of)
        self.right = cache(lambda folder: read_correct(folder / PREDICTIONS, "valid"))

    def folder(self, one: FinetuneSettings) -> Path:
        """The run folder of these settings, on these texts, from this base: the same whenever they are run."""
        return self.out / "runs" / f"{one.mode}-{key_of([one.to_mapping(), self.digests, self.base(one.init)])}"

    def train(self, one: FinetuneSettings, on_event: OnEvent | None) -> dict[str, Any]:
        """Run it to its end, whatever that is; the folder says which."""
        folder = self.folder(one)
        (folder / ENDED).unlink(missing_ok=True)
        _tidy()
        try:
            with open_run(folder, "finetune", one.to_mapping(), resume=True):
                pass  # what it was to be is written down, should it fail before it begins
            finetune(one, folder, resume=True, on_event=on_event, log=self.log)
        except Pruned as pruned:
            ended: dict[str, Any] = {"pruned": pruned.epoch}
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        except (OutputError, MissingExtra):  # a full disk fails the next trial as well
            raise
        except HeadstartError as error:
            ended = {"error": str(error)}
        except (MemoryError, RuntimeError) as error:
            if not _out_of_memory(error):
                raise
            ended = {"error": f"out of memory: {reason(error)}"}
        else:
            ended = {}
        if ended:
            write_json(folder / ENDED, ended)
        outcome = outcome_of(folder)
        assert outcome is not None
        return outcome

    def trial(self, one: FinetuneSettings, outcome: Mapping[str, Any]) -> Trial:
        left_out = {name for name, other in INSTEAD.items() if getattr(one, other) is not None}
        usual = (INSTEAD[name] if name in left_out else name for name in ALWAYS)
        names = dict.fromkeys((*usual, *self.swept))
        run = self.folder(one).relative_to(self.out).as_posix()
        return Trial(**{"run": run, **outcome, "settings": {name: getattr(one, name) for name in names}})

    def announce(self, number: int, total: int, one: FinetuneSettings) -> str:
        """Say which trial begins; the beginning of what will be said of its end."""
        which = f"trial {number} of {total}"
        self.log(f"{which}: " + ", ".join(f"{plain(name)} {shown(getattr(one, name))}" for name in self.swept))
        return which

    def conclude(self, which: str, outcome: Mapping[str, Any]) -> None:
        if outcome.get("error"):
            self.log(f"{which} failed: {outcome['error']}")
        elif outcome.get("pruned"):
            self.log(f"{which} was pruned at epoch {outcome['pruned']}")
        else:
            self.log(f"{which}: valid accuracy {outcome['valid']['accuracy']:.4f}")

    def tabulate(self, trials: Sequence[Trial]) -> None:
        """Mark the best, write the table, and let go of the weights that nobody will want."""
        texts = None
        best = max(trials, key=lambda trial: trial.score, default=None)
        if best is not None and best.valid is not None:
            trials = [replace(trial, best=trial is best) for trial in trials]
            if not self.settings.keep_models:
                # What is worse now will be worse for ever: no other process can want it either.
                for trial in trials:
                    if trial.score < best.score:
                        shutil.rmtree(self.out / trial.run / "model", ignore_errors=True)
            texts, trials = self.doubted(trials, best.run)
        self.found = replace(self.found, swept=self.swept, trials=tuple(trials), texts=texts)
        StudyFolder(self.out).write_sweep(self.found)

    def doubted(self, trials: Sequence[Trial], best: str) -> tuple[int | None, Sequence[Trial]]:
        """How many texts valid has, and each trial with the chance of its difference from the best on them.

        Those that lie on another machine are left out.
        """
        answers = {trial.run: self.right(self.out / trial.run) for trial in trials if trial.valid is not None}
        its = answers.pop(best)
        if its is None:
            return None, trials
        others = {run: found for run, found in answers.items() if found is not None}
        chances = dict(zip(others, p_values_against_best(its, list(others.values())), strict=True))
        return len(its), [replace(trial, chance=chances.get(trial.run)) for trial in trials]


def outcome_of(folder: Path) -> dict[str, Any] | None:
    """What came of the run in a folder; None where it has not ended yet."""
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
    except FileNotFoundError:  # or taken away at this moment, by a process that tries again
        return None
    return ended


def _tidy() -> None:
    """Give back what the trial before held on a GPU, so that this one has the memory that it would have alone."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


def _out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)


def waiting(count: int) -> str:
    return f"waiting for {plural(count, 'trial')} that other processes have"
