"""What did pretraining bring? Arms × seeds × label budgets on one data set, compared.

study.toml        the settings
data.json         what the data are: fingerprints, rows, labels, leaked rows, the doctor's findings
runs/             a run folder for each arm, budget and seed; one that is done is not done again
comparison.json   scores, differences, verdict

Runs of one seed see the same texts in the same order, whatever their arm. Everything is chosen on valid; a run reads
test once, at its end. Several processes may work in one folder: each takes runs that no other has.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headstart.doctor.examine import examine, leaked_rows
from headstart.errors import ConfigError, DataError, OutputError, TrainingError
from headstart.files import holds_something, write_json
from headstart.reading.examples import Examples
from headstart.runs.comparison import Comparison
from headstart.runs.study import StudyData, StudyFolder
from headstart.studies.arms import TOKENIZER, check_arms, choose_arms, open_bases, without_base
from headstart.studies.baselines import baseline
from headstart.studies.bases import with_shipped_base
from headstart.studies.ensemble import ensemble
from headstart.studies.finetune import finetune
from headstart.studies.fingerprints import split_fingerprints
from headstart.studies.locks import run_lock
from headstart.studies.outcomes import Arm, ArmBudget, compare_arms
from headstart.studies.pile import check_pile, with_pile
from headstart.studies.planned_runs import PlannedRun, plan_runs, read_budgets
from headstart.studies.settings import CompareSettings, FinetuneSettings
from headstart.studies.splits import read_splits
from headstart.studies.workers import run_workers
from headstart.training.hardware import pick_device
from headstart.wording import reason

LEAST_TEST_ROWS = 20  # below it an interval is wider than any difference one could hope for
POLL = 1.0  # seconds between looks at runs that other processes have
Log = Callable[[str], None]


@dataclass(frozen=True)
class Study:
    """A comparison whose settings and data are checked."""

    settings: CompareSettings
    folder: Path
    splits: Mapping[str, Examples]
    leaked: tuple[int, ...]  # rows of test that stand in train or valid
    runs: tuple[PlannedRun, ...]

    def work(self, log: Log = lambda text: None) -> None:
        """Do every run that is not done and that no other process has, until all are done or have failed."""
        failed: set[Path] = set()
        while True:
            waiting = False
            for run in self.runs:
                if run.done or run.folder in failed:
                    continue
                with run_lock(run.folder) as acquired:
                    if not acquired:
                        waiting = True
                    elif not run.done and not self._do(run, log):
                        failed.add(run.folder)
            if not waiting:
                return
            time.sleep(POLL)

    def _do(self, run: PlannedRun, log: Log) -> bool:
        """One run; where it diverges or runs out of memory, that is recorded and the others go on."""
        try:
            if run.arm.mode == "baseline":
                baseline(run.settings["kind"], self.splits, run.settings, run.folder)
            else:
                settings = FinetuneSettings.from_mapping(run.settings, run.title)
                finetune(settings, run.folder, splits=self.splits, resume=True, keep_model=run.keep_model, log=log)
        except (TrainingError, torch.OutOfMemoryError) as error:
            write_json(run.failure_file, {"error": reason(error)})
            return False
        run.failure_file.unlink(missing_ok=True)
        return True

    def conclude(self) -> Comparison:
        """The comparison, once every run is done; it is written beside the runs."""
        missing = [run for run in self.runs if not run.done]
        if missing:
            first = "; ".join(f"{run.title}: {run.failure}" for run in missing[:3])
            raise TrainingError(
                f"{len(missing)} of {len(self.runs)} runs failed, and without them there is no verdict "
                f"({first}). What is done is kept: mend the cause and run the same command again"
            )
        folders: dict[ArmBudget, list[Path]] = defaultdict(list)
        for run in self.runs:
            folders[run.arm, run.budget].append(run.folder)
        for arm, budget, folder in self._ensembles() if self.settings.ensemble else ():
            folders[arm, budget].append(folder)
        comparison = compare_arms(
            folders,
            reference=self.settings.reference,
            leaked=self.leaked,
            root=self.folder,
            matters=self.settings.matters / 100,
        )
        StudyFolder(self.folder).write_comparison(comparison)
        return comparison

    def _ensembles(self) -> Iterator[tuple[Arm, int, Path]]:
        """Each pretrained run with the linear model of the same texts; nothing is trained."""
        linear = {(run.budget, run.seed): run.folder for run in self.runs if run.arm.name == "tfidf"}
        for run in self.runs:
            if run.arm.mode in ("full", "frozen"):
                other = linear.get((run.budget, run.seed)) or linear[run.budget, None]
                out = run.folder.with_name(run.folder.name.replace(run.arm.mode, f"{run.arm.mode}+tfidf", 1))
                ensemble(run.folder, other, out, seed=run.seed or 0)
                yield Arm(f"{run.arm.name}+tfidf", "ensemble"), run.budget, out


def compare(settings: CompareSettings, out: str | Path, *, log: Log = lambda text: None) -> Comparison:
    """Do the runs that are not done yet, and compare all of them."""
    study = open_study(settings, out, log=log)
    run_study(study, log=log)
    return study.conclude()


def run_study(study: Study, *, log: Log = lambda text: None) -> None:
    """Every run of a study, in this process or in several side by side."""
    if all(run.done for run in study.runs):
        return
    if study.settings.jobs == 1:
        study.work(log)
    else:
        run_workers(_work, (study.settings.to_mapping(), str(study.folder)), study.settings.jobs)


def _work(settings: Mapping[str, Any], folder: str) -> None:
    open_study(CompareSettings.from_mapping(settings, "study.toml"), folder).work()


def open_study(settings: CompareSettings, out: str | Path, *, log: Log = lambda text: None) -> Study:
    """Check all that can be checked before any training; write the folder, or go on in the one that is there."""
    pick_device(settings.device)
    splits = read_splits(settings, log)
    leaked = tuple(sorted(leaked_rows(splits["train"], splits["valid"], splits["test"]))) if "test" in splits else ()
    _check_splits(settings, splits, len(leaked))
    train, folder, fingerprints = splits["train"], Path(out), split_fingerprints(splits)
    budgets = read_budgets(settings, train)
    _check_folder(folder, fingerprints)
    if settings.pile:
        check_pile(settings, folder)
        _write_folder(folder, settings, splits, leaked, fingerprints)  # killed from here on, it goes on in this folder
        settings = with_pile(settings, splits, folder, log)
    elif not settings.init:
        settings = with_shipped_base(settings, train, log) or without_base(settings, train, folder, log)
    bases = open_bases(settings)
    arms = choose_arms(settings, bases)
    check_arms(settings, arms, bases, len(train.class_names))
    runs = plan_runs(settings, folder, arms, bases, budgets, len(train.rows), fingerprints)
    _write_folder(folder, settings, splits, leaked, fingerprints)
    log(f"study folder: {folder}")
    return Study(settings, folder, splits, leaked, tuple(runs))


def _check_splits(settings: CompareSettings, splits: Mapping[str, Examples], leaked: int) -> None:
    if "test" not in splits:
        raise ConfigError("compare", ["test is missing: name a file with --test, or a share with --test-share"])
    names = splits["train"].class_names
    for name in ("valid", "test"):
        for row in splits[name].rows:
            if row.label not in names:
                raise DataError(
                    row.path,
                    f"label {row.label!r} is not one of {', '.join(names)}, which train has",
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
