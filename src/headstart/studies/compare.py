"""What did pretraining buy? Arms × seeds × label budgets on one data set, and what can be said of them.

study.toml        the settings
data.json         what the data are: fingerprints, rows, labels, leaked rows, the doctor's findings
runs/             a run folder for each arm, budget and seed; one that is done is not done again
comparison.json   scores, differences, verdict

Runs of one seed see the same texts in the same order, whatever their arm. Everything is chosen on valid; a run reads
test once, at its end. Several processes may work in one folder: each takes runs that nobody has.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from headstart.batches.batch import pick_window
from headstart.checkpoints.folder import Checkpoint
from headstart.config import read_pairs
from headstart.doctor.examine import examine, leaked_rows
from headstart.errors import ConfigError, DataError, OutputError, TrainingError, did_you_mean
from headstart.files import holds_something, read_json, write_json
from headstart.model.presets import PRESETS
from headstart.reading.examples import Examples
from headstart.runs.comparison import Comparison, Mode
from headstart.runs.run import RunFolder
from headstart.runs.study import StudyData, StudyFolder
from headstart.studies.baselines import KINDS, baseline
from headstart.studies.claims import claim, fingerprint_of, key_of
from headstart.studies.ensemble import ensemble
from headstart.studies.finetune import build_classifier, finetune, open_base
from headstart.studies.labelled import fingerprint, read_splits, subset, train_tokenizer_on
from headstart.studies.outcomes import Arm, compare_arms
from headstart.studies.settings import DATA, CompareSettings, FinetuneSettings, LabelledSettings
from headstart.training.hardware import pick_device
from headstart.wording import reason

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, SpawnContext

MODES = ("scratch", "frozen", "full")
PRESET = "small"  # what is trained from scratch where no base is named
TOKENIZER = "tokenizer"  # in the study folder, where the training set gave it
LEAST_TEST_ROWS = 20  # below it an interval is wider than any difference one could hope for
SHARED = ("init", "mode", "labels", "seed", "epochs", "steps", "batch_size", "tokens")  # one budget for every arm
INTERRUPTS = {signal.SIGINT}
PATIENCE = 1.0  # seconds between looks at runs that others have
Log = Callable[[str], None]


@dataclass(frozen=True)
class Planned:
    """A run to do: an arm, how many labels it learns from, and with which seed (None: no part of it is drawn)."""

    arm: Arm
    labels: int
    seed: int | None
    settings: Mapping[str, Any]
    folder: Path
    keep_model: bool

    @property
    def done(self) -> bool:
        return RunFolder(self.folder).done

    @property
    def failure(self) -> Path:
        """Where the error is written that a try at it ended with: beside the run, which is to be tried again."""
        return self.folder.parent / ".failed" / f"{self.folder.name}.json"

    @property
    def title(self) -> str:
        return self.arm.name if self.seed is None else f"{self.arm.name}, {self.labels:,} labels, seed {self.seed}"


@dataclass(frozen=True)
class Study:
    """A comparison that has been checked through and can run."""

    settings: CompareSettings
    folder: Path
    splits: Mapping[str, Examples]
    plan: tuple[Planned, ...]

    @cached_property
    def leaked(self) -> list[int]:
        return sorted(leaked_rows(self.splits["train"], self.splits["valid"], self.splits["test"]))

    def work(self, log: Log) -> None:
        """Do every run that is not done and that nobody else is doing, until all are done or have failed."""
        failed: set[Path] = set()
        while True:
            elsewhere = False
            for run in self.plan:
                if run.done or run.folder in failed:
                    continue
                with claim(run.folder) as ours:
                    if not ours:
                        elsewhere = True
                    elif not run.done and not self._do(run, log):
                        failed.add(run.folder)
            if not elsewhere:
                return
            time.sleep(PATIENCE)

    def _do(self, run: Planned, log: Log) -> bool:
        """One run; where it diverges or runs out of memory that is written down, and the others go on."""
        try:
            if run.arm.mode == "baseline":
                baseline(run.settings["kind"], self.splits, run.settings, run.folder)
            else:
                settings = FinetuneSettings.from_mapping(run.settings, run.title)
                finetune(settings, run.folder, splits=self.splits, resume=True, keep_model=run.keep_model, log=log)
        except (TrainingError, torch.OutOfMemoryError) as error:
            write_json(run.failure, {"error": reason(error)})
            return False
        run.failure.unlink(missing_ok=True)
        return True

    def conclude(self) -> Comparison:
        """The comparison, once every run is done; it is written beside the runs."""
        missing = [run for run in self.plan if not run.done]
        if missing:
            first = "; ".join(f"{run.title}: {_why(run)}" for run in missing[:3])
            raise TrainingError(
                f"{len(missing)} of {len(self.plan)} runs failed, and a verdict on the rest would be no verdict "
                f"({first}). What is done is kept: mend the cause and run the same command again"
            )
        runs: dict[tuple[Arm, int], list[Path]] = defaultdict(list)
        for run in self.plan:
            runs[run.arm, run.labels].append(run.folder)
        for arm, labels, folder in self._ensembles() if self.settings.ensemble else ():
            runs[arm, labels].append(folder)
        found = compare_arms(runs, reference=self.settings.reference, leaked=self.leaked, root=self.folder)
        StudyFolder(self.folder).write_comparison(found)
        return found

    def _ensembles(self) -> Iterator[tuple[Arm, int, Path]]:
        """Each pretrained run together with the linear model of the same texts; nothing is trained."""
        linear = {(run.labels, run.seed): run.folder for run in self.plan if run.arm.name == "tfidf"}
        for run in self.plan:
            if run.arm.mode in ("full", "frozen"):
                other = linear.get((run.labels, run.seed)) or linear[run.labels, None]
                out = run.folder.with_name(run.folder.name.replace(run.arm.mode, f"{run.arm.mode}+tfidf", 1))
                ensemble(run.folder, other, out, seed=run.seed or 0)
                yield Arm(f"{run.arm.name}+tfidf", "ensemble"), run.labels, out


def compare(settings: CompareSettings, out: str | Path, *, log: Log = lambda text: None) -> Comparison:
    """Run what is not done yet, and say what came of it."""
    study = open_study(settings, out, log=log)
    run_study(study, log=log)
    return study.conclude()


def workshop() -> ForkServerContext | SpawnContext:
    """Where workers come from: a server that imports what they need while others read the data, and then divides.

    Where there is none, as on Windows, each worker imports for itself, which takes seconds.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    from multiprocessing import forkserver, resource_tracker

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    resource_tracker.ensure_running()  # which the server would start, and which has masks of its own
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)  # which are for the workers, and not for the server
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return context


