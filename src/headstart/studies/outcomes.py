"""From run folders to a comparison: every run's answers on test, gathered by arm and put through the statistics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.checkpoints.folder import read_json
from headstart.config import read_toml
from headstart.errors import DataError
from headstart.runs.comparison import ArmResult, Comparison, DifferenceResult, Mode, RunScores, WorthResult
from headstart.studies import statistics
from headstart.studies.statistics import Outcome
from headstart.studies.verdict import pairs, speakers, verdict


@dataclass(frozen=True)
class Arm:
    """One way to make a classifier. `base` is the name of what it starts from (or, from scratch, is built like)."""

    name: str
    mode: Mode
    base: str | None = None


@dataclass(frozen=True)
class Answers:
    """What one run said about each row of a split: (I, C) probabilities, and the right class of each row."""

    probabilities: NDArray[np.float64]
    labels: NDArray[np.int64]
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """A run that is done, read back."""

    path: Path
    seed: int
    rows: int  # it was trained on
    classes: tuple[str, ...]
    valid: Answers
    test: Answers


def read_run(path: Path) -> Run:
    """A finished run's answers on valid and test."""
    import pyarrow.parquet

    result = read_json(path / "result.json")
    classes = tuple(result["labels"])
    table = pyarrow.parquet.read_table(path / "predictions.parquet")
    probabilities = np.stack([table[f"probability:{name}"].to_numpy() for name in classes], axis=1)
    number = {name: k for k, name in enumerate(classes)}
    labels = np.array([number[label] for label in table["label"].to_pylist()], dtype=np.int64)
    splits = np.array(table["split"].to_pylist())
    texts = np.array(table["text"].to_pylist(), dtype=object)
    found = {
        name: Answers(probabilities[splits == name], labels[splits == name], tuple(texts[splits == name]))
        for name in ("valid", "test")
    }
    seed = read_toml(path / "run.toml").get("seed", 0)
    return Run(path, seed, result["rows"]["train"], classes, found["valid"], found["test"])


def gather(
    runs: Mapping[tuple[Arm, int], Sequence[Path]],
    *,
    reference: str | None = None,
    leaked: Iterable[int] = (),
    root: Path | None = None,
) -> Comparison:
    """The comparison of arms, each a list of run folders under (arm, number of labels).

    `leaked` are the rows of test that stand in train or valid; `root` is the folder that paths are told from.
    """
    read = {key: sorted(map(read_run, paths), key=lambda run: run.seed) for key, paths in runs.items()}
    everyone = [run for each in read.values() for run in each]
    _check_alike(everyone)
    outcomes = {key: _outcome(each) for key, each in read.items()}
    leaked = sorted(leaked)
    leak_free = {key: outcome.without(leaked) for key, outcome in outcomes.items()} if leaked else {}
    made = {
        key: ArmResult(
            name=key[0].name,
            mode=key[0].mode,
            base=key[0].base,
            labels=each[0].rows,
            runs=tuple(_run_scores(key[0], run, root or Path()) for run in each),
            scores=statistics.estimate(outcomes[key]),
            leak_free=statistics.estimate(leak_free[key]) if leaked else None,
        )
        for key, each in read.items()
    }
    most = max(budget for _, budget in made)
    arms = tuple(arm for (_, budget), arm in made.items() if budget == most)
    plain = Comparison(
        labels=everyone[0].classes,
        rows=len(everyone[0].test.labels),
        leaked=len(leaked),
        reference=reference or _usual_reference(arms),
        arms=arms,
        differences=(),
        curves=tuple(made.values()) if len(made) > len(arms) else (),
        worth=(),
    )
    by_name, leak_free_by_name = (
        {arm.name: outcome for (arm, budget), outcome in found.items() if budget == most}
        for found in (outcomes, leak_free)
    )
    seeds = {arm.name: [run.seed for run in arm.runs] for arm in arms}
    paired = [  # runs made one by one may have other seeds from arm to arm; a single run stands against every seed
        (one, other)
        for one, other in pairs(arms, plain.reference)
        if seeds[one] == seeds[other] or 1 in (len(seeds[one]), len(seeds[other]))
    ]
    plain = replace(
        plain,
        differences=tuple(_differences(paired, by_name, leak_free_by_name)),
        worth=tuple(_worth(plain, {(arm.name, budget): found for (arm, budget), found in outcomes.items()})),
    )
    return replace(plain, verdict=verdict(plain))


