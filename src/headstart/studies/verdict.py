"""A comparison in sentences: they are worded from its numbers and from the contrasts that were tested, nothing else.

A difference is reported in one of three ways: as better or worse; as "not significant after Holm's correction", where
its interval excludes zero and the corrected p does not say so; as something that "cannot be told", where its interval
includes zero.

>>> from headstart.runs.comparison import Comparison
>>> from headstart.studies.contrasts import choose_contrasts
>>> verdict(Comparison(("no", "yes"), 100, 0, "scratch", (), (), (), ()), choose_contrasts((), "scratch"))
()
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import floor, log10

from headstart.runs.comparison import ArmResult, Comparison, DifferenceResult, RunScores, WorthResult
from headstart.studies.contrasts import PRETRAINED, BaseArms, Contrasts, excludes_zero, is_significant
from headstart.wording import plural

TRAINED = {"full": "with every weight trained", "frozen": "with the head alone trained"}
DEGENERATE = {
    "one class only": "answered with one class only",
    "no better than majority": "did no better than always giving the most frequent label",
}
NOT_SIGNIFICANT = "not significant after Holm's correction"


def verdict(comparison: Comparison, contrasts: Contrasts) -> tuple[str, ...]:
    """What pretraining brought, what a linear model does, degenerate runs, leaks, and what labels are worth.

    Without a scratch arm, which of several bases is the better comes first.
    """
    bases = tuple(_competing_bases(comparison, contrasts))
    return (
        *(bases if contrasts.scratch is None else ()),
        *_pretraining(comparison, contrasts),
        *_against_reference(comparison, contrasts),
        *_baselines(comparison, contrasts),
        *_full_or_frozen(comparison, contrasts),
        *(() if contrasts.scratch is None else bases),
        *_degenerate(comparison),
        *_leaks(comparison, contrasts),
        *_single_seed(comparison.arms),
        *_labels_saved(comparison, contrasts),
    )


# --- numbers and arms in words ---


def _accuracy(arm: ArmResult) -> str:
    return f"{arm.scores['accuracy'].value:.3f}"


def _accuracy_with_interval(arm: ArmResult) -> str:
    accuracy = arm.scores["accuracy"]
    return f"{accuracy.value:.3f} (95 % interval {accuracy.low:.3f} to {accuracy.high:.3f}, {_seeds(arm)})"


def _points(value: float, sign: str = "") -> str:
    """
    >>> _points(0.0621, "+"), _points(-0.0004, "+"), _points(-0.006)
    ('+6.2', '+0.0', '-0.6')
    """
    rounded = round(100 * value, 1) + 0.0  # which turns -0.0 into 0.0
    return f"{rounded:{sign}.1f}"


def _gap(difference: DifferenceResult) -> str:
    """In points of accuracy, with its interval."""
    estimate = difference.scores["accuracy"]
    return f"{_points(estimate.value, '+')} points, 95 % interval {_points(estimate.low)} to {_points(estimate.high)}"


def _seeds(arm: ArmResult) -> str:
    return plural(len(arm.runs), "seed")


def _round(budget: float) -> int:
    """Two figures below a thousand, three above.

    >>> [_round(budget) for budget in (87.4, 234.0, 1347.0, 25749.0)]
    [87, 230, 1350, 25700]
    """
    figures = 2 if budget < 1000 else 3
    return int(round(budget, min(0, figures - 1 - floor(log10(budget)))))


def _base_name(arm: ArmResult) -> str:
    return arm.name.partition(":")[2] or arm.base or arm.name


def _arm_name(arm: ArmResult, contrasts: Contrasts) -> str:
    """An arm in words; by its base, where there are several."""
    if arm.mode == "scratch":
        return "the model from scratch"
    if arm.mode in PRETRAINED:
        return f"the pretrained {_base_name(arm)}" if len(contrasts.bases) > 1 else "the pretrained model"
    return {"tfidf": "the linear model", "majority": "the most frequent label"}.get(arm.name, arm.name)


def _pretraining_of(arm: ArmResult, contrasts: Contrasts) -> str:
    return "pretraining" if len(contrasts.bases) == 1 else f"the pretraining of {_base_name(arm)}"


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _detectable(difference: DifferenceResult) -> str:
    """How large a difference would have shown: the end of a sentence about one that cannot be told."""
    if excludes_zero(difference.scores["accuracy"]):
        return ""
    match difference.detectable_points:
        case "0.0":
            return ""
        case "none":
            return "; a study of this size could have shown no difference at all"
        case points:
            return f"; a study of this size could have shown a difference of {points} points"


# --- the sentences ---


def _pretraining(comparison: Comparison, contrasts: Contrasts) -> Iterator[str]:
    """What pretraining brought, for each base."""
    scratch = contrasts.scratch
    if not contrasts.bases:
        if scratch is not None:
            level = _accuracy_with_interval(scratch)
            yield f"From scratch the model reaches {level}; there is no pretrained arm beside it."
        return
    if scratch is None:
        best = [arms.best for arms in contrasts.bases]
        levels = ", ".join(f"{_arm_name(arm, contrasts)} reaches {_accuracy_with_interval(arm)}" for arm in best)
        yield f"{_capitalized(levels)}; there is no scratch arm, so what pretraining brought is not known."
        return
    for arms in contrasts.bases:
        assert arms.scratch is not None
        difference = comparison.difference(arms.best.name, arms.scratch.name)
        before, after = _accuracy(arms.scratch), _accuracy(arms.best)
        pretraining = _pretraining_of(arms.best, contrasts)
        if difference is None:
            yield f"Test accuracy is {before} without {pretraining} and {after} with it."
        else:
            yield f"{_capitalized(_effect(pretraining, difference, before, after, f', {_seeds(arms.best)}'))}."


def _worded(difference: DifferenceResult, *, better: str, worse: str, not_significant: str, unknown: str) -> str:
    """The one of four wordings that the difference allows."""
    estimate = difference.scores["accuracy"]
    if not excludes_zero(estimate):
        return unknown
    if not is_significant(difference):
        return not_significant
    return better if estimate.value > 0 else worse


def _effect(pretraining: str, difference: DifferenceResult, before: str, after: str, seeds: str) -> str:
    gap = f"({_gap(difference)}{seeds})"
    moved = f"test accuracy from {before} to {after} {gap}"
    numbers = f"{before} without it, {after} with it {gap}{_detectable(difference)}"
    return _worded(
        difference,
        better=f"{pretraining} raised {moved}",
        worse=f"{pretraining} lowered {moved}",
        not_significant=f"test accuracy is {before} without {pretraining} and {after} with it {gap}, {NOT_SIGNIFICANT}",
        unknown=f"whether {pretraining} helped cannot be told: {numbers}",
    )


def _full_or_frozen(comparison: Comparison, contrasts: Contrasts) -> Iterator[str]:
    """Which of the two stands for a base, and how the other does."""
    for arms in contrasts.bases:
        best, other = arms.best, arms.other
        if other is None:
            continue
        start = (
            f"{_capitalized(_arm_name(best, contrasts))} is the one {TRAINED[best.mode]}, which did best on valid; "
            f"{TRAINED[other.mode]} it reaches {_accuracy(other)}"
        )
        difference = comparison.difference(other.name, best.name)
        yield f"{start}." if difference is None else f"{start}{_compared_with_best(difference)}."


def _compared_with_best(difference: DifferenceResult) -> str:
    wording = _worded(
        difference,
        better=", which is better on test",
        worse=", which is worse",
        not_significant=f"; the difference is {NOT_SIGNIFICANT}",
        unknown=", and which of the two is better cannot be told",
    )
    return f"{wording} ({_gap(difference)})"


def _competing_bases(comparison: Comparison, contrasts: Contrasts) -> Iterator[str]:
    for other in contrasts.competing[1:]:
        best = contrasts.competing[0]
        difference = comparison.difference(best.name, other.name)
        one, two, trained = _base_name(best), _base_name(other), _capitalized(TRAINED[best.mode])
        if difference is None:
            yield f"{trained}, {one} reaches {_accuracy(best)} and {two} {_accuracy(other)}."
            continue
        wording = _worded(
            difference,
            better=f"{trained}, {one} is a better base than {two}",
            worse=f"{trained}, {one} is a worse base than {two}",
            not_significant=f"{trained}, the difference between {one} and {two} is {NOT_SIGNIFICANT}",
            unknown=f"Whether {one} or {two} is the better base cannot be told",
        )
        numbers = f"{_accuracy(best)} against {_accuracy(other)} ({_gap(difference)})"
        yield f"{wording}: {numbers}{_detectable(difference)}."


def _against_reference(comparison: Comparison, contrasts: Contrasts) -> Iterator[str]:
    """Where there is no scratch arm: the best arm of each base beside the reference that was chosen instead."""
    reference = contrasts.reference
    if reference is None or contrasts.scratch is not None or reference.name == "tfidf":
        return
    if reference.mode in PRETRAINED:
        return  # another sentence compares them: the other way of using a base, or another base
    for arms in contrasts.bases:
        difference = comparison.difference(arms.best.name, reference.name)
        if difference is not None:
            start = f"{_capitalized(_arm_name(reference, contrasts))} reaches {_accuracy(reference)}"
            yield f"{start}; {_better_than_that(difference, _arm_name(arms.best, contrasts))}."


def _better_than_that(difference: DifferenceResult, arm: str) -> str:
    wording = _worded(
        difference,
        better=f"{arm} is better than that",
        worse=f"{arm} is worse than that",
        not_significant=f"the difference of {arm} from that is {NOT_SIGNIFICANT}",
        unknown=f"whether {arm} is better than that cannot be told",
    )
    return f"{wording} ({_gap(difference)}){_detectable(difference)}"


def _baselines(comparison: Comparison, contrasts: Contrasts) -> Iterator[str]:
    linear, neural, majority = contrasts.linear, contrasts.neural, contrasts.majority
    if linear is not None:
        difference = None if neural is None else comparison.difference(neural.name, linear.name)
        end = ""
        if difference is not None and neural is not None:
            end = f"; {_better_than_that(difference, _arm_name(neural, contrasts))}"
        yield f"A linear model on word counts reaches {_accuracy(linear)}{end}."
        yield from _ensembles(comparison, contrasts.ensembles, linear)
    if majority is not None and neural is None:
        yield f"Always giving the most frequent label reaches {_accuracy(majority)}."


def _ensembles(comparison: Comparison, ensembles: Sequence[ArmResult], linear: ArmResult) -> Iterator[str]:
    for arm in ensembles:
        difference = comparison.difference(arm.name, linear.name)
        if difference is not None:
            alone = f"against {_accuracy(linear)} of the linear model alone, {_gap(difference)}"
            yield f"Together ({arm.name}) they reach {_accuracy(arm)} ({alone})."


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
    start = f"{n:,} of {comparison.rows:,} test rows {'is' if n == 1 else 'are'} also in train or valid"
    without = "without it" if n == 1 else "without them"
    clauses = [clause for arms in contrasts.bases for clause in _leak_free(comparison, contrasts, arms)]
    yield f"{start}; {without}, {'; '.join(clauses)}." if clauses else f"{start}."


def _leak_free(comparison: Comparison, contrasts: Contrasts, arms: BaseArms) -> Iterator[str]:
    best, scratch = arms.best, arms.scratch
    if best.leak_free is None:
        return
    after = f"{best.leak_free['accuracy'].value:.3f}"
    difference = None if scratch is None else comparison.difference(best.name, scratch.name)
    if scratch is None or scratch.leak_free is None or difference is None or difference.leak_free is None:
        yield f"{_arm_name(best, contrasts)} reaches {after}"
        return
    before = f"{scratch.leak_free['accuracy'].value:.3f}"
    leak_free = replace(difference, scores=difference.leak_free, detectable=0.0)  # which was not estimated for these
    yield _effect(_pretraining_of(best, contrasts), leak_free, before, after, "")


def _single_seed(arms: Sequence[ArmResult]) -> Iterator[str]:
    neural = [arm for arm in arms if arm.trained]
    if neural and all(len(arm.runs) == 1 for arm in neural):
        yield "One seed: the interval covers the choice of test items, and not how far another seed would differ."


# --- what labels are worth ---


def _labels_saved(comparison: Comparison, contrasts: Contrasts) -> Iterator[str]:
    """One sentence for each base: at the largest budget whose worth has a number, or else at the first beyond all."""
    for arms in contrasts.bases:
        worths = sorted((worth for worth in comparison.worth if worth.arm == arms.best.name), key=lambda w: w.budget)
        gains = [worth for worth in worths if _saves_labels(worth)]
        known = [worth for worth in gains if worth.value is not None]
        for worth in known[-1:] or gains[:1] or worths[-1:]:
            reference = comparison.arm(worth.reference)
            name = "scratch" if reference.mode == "scratch" else _arm_name(reference, contrasts)
            budgets = [curve.budget for curve in (*comparison.curves, reference) if curve.name == reference.name]
            matched = label_worth(worth, _arm_name(arms.best, contrasts), name, budgets)
            yield f"{matched}: {_saving(worth)}."


def label_worth(worth: WorthResult, arm: str, reference: str, budgets: Sequence[int]) -> str:
    """With how many labels the reference does as well as the arm; `budgets` are those that the reference was given.

    >>> label_worth(WorthResult("full", "scratch", 200, 1347.2, 904.0, None, False), "full", "scratch", [50, 1800])
    'With 200 labels full does as well as scratch with about 1,350 (95 % interval 900 to more than 1,800)'
    """
    least, most = min(budgets), max(budgets)
    if worth.value is None:
        matched = f"better than {reference} with all {most:,}"
    elif worth.at_most:
        matched = f"no better than {reference} with {least:,}"
    else:
        matched = f"as well as {reference} with about {_rounded_value(worth, worth.value):,}"
    interval = _budget_interval(worth, least, most)
    return f"With {plural(worth.budget, 'label')} {arm} does {matched} (95 % interval {interval})"


def _saving(worth: WorthResult) -> str:
    if _saves_labels(worth):
        if worth.value is None:
            return "pretraining is worth more labels than you have"
        saved = _rounded_value(worth, worth.value) - worth.budget
        if saved > 0:
            return f"pretraining is worth about {plural(saved, 'label')}"
    if worth.value is not None and worth.high is not None and worth.high < worth.budget:
        return "pretraining is not worth a label here"
    return "whether pretraining is worth any labels cannot be told"


def _saves_labels(worth: WorthResult) -> bool:
    return worth.low is None or worth.low > worth.budget


def _rounded_value(worth: WorthResult, value: float) -> int:
    rounded = _round(value)
    return round(value) if rounded <= worth.budget < value else rounded  # a small gain must not be rounded away


def _budget_interval(worth: WorthResult, least: int, most: int) -> str:
    """Its ends may lie beyond the budgets that were tried."""
    if worth.low is None:
        return f"beyond {most:,}"
    low = f"{least:,} or fewer" if worth.low <= least else f"{_round(worth.low):,}"
    if worth.high is not None and worth.high <= least:
        return low
    high = f"more than {most:,}" if worth.high is None else f"{_round(worth.high):,}"
    return f"{low} to {high}"