def run_study(study: Study, *, log: Log = lambda text: None) -> None:
    """Every run of a study, in this process or in several side by side."""
    if all(run.done for run in study.plan):  # no need to start anybody
        return
    if study.settings.jobs == 1:
        study.work(log)
        return
    cores = max(1, (os.cpu_count() or 1) // study.settings.jobs)
    context = workshop()
    arguments = (study.settings.to_mapping(), str(study.folder), cores)
    workers = [context.Process(target=_worker, args=arguments) for _ in range(study.settings.jobs)]
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join()
    except KeyboardInterrupt:  # they had it too, and save what they have
        for worker in workers:
            worker.join()
        raise
    broken = [worker for worker in workers if worker.exitcode]
    if broken:
        raise TrainingError(
            f"{len(broken)} of {len(workers)} processes ended early (exit code {broken[0].exitcode}): "
            "what is done is kept, run the same command again"
        )


def _worker(settings: Mapping[str, Any], folder: str, threads: int) -> None:
    torch.set_num_threads(threads)
    try:
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)
        open_study(CompareSettings.from_mapping(settings, "study.toml"), folder).work(lambda text: None)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def open_study(settings: CompareSettings, out: str | Path, *, log: Log = lambda text: None) -> Study:
    """Check everything that can be checked before any training; make the folder, or go on in the one that is there."""
    pick_device(settings.device)
    splits = read_splits(settings, log)
    _check_splits(settings, splits)
    budgets = _budgets(settings, splits["train"])
    prints = fingerprint(splits)
    _check_folder(Path(out), prints)
    if not settings.init:
        settings = _without_base(settings, splits["train"], Path(out), log)
    bases = _bases(settings)
    arms = _arms(settings, bases)
    _check_reference(settings, arms)
    _check_arms(settings, arms, bases, len(splits["train"].class_names))
    plan = tuple(_plan(settings, Path(out), arms, bases, budgets, len(splits["train"].rows), prints))
    study = Study(settings, Path(out), splits, plan)
    _write_folder(study, prints)
    return study


def _without_base(settings: CompareSettings, train: Examples, folder: Path, log: Log) -> CompareSettings:
    """What can be compared without a pretrained model: a preset from scratch, its tokenizer trained on the texts."""
    log(
        f"no --init: a `{PRESET}` model from scratch is compared with the baselines. To learn what pretraining buys, "
        "name a model folder with --init; `headstart pretrain TEXT` and `headstart import` make one"
    )
    changes: dict[str, Any] = {"init": (PRESET,)}
    if settings.arms == CompareSettings.arms:
        changes["arms"] = "scratch"
    if settings.tokenizer is None:
        changes["tokenizer"] = str(folder / TOKENIZER)
        if StudyFolder(folder).data() is None:  # in a study that was begun it is there
            train_tokenizer_on(train.rows, folder / TOKENIZER)
    return replace(settings, **changes)


