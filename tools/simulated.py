"""Simulated studies: what each run of each arm gets right, made by two generators, so that no result hangs on one.

latent   an item has a difficulty for all arms, another for each arm, and every run has luck of its own; a run gets the
         item right where their sum is below the quantile of the run's accuracy
beta     an item has a probability for each arm (for most items the same draw for all); a run is a coin thrown with it

A seed moves a run's true accuracy by a normal variable with the regime's standard deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from headstart.studies.scores import METRICS
from headstart.studies.statistics import ArmPredictions

Booleans = NDArray[np.bool_]


@dataclass(frozen=True)
class Regime:
    """One kind of study: runs of each arm, test items, the spread of each arm's seeds, and the last arm's accuracy."""

    generator: str  # "latent" or "beta"
    runs: tuple[int, ...]
    items: int
    seed_sd: tuple[float, ...]
    accuracy: float = 0.8

    @property
    def cells(self) -> list[str]:
        """Its part of the row of a table."""
        sds = ", ".join(f"{100 * sd:g}" for sd in self.seed_sd)
        return [self.generator, ", ".join(map(str, self.runs)), f"{self.items:,}", sds, f"{self.accuracy:g}"]


def first_runs(arm: ArmPredictions, runs: int) -> ArmPredictions:
    """The arm after so many seeds."""
    return _accuracy_alone(ArmPredictions(arm.probabilities[:runs], arm.labels), arm.contributions[:, :runs])


def _accuracy_alone(arm: ArmPredictions, contributions: NDArray[np.float64]) -> ArmPredictions:
    """An arm whose every score is its accuracy: the others are not looked at, and would take most of the time."""
    arm.__dict__["contributions"] = contributions
    return arm


def study(rng: np.random.Generator, regime: Regime, accuracies: Sequence[float]) -> list[ArmPredictions]:
    """The predictions of the arms, whose true accuracies are these."""
    make = latent if regime.generator == "latent" else beta
    return [_predictions(correct) for correct in make(rng, regime, accuracies)]


def latent(rng: np.random.Generator, regime: Regime, accuracies: Sequence[float]) -> list[Booleans]:
    common, of_arm, of_run = 0.4, 0.2, 0.4  # shares of the variance
    difficulty = rng.standard_normal(regime.items)
    arms = []
    for accuracy, runs, sd in zip(accuracies, regime.runs, regime.seed_sd, strict=True):
        total = np.sqrt(common) * difficulty + np.sqrt(of_arm) * rng.standard_normal(regime.items)
        total = total + np.sqrt(of_run) * rng.standard_normal((runs, regime.items))
        level = np.clip(accuracy + sd * rng.standard_normal((runs, 1)), 0.001, 0.999)
        arms.append(total < stats.norm.ppf(level))
    return arms


def beta(rng: np.random.Generator, regime: Regime, accuracies: Sequence[float]) -> list[Booleans]:
    same = rng.random(regime.items) < 0.6  # items that are as hard for one arm as for the other
    quantile = rng.random(regime.items)
    arms = []
    for accuracy, runs, sd in zip(accuracies, regime.runs, regime.seed_sd, strict=True):
        own = np.where(same, quantile, rng.random(regime.items))
        chance = stats.beta.ppf(own, accuracy, 1 - accuracy)
        room = chance * (1 - chance)  # an item that is neither easy nor hard moves most
        shift = sd * rng.standard_normal((runs, 1)) * room / max(room.mean(), 1e-9)
        arms.append(rng.random((runs, regime.items)) < np.clip(chance + shift, 0, 1))
    return arms


def _predictions(correct: Booleans) -> ArmPredictions:
    """Two classes; the label of every item is the first."""
    arm = ArmPredictions(np.where(correct[..., None], [0.9, 0.1], [0.1, 0.9]), np.zeros(correct.shape[1], np.int64))
    return _accuracy_alone(arm, np.broadcast_to(correct.astype(float), (len(METRICS), *correct.shape)))
