"""How often the intervals of `headstart.studies.statistics` hold the truth, in simulated studies whose truth is known.

    python tools/simulate.py              every regime, 2,000 studies each: about half an hour; prints a Markdown table
    python tools/simulate.py --studies 100

Two generators make what each run of each arm gets right, so that the result does not hang on one of them:

latent   an item has a difficulty for all arms, another for each arm, and every run has luck of its own; a run gets the
         item right where their sum is below the quantile of the run's accuracy
beta     an item has a probability for each arm (for most items the same draw for both); a run is a coin thrown with it

A seed moves a run's true accuracy by a normal variable with the regime's standard deviation.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from headstart.studies.statistics import ArmPredictions, difference, estimate

Booleans = NDArray[np.bool_]
GAP = 0.02  # between the true accuracies of the two arms


@dataclass(frozen=True)
class Regime:
    """One kind of study: runs of the two arms, test items, the spread of their seeds, and the second arm's accuracy."""

    generator: str  # "latent" or "beta"
    runs: tuple[int, int]
    items: int
    seed_sd: tuple[float, float]
    accuracy: float = 0.8

    def __str__(self) -> str:
        sds = ", ".join(f"{100 * sd:g}" for sd in self.seed_sd)
        runs = ", ".join(map(str, self.runs))
        return f"{self.generator} | {runs} | {self.items:,} | {sds} | {self.accuracy:g}"


def regimes() -> Iterator[Regime]:
    """Arms with equal and with unequal spread, and arms that have one run because nothing in them is drawn."""
    for generator in ("latent", "beta"):
        for items in (100, 400, 2000):
            yield Regime(generator, (1, 1), items, (0.0, 0.0))
            for seeds in (3, 5, 10):
                for sd in (0.0, 0.01, 0.03):
                    yield Regime(generator, (seeds, seeds), items, (sd, sd))
                yield Regime(generator, (seeds, seeds), items, (0.03, 0.005))
                yield Regime(generator, (seeds, 1), items, (0.02, 0.0))
        for items in (60, 400):
            yield Regime(generator, (1, 1), items, (0.0, 0.0), accuracy=0.96)


def study(rng: np.random.Generator, regime: Regime, accuracies: Sequence[float]) -> list[ArmPredictions]:
    """The predictions of the two arms, whose true accuracies are these."""
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
    return ArmPredictions(np.where(correct[..., None], [0.9, 0.1], [0.1, 0.9]), np.zeros(correct.shape[1], np.int64))


@dataclass(frozen=True)
class Coverage:
    """Percentages of the simulated studies."""

    arm: float  # the interval of an arm holds its accuracy
    gap: float  # the interval of a difference holds the true one
    false: float  # two equal arms are called different
    half_width: float  # of the difference, in points


def simulate(regime: Regime, studies: int, seed: int = 0) -> Coverage:
    rng = np.random.default_rng(seed)
    counts, width = np.zeros(3), 0.0
    top = min(regime.accuracy + GAP, 0.98)
    for _ in range(studies):
        one, other = study(rng, regime, (top, regime.accuracy))
        level, gap = estimate(one)["accuracy"], difference(one, other).scores["accuracy"]
        null = difference(*study(rng, regime, (regime.accuracy,) * 2)).scores["accuracy"]
        counts += [
            level.low <= top <= level.high,
            gap.low <= top - regime.accuracy <= gap.high,
            null.low > 0 or null.high < 0,
        ]
        width += (gap.high - gap.low) / 2
    arm, gap_held, false = (float(share) for share in counts / studies * 100)
    return Coverage(arm, gap_held, false, width / studies * 100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--studies", type=int, default=2000)
    studies = parser.parse_args().studies
    print("| generator | runs | items | seed sd | accuracy | arm | difference | equal called different | half-width |")
    print("|---|---|---|---|---|---|---|---|---|")
    outside = 0
    for regime in regimes():
        found = simulate(regime, studies)
        print(
            f"| {regime} | {found.arm:.1f} | {found.gap:.1f} | {found.false:.1f} | {found.half_width:.1f} |", flush=True
        )
        outside += found.gap < 93 or found.arm < 93 or found.false > 5
    sys.exit(f"{outside} regimes are outside of what docs/statistics.md promises" if outside else 0)


if __name__ == "__main__":
    main()
