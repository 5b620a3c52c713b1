"""A sweep: many fine-tunings that differ in a few settings, and which of them is best on valid.

grid      every combination of the values that were named
search    Optuna proposes each trial from what the trials before it reached

The study folder:

study.toml   the settings of the sweep, enough to run it again
data.json    digests of the texts, their numbers and labels
study.db     what Optuna knows of a search, unless a database elsewhere holds it
runs/        one run folder a trial, named for its settings and data: what is done there is not done again
sweep.json   the table

Several processes may work on one folder, and on one search from several machines through a database. A process takes
a run by a lock of the operating system, a trial of a search by its state in the database. The trial of a process that
died is taken over by another: of a grid at once, of a search when its heartbeat is `GRACE_PERIOD` seconds old.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from headstart.bases import note_local
from headstart.batches.batch import pick_window
from headstart.errors import ConfigError, HeadstartError, OutputError
from headstart.files import holds_something
from headstart.reading.examples import Examples
from headstart.redaction import redacted
from headstart.runs.events import OnEvent
from headstart.runs.study import StudyData, StudyFolder
from headstart.studies.classifier import build_classifier, load_data, open_base
from headstart.studies.fingerprints import split_fingerprints
from headstart.studies.locks import run_lock
from headstart.studies.search import search
from headstart.studies.settings import FinetuneSettings, SweepSettings
from headstart.studies.splits import read_splits
from headstart.studies.storage import load_optuna
from headstart.studies.trials import ENDED, MAY_CHANGE, TrialRunner
from headstart.training.hardware import pick_device

# What can be wrong with data, model and device depends on these.
CHECKED = ("device", "init", "mode", "tokenizer", "window", "labels", "pool", "pooler")


def sweep(
    settings: SweepSettings,
    out: str | Path,
    *,
    resume: bool = False,
    on_event: OnEvent | None = None,
    log: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Run every trial, write the study folder, and return what `sweep.json` holds.

    What is wrong with the settings or the data of any trial is an error before the first one trains. A trial that fails
    later, on a loss that is no number or too little memory, is an entry of the table, and the sweep goes on.
    """
    out = Path(out)
    combinations = settings.combinations()
    if settings.search:
        load_optuna()  # before anything is read: without it there is no search
    log = _log_once(log)
    _check(combinations, log)
    splits = read_splits(settings)
    runner = TrialRunner(settings, out, split_fingerprints(splits), on_event, log)
    _open_folder(out, settings, splits, resume)
    log(f"study folder: {out}")
    if settings.search:
        search(runner)
    else:
        _grid(runner, combinations)
    return runner.record.to_json()


# --- before anything trains ------------------------------------------------------------------------------------------


def _check(combinations: Iterable[FinetuneSettings], log: Callable[[str], None]) -> None:
    """Open every base and encode the texts as the trials will: a mistake should cost seconds and not a night."""
    different = {tuple(getattr(each, name) for name in CHECKED): each for each in combinations}
    errors: dict[str, HeadstartError] = {}
    for settings in different.values():
        try:
            pick_device(settings.device)
            note_local(settings.init, log)
            base = open_base(settings.init, settings.tokenizer, settings.mode)
            assert base.tokenizer is not None
            data = load_data(settings, base.tokenizer, pick_window(settings.window, base.model.config), log)
            build_classifier(base.model, settings, len(data.class_names))
        except HeadstartError as error:
            errors.setdefault(str(error), error)
    if len(errors) > 1:
        raise ConfigError("sweep", errors)
    for only in errors.values():
        raise only


def _open_folder(out: Path, settings: SweepSettings, splits: Mapping[str, Examples], resume: bool) -> None:
    """A new study folder; or, with `resume`, the one that is there if it is of the same settings and data."""
    wanted = {"study": "sweep", **settings.to_mapping()}
    if settings.storage is not None:
        wanted["storage"] = redacted(settings.storage)
    rows = {name: len(part.rows) for name, part in splits.items()}
    data = StudyData(split_fingerprints(splits), rows, splits["train"].class_names)
    folder = StudyFolder(out)
    if out.is_file():
        raise OutputError(f"{out} is a file, and a folder for the sweep was meant: name another")
    if out.is_dir() and holds_something(out):
        if not folder.begun:
            raise OutputError(f"{out} holds something that is no study: name another folder")
        before = folder.settings()
        free = {
            *MAY_CHANGE,
            *(axis.name for axis in settings.axes),
        }  # the value of a swept setting has no effect
        keys = {key for key in before.keys() | wanted.keys() if before.get(key) != wanted.get(key)}.difference(free)
        if keys:
            names = ", ".join(sorted(keys))
            raise OutputError(f"{out} holds another study (it differs in {names}): name another folder")
        if not resume:
            raise OutputError(f"the sweep in {out} was begun: add --resume to go on with it, or name another folder")
        earlier = folder.data()
        if earlier is not None:
            changed = ", ".join(name for name, d in data.fingerprint.items() if d != earlier.fingerprint.get(name))
            if changed:
                raise OutputError(f"{out} holds a sweep on other texts ({changed} differs): name another folder")
    folder.write_settings(wanted)
    folder.write_data(data)


# --- a grid -----------------------------------------------------------------------------------------------------------


def _grid(runner: TrialRunner, combinations: Sequence[FinetuneSettings]) -> None:
    """Every combination, shared with other processes; what failed in an earlier sweep is tried again."""
    for combination in combinations:
        with run_lock(runner.folder(combination)) as acquired:
            if acquired and "error" in (runner.outcome(combination) or {}):
                (runner.folder(combination) / ENDED).unlink()
    known = (*combinations, *_earlier(runner, combinations))
    varied = (f.name for f in fields(FinetuneSettings) if len({getattr(each, f.name) for each in known}) > 1)
    runner.swept = tuple(dict.fromkeys((*runner.swept, *varied)))

    def write_record() -> None:
        runner.write_record([runner.trial(each, runner.outcome(each) or {}) for each in known])

    write_record()
    while left := [each for each in combinations if runner.outcome(each) is None]:
        done = 0
        for combination in left:
            with run_lock(runner.folder(combination)) as acquired:
                if not acquired or runner.outcome(combination) is not None:
                    continue
                title = f"trial {combinations.index(combination) + 1} of {len(combinations)}"
                runner.log_start(title, combination)
                runner.log_end(title, runner.train(combination, runner.on_event))
                done += 1
            write_record()
        if not done:
            runner.wait_for_others(len(left))
    write_record()


def _earlier(runner: TrialRunner, combinations: Sequence[FinetuneSettings]) -> list[FinetuneSettings]:
    """The runs that an earlier sweep with another grid did in this folder."""
    earlier: list[FinetuneSettings] = []
    for run in StudyFolder(runner.out).done():
        mapping = {name: value for name, value in run.settings().items() if name != "study"}
        combination = FinetuneSettings.from_mapping(mapping, str(run.path))
        if combination not in combinations and runner.folder(combination) == run.path:  # else its base has changed
            earlier.append(combination)
    return earlier


def _log_once(log: Callable[[str], None]) -> Callable[[str], None]:
    """No line twice: every trial would log the same about the data."""
    logged: set[str] = set()

    def log_new(text: str) -> None:
        if text not in logged:
            logged.add(text)
            log(text)

    return log_new
