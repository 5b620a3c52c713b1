"""How often what a comparison says is wrong, in simulated studies whose truth is known (generators: `simulated.py`).

    python tools/simulate.py --write                every table, into docs/results/simulated-*.csv: an hour of a core
    python tools/simulate.py looks --studies 100    one of them, with fewer studies, printed

coverage      how often intervals hold the truth, and how often equal arms are called different
looks         how often equal arms are called different at any look of `--seeds auto`
equivalence   how often arms that differ by just what matters are called equivalent
worth         how often the reference needs at least as many labels as is said

It ends with an error where a table is outside of what docs/statistics.md promises. That page has the ranges of each
table, which `make docs` takes from the files.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

from headstart.studies.corrections import holm_levels
from headstart.studies.differences import decide
from headstart.studies.looks import LOOKS, alpha_at
from headstart.studies.statistics import LEVEL, ArmPredictions, Mean, difference, estimate, weighted_mean
from headstart.studies.worth import least_worth
from simulated import Regime, first_runs, study

PAGE = Path(__file__).parents[1] / "docs" / "statistics.md"
FILES = PAGE.parent / "results"
GAP = 0.02  # between the true accuracies of two arms
MATTERS = 0.04
GENERATORS = ("latent", "beta")
Row = tuple[list[str], bool]  # of a table, and whether it is outside of what is promised


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


def coverage(regime: Regime, studies: int) -> Row:
    """An arm's interval, a difference's, equal arms called different, and half the difference's interval in points."""
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
    measured = (arm, gap_held, false, width / studies * 100)
    return [*regime.cells, *(f"{value:.1f}" for value in measured)], bool(arm < 93 or gap_held < 93 or false > 6)


# --- looks ---


def three_arms() -> Iterator[Regime]:
    """Pretrained, scratch and linear, which has one run."""
    runs = LOOKS[-1]
    for generator in GENERATORS:
        for items in (100, 400, 2000):
            for sds in ((0.0, 0.0), (0.01, 0.01), (0.03, 0.03), (0.03, 0.005), (0.005, 0.03)):
                yield Regime(generator, (runs, runs, 1), items, (*sds, 0.0))
            yield Regime(generator, (runs, runs, 1), items, (0.02, 0.02, 0.0), accuracy=0.92)


def looks(regime: Regime, studies: int) -> Row:
    """All arms are equal; then pretrained and scratch alone, and pretrained and linear alone.

    Where the other question is decided, Holm's procedure tests the one that is left at the look's whole level.
    """
    alphas = np.array([alpha_at(seeds) for seeds in LOOKS])
    rng = np.random.default_rng(1)
    counts = np.zeros(3)
    for _ in range(studies):
        full, scratch, linear = study(rng, regime, (regime.accuracy,) * 3)
        parts = [[first_runs(arm, seeds) for seeds in LOOKS] for arm in (full, scratch)]
        ps = np.array([[minus(one, two).p, minus(one, linear).p] for one, two in zip(*parts, strict=True)])
        counts += [(ps.min(1) < alphas / 2).any(), (ps[:, 0] < alphas).any(), (ps[:, 1] < alphas).any()]
    rates = counts / studies * 100
    return [*regime.cells, *(f"{rate:.1f}" for rate in rates)], bool(rates.max() > 5.5)


# --- equivalence ---


def large_studies() -> Iterator[Regime]:
    for generator in GENERATORS:
        for items in (400, 2000, 5000) if generator == "latent" else (2000,):
            for seeds, sd in ((3, 0.005), (5, 0.005), (5, 0.02), (10, 0.01)):
                yield Regime(generator, (seeds, seeds, 1), items, (sd, sd, 0.0))


def equivalence(regime: Regime, studies: int) -> Row:
    """Either primary question is called equivalent: where both differ by what matters, and where nothing differs."""
    rates = [_equivalent(regime, gap, studies) for gap in (MATTERS, 0.0)]
    return [*regime.cells, *(f"{rate:.1f}" for rate in rates)], rates[0] > 5.5


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


@dataclass(frozen=True)
class Curve:
    """A reference's learning curve, and how it is measured."""

    name: str
    spacing: int  # each budget is so many times the one before
    seeds: int
    items: int
    sd: float

    @property
    def cells(self) -> list[str]:
        return [self.name, str(self.spacing), str(self.seeds), f"{self.items:,}", f"{100 * self.sd:g}"]


def curves() -> Iterator[Curve]:
    for name in CURVES:
        for spacing in (2, 3, 4):
            for items, seeds, sd in ((400, 3, 0.01), (2000, 5, 0.01)):
                yield Curve(name, spacing, seeds, items, sd)


