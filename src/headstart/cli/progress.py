"""The progress of a training run, and of a comparison: read from its folder, it includes the runs of every process."""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from headstart.cli.console import log, table
from headstart.runs.events import Evaluated, OnEvent, Step
from headstart.studies.effort import needed_epochs
from headstart.use.progress import TrainingLines, training_bar
from headstart.wording import plural

if TYPE_CHECKING:
    from rich.table import Table

    from headstart.studies.planned_runs import PlannedRun
    from headstart.studies.study import Study

INTERVAL = 1.0  # seconds between two readings
TAIL = 1 << 16  # bytes of a run's events that are read: some hundred steps


@contextmanager
def run_progress(quiet: bool) -> Iterator[OnEvent | None]:
    """A callback for the events of a training loop: a bar on a terminal, lines elsewhere, nothing if quiet."""
    if not quiet and sys.stderr.isatty():
        with training_bar(stderr=True) as (on_event, _):
            yield on_event
    else:
        yield None if quiet else TrainingLines(log)


@contextmanager
def study_progress(study: Study, quiet: bool) -> Iterator[None]:
    """A table of the runs on a terminal; elsewhere a line for each run that is done; nothing if quiet."""
    if quiet:
        yield
        return
    progress = StudyProgress(study)
    known = progress.known()
    done = sum(run.done for run in known)
    if done:
        more_may_follow = study.tuned is None or (study.settings.seeds == "auto" and not study.done)
        count = f"the {plural(len(known), 'run')} known so far" if more_may_follow else f"{len(known)} runs"
        rest = ": nothing is trained again, this is what they say" if study.done else ""
        log(f"{done} of {count} are done already{rest}")
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.live import Live

        screen = Console(stderr=True, markup=False)
        with Live(get_renderable=progress.table, console=screen, refresh_per_second=2, transient=True):
            yield
        return
    stop = threading.Event()
    thread = threading.Thread(target=_log_done, args=(progress, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _log_done(progress: StudyProgress, stop: threading.Event) -> None:
    """A line for each run as it ends, and for each stage of one that has several, until told to stop."""
    logged = {run.folder for run in progress.known() if run.done}
    stages = {run.planned.folder: run.stage for run in progress.read()}  # of a run that was interrupted, an old one
    stopped = False
    while not stopped:
        stopped = stop.wait(INTERVAL)  # and one last reading after it
        runs = progress.read()
        for run in runs:
            if run.done and run.planned.folder not in logged:
                logged.add(run.planned.folder)
                score = "failed" if run.best is None else f"valid {run.best:.4f}"
                log(f"{run.planned.title}: {score}  ({progress.summary(runs)})")
            elif run.stage not in (None, stages.get(run.planned.folder)):
                log(f"{run.planned.title}: {run.stage}")
            stages[run.planned.folder] = run.stage


@dataclass(frozen=True)
class RunProgress:
    """How much of a run is done (0 to 1), its best accuracy on valid so far, the seconds it took."""

    planned: PlannedRun
    share: float
    best: float | None
    seconds: float
    stage: str | None = None  # what a run of several stages is doing before it trains

    @property
    def done(self) -> bool:
        return self.share == 1.0

    @property
    def group(self) -> tuple[str, int]:
        """Runs of one arm and label budget take about the same time."""
        return f"{self.planned.arm.name}{' trial' if self.planned.is_trial else ''}", self.planned.budget


class StudyProgress:
    """Reads every run of a study; those that are done, once."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.done: dict[Path, RunProgress] = {}

    def known(self) -> list[PlannedRun]:
        """The trials and runs that are known so far, each once."""
        study = self.study
        runs = (*study.untrained, *study.trials, *study.runs)
        return list({run.folder: run for run in runs}.values())

    def read(self) -> list[RunProgress]:
        return [self.done.get(planned.folder) or self._read(planned) for planned in self.known()]

    def _read(self, planned: PlannedRun) -> RunProgress:
        from headstart.runs.run import RunFolder

        folder = RunFolder(planned.folder)
        if folder.done:
            valid, seconds = folder.result().valid, folder.manifest().seconds
            run = RunProgress(planned, 1.0, None if valid is None else valid["accuracy"], seconds or 0.0)
            return self.done.setdefault(planned.folder, run)
        if planned.done:  # a trial that failed
            return self.done.setdefault(planned.folder, RunProgress(planned, 1.0, None, planned.seconds))
        events = folder.events(last=TAIL)
        steps = [event for event in events if isinstance(event, Step)]
        best = max((event.scores["accuracy"] for event in events if isinstance(event, Evaluated)), default=None)
        if not steps:
            return RunProgress(planned, 0.0, best, 0.0, folder.stage)
        # Estimated from the last steps: a run that was interrupted may have begun days ago.
        seconds = steps[-1].step * fmean(step.seconds for step in steps)
        return RunProgress(planned, min(steps[-1].step / steps[-1].total, 0.999), best, seconds)

    def table(self) -> Table:
        """A row for each arm."""
        runs = self.read()
        rows = table("arm", ">trials", ">runs", ">best on valid", "now", title=self.summary(runs))
        for name in dict.fromkeys(run.planned.arm.name for run in runs):
            arm = [run for run in runs if run.planned.arm.name == name]
            best = max((run.best for run in arm if run.best is not None), default=None)
            running = ",  ".join(_running(run) for run in arm if 0 < run.share < 1 or run.stage)
            trials, tested = (_count([run for run in arm if run.planned.is_trial is trial]) for trial in (True, False))
            rows.add_row(name, trials, tested, "" if best is None else f"{best:.4f}", running)
        return rows

    def summary(self, runs: Sequence[RunProgress]) -> str:
        """How far the study is, and how long the rest will take."""
        jobs = self.study.settings.processes
        if self.study.tuned is not None:
            return summary([run for run in runs if not run.planned.is_trial], jobs)
        trials = [run for run in runs if run.planned.is_trial]
        count = f"tuning: {plural(sum(run.done for run in trials), 'trial')} done"
        effort = self.study.effort
        if effort is None:
            return count
        per_epoch = sum(search.seconds_per_epoch or 0.0 for search in self.study.searches)
        left = per_epoch * needed_epochs(effort, self.study.first_runs) - sum(run.seconds for run in trials)
        return f"{count}, about {rounded_time(max(left, 0.0) / jobs)} left with the runs that follow"


def summary(runs: Sequence[RunProgress], jobs: int) -> str:
    """`7 of 27 runs done, about 12 min left`."""
    left = seconds_left(runs)
    count = f"{sum(run.done for run in runs)} of {len(runs)} runs done"
    return count if not left else f"{count}, about {rounded_time(left / jobs)} left"


def _count(runs: Sequence[RunProgress]) -> str:
    return f"{sum(run.done for run in runs)}/{len(runs)}" if runs else ""


def seconds_left(runs: Sequence[RunProgress]) -> float | None:
    """An estimate for the remaining runs, by arm and budget where one is done or running.

    None while there is nothing to estimate from: a baseline or a linear probe says nothing about training.
    """
    seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
    for run in runs:
        if run.share > 0.02:
            seconds[run.group].append(run.seconds / run.share)
    means = {group: fmean(values) for group, values in seconds.items()}
    trained = [means[group] for group in {run.group for run in runs if run.planned.by_steps} & means.keys()]
    if not trained and any(run.group not in means for run in runs):
        return None
    slowest = max(trained, default=0.0)
    return sum((1 - run.share) * means.get(run.group, slowest) for run in runs)


def rounded_time(seconds: float) -> str:
    """
    >>> [rounded_time(seconds) for seconds in (40, 725, 9000)]
    ['40 s', '12 min', '2.5 h']
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _running(run: RunProgress) -> str:
    if run.planned.is_trial:
        return f"{run.planned.title.partition(': ')[2]} {100 * run.share:.0f} %"
    budget = "" if run.planned.settings.get("labels") is None else f" {run.planned.budget:,} labels"
    doing = f": {run.stage}" if run.stage else f" {100 * run.share:.0f} %"
    return f"seed {run.planned.seed}{budget}{doing}"
