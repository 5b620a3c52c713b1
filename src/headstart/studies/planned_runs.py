"""The runs of a comparison: every arm with every label budget and seed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from headstart.errors import ConfigError
from headstart.files import read_json
from headstart.reading.examples import Examples
from headstart.runs.run import RunFolder
from headstart.studies.arms import Base, arm_settings
from headstart.studies.baselines import kinds
from headstart.studies.contrasts import STUDENTS, TFIDF_SELF_TRAINED
from headstart.studies.fingerprints import settings_key
from headstart.studies.outcomes import Arm
from headstart.studies.settings import DATA, ENOUGH_STEPS, UNLABELLED, CompareSettings, LabelledSettings
from headstart.studies.splits import draw_budget


@dataclass(frozen=True)
class PlannedRun:
    """An arm with a label budget and a seed; no seed where nothing is random."""

    is_trial: ClassVar[bool] = False  # whether it is there to choose settings by
    arm: Arm
    budget: int
    seed: int | None
    settings: Mapping[str, Any]
    folder: Path
    keep_model: bool

    @property
    def done(self) -> bool:
        return RunFolder(self.folder).done

    @property
    def seconds(self) -> float:
        """That it took; 0 while it is not done."""
        return (RunFolder(self.folder).manifest().seconds or 0.0) if RunFolder(self.folder).done else 0.0

    @property
    def by_steps(self) -> bool:
        """Whether it is trained by steps, as a baseline and a linear probe are not."""
        return self.arm.mode != "baseline" and self.settings.get("frozen_head") != "probe"

    @property
    def failure_file(self) -> Path:
        """Where the error of a failed try is written: beside the run, which is to be tried again."""
        return self.folder.parent / ".failed" / f"{self.folder.name}.json"

    @property
    def failure(self) -> str:
        return str(read_json(self.failure_file)["error"]) if self.failure_file.is_file() else "not done"

    @property
    def title(self) -> str:
        return self.arm.name if self.seed is None else f"{self.arm.name}, {self.budget:,} labels, seed {self.seed}"


def read_budgets(settings: CompareSettings, train: Examples) -> list[int]:
    """The label budgets, the smallest first; all labels there are, unless others are asked for."""
    budgets: set[int] = set()
    problems = []
    for word in (settings.labels or "all").replace(" ", "").split(","):
        if word == "all":
            budgets.add(len(train.rows))
        elif word.isdecimal():
            budgets.add(int(word))
        else:
            problems.append(f"{word!r} is no number of labels: write them as 50,100,all")
    for budget in sorted(budgets):
        try:
            draw_budget(train, budget, settings.seed)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError("labels", problems)
    return sorted(budgets)


def plan_runs(
    settings: CompareSettings,
    folder: Path,
    arms: Sequence[Arm],
    bases: Mapping[str, Base],
    budgets: Sequence[int],
    all_labels: int,
    fingerprints: Mapping[str, str],
    seeds: int,
    tuned: Mapping[str, Mapping[str, Any]],
) -> Iterator[PlannedRun]:
    """The baselines, which take seconds, then seed by seed, so that early runs can be compared already.

    `tuned` has the settings that were chosen for arms, by their names. `fingerprints` are of the splits, and of the
    unlabelled texts and the teachers, where there are some, which are nothing to arms that do not learn from them.
    """
    labelled = {name: value for name, value in fingerprints.items() if name not in UNLABELLED}
    untaught = {name: value for name, value in fingerprints.items() if name != "teacher"}
    given = settings.to_mapping()
    data = {name: given[name] for name in DATA if name in given}
    refit = {"refit": True} if settings.refit else {}  # of all labels: a label budget stays what it is
    own = {arm: arm_settings(settings, arm, bases) for arm in arms}
    each_seed = range(settings.seed, settings.seed + seeds)

    def planned(arm: Arm, budget: int, seed: int | None, values: dict[str, Any], keep: bool = False) -> PlannedRun:
        base = None if arm.base is None else bases[arm.base].fingerprint
        name = "-".join([arm.name.replace(":", "-"), str(budget), *([] if seed is None else [f"seed{seed}"])])
        read = fingerprints if arm.mode in STUDENTS else untaught if arm.name == TFIDF_SELF_TRAINED else labelled
        key = settings_key([values, read, base])
        return PlannedRun(arm, budget, seed, values, folder / "runs" / f"{name}-{key}", keep)

    def kept(seed: int) -> bool:
        """Of the first seed, so that every arm can be tried out with every label budget."""
        return settings.keep_models or seed == settings.seed

    for kind in kinds(unlabelled=settings.unlabelled is not None):
        texts = {"unlabelled": settings.unlabelled} if kind == TFIDF_SELF_TRAINED else {}
        for budget in budgets:
            if budget == all_labels:  # nothing is drawn
                yield planned(Arm(kind, "baseline"), budget, None, {"kind": kind, **data, **texts, **refit}, keep=True)
                continue
            for seed in each_seed:
                values = {"kind": kind, **data, **texts, "labels": budget, "seed": seed}
                yield planned(Arm(kind, "baseline"), budget, seed, values, kept(seed))
    for arm in arms:
        if own[arm].is_probe and all_labels in budgets:  # no seed changes it
            yield planned(arm, all_labels, None, {**own[arm].to_mapping(), **refit}, keep=True)
    for seed, budget, arm in product(each_seed, budgets, arms):
        if own[arm].is_probe and budget == all_labels:
            continue
        values = {**own[arm].to_mapping(), **tuned.get(arm.searched, {}), "seed": seed}
        if budget < all_labels:
            length = {} if own[arm].is_probe else training_length(settings, values, budget, max(budgets))
            values |= {"labels": budget, **length}
        else:
            values |= refit
        yield planned(arm, budget, seed, values, kept(seed))


def training_length(settings: CompareSettings, values: Mapping[str, Any], budget: int, largest: int) -> dict[str, int]:
    """The settings that give a run on `budget` labels enough steps; `values` are those of its arm.

    Epochs are chosen for the largest budget, and with few labels they are so few steps that no network learns. So by
    default there are as many steps as with the largest budget, up to `ENOUGH_STEPS`, and valid is scored as often.
    """
    epochs, steps = values["epochs"], math.ceil(budget / settings.batch_size)  # of an epoch
    if settings.least_steps is not None:
        return {"epochs": max(epochs, math.ceil(settings.least_steps / steps))}
    least = min(ENOUGH_STEPS, epochs * math.ceil(largest / settings.batch_size))
    if not by_batches(settings) or epochs * steps >= least:
        return {"epochs": epochs}
    more = math.ceil(least / steps)
    return {"epochs": more, "evaluate_every": values.get("evaluate_every") or math.ceil(more * steps / epochs)}


def by_batches(settings: LabelledSettings) -> bool:
    """Whether the number of steps follows from epochs and batch size, and not from --steps or --tokens."""
    return settings.steps is None and settings.tokens is None