def _why(run: Planned) -> str:
    return str(read_json(run.failure)["error"]) if run.failure.is_file() else "not done"


# --- what is to be done ---


@dataclass(frozen=True)
class Base:
    """What arms start from: a model folder, or a preset, which has an architecture and no weights."""

    init: str
    has_weights: bool
    fingerprint: str
    architecture: str  # equal for two bases that are the same when their weights are fresh
    model: Checkpoint


def _bases(settings: CompareSettings) -> dict[str, Base]:
    """The bases under the names that were given, or the last parts of their paths."""
    found: dict[str, Base] = {}
    for text in settings.init:
        name, equals, init = text.partition("=")
        if not equals or Path(text).exists():
            name, init = Path(text).name or text, text
        if name in found:
            raise ConfigError("compare", [f"two bases are named {name!r}: name them apart with --init NAME=FOLDER"])
        fresh = init in PRESETS and not Path(init).is_dir()
        model = open_base(FinetuneSettings(data=settings.data, init=init, tokenizer=settings.tokenizer, mode="scratch"))
        assert model.tokenizer is not None
        architecture = key_of({"config": model.model.config.to_mapping(), "tokenizer": model.tokenizer.fingerprint})
        found[name] = Base(init, not fresh, fingerprint_of(init), architecture, model)
    return found


def _arms(settings: CompareSettings, bases: Mapping[str, Base]) -> list[Arm]:
    """Every mode asked for, of every base that can have it; bases of one architecture share their arm from scratch."""
    chosen: list[tuple[Mode, str]] = []
    problems = []
    for word in (each.strip() for each in settings.arms.split(",")):
        mode, colon, base = word.partition(":")
        if mode not in MODES:
            problems.append(f"arm {word!r}: {did_you_mean(mode, MODES)} (the baselines are always there)")
        elif colon and base not in bases:
            problems.append(f"arm {word!r}: no base is named {base!r}: {did_you_mean(base, bases)}")
        else:
            able = [name for name in ([base] if colon else bases) if mode == "scratch" or bases[name].has_weights]
            if not able:
                problems.append(f"arm {word!r} needs a model folder: {base or ', '.join(bases)} is without weights")
            chosen += [(mode, name) for name in able]  # type: ignore[misc]
    if problems:
        raise ConfigError("arms", problems)
    unlike = {
        (mode, bases[base].architecture if mode == "scratch" else base): (mode, base) for mode, base in reversed(chosen)
    }
    kept = [each for each in dict.fromkeys(chosen) if each in unlike.values()]
    names = [mode if [each for each, _ in kept].count(mode) == 1 else f"{mode}:{base}" for mode, base in kept]
    return [Arm(name, mode, base) for name, (mode, base) in zip(names, kept, strict=True)]


def _budgets(settings: CompareSettings, train: Examples) -> list[int]:
    """The numbers of labels to learn from, few first; all there are, unless others are asked for."""
    found, problems = set(), []
    for word in (settings.labels or "all").replace(" ", "").split(","):
        if word == "all":
            found.add(len(train.rows))
        elif word.isdecimal():
            found.add(int(word))
        else:
            problems.append(f"{word!r} is no number of labels: write them as 50,100,all")
    for count in sorted(found):
        try:
            subset(train, count, settings.seed)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError("labels", problems)
    return sorted(found)


def _plan(
    settings: CompareSettings,
    folder: Path,
    arms: Sequence[Arm],
    bases: Mapping[str, Base],
    budgets: Sequence[int],
    everything: int,
    prints: Mapping[str, str],
) -> Iterator[Planned]:
    """The baselines, which take seconds, then seed by seed, so that what is there early can be compared already."""

    def planned(arm: Arm, labels: int, seed: int | None, values: dict[str, Any], keep: bool = False) -> Planned:
        base = None if arm.base is None else bases[arm.base].fingerprint
        name = "-".join([arm.name.replace(":", "-"), str(labels), *([] if seed is None else [f"seed{seed}"])])
        return Planned(arm, labels, seed, values, folder / "runs" / f"{name}-{key_of([values, prints, base])}", keep)

    given = settings.to_mapping()
    seeds = range(settings.seed, settings.seed + settings.seeds)
    for kind in KINDS:
        for labels in budgets:
            arm, values = Arm(kind, "baseline"), {"kind": kind, **{name: given[name] for name in DATA if name in given}}
            if labels == everything:  # nothing is drawn
                yield planned(arm, labels, None, values)
                continue
            for seed in seeds:
                yield planned(arm, labels, seed, {**values, "labels": labels, "seed": seed})
    for seed in seeds:
        for labels in budgets:
            for arm in arms:
                values = {**arm_settings(settings, arm, bases).to_mapping(), "seed": seed}
                if labels < everything:
                    values |= {"labels": labels, "epochs": _epochs(settings, labels)}
                first = seed == settings.seed and labels == max(budgets)
                yield planned(arm, labels, seed, values, settings.keep_models or first)


