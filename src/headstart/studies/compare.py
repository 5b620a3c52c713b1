"""What did pretraining bring? Arms × seeds × label budgets on one data set, compared.

study.toml        the settings
data.json         what the data are: fingerprints, rows, labels, leaked rows, the doctor's findings
trials/           a run folder for each trial, by which settings are chosen
runs/             a run folder for each arm, budget and seed; one that is done is not done again
comparison.json   scores, differences, verdict

Runs of one seed see the same texts in the same order, whatever their arm. Everything is chosen on valid; a run reads
test once, at its end. Several processes may work in one folder: each takes runs that no other has.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headstart.config import read_pairs
from headstart.doctor.examine import examine, leaked_rows
from headstart.errors import ConfigError, DataError, OutputError, TrainingError, listed_names
from headstart.files import holds_something
from headstart.reading.examples import Examples
from headstart.runs.comparison import Comparison
from headstart.runs.study import StudyData, StudyFolder
from headstart.studies.arms import TOKENIZER, Base, arm_settings, check_arms, choose_arms, open_bases, without_base
from headstart.studies.bases import with_shipped_base
from headstart.studies.contrasts import STUDENTS
from headstart.studies.distillation import check_teachers, teacher_fingerprints
from headstart.studies.fingerprints import settings_key, split_fingerprints
from headstart.studies.folds import choose_folds
from headstart.studies.gpu_sharing import Sharing, starting_to_share
from headstart.studies.outcomes import Arm
from headstart.studies.pile import check_pile, with_pile
from headstart.studies.planned_runs import plan_runs, read_budgets
from headstart.studies.settings import CompareSettings, given_settings
from headstart.studies.splits import draw_budget, read_splits
from headstart.studies.study import Log, Study
from headstart.studies.tuning import ArmSearch
from headstart.studies.unlabelled import unlabelled_texts
from headstart.studies.workers import WorkerFailure, run_workers, start_fork_server
from headstart.training.hardware import pick_device

LEAST_TEST_ROWS = 20  # below it an interval is wider than any difference one could hope for


def compare(settings: CompareSettings, out: str | Path, *, log: Log = lambda text: None) -> Comparison:
    """Do the runs that are not done yet, and compare all of them."""
    several = settings.processes > 1
    if several:
        start_fork_server()  # it imports what workers need while the data are read
    with starting_to_share(wanted=several and settings.device != "cpu") as sharing:
        study = open_study(settings, out, log=log)
        run_study(study, sharing, log=log)
    return study.conclude()


def run_study(study: Study, sharing: Sharing = dict, *, log: Log = lambda text: None) -> None:
    """Every run of a study, in this process or in several side by side, which share a GPU by `sharing`."""
    if study.done:
        return
    if study.settings.processes == 1:
        study.work(log)
    else:
        arguments = (study.settings.to_mapping(), str(study.folder), study.deadline)
        on_gpu = pick_device(study.settings.device).type == "cuda"
        try:
            run_workers(_work, arguments, study.settings.processes, sharing() if on_gpu else None)
        except WorkerFailure as failure:
            if not study.done:
                raise TrainingError(f"{failure}: what is done is kept, run the same command again") from None
            log(f"{failure}: the others did their runs, and nothing is missing")


def _work(settings: Mapping[str, Any], folder: str, deadline: float) -> None:
    """In a worker process: the time that the study has began in its parent, whose clock is the same."""
    study = open_study(CompareSettings.from_mapping(settings, "study.toml"), folder)
    replace(study, deadline=deadline).work()


def open_study(settings: CompareSettings, out: str | Path, *, log: Log = lambda text: None) -> Study:
    """Check all that can be checked before any training; write the folder, or go on in the one that is there."""
    began = time.monotonic()
    pick_device(settings.device)
    splits = read_splits(settings, log)
    leaked = tuple(sorted(leaked_rows(splits["train"], splits["valid"], splits["test"]))) if "test" in splits else ()
    _check_splits(settings, splits, len(leaked))
    train, folder, fingerprints = splits["train"], Path(out), split_fingerprints(splits)
    budgets = read_budgets(settings, train)
    # Settings are chosen on no more labels than the runs have.
    chosen_on = {**splits, "train": draw_budget(train, max(budgets), settings.seed)}
    _check_folder(folder, fingerprints)
    settings = _as_begun(settings, folder)
    unlabelled = None if settings.unlabelled is None else unlabelled_texts(settings, splits, log)
    check_teachers(settings.teacher or (), splits, log)
    if settings.pile:
        check_pile(settings, folder)
        _write_folder(folder, settings, splits, leaked, fingerprints)  # killed from here on, it goes on in this folder
        settings = with_pile(settings, splits, folder, log)
    elif not settings.init:
        settings = with_shipped_base(settings, train, log) or without_base(settings, train, folder, log)
    bases = open_bases(settings, log)
    arms = choose_arms(settings, bases)
    check_arms(settings, arms, bases, len(train.class_names))
    _write_folder(folder, settings, splits, leaked, fingerprints)
    log(f"study folder: {folder}")
    read = dict(fingerprints)
    if unlabelled is not None:
        read |= split_fingerprints({"unlabelled": unlabelled})
    if settings.teacher:
        read["teacher"] = settings_key(teacher_fingerprints(settings.teacher))
    return Study(
        settings,
        folder,
        splits,
        leaked,
        plan=lambda seeds, tuned: tuple(
            plan_runs(settings, folder, arms, bases, budgets, len(train.rows), read, seeds, tuned)
        ),
        searches=tuple(_searches(settings, arms, bases, chosen_on, folder)),
        deadline=began + (math.inf if settings.seconds is None else settings.seconds),
        bases={(base.init, settings.tokenizer): base.checkpoint for base in bases.values()},
        budgets=budgets,
        unlabelled=unlabelled,
    )


def _searches(
    settings: CompareSettings,
    arms: Sequence[Arm],
    bases: Mapping[str, Base],
    splits: Mapping[str, Examples],
    folder: Path,
) -> Iterator[ArmSearch]:
    """A search for each arm that is trained by steps, unless its learning rate and epochs were given."""
    if settings.tune == "none":
        return
    folds = choose_folds(splits["train"], splits["valid"])
    given = given_settings(settings)
    for arm in arms:
        if arm.mode in STUDENTS or (arm.mode == "frozen" and settings.frozen_head != "trained"):
            continue
        assert arm.base is not None
        base = bases[arm.base]
        own = {*given, *read_pairs(getattr(settings, arm.mode) or (), arm.mode)}
        if {"lr", "epochs"} <= own:
            continue
        yield ArmSearch(
            arm, arm_settings(settings, arm, bases), own, base.checkpoint.model, folds, folder, base.fingerprint
        )


def _check_splits(settings: CompareSettings, splits: Mapping[str, Examples], leaked: int) -> None:
    if "test" not in splits:
        raise ConfigError("compare", ["test is missing: name a file with --test, or a share with --test-share"])
    names = splits["train"].class_names
    known = set(names)
    for name in ("valid", "test"):
        for row in splits[name].rows:
            if row.label not in known:
                raise DataError(
                    row.path,
                    f"label {row.label!r} is not one of {listed_names(names)}, which train has",
                    line=row.line,
                    fix="mend the label, or add texts of this class to train",
                )
    rows = len(splits["test"].rows)
    if rows < LEAST_TEST_ROWS:
        raise DataError(
            settings.test or settings.data,
            f"a test set of {rows} rows tells nothing: its interval is wider than any difference one could hope for",
            fix=f"give at least {LEAST_TEST_ROWS} rows; some hundreds show a difference of a few points",
        )
    if rows - leaked < LEAST_TEST_ROWS:
        raise DataError(
            settings.test or settings.data,
            f"{leaked:,} of {rows:,} test rows are also in train or valid, which leaves too few to tell anything by",
            fix="give a test set of its own, or part one with `headstart doctor --clean`",
        )


def _check_folder(folder: Path, fingerprints: Mapping[str, str]) -> None:
    """It must be new, or that of a study of the same data, which goes on."""
    if folder.is_file():
        raise OutputError(f"{folder} is a file, and a folder for the study was meant: name another")
    before = StudyFolder(folder).data()
    if before is not None:
        changed = [name for name, value in fingerprints.items() if before.fingerprint.get(name) != value]
        if changed:
            raise OutputError(
                f"{folder} holds a study of other data ({', '.join(changed)} differ): name another folder for this one"
            )
    elif folder.is_dir() and holds_something(folder) and not _only_tokenizer(folder):
        raise OutputError(f"{folder} holds something that is no comparison: name another folder")


def _as_begun(settings: CompareSettings, folder: Path) -> CompareSettings:
    """A study that an earlier version began goes on without the least steps that small budgets have by default now."""
    before = StudyFolder(folder)
    if settings.least_steps is None and before.begun and before.settings().get("least_steps") == 0:
        return replace(settings, least_steps=0)
    return settings


def _only_tokenizer(folder: Path) -> bool:
    """Whether a study without a base was killed as soon as its tokenizer was written."""
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")} == {TOKENIZER}


def _write_folder(
    path: Path,
    settings: CompareSettings,
    splits: Mapping[str, Examples],
    leaked: tuple[int, ...],
    fingerprints: Mapping[str, str],
) -> None:
    folder = StudyFolder(path)
    if folder.data() is None:
        folder.write_data(
            StudyData(
                fingerprint=fingerprints,
                rows={name: len(part.rows) for name, part in splits.items()},
                class_names=splits["train"].class_names,
                leaked=leaked,
                doctor=examine(splits["train"], splits["valid"], splits["test"]).to_json(),
            )
        )
    folder.write_settings({"study": "compare", **settings.to_mapping()})
