"""A comparison while it runs, read from its folder, so that it shows the runs of every process."""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headstart.cli.console import log, table
from headstart.runs.events import Evaluated, Step
from headstart.runs.run import RunFolder

if TYPE_CHECKING:
    from rich.table import Table

    from headstart.studies.compare import Study
    from headstart.studies.planned_runs import PlannedRun

EVERY = 1.0  # seconds between looks
TAIL = 1 << 16  # bytes of a run's events that are read: some hundred steps


@contextmanager
def study_progress(study: Study, quiet: bool) -> Iterator[None]:
    """A table that follows the runs on a terminal; elsewhere a line for each run that is done; nothing if quiet."""
    if quiet:
        yield
        return
    watch = Watch(study)
    done = sum(run.done for run in study.runs)
    if done:
        rest = ": nothing is trained again, this is what they say" if done == len(study.runs) else ""
        log(f"{done} of {len(study.runs)} runs are done already{rest}")
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.live import Live

        with Live(get_renderable=watch.shown, console=Console(stderr=True), refresh_per_second=2, transient=True):
            yield
        return
    stop = threading.Event()
    lines = threading.Thread(target=_lines, args=(watch, stop), daemon=True)
    lines.start()
    try:
        yield
    finally:
        stop.set()
        lines.join()


def _lines(watch: Watch, stop: threading.Event) -> None:
    told = {run.folder for run in watch.study.runs if run.done}
    while True:
        last = stop.wait(EVERY)
        looks = watch.look()
        for look in looks:
            if look.done and look.run.folder not in told:
                told.add(look.run.folder)
                log(f"{look.run.title}: valid {look.best:.4f}  ({words(looks, watch.study.settings.jobs)})")
        if last:
            return


@dataclass(frozen=True)
class Look:
    """A run at a glance: how much of it is done (0 to 1), the best accuracy on valid so far, the time it took."""

    run: PlannedRun
    share: float
    best: float | None
    seconds: float

    @property
    def done(self) -> bool:
        return self.share == 1.0


class Watch:
    """Looks at every run of a study; what is done is read once."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.known: dict[Path, Look] = {}

    def look(self) -> list[Look]:
        return [self.known.get(run.folder) or self._look(run) for run in self.study.runs]

    def _look(self, run: PlannedRun) -> Look:
        folder = RunFolder(run.folder)
        if folder.done:
            valid, manifest = folder.result().valid, folder.manifest()
            best = None if valid is None else valid["accuracy"]
            self.known[run.folder] = Look(run, 1.0, best, manifest.seconds or 0.0)
            return self.known[run.folder]
        events = folder.events(last=TAIL)
        steps = [event for event in events if isinstance(event, Step)]
        best = max((event.scores["accuracy"] for event in events if isinstance(event, Evaluated)), default=None)
        if not steps:
            return Look(run, 0.0, best, 0.0)
        # By its last steps: a run that was interrupted may have been begun days ago.
        seconds = steps[-1].step * sum(step.seconds for step in steps) / len(steps)
        return Look(run, min(steps[-1].step / steps[-1].total, 0.999), best, seconds)

    def shown(self) -> Table:
        """The table as it is now."""
        looks = self.look()
        made = table("arm", ">runs", ">best on valid", "now", title=words(looks, self.study.settings.jobs))
        arms: dict[str, list[Look]] = defaultdict(list)
        for look in looks:
            arms[look.run.arm.name].append(look)
        for name, each in arms.items():
            best = max((look.best for look in each if look.best is not None), default=None)
            made.add_row(
                name,
                f"{sum(look.done for look in each)}/{len(each)}",
                "" if best is None else f"{best:.4f}",
                ",  ".join(_now(look) for look in each if 0 < look.share < 1),
            )
        return made


def words(looks: Sequence[Look], jobs: int) -> str:
    """`7 of 27 runs done, about 12 min left`."""
    left = seconds_left(looks)
    count = f"{sum(look.done for look in looks)} of {len(looks)} runs done"
    return count if not left else f"{count}, about {roughly(left / jobs)} left"


def seconds_left(looks: Sequence[Look]) -> float | None:
    """What the rest will take if it goes on like this: by arm and budget where one is done or under way.

    None while nobody can know: of training, a baseline says nothing.
    """
    took: dict[tuple[str, int], list[float]] = defaultdict(list)
    for look in looks:
        if look.share > 0.02:
            took[look.run.arm.name, look.run.budget].append(look.seconds / look.share)
    means = {key: sum(each) / len(each) for key, each in took.items()}
    trained = [value for (name, _), value in means.items() if name not in ("majority", "tfidf")]
    unknown = any((look.run.arm.name, look.run.budget) not in means for look in looks)
    if unknown and not trained:
        return None
    usual = max(trained, default=0.0)
    return sum((1 - look.share) * means.get((look.run.arm.name, look.run.budget), usual) for look in looks)


def roughly(seconds: float) -> str:
    """Time to come, as exactly as one can know it.

    >>> [roughly(each) for each in (40, 725, 9000)]
    ['40 s', '12 min', '2.5 h']
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _now(look: Look) -> str:
    run = look.run
    budget = "" if run.settings.get("labels") is None else f" {run.budget:,} labels"
    return f"seed {run.seed}{budget} {100 * look.share:.0f} %"