def _epochs(settings: CompareSettings, labels: int) -> int:
    """So many passes over few labels that they come to the least steps asked for."""
    steps = math.ceil(labels / settings.batch_size)
    return max(settings.epochs, math.ceil(settings.least_steps / steps))


def arm_settings(settings: CompareSettings, arm: Arm, bases: Mapping[str, Base]) -> FinetuneSettings:
    """The settings of an arm's runs, but for seed and budget: those of the study, and over them those of its mode."""
    assert arm.base is not None
    given = settings.to_mapping()
    common = {f.name: given[f.name] for f in fields(LabelledSettings) if f.name in given}
    own = read_pairs(getattr(settings, arm.mode), f"--{arm.mode}")
    shared = sorted(own.keys() & {*SHARED, *DATA})
    if shared:
        words = [f"{name} is the same for every arm, and cannot be set for one" for name in shared]
        raise ConfigError(f"--{arm.mode}", words)
    return FinetuneSettings.from_mapping({**common, "init": bases[arm.base].init, "mode": arm.mode, **own}, arm.name)


# --- what is checked before anything runs ---


def _check_splits(settings: CompareSettings, splits: Mapping[str, Examples]) -> None:
    if "test" not in splits:
        raise ConfigError("compare", ["test is missing: name a file with --test, or a share with --test-share"])
    labels = splits["train"].class_names
    for name in ("valid", "test"):
        for row in splits[name].rows:
            if row.label not in labels:
                raise DataError(
                    row.path,
                    f"label {row.label!r} is not one of {', '.join(labels)}, which train has",
                    line=row.line,
                    fix="mend the label, or add texts of this class to train",
                )
    rows, leaked = len(splits["test"].rows), len(leaked_rows(splits["train"], splits["valid"], splits["test"]))
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


def _check_reference(settings: CompareSettings, arms: Sequence[Arm]) -> None:
    names = [*(arm.name for arm in arms), *KINDS]
    if settings.reference is not None and settings.reference not in names:
        hint = did_you_mean(settings.reference, names)
        raise ConfigError("compare", [f"reference {settings.reference!r} is none of the arms: {hint}"])


def _check_arms(settings: CompareSettings, arms: Sequence[Arm], bases: Mapping[str, Base], classes: int) -> None:
    """Build each arm's classifier once: what cannot be built is told before the first run, not after the tenth."""
    for arm in arms:
        assert arm.base is not None
        model, chosen = bases[arm.base].model.model, arm_settings(settings, arm, bases)
        pick_window(chosen.window, model.config)
        build_classifier(model, chosen, classes)


# --- the folder ---


def _check_folder(folder: Path, prints: Mapping[str, str]) -> None:
    """A folder that is new, or that of a study of the same data, which goes on."""
    if folder.is_file():
        raise OutputError(f"{folder} is a file, and a folder for the study was meant: name another")
    before = StudyFolder(folder).data()
    if before is not None:
        changed = [name for name in prints if before.fingerprint.get(name) != prints[name]]
        if changed:
            raise OutputError(
                f"{folder} holds a study of other data ({', '.join(changed)} differ): name another folder for this one"
            )
    elif folder.is_dir() and holds_something(folder) and not _only_tokenizer(folder):
        raise OutputError(f"{folder} holds something that is no comparison: name another folder")


def _only_tokenizer(folder: Path) -> bool:
    """Whether nothing was written but the tokenizer of a study without a base, which was killed then."""
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")} == {TOKENIZER}


def _write_folder(study: Study, prints: Mapping[str, str]) -> None:
    """Write down what the study is."""
    on_disk, splits = StudyFolder(study.folder), study.splits
    if on_disk.data() is None:
        on_disk.write_data(
            StudyData(
                fingerprint=prints,
                rows={name: len(part.rows) for name, part in splits.items()},
                class_names=splits["train"].class_names,
                leaked=tuple(study.leaked),
                doctor=examine(splits["train"], splits["valid"], splits["test"]).to_json(),
            )
        )
    on_disk.write_settings({"study": "compare", **study.settings.to_mapping()})