def from_runs(folders: Sequence[Path]) -> Comparison:
    """The comparison of fine-tuning runs that were made one by one: runs of one mode and one base are an arm."""
    described = [(folder, read_toml(folder / "run.toml")) for folder in folders]
    bases = list(dict.fromkeys(str(found["init"]) for _, found in described))
    runs: dict[tuple[Arm, int], list[Path]] = defaultdict(list)
    for folder, found in described:
        base = Path(found["init"]).name
        name = found["mode"] if len(bases) == 1 else f"{found['mode']}:{base}"
        runs[Arm(name, found["mode"], base), read_json(folder / "result.json")["rows"]["train"]].append(folder)
    return gather(runs)


def _check_alike(runs: Sequence[Run]) -> None:
    """Runs that were not asked the same questions cannot be compared."""
    first = runs[0]
    for run in runs[1:]:
        if run.classes != first.classes:
            names = [", ".join(each.classes) for each in (run, first)]
            raise DataError(
                run.path,
                f"its labels are {names[0]}, and those of {first.path} are {names[1]}",
                fix="compare runs on one data set",
            )
        for name in ("valid", "test"):
            mine, theirs = getattr(run, name), getattr(first, name)
            if mine.texts != theirs.texts or not np.array_equal(mine.labels, theirs.labels):
                raise DataError(
                    run.path, f"its {name} rows are not those of {first.path}", fix="compare runs on one data set"
                )


def _outcome(runs: Sequence[Run]) -> Outcome:
    return Outcome(np.stack([run.test.probabilities for run in runs]), runs[0].test.labels)


def _run_scores(arm: Arm, run: Run, root: Path) -> RunScores:
    path = run.path.relative_to(root) if run.path.is_relative_to(root) else run.path
    return RunScores(
        path=path.as_posix(),
        seed=run.seed,
        valid=statistics.scores(run.valid.probabilities, run.valid.labels),
        test=statistics.scores(run.test.probabilities, run.test.labels),
        degenerate=None if arm.mode in ("baseline", "ensemble") else _degenerate(run),
    )


def _degenerate(run: Run) -> str | None:
    """What is odd about a run that learned nothing: told, and kept in every number."""
    said = run.test.probabilities.argmax(1)
    if len(np.unique(said)) == 1:
        return "one class only"
    most = np.bincount(run.test.labels).max() / len(said)
    return "no better than majority" if (said == run.test.labels).mean() <= most else None


def _usual_reference(arms: Sequence[ArmResult]) -> str:
    """Scratch where there is one; else the first that was trained; else the first."""
    order = {"scratch": 0, "frozen": 1, "full": 1, "baseline": 2, "ensemble": 3}
    return min(arms, key=lambda arm: order[arm.mode]).name


def _differences(
    chosen: Sequence[tuple[str, str]], outcomes: Mapping[str, Outcome], leak_free: Mapping[str, Outcome]
) -> list[DifferenceResult]:
    """Each pair's difference, with Holm's correction among all of them."""
    found = []
    for arm, reference in chosen:
        one, other = outcomes[arm], outcomes[reference]
        plain = statistics.difference(one, other)
        found.append(
            DifferenceResult(
                arm=arm,
                reference=reference,
                scores=plain.scores,
                better=plain.better,
                p=plain.p,
                holm=plain.p,
                detectable=plain.detectable,
                mcnemar=statistics.mcnemar(_right(one), _right(other)) if len(one) == len(other) == 1 else None,
                leak_free=statistics.difference(leak_free[arm], leak_free[reference]).scores if leak_free else None,
            )
        )
    corrected = statistics.holm([each.p for each in found])
    return [replace(each, holm=p) for each, p in zip(found, corrected, strict=True)]


def _right(outcome: Outcome) -> Any:
    return outcome.probabilities[0].argmax(1) == outcome.labels


def _worth(plain: Comparison, outcomes: Mapping[tuple[str, int], Outcome]) -> list[WorthResult]:
    """For each base and budget: how many labels its arm from scratch needs to do as well."""
    budgets = sorted({budget for _, budget in outcomes})
    if len(budgets) < 2:
        return []
    found = []
    for arm, against in speakers(plain.arms):
        curve = [(budget, outcomes[against.name, budget]) for budget in budgets if (against.name, budget) in outcomes]
        for budget in (each for each in budgets if (arm.name, each) in outcomes):
            worth = statistics.worth(curve, outcomes[arm.name, budget])
            found.append(WorthResult(arm.name, against.name, budget, worth.value, worth.low, worth.high, worth.at_most))
    return found
