"""A comparison in sentences: they are worded from its numbers and from the contrasts that were tested, nothing else.

A difference is reported as better or worse where its interval excludes zero, and else as something that "cannot be
told".

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
from headstart.studies.contrasts import PRETRAINED, BaseArms, Contrasts, excludes_zero
from headstart.wording import plural

TRAINED = {"full": "with every weight trained", "frozen": "with the head alone trained"}
DEGENERATE = {
    "one class only": "answered with one class only",
    "no better than majority": "did no better than always giving the most frequent label",
}


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
    interval = f"{100 * difference.level:.3g} % interval {_points(estimate.low)} to {_points(estimate.high)}"
    return f"{_points(estimate.value, '+')} points, {interval}"


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


def _worded(difference: DifferenceResult, *, better: str, worse: str, unknown: str) -> str:
    """The one of three wordings that the difference allows."""
    estimate = difference.scores["accuracy"]
    if not excludes_zero(estimate):
        return unknown
    return better if estimate.value > 0 else worse


def _effect(pretraining: str, difference: DifferenceResult, before: str, after: str, seeds: str) -> str:
    gap = f"({_gap(difference)}{seeds})"
    moved = f"test accuracy from {before} to {after} {gap}"
    numbers = f"{before} without it, {after} with it {gap}{_detectable(difference)}"
    return _worded(
        difference,
        better=f"{pretraining} raised {moved}",
        worse=f"{pretraining} lowered {moved}",
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
    level = difference.leak_free_level or difference.level
    leak_free = replace(difference, scores=difference.leak_free, level=level, detectable=0.0)  # not estimated for these
    yield _effect(_pretraining_of(best, contrasts), leak_free, before, after, "")


def _single_seed(arms: Sequence[ArmResult]) -> Iterator[str]:
    neural = [arm for arm in arms if arm.trained]
    if neural and all(len(arm.runs) == 1 for arm in neural):
        yield "One seed: the interval covers the choice of test items, and not how far another seed would differ."


# --- what labels are worth ---


def _labels_saved(comparison: Comparison, contrasts: Contrasts) -> Iterator[str]:
    """For each base and reference: the largest budget whose gain has a number; else the first that beats all labels."""
    for arms in contrasts.bases:
        of_arm = [worth for worth in comparison.worth if worth.arm == arms.best.name]
        for name in dict.fromkeys(worth.reference for worth in of_arm):
            worths = sorted((worth for worth in of_arm if worth.reference == name), key=lambda worth: worth.budget)
            gains = [worth for worth in worths if worth.low is not None and worth.low > worth.budget]
            numbers = [worth for worth in gains if not worth.beyond]
            reference = (
                "scratch" if comparison.arm(name).mode == "scratch" else _arm_name(comparison.arm(name), contrasts)
            )
            for worth in numbers[-1:] or gains[:1]:
                yield f"{label_worth(worth, _arm_name(arms.best, contrasts), reference)}."
            if not gains:
                yield f"Whether pretraining is worth any labels against {reference} cannot be told."


def label_worth(worth: WorthResult, arm: str, reference: str) -> str:
    """How many labels the reference needs at least to do as well as the arm.

    >>> label_worth(WorthResult("full", "scratch", 200, 904.0), "full", "scratch")
    'What full does with 200 labels takes scratch at least 900 (at 95 %)'
    """
    start = f"{arm} does with {plural(worth.budget, 'label')}"
    if worth.low is None:
        return f"What {start}, {reference} may do with fewer than it was given"
    if worth.beyond:
        return f"What {start} takes {reference} more than {worth.low:,.0f} (at 95 %)"
    low = _round(worth.low)
    return f"What {start} takes {reference} at least {low if low <= worth.low else floor(worth.low):,} (at 95 %)"
