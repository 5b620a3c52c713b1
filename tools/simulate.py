"""How often what a comparison says is wrong, in simulated studies whose truth is known (generators: `simulated.py`).

    python tools/simulate.py                        every table of docs/statistics.md, in Markdown: about an hour
    python tools/simulate.py looks --studies 100    one of them, with fewer studies

coverage      how often intervals hold the truth, and how often equal arms are called different
looks         how often equal arms are called different at any look of `--seeds auto`
equivalence   how often arms that differ by just what matters are called equivalent
worth         how often the reference needs at least as many labels as is said

It ends with an error where a table is outside of what docs/statistics.md promises.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from math import exp, log

import numpy as np

from headstart.studies.corrections import holm_levels
from headstart.studies.differences import decide
from headstart.studies.looks import LOOKS, alpha_at
from headstart.studies.statistics import LEVEL, ArmPredictions, Mean, difference, estimate, weighted_mean
from headstart.studies.worth import least_worth
from simulated import Regime, first_runs, study

GAP = 0.02  # between the true accuracies of two arms
MATTERS = 0.04
GENERATORS = ("latent", "beta")
Row = tuple[str, bool]  # of a table, and whether it is outside of what is promised


def minus(one: ArmPredictions, other: ArmPredictions) -> Mean:
    """The difference of accuracy alone, which is faster than that of every score."""
    return weighted_mean([(1.0, one), (-1.0, other)])


# --- coverage ---


def two_arms() -> Iterator[Regime]:
    """Arms with equal and with unequal spread, and arms that have one run because nothing in them is drawn."""
    for generator in GENERATORS:
        for items in (100, 400, 2000):
            yield Regime(generator, (1, 1), items, (0.0, 0.0))
            for seeds in (3, 5, 10):
                for sd in (0.0, 0.01, 0.03):
                    yield Regime(generator, (seeds, seeds), items, (sd, sd))
                yield Regime(generator, (seeds, seeds), items, (0.03, 0.005))
                yield Regime(generator, (seeds, 1), items, (0.02, 0.0))
        for items in (60, 400):
            yield Regime(generator, (1, 1), items, (0.0, 0.0), accuracy=0.96)


def coverage(studies: int) -> Iterator[Row]:
    """An arm's interval, a difference's, equal arms called different, and half the difference's interval in points."""
    for regime in two_arms():
        rng = np.random.default_rng(0)
        counts, width = np.zeros(3), 0.0
        top = min(regime.accuracy + GAP, 0.98)
        for _ in range(studies):
            one, other = study(rng, regime, (top, regime.accuracy))
            level, gap = estimate(one)["accuracy"], difference(one, other).scores["accuracy"]
            null = minus(*study(rng, regime, (regime.accuracy,) * 2))
            counts += [
                level.low <= top <= level.high,
                gap.low <= top - regime.accuracy <= gap.high,
                abs(null.center) > null.half_width(),
            ]
            width += (gap.high - gap.low) / 2
        arm, gap_held, false = counts / studies * 100
        row = f"| {regime} | {arm:.1f} | {gap_held:.1f} | {false:.1f} | {width / studies * 100:.1f} |"
        yield row, bool(arm < 93 or gap_held < 93 or false > 6)


# --- looks ---


def three_arms(runs: int) -> Iterator[Regime]:
    """Pretrained, scratch and linear, which has one run."""
    for generator in GENERATORS:
        for items in (100, 400, 2000):
            for sds in ((0.0, 0.0), (0.01, 0.01), (0.03, 0.03), (0.03, 0.005), (0.005, 0.03)):
                yield Regime(generator, (runs, runs, 1), items, (*sds, 0.0))
            yield Regime(generator, (runs, runs, 1), items, (0.02, 0.02, 0.0), accuracy=0.92)


def looks(studies: int) -> Iterator[Row]:
    """All arms are equal; then pretrained and scratch alone, and pretrained and linear alone.

    Where the other question is decided, Holm's procedure tests the one that is left at the look's whole level.
    """
    alphas = np.array([alpha_at(seeds) for seeds in LOOKS])
    for regime in three_arms(LOOKS[-1]):
        rng = np.random.default_rng(1)
        counts = np.zeros(3)
        for _ in range(studies):
            full, scratch, linear = study(rng, regime, (regime.accuracy,) * 3)
            parts = [[first_runs(arm, seeds) for seeds in LOOKS] for arm in (full, scratch)]
            ps = np.array([[minus(one, two).p, minus(one, linear).p] for one, two in zip(*parts, strict=True)])
            smallest = ps.min(1)
            counts += [(smallest < alphas / 2).any(), (ps[:, 0] < alphas).any(), (ps[:, 1] < alphas).any()]
        rates = counts / studies * 100
        yield f"| {regime} | {' | '.join(f'{rate:.1f}' for rate in rates)} |", bool(rates.max() > 5)


