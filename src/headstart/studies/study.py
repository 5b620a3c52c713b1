"""A comparison at work: which runs there are, in which order they are done, and when there are enough of them.

1. the baselines and the linear probe
2. trials, by which the settings of the other arms are chosen (`studies/tuning.py`)
3. the runs that are compared, seed by seed, until the question is settled (`studies/looks.py`)

Several processes do 1 beside 2, and beside 3 where nothing is left to choose.

A run reads test once, at its end, when everything is chosen.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from headstart.batches.examples import EncodingCache
from headstart.checkpoints.folder import Checkpoint
from headstart.errors import NotFinite, TrainingError
from headstart.files import write_json
from headstart.reading.examples import Examples
from headstart.runs.comparison import ALPHA, Comparison
from headstart.runs.events import Event
from headstart.runs.pile import read_pile
from headstart.runs.study import StudyFolder
from headstart.runs.tuning import ArmTuning
from headstart.studies import looks
from headstart.studies.baselines import baseline
from headstart.studies.contrasts import PRETRAINED
from headstart.studies.distillation import LEAST_PASSES, ROUND_PASSES
from headstart.studies.effort import (
    CUT_SHORT,
    EFFORTS,
    IMPROVEMENT,
    LINEAR_SECONDS,
    LINEAR_SHARE,
    Effort,
    RunsAhead,
    choose_effort,
    fits,
)
from headstart.studies.ensemble import ensemble
from headstart.studies.finetune import finetune
from headstart.studies.locks import run_lock
from headstart.studies.outcomes import Arm, ArmBudget, compare_arms
from headstart.studies.planned_runs import PlannedRun, by_batches
from headstart.studies.settings import ENOUGH_STEPS, CompareSettings, FinetuneSettings
from headstart.studies.trials import run_trial
from headstart.studies.tuning import LEAST_STEPS, ArmSearch, Trial
from headstart.wording import plural, reason

KEPT = 12  # sets of encoded texts: the splits, and those of the folds
POLL = 0.2  # seconds between looks at runs that other processes have
Log = Callable[[str], None]


class TimeUp(Exception):
    """Raised in an event callback when the time for the study is up."""


@dataclass(frozen=True, eq=False)
class Study:
    """A comparison whose settings and data are checked.

    What is to be done next is a function of the settings and of what is on disk. So a study that was killed goes on
    where it was, and several processes can share it.
    """

    settings: CompareSettings
    folder: Path
    splits: Mapping[str, Examples]
    leaked: tuple[int, ...]  # rows of test that stand in train or valid
    plan: Callable[[int, Mapping[str, Mapping[str, Any]]], Sequence[PlannedRun]]  # from seeds and tuned settings
    searches: tuple[ArmSearch, ...]
    deadline: float  # on the clock `time.monotonic`: no run goes on after it
    bases: Mapping[tuple[str, str | None], Checkpoint] = field(default_factory=dict)  # by `init` and `tokenizer`
    budgets: Sequence[int] = ()  # of labels
    unlabelled: Examples | None = None  # texts for students, and for the linear model
    encode: EncodingCache = field(default_factory=lambda: EncodingCache(KEPT))
    _settled: dict[int, bool] = field(default_factory=dict)  # by seeds: whether more of them are needed

    # --- what there is to do ---

    @property
    def runs(self) -> tuple[PlannedRun, ...]:
        """The runs that are compared; before the arms are tuned, those that need no tuning."""
        tuned = self.tuned
        if tuned is None:
            return self.untrained
        chosen = {name: tuning.chosen for name, tuning in tuned.items()}
        failed = {name for name, tuning in tuned.items() if tuning.failed}
        runs: tuple[PlannedRun, ...] = ()
        for seeds in self._looks:
            runs = tuple(run for run in self.plan(seeds, chosen) if run.arm.searched not in failed)
            if not all(run.done for run in runs) or self._enough(runs, seeds):
                break
        return runs

    @property
    def done(self) -> bool:
        return self.tuned is not None and all(run.done for run in self.runs)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials that are known so far."""
        effort = self.effort
        if effort is None:
            return tuple(search.first for search in self.searches)
        progress = [search.progress(effort) for search in self.searches]
        return tuple(chain.from_iterable(chain(each.short, *each.long) for each in progress))

    @cached_property
    def untrained(self) -> tuple[PlannedRun, ...]:
        """The runs on all labels that no seed changes: baselines, linear probes."""
        return tuple(run for run in self.plan(1, {}) if run.seed is None)

    @property
    def effort(self) -> Effort | None:
        """How far arms are searched; None while it is not known how long an epoch takes."""
        efforts = EFFORTS.get(self.settings.tune, ())
        if not efforts:
            return None
        per_epoch = [each for search in self.searches if (each := search.seconds_per_epoch) is not None]
        if len(per_epoch) < len(self.searches) and self.settings.seconds is not None:
            return None
        seconds = self._budget - sum(run.seconds if run.done else LINEAR_SECONDS for run in self.untrained)
        effort = choose_effort(efforts, per_epoch, seconds, self.first_runs)
        if effort is not efforts[0] and not all(run.done for run in self.untrained):
            return None  # they may leave more time than that
        while (extended := effort.extended) and self._improves(effort):
            if not fits(extended, per_epoch, seconds, self.first_runs):
                break
            effort = extended
        return effort

    def _improves(self, effort: Effort) -> bool:
        """Whether all arms are searched so far, and one of them does clearly better with the most epochs."""
        if any(search.progress(effort).waiting for search in self.searches):
            return False
        return any(search.improvement(effort) >= IMPROVEMENT for search in self.searches)

    @property
    def tuned(self) -> dict[str, ArmTuning] | None:
        """The settings that were chosen for each arm; None while they are searched."""
        effort = self.effort
        if not self.searches:
            return {}
        if effort is None or any(search.progress(effort).waiting for search in self.searches):
            return None
        return {search.arm.name: search.conclude(effort) for search in self.searches}

    def _tuning(self, runs: Sequence[PlannedRun]) -> dict[str, ArmTuning]:
        """How each arm was tuned, and whether it was still improving with more epochs."""
        tuned, effort = self.tuned or {}, self.effort
        if effort is None:
            return tuned
        all_labels = max(run.budget for run in runs)
        for search in self.searches:
            name = search.arm.name
            own = [run.folder for run in runs if run.arm.name == name and run.budget == all_labels]
            improving = search.improvement(effort, own) >= CUT_SHORT
            tuned[name] = replace(tuned[name], improving=improving)
        return tuned

    @property
    def _budget(self) -> float:
        """Seconds for all runs together, of every process."""
        pile = read_pile(self.folder)
        return ((self.settings.seconds or math.inf) - (0.0 if pile is None else pile.seconds)) * self.settings.processes

    @property
    def _looks(self) -> tuple[int, ...]:
        """After how many seeds it is asked whether the question is settled."""
        return looks.LOOKS if self.settings.seeds == "auto" else (self.settings.seeds,)

    @property
    def first_runs(self) -> RunsAhead:
        """The runs of an arm with the first seeds, which there must be time for."""
        if not self.budgets:
            return RunsAhead(self._looks[0])
        largest = max(self.budgets)
        steps = max(LEAST_STEPS, math.ceil(largest / self.settings.batch_size))  # of an epoch
        shares = tuple(budget / largest for budget in self.budgets)
        least = ENOUGH_STEPS / steps if by_batches(self.settings) else 0.0
        ahead = RunsAhead(self._looks[0], shares, least, at_most_largest=True)
        if self.settings.least_steps is not None:
            ahead = RunsAhead(self._looks[0], shares, self.settings.least_steps / steps)
        taught = bool(self.settings.teacher)
        if not (taught or self.unlabelled) or not self.searches:
            return ahead
        more = 0 if self.unlabelled is None else len(self.unlabelled.rows)
        return replace(
            ahead,
            student_arms=sum(search.arm.mode == "full" for search in self.searches) / len(self.searches),
            own_teacher=not taught,
            student_epochs=(LEAST_PASSES if taught else ROUND_PASSES) * more / (steps * self.settings.batch_size),
        )

    def _enough(self, runs: Sequence[PlannedRun], seeds: int) -> bool:
        """Whether no more seeds are needed, or would help, or fit into the time."""
        if seeds == self._looks[-1]:
            return True
        if seeds not in self._settled:
            comparison = self._comparison(runs)
            self._settled[seeds] = looks.settled(comparison) or not looks.seeds_can_help(comparison)
        if self._settled[seeds] or self.settings.seconds is None:
            return self._settled[seeds]
        more = self._looks[self._looks.index(seeds) + 1] - seeds
        spent = sum(run.seconds for run in (*runs, *self.trials))
        seeded = sum(run.seconds for run in runs if run.seed is not None)
        return spent + more * seeded / seeds > self._budget

    # --- doing it ---

    def work(self, log: Log = lambda text: None) -> None:
        """Do every run that is not done and that no other process has, until all are done or have failed."""
        failed: set[Path] = set()
        while True:
            waiting = False
            for run in self._next_runs():
                if run.folder in failed:
                    continue
                with run_lock(run.folder) as acquired:
                    if acquired and not run.done:
                        try:
                            if not self._do(run, log):
                                failed.add(run.folder)
                        except TimeUp:
                            return
                        break
                    waiting = True
            else:
                if not waiting:
                    return
                time.sleep(POLL)

    def _next_runs(self) -> list[PlannedRun]:
        """What can be done now: linear models, trials, then the runs seed by seed, which wait for the trials alone."""
        runs = {run.folder: run for run in (*self.untrained, *self.trials, *self.runs)}
        return [run for run in runs.values() if not run.done]

    def _do(self, run: PlannedRun, log: Log) -> bool:
        """One run; where it diverges or runs out of memory, that is recorded and the others go on."""
        if isinstance(run, Trial):
            self._run_trial(run, log)
            return True
        try:
            if run.arm.mode == "baseline":
                baseline(
                    run.settings["kind"],
                    self.splits,
                    run.settings,
                    run.folder,
                    unlabelled=self.unlabelled if "unlabelled" in run.settings else None,
                    keep_model=run.keep_model,
                    until=self._linear_deadline,
                )
            else:
                settings = FinetuneSettings.from_mapping(run.settings, run.title)
                finetune(
                    settings,
                    run.folder,
                    splits=self.splits,
                    unlabelled=None if settings.unlabelled is None else self.unlabelled,
                    teachers_answers=self.folder / "teachers",
                    encode=self.encode,
                    base=self._base(settings),
                    resume=True,
                    keep_model=run.keep_model,
                    on_event=self._check_time,
                    log=log,
                )
        except (TrainingError, NotFinite, torch.OutOfMemoryError) as error:
            write_json(run.failure_file, {"error": reason(error)})
            return False
        run.failure_file.unlink(missing_ok=True)
        return True

    def _run_trial(self, trial: Trial, log: Log) -> None:
        settings = FinetuneSettings.from_mapping(trial.settings, trial.title)
        run_trial(
            settings,
            trial.folder,
            splits={"train": trial.fold.train, "valid": trial.fold.valid},
            encode=self.encode,
            base=self._base(settings),
            keep_model=False,
            on_event=self._check_time,
            log=log,
        )

    def _base(self, settings: FinetuneSettings) -> Checkpoint | None:
        """None for an arm that has a tokenizer of its own."""
        return self.bases.get((settings.init, settings.tokenizer))

    @property
    def _linear_deadline(self) -> float:
        """When the search of a linear model that begins now has to end: most of the time is for the networks."""
        now = time.monotonic()
        return now + LINEAR_SHARE * (self.deadline - now)

    def _check_time(self, event: Event) -> None:
        if time.monotonic() > self.deadline:
            raise TimeUp

    # --- the answer ---

    def conclude(self) -> Comparison:
        """The comparison of the runs that are done; it is written beside them."""
        runs = self.runs
        failed = [run for run in runs if run.failure_file.is_file()]
        missing = [run for run in runs if not run.done]
        if failed or (missing and self.settings.seconds is None):
            first = "; ".join(f"{run.title}: {run.failure}" for run in (failed or missing)[:3])
            raise TrainingError(
                f"{len(failed or missing)} of {len(runs)} runs failed, and without them there is no verdict "
                f"({first}). What is done is kept: mend the cause and run the same command again"
            )
        done = [run for run in runs if run.done]
        ensembles = list(self._ensembles(done)) if self.settings.ensemble else []
        comparison = self._comparison(done, ensembles)
        if self.settings.seeds == "auto" and not looks.settled(comparison):  # and no more seeds are to come
            comparison = self._comparison(done, ensembles, last=True)
        comparison = replace(comparison, notes=tuple(self._notes(missing)))
        StudyFolder(self.folder).write_comparison(comparison)
        return comparison

    def _comparison(
        self,
        runs: Sequence[PlannedRun],
        ensembles: Sequence[tuple[Arm, int, Path]] = (),
        *,
        last: bool = False,
    ) -> Comparison:
        folders: dict[ArmBudget, list[Path]] = defaultdict(list)
        for run in runs:
            folders[run.arm, run.budget].append(run.folder)
        for arm, budget, folder in ensembles:
            folders[arm, budget].append(folder)
        seeds = len({run.seed for run in runs if run.seed is not None})
        return compare_arms(
            folders,
            reference=self.settings.reference,
            leaked=self.leaked,
            root=self.folder,
            alpha=looks.alpha_at(seeds, last=last) if self.settings.seeds == "auto" else ALPHA,
            matters=self.settings.matters / 100,
            tuning=self._tuning(runs),
        )

    def _ensembles(self, runs: Sequence[PlannedRun]) -> Iterator[tuple[Arm, int, Path]]:
        """Each pretrained run with the linear model of the same texts; nothing is trained."""
        linear = {(run.budget, run.seed): run.folder for run in runs if run.arm.name == "tfidf"}
        for run in runs:
            if run.arm.mode in PRETRAINED:
                other = linear.get((run.budget, run.seed)) or linear[run.budget, None]
                out = run.folder.with_name(run.folder.name.replace(run.arm.mode, f"{run.arm.mode}+tfidf", 1))
                ensemble(run.folder, other, out, seed=run.seed or 0)
                yield Arm(f"{run.arm.name}+tfidf", "ensemble"), run.budget, out

    def _notes(self, missing: Sequence[PlannedRun]) -> Iterator[str]:
        """What was left out, and why."""
        for name, tuning in (self.tuned or {}).items():
            if tuning.failed:
                yield f"{name} is missing: every trial failed ({tuning.tried[0].error})."
        if self.tuned is None:
            names = ", ".join(search.arm.name for search in self.searches)
            yield f"Time was up before the settings of {names} were found: the same command again goes on from there."
        elif missing:
            yield f"Time was up with {plural(len(missing), 'run')} to do: the same command again does them."