def worth(curve: Curve, studies: int) -> Row:
    """With the truth at three places between the second and the third budget."""
    held, ratio = np.mean([_worth(curve, share, studies // 3) for share in (0.15, 0.5, 0.85)], axis=0)
    return [*curve.cells, f"{held:.1f}", f"{ratio:.2f}"], bool(held < 94)


def _worth(curve: Curve, share: float, studies: int) -> tuple[float, float]:
    """In how many of 100 studies the truth is at least what is said, and the median of what is said over the truth."""
    rng = np.random.default_rng(3)
    budgets = [round(50 * curve.spacing**k) for k in range(5 if curve.spacing == 2 else 4)]
    truth = budgets[1] * curve.spacing**share
    accuracies = [CURVES[curve.name](budget) for budget in (*budgets, truth)]
    regime = Regime("latent", (curve.seeds,) * len(accuracies), curve.items, (curve.sd,) * len(accuracies))
    lows = []
    for _ in range(studies):
        *reference, arm = study(rng, regime, accuracies)
        lows.append(least_worth([*zip(budgets, reference, strict=True)], arm) or 0.0)
    return 100 * float(np.mean(np.array(lows) <= truth)), float(np.median(lows)) / truth


# --- tables ---


@dataclass(frozen=True)
class Table:
    """What is measured for each regime; the page has the range of each over the regimes that agree in `by`."""

    regimes: Callable[[], Iterator[Any]]
    row: Callable[..., Row]
    given: tuple[str, ...]
    by: str
    measured: tuple[str, ...]


REGIME = ("generator", "runs", "items", "seed sd", "accuracy")
TABLES = {
    "coverage": Table(
        two_arms, coverage, REGIME, "runs", ("arm", "difference", "equal called different", "half-width")
    ),
    "looks": Table(three_arms, looks, REGIME, "items", ("all equal", "pretrained = scratch", "pretrained = linear")),
    "equivalence": Table(large_studies, equivalence, REGIME, "items", ("apart by 4 points", "equal")),
    "worth": Table(
        curves, worth, ("curve", "spacing", "seeds", "items", "seed sd"), "curve", ("holds", "median over truth")
    ),
}


def simulated(name: str, studies: int, pool: Executor) -> tuple[list[list[str]], int]:
    """The rows of a table, its head first, and how many of them are outside of what is promised."""
    table = TABLES[name]
    rows = list(pool.map(partial(table.row, studies=studies), table.regimes()))
    return [[*table.given, *table.measured], *(cells for cells, _ in rows)], sum(outside for _, outside in rows)


def path(name: str) -> Path:
    return FILES / f"simulated-{name}.csv"


def write(name: str, rows: list[list[str]]) -> None:
    with path(name).open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def summary(name: str) -> str:
    """In Markdown: the smallest and the largest of each column, for each kind of regime."""
    table = TABLES[name]
    with path(name).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    lines = [[table.by, *table.measured], ["---"] * (1 + len(table.measured))]
    for kind in dict.fromkeys(row[table.by] for row in rows):
        group = [row for row in rows if row[table.by] == kind]
        lines.append([kind, *(_range([row[column] for row in group]) for column in table.measured)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _range(cells: list[str]) -> str:
    """
    >>> _range(["9.5", "10.1", "9.8"])
    '9.5 to 10.1'
    """
    return f"{min(cells, key=float)} to {max(cells, key=float)}"


def page() -> str:
    """docs/statistics.md with the summary of every table made anew, between its marks."""
    text = PAGE.read_text(encoding="utf-8")
    for name in TABLES:
        before, start, rest = text.partition(f"<!-- simulated {name} -->\n")
        _, end, after = rest.partition("<!-- end -->\n")
        if not end:
            raise SystemExit(f"{PAGE}: there is no place for the table {name}")
        text = before + start + summary(name) + end + after
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"{', '.join(TABLES)}; by default all")
    parser.add_argument("--studies", type=int, default=2000)
    parser.add_argument("--jobs", type=int, help="processes; by default one a core")
    parser.add_argument("--write", action="store_true", help="write docs/results/simulated-*.csv")
    arguments = parser.parse_args()
    outside = 0
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for name in arguments.tables or TABLES:
            rows, number = simulated(name, arguments.studies, pool)
            csv.writer(sys.stdout, lineterminator="\n").writerows(rows)
            sys.stdout.flush()
            outside += number
            if arguments.write:
                write(name, rows)
    sys.exit(f"{outside} regimes are outside of what docs/statistics.md promises" if outside else 0)


if __name__ == "__main__":
    main()