# --- equivalence ---


def equivalence(studies: int) -> Iterator[Row]:
    """Either primary question is called equivalent: where both differ by what matters, and where nothing differs."""
    for generator in GENERATORS:
        for items in (400, 2000, 5000):
            for seeds, sd in ((3, 0.005), (5, 0.005), (5, 0.02), (10, 0.01)):
                regime = Regime(generator, (seeds, seeds, 1), items, (sd, sd, 0.0))
                rates = [_equivalent(regime, gap, studies) for gap in (MATTERS, 0.0)]
                yield f"| {regime} | {rates[0]:.1f} | {rates[1]:.1f} |", rates[0] > 5


def _equivalent(regime: Regime, gap: float, studies: int) -> float:
    rng, count = np.random.default_rng(2), 0
    for _ in range(studies):
        full, scratch, linear = study(rng, regime, (regime.accuracy + gap, regime.accuracy, regime.accuracy))
        means = [minus(full, scratch), minus(full, linear)]
        levels = holm_levels([mean.p for mean in means], 1 - LEVEL)
        intervals = [mean.estimate(-1.0, level) for mean, level in zip(means, levels, strict=True)]
        count += any(decide(interval, MATTERS) == "equivalent" for interval in intervals)
    return count / studies * 100


# --- worth ---

CURVES: dict[str, Callable[[float], float]] = {
    "power law, n^-0.3": lambda n: 0.95 - 0.6 * (n / 20) ** -0.3,
    "power law, n^-0.7": lambda n: 0.88 - 0.38 * (n / 40) ** -0.7,
    "power law, n^-1.5": lambda n: 0.85 - 0.3 * (n / 60) ** -1.5,
    "logarithm": lambda n: 0.5 + 0.055 * log(n / 30),
    "exponential": lambda n: 0.85 - 0.35 * exp(-n / 300),
    "sigmoid": lambda n: 0.5 + 0.35 / (1 + (300 / n) ** 2),
}


def worth(studies: int) -> Iterator[Row]:
    """The truth lies at three places between the second and the third budget; the last two start slowly."""
    for name, accuracy_with in CURVES.items():
        for spacing in (2, 3, 4):
            budgets = [round(50 * spacing**k) for k in range(5 if spacing == 2 else 4)]
            for items, seeds, sd in ((400, 3, 0.01), (2000, 5, 0.01), (2000, 5, 0.0)):
                truths = [budgets[1] * spacing**share for share in (0.15, 0.5, 0.85)]
                found = [_worth(accuracy_with, budgets, truth, items, seeds, sd, studies // 4) for truth in truths]
                held, middle = min(each[0] for each in found), float(np.mean([each[1] for each in found]))
                regime = f"{name} | {spacing} | {seeds} | {items:,} | {100 * sd:g}"
                yield f"| {regime} | {held:.1f} | {middle:.2f} |", held < 94


def _worth(
    accuracy_with: Callable[[float], float],
    budgets: Sequence[int],
    truth: float,
    items: int,
    seeds: int,
    sd: float,
    studies: int,
) -> tuple[float, float]:
    """In how many of 100 studies the truth is at least what is said, and the median of what is said over the truth."""
    rng = np.random.default_rng(3)
    accuracies = [accuracy_with(budget) for budget in (*budgets, truth)]
    regime = Regime("latent", (seeds,) * len(accuracies), items, (sd,) * len(accuracies))
    lows = []
    for _ in range(studies):
        *reference, arm = study(rng, regime, accuracies)
        lows.append(least_worth([*zip(budgets, reference, strict=True)], arm) or 0.0)
    return 100 * float(np.mean(np.array(lows) <= truth)), float(np.median(lows)) / truth


TABLES: dict[str, tuple[str, Callable[[int], Iterator[Row]]]] = {
    "coverage": (
        "| generator | runs | items | seed sd | accuracy | arm | difference | equal called different | half-width |",
        coverage,
    ),
    "looks": (
        "| generator | runs | items | seed sd | accuracy | all equal | pretrained = scratch | pretrained = linear |",
        looks,
    ),
    "equivalence": ("| generator | runs | items | seed sd | accuracy | apart by it | equal |", equivalence),
    "worth": ("| curve | spacing | seeds | items | seed sd | at least | median over truth |", worth),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"{', '.join(TABLES)}; by default all")
    parser.add_argument("--studies", type=int, default=2000)
    arguments = parser.parse_args()
    outside = 0
    for name in arguments.tables or TABLES:
        head, rows = TABLES[name]
        print(f"\n{head}\n{'|---' * (head.count('|') - 1)}|")
        for row, is_outside in rows(arguments.studies):
            print(row, flush=True)
            outside += is_outside
    sys.exit(f"{outside} regimes are outside of what docs/statistics.md promises" if outside else 0)


if __name__ == "__main__":
    main()
