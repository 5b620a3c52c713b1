"""A sweep: many fine-tunings that differ in a few settings, and the table that tells which of them did best on valid.

grid      every combination of the values that were named
search    Optuna proposes each trial from what the trials before it reached

The study folder:

study.toml   the settings of the sweep, enough to run it again
data.json    digests of the texts, their numbers and labels
study.db     what Optuna knows of a search, unless a database elsewhere holds it
runs/        one run folder a trial, named for its settings and data: what is done there is not done again
sweep.json   the table

Several processes may work on one folder, and on one search from several machines through a database. A run folder is
claimed by a lock of the operating system, a trial of a search by its state in the database. What a process that died
leaves behind is taken up by another: of a grid at once, of a search when its sign of life is `GRACE` seconds old.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from headstart.batches.batch import pick_window
from headstart.errors import ConfigError, HeadstartError, OutputError
from headstart.files import holds_something
from headstart.reading.examples import Examples
from headstart.runs.events import OnEvent
from headstart.runs.study import StudyData, StudyFolder
from headstart.studies.claims import claim
from headstart.studies.finetune import build_classifier, load_data, open_base
from headstart.studies.labelled import fingerprint, read_splits
from headstart.studies.search import search
from headstart.studies.settings import FinetuneSettings, SweepSettings
from headstart.studies.storage import load_optuna, without_password
from headstart.studies.trials import ENDED, FREE, POLL, Trials, outcome_of, waiting
from headstart.training.hardware import pick_device

# What can be wrong with data, model and device depends on these.
REHEARSED = ("device", "init", "mode", "tokenizer", "window", "labels", "pool", "pooler")


def sweep(
    settings: SweepSettings,
    out: str | Path,
    *,
    resume: bool = False,
    on_event: OnEvent | None = None,
    log: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Run every trial, write the study folder, and return what `sweep.json` holds.

    What is wrong with the settings or the data of any trial is told before the first one trains. A trial that fails
    later, on a loss that is no number or too little memory, is an entry of the table, and the sweep goes on.
    """
    out = Path(out)
    combinations = settings.combinations()
    if settings.search:
        load_optuna()  # before anything is read: without it there is no search
    once = _once(log)
    _rehearse(combinations, once)
    splits = read_splits(settings)
    study = Trials(settings, out, fingerprint(splits), on_event, once)
    _open_study(out, settings, splits, resume)
    if settings.search:
        search(study)
    else:
        _grid(study, combinations)
    return study.found.to_json()


# --- before anything trains ------------------------------------------------------------------------------------------


def _rehearse(combinations: Iterable[FinetuneSettings], log: Callable[[str], None]) -> None:
    """Open every base and encode the texts as the trials will: a mistake should cost seconds and not a night."""
    parts = {tuple(getattr(one, name) for name in REHEARSED): one for one in combinations}
    errors: dict[str, HeadstartError] = {}
    for one in parts.values():
        try:
            pick_device(one.device)
            base = open_base(one)
            assert base.tokenizer is not None
            data = load_data(one, base.tokenizer, pick_window(one.window, base.model.config), log)
            build_classifier(base.model, one, len(data.labels))
        except HeadstartError as error:
            errors.setdefault(str(error), error)
    if len(errors) > 1:
        raise ConfigError("sweep", errors)
    for only in errors.values():
        raise only


def _open_study(out: Path, settings: SweepSettings, splits: Mapping[str, Examples], resume: bool) -> None:
    """A new study folder; or, with `resume`, the one that is there if it is of the same settings and data."""
    wanted = {"study": "sweep", **settings.to_mapping()}
    if settings.storage is not None:
        wanted["storage"] = without_password(settings.storage)
    rows = {name: len(part.rows) for name, part in splits.items()}
    data = StudyData(fingerprint(splits), rows, splits["train"].class_names)
    folder = StudyFolder(out)
    if out.is_file():
        raise OutputError(f"{out} is a file, and a folder for the sweep was meant: name another")
    if out.is_dir() and holds_something(out):
        if not folder.begun:
            raise OutputError(f"{out} holds something that is no study: name another folder")
        found = folder.settings()
        free = {*FREE, *(axis.name for axis in settings.axes)}  # what is varied has no value that all trials share
        keys = {key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key)}.difference(free)
        if keys:
            names = ", ".join(sorted(keys))
            raise OutputError(f"{out} holds another study (it differs in {names}): name another folder")
        if not resume:
            raise OutputError(f"the sweep in {out} was begun: add --resume to go on with it, or name another folder")
        before = folder.data()
        if before is not None:
            changed = ", ".join(name for name, d in data.fingerprint.items() if d != before.fingerprint.get(name))
            if changed:
                raise OutputError(f"{out} holds a sweep on other texts ({changed} differs): name another folder")
    folder.write_settings(wanted)
    folder.write_data(data)


# --- a grid -----------------------------------------------------------------------------------------------------------


def _grid(study: Trials, combinations: Sequence[FinetuneSettings]) -> None:
    """Every combination, shared with whoever else is at it; what failed an earlier time is tried again."""
    for one in combinations:
        with claim(study.folder(one)) as ours:
            if ours and "error" in (outcome_of(study.folder(one)) or {}):
                (study.folder(one) / ENDED).unlink()
    everything = (*combinations, *_earlier(study, combinations))
    varied = (f.name for f in fields(FinetuneSettings) if len({getattr(one, f.name) for one in everything}) > 1)
    study.swept = tuple(dict.fromkeys((*study.swept, *varied)))

    def tabulate() -> None:
        study.tabulate([study.trial(one, outcome_of(study.folder(one)) or {}) for one in everything])

    tabulate()
    while left := [one for one in combinations if outcome_of(study.folder(one)) is None]:
        done = 0
        for one in left:
            with claim(study.folder(one)) as ours:
                if not ours or outcome_of(study.folder(one)) is not None:
                    continue
                which = study.announce(combinations.index(one) + 1, len(combinations), one)
                study.conclude(which, study.train(one, study.on_event))
                done += 1
            tabulate()
        if not done:
            study.log(waiting(len(left)))
            time.sleep(POLL)
    tabulate()


def _earlier(study: Trials, combinations: Sequence[FinetuneSettings]) -> list[FinetuneSettings]:
    """Runs that are done and that this grid does not ask for: an earlier one did."""
    found: list[FinetuneSettings] = []
    for run in StudyFolder(study.out).done():
        mapping = {name: value for name, value in run.settings().items() if name != "study"}
        one = FinetuneSettings.from_mapping(mapping, str(run.path))
        if one not in combinations and study.folder(one) == run.path:  # else its base has changed since
            found.append(one)
    return found


def _once(log: Callable[[str], None]) -> Callable[[str], None]:
    """Say nothing twice: every trial would tell the same of the data."""
    said: set[str] = set()

    def say(text: str) -> None:
        if text not in said:
            said.add(text)
            log(text)

    return say
