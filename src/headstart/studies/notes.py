"""What a reader of the verdict should know beside it: ensembles, texts and runs of no use, leaks, one seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from headstart.runs.comparison import ArmResult, Comparison, DifferenceResult, RunScores
from headstart.studies.contrasts import NOT_USED, TFIDF_SELF_TRAINED, BaseArms, Contrasts
from headstart.studies.differences import decide
from headstart.studies.gain import effect, pretraining_of
from headstart.studies.words import accuracy, arm_name, percent, signed
from headstart.wording import plain_text, two_digits

DEGENERATE = {
    "one class only": "answered with one class only",
    "no better than majority": "did no better than always giving the most frequent label",
}


def notes(comparison: Comparison, contrasts: Contrasts) -> Iterator[str]:
    """A short paragraph for each."""
    yield from _pretraining(comparison.arms)
    yield from _ensembles(comparison, contrasts)
    yield from _unused(comparison.arms)
    yield from _degenerate(comparison)
    yield from _leaks(comparison, contrasts)
    yield from _single_seed(comparison.arms)


def _pretraining(arms: Sequence[ArmResult]) -> Iterator[str]:
    seconds = {arm.base: arm.cost.pretraining for arm in arms if arm.base and arm.cost.pretraining is not None}
    for base, taken in seconds.items():
        yield f"Making the base {base} from the pile of text took {two_digits(taken)} s, once for all runs."


def _ensembles(comparison: Comparison, contrasts: Contrasts) -> Iterator[str]:
    for arm in contrasts.ensembles:
        difference = None if contrasts.linear is None else comparison.difference(arm.name, contrasts.linear.name)
        if difference is not None:
            yield f"The ensemble {arm.name} reaches {accuracy(arm)}; against the linear model, {signed(difference)}."


def _unused(arms: Sequence[ArmResult]) -> Iterator[str]:
    if any(arm.tuning is not None and NOT_USED in arm.tuning.notes for arm in arms):
        yield (
            f"With the texts without labels the linear model did worse on valid: {TFIDF_SELF_TRAINED} is tfidf. "
            "Are they of the same kind as the labelled ones?"
        )


def _degenerate(comparison: Comparison) -> Iterator[str]:
    for arm in comparison.arms:
        if arm.name != "majority":
            yield from _degenerate_runs(arm.runs, f"of {arm.name}")
    all_labels = {(arm.name, arm.budget) for arm in comparison.arms}
    smaller: dict[str, list[RunScores]] = {}
    for arm in comparison.curves:
        if arm.name != "majority" and (arm.name, arm.budget) not in all_labels:
            smaller.setdefault(arm.name, []).extend(arm.runs)
    for name, runs in smaller.items():
        yield from _degenerate_runs(runs, f"of {name} with fewer labels")


def _degenerate_runs(runs: Sequence[RunScores], of_arm: str) -> Iterator[str]:
    for kind, words in DEGENERATE.items():
        n = sum(run.degenerate == kind for run in runs)
        if n:
            share = "The only run" if len(runs) == 1 else f"{n} of {len(runs)} runs"
            yield f"{share} {of_arm} {words}."


def _leaks(comparison: Comparison, contrasts: Contrasts) -> Iterator[str]:
    n = comparison.leaked
    if not n:
        return
    stand = "stands" if n == 1 else "stand"
    without = "Without it" if n == 1 else "Without them"
    clauses = [clause for arms in contrasts.bases for clause in _leak_free(comparison, contrasts, arms, without)]
    yield " ".join([f"{n:,} of the {comparison.rows:,} test texts also {stand} in train or valid.", *clauses])


def _leak_free(comparison: Comparison, contrasts: Contrasts, arms: BaseArms, without: str) -> Iterator[str]:
    best, scratch = arms.best, arms.scratch
    if best.leak_free is None:
        return
    after = percent(best.leak_free["accuracy"].value)
    difference = None if scratch is None else comparison.difference(best.name, scratch.name)
    if scratch is None or scratch.leak_free is None or difference is None or difference.leak_free is None:
        yield f"{without} {arm_name(best, contrasts)} reaches {after}."
        return
    levels = f"{after} with it, {percent(scratch.leak_free['accuracy'].value)} without"
    pretraining = f"{without} {pretraining_of(best, contrasts)}"
    leak_free = _without_leaks(difference, comparison.matters)
    yield plain_text(effect(pretraining, leak_free, levels, comparison.matters))


def _without_leaks(difference: DifferenceResult, matters: float) -> DifferenceResult:
    """The difference on the other texts, decided by its own interval."""
    assert difference.leak_free is not None
    decision, level = decide(difference.leak_free["accuracy"], matters), difference.leak_free_level or difference.level
    return replace(difference, scores=difference.leak_free, decision=decision, level=level)


def _single_seed(arms: Sequence[ArmResult]) -> Iterator[str]:
    neural = [arm for arm in arms if arm.trained]
    if neural and all(len(arm.runs) == 1 for arm in neural):
        yield "One seed: the interval covers the choice of test items, and not how far another seed would differ."
