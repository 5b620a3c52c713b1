"""The search for the best settings of an arm that is trained by steps: learning rate, epochs, dropout.

short trials    learning rates half a decade apart around a start that depends on the width; where the best is at an
                edge the range grows, else the gaps beside it are filled
long trials     the best of them again, trained for longer, on another fold
variants        the best of these, trained for longer still and with other dropout; where an arm does best with the most
                epochs, every arm is tried with twice as many

Every arm gets as many trials of the same number of epochs. What to try next is a function of the trials on disk alone:
a search that was killed goes on where it was, and several processes can share it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from headstart.model.model import Model
from headstart.runs.comparison import ALPHA
from headstart.runs.predictions import read_correct
from headstart.runs.run import PREDICTIONS, RunFolder
from headstart.runs.sweep import plain, shown
from headstart.runs.tuning import ArmTuning, Tried
from headstart.studies.corrections import p_values_against_best
from headstart.studies.effort import SHORT, Effort
from headstart.studies.fingerprints import settings_key, split_fingerprints
from headstart.studies.folds import Fold
from headstart.studies.outcomes import Arm
from headstart.studies.planned_runs import PlannedRun
from headstart.studies.settings import FinetuneSettings
from headstart.studies.trials import ENDED, read_outcome, seconds_of
from headstart.wording import plural

Values = dict[str, Any]  # the settings that a trial varies

# The start of the search for a learning rate, times the width: wide models want small steps, fresh weights large ones.
START = {"full": 0.04, "contrastive": 0.02, "scratch": 0.06, "frozen": 4.0}
STEP = math.sqrt(10)  # from one learning rate to the next
LOWEST, HIGHEST = 1e-7, 1.0  # learning rates beyond which the range does not grow
LEAST_STEPS = 60  # of an epoch: a small training set is passed over more often
DROPOUT = 0.1  # of the backbone in training, where it was pretrained without
FAILED = (-1.0, -math.inf)  # the score of a trial that ended in an error


@dataclass(frozen=True)
class Trial(PlannedRun):
    """A run on one fold, by which settings are chosen; it never sees test."""

    is_trial: ClassVar[bool] = True
    values: dict[str, Any]
    fold: Fold

    @property
    def done(self) -> bool:
        """Whether it has ended, be it in an error."""
        return super().done or (self.folder / ENDED).is_file()

    @property
    def title(self) -> str:
        """`full, trial: lr 0.000316, epochs 2`."""
        values = ", ".join(f"{plain(name)} {shown(value)}" for name, value in self.values.items())
        return f"{self.arm.name}, trial: {values}"


@dataclass(frozen=True)
class Outcome:
    """How a trial ended."""

    accuracy: float
    loss: float
    seconds: float
    error: str | None = None


@dataclass(frozen=True)
class Progress:
    """A search as far as it is: one trial for each learning rate, then groups of one for each fold."""

    short: list[Trial]
    long: list[list[Trial]]
    waiting: list[Trial]  # those that have not ended; none once the search is over
    by_length: dict[int, list[Trial]]  # of the best settings: with so many times the epochs of the effort


class ArmSearch:
    """The trials of one arm in `folder`, and what they say so far."""

    def __init__(
        self,
        arm: Arm,
        settings: FinetuneSettings,
        given: Iterable[str],
        model: Model,
        folds: Sequence[Fold],
        folder: Path,
        base_fingerprint: str,
    ) -> None:
        """`given` are the settings that the user chose, which are not searched."""
        self.arm, self.settings, self.given, self.folds, self.folder = arm, settings, set(given), folds, folder
        self.base_fingerprint = base_fingerprint
        self.outcomes: dict[Path, Outcome] = {}
        self._trials: dict[str, Trial] = {}
        width, dropout = model.config.width, model.config.dropout
        self.start = settings.lr if "lr" in self.given else float(f"{START[arm.mode] / width:.1g}")
        self.dropout = {} if "backbone_dropout" in self.given or dropout > 0 else {"backbone_dropout": DROPOUT}
        steps = math.ceil(len(folds[0].train.rows) / settings.batch_size)
        self.passes = math.ceil(LEAST_STEPS / steps)

    # --- trials ---

    def trial(self, values: Values, repeat: int = 0) -> Trial:
        """With these settings on a fold; where there are fewer folds than repeats, with another seed."""
        fold = self.folds[repeat % len(self.folds)]
        settings = replace(self.settings, **values, seed=self.settings.seed + repeat, weights="best").to_mapping()
        name = settings_key([settings, self._fingerprints[repeat % len(self.folds)], self.base_fingerprint])
        folder = self.folder / "trials" / f"{self.arm.name.replace(':', '-')}-{name}"
        if name not in self._trials:
            rows = len(fold.train.rows)
            self._trials[name] = Trial(self.arm, rows, settings["seed"], settings, folder, False, values, fold)
        return self._trials[name]

    @cached_property
    def _fingerprints(self) -> list[dict[str, str]]:
        return [split_fingerprints({"train": fold.train, "valid": fold.valid}) for fold in self.folds]

    def outcome(self, trial: Trial) -> Outcome | None:
        """None where it has not ended."""
        if trial.folder not in self.outcomes:
            ended = read_outcome(trial.folder)
            if ended is None:
                return None
            scores = ended.get("valid") or {}
            self.outcomes[trial.folder] = Outcome(
                accuracy=scores.get("accuracy", FAILED[0]),
                loss=scores.get("loss", -FAILED[1]),
                seconds=seconds_of(trial.folder),
                error=ended.get("error"),
            )
        return self.outcomes[trial.folder]

    def epochs(self, count: int) -> dict[str, int]:
        """So many epochs as a setting; more of them on a small set, and none where the user said how many."""
        if self.settings.steps is not None or "epochs" in self.given:
            return {}
        return {"epochs": count * self.passes}

    def values(self, rate: float, epochs: int) -> Values:
        return {**({} if "lr" in self.given else {"lr": rate}), **self.epochs(epochs), **self.dropout}

    # --- the search ---

    @property
    def first(self) -> Trial:
        """The trial that every search begins with: it also tells how long an epoch takes."""
        return self.trial(self.values(self.start, SHORT))

    @property
    def seconds_per_epoch(self) -> float | None:
        """None while the first trial runs."""
        outcome = self.outcome(self.first)
        epochs = SHORT if "epochs" in self.first.values else self.settings.epochs
        return None if outcome is None else outcome.seconds / epochs

    def progress(self, effort: Effort) -> Progress:
        """The search as far as the trials that have ended allow."""
        rates = [self.start] if "lr" in self.given else [self.start, self.start / STEP, self.start * STEP]
        short = [self._short(rate) for rate in rates[: effort.rates]]
        while not (waiting := self._waiting(short)) and len(short) < effort.rates and "lr" not in self.given:
            short.append(self._short(next_rate({trial.values["lr"]: self.score([trial]) for trial in short})))
        if waiting:
            return Progress(short, [], waiting, {})
        ranked = sorted(short, key=lambda trial: self.score([trial]), reverse=True)
        working = [trial for trial in ranked if self.score([trial]) > FAILED]
        long = [self._long(trial.values | self.epochs(effort.epochs), effort) for trial in working[: effort.finalists]]
        waiting = self._waiting(chain(*long))
        by_length: dict[int, list[Trial]] = {}
        if long and not waiting:
            group = max(long, key=self.score)
            best = group[0].values
            longer = effort.longer if self.epochs(1) else ()
            by_length = {times: self._long(best | self.epochs(effort.epochs * times), effort) for times in longer}
            long += by_length.values()
            if "backbone_dropout" not in self.given and self.arm.mode != "frozen":
                variants: list[Values] = [best | {"backbone_dropout": rate} for rate in effort.dropouts]
                long += [self._long(values, effort) for values in variants if values != best]
            by_length[1] = group
            waiting = self._waiting(chain(*long))
        return Progress(short, long, waiting, by_length)

    def improvement(self, effort: Effort, runs: Sequence[Path] = ()) -> float:
        """What about the second half of the longest training brought, in accuracy, once the search is over.

        Where all trials were short, it is the `runs` with the chosen settings that were longer.
        """
        progress = self.progress(effort)
        short = max(self.score([trial])[0] for trial in progress.short)
        if not self.epochs(1):  # the user said how many
            return 0.0
        if progress.by_length:
            times = max(progress.by_length)
            half = progress.by_length.get(times // 2)
            return self.score(progress.by_length[times])[0] - (short if half is None else self.score(half)[0])
        reached = [scores["accuracy"] for folder in runs if (scores := RunFolder(folder).result().valid)]
        return float(np.mean(reached)) - short if reached else 0.0

    def conclude(self, effort: Effort) -> ArmTuning:
        """What was tried and what is chosen, once the search is over; nothing is chosen where every trial failed."""
        progress = self.progress(effort)
        groups = [[trial] for trial in progress.short] + progress.long
        tried = tuple(map(self._tried, groups))
        seconds = sum(each.seconds for each in tried)
        candidates = progress.long or groups
        best = max(candidates, key=self.score)
        if self.score(best) == FAILED:
            return ArmTuning({}, tried, seconds, notes=self._notes(tried))
        chosen = best[0].values | ({} if progress.long else self.epochs(effort.epochs))
        others = [group for group in candidates if group is not best and self.score(group) > FAILED]
        return ArmTuning(chosen, tried, seconds, self._as_good(best, others), self._notes(tried))

    def score(self, trials: Sequence[Trial]) -> tuple[float, float]:
        """Accuracy over all folds, and of equals the one with the lower loss; one failure is a failure of them all."""
        outcomes = [self.outcome(trial) for trial in trials]
        ended = [outcome for outcome in outcomes if outcome is not None and outcome.error is None]
        if len(ended) < len(trials):
            return FAILED
        rows = [_rows(trial) for trial in trials]
        accuracy, loss = (np.average([getattr(o, name) for o in ended], weights=rows) for name in ("accuracy", "loss"))
        return float(accuracy), -float(loss)

    def _short(self, rate: float) -> Trial:
        return self.trial(self.values(rate, SHORT))

    def _long(self, values: Values, effort: Effort) -> list[Trial]:
        """On folds that the short trials did not use, as far as there are others."""
        return [self.trial(values, 1 + repeat) for repeat in range(effort.repeats)]

    def _waiting(self, trials: Iterable[Trial]) -> list[Trial]:
        return [trial for trial in trials if self.outcome(trial) is None]

    # --- the record ---

    def _tried(self, trials: Sequence[Trial]) -> Tried:
        outcomes = [outcome for trial in trials if (outcome := self.outcome(trial)) is not None]
        accuracy, loss = self.score(trials)
        failed = (accuracy, loss) == FAILED
        return Tried(
            settings=trials[0].values,
            accuracy=None if failed else accuracy,
            loss=None if failed else -loss,
            rows=sum(map(_rows, trials)),
            seconds=sum(outcome.seconds for outcome in outcomes),
            error=next((outcome.error for outcome in outcomes if outcome.error), None),
        )

    def _as_good(self, best: Sequence[Trial], others: Sequence[Sequence[Trial]]) -> int:
        """How many of the others are not significantly worse than the best, on the texts that both were scored on."""
        correct, *rest = (
            np.concatenate([read_correct(trial.folder / PREDICTIONS, "valid") for trial in group])
            for group in (best, *others)
        )
        return sum(p >= ALPHA for p in p_values_against_best(correct, rest)) if rest else 0

    def _notes(self, tried: Sequence[Tried]) -> tuple[str, ...]:
        notes = []
        rates = [each.settings["lr"] for each in tried if "lr" in each.settings]
        if rates and (min(rates) < 0.9 * self.start / STEP or max(rates) > 1.1 * self.start * STEP):
            notes.append(
                f"the best learning rate was at an edge, and the range grew to {min(rates):.1g} to {max(rates):.1g}"
            )
        failed = [each for each in tried if each.error]
        if failed:
            notes.append(f"{plural(len(failed), 'trial')} of {len(tried)} failed: {failed[0].error}")
        return tuple(notes)


def _rows(trial: Trial) -> int:
    return len(trial.fold.valid.rows)


def next_rate(scores: Mapping[float, tuple[float, float]]) -> float:
    """The learning rate to try after these: beyond the edge where the best is one, else the wider gap beside the best.

    >>> [round(next_rate({1e-4: a, 1e-3: b, 1e-2: c}), 6) for a, b, c in ((3, 2, 1), (1, 2, 3), (1, 3, 2))]
    [3.2e-05, 0.031623, 0.003162]
    """
    rates = sorted(scores)
    best = max(rates, key=lambda rate: scores[rate])
    position = rates.index(best)
    if position == 0 and best / STEP >= LOWEST:
        return best / STEP
    if position == len(rates) - 1 and best * STEP <= HIGHEST:
        return best * STEP
    neighbours = [rates[k] for k in (position - 1, position + 1) if 0 <= k < len(rates)]
    # The wider gap; of equal gaps the one towards the better neighbour.
    other = max(neighbours, key=lambda rate: (round(abs(math.log(rate / best)), 6), scores[rate]))
    return math.sqrt(best * other)
