"""A comparison in sentences a person would say, made from its numbers and nothing else.

>>> from headstart.runs.comparison import Comparison
>>> verdict(Comparison(("no", "yes"), 100, 0, "scratch", (), (), (), ()))
()
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import floor, log10

from headstart.runs.comparison import (
    ArmResult,
    Comparison,
    DifferenceResult,
    Estimate,
    RunScores,
    WorthResult,
    valid_accuracy,
)

PRETRAINED = ("full", "frozen")
ALPHA = 0.05
HOW = {"full": "with every weight trained", "frozen": "with the head alone trained"}
ODD = {
    "one class only": "answered with one class only",
    "no better than majority": "did no better than always giving the most frequent label",
}


def verdict(comparison: Comparison) -> tuple[str, ...]:
    """What pretraining brought, what a linear model does, what is odd about the runs, and what labels are worth.

    Without a scratch arm, the question that several bases put comes first: which of them is the better.
    """
    arms = comparison.arms
    between, scratch = tuple(_between_bases(comparison)), _scratch(arms, None)
    return (
        *(between if scratch is None else ()),
        *_main(comparison),
        *_against_reference(comparison),
        *_baselines(comparison),
        *_ways(comparison),
        *(() if scratch is None else between),
        *_degenerate(comparison),
        *_leaks(comparison),
        *_single_seed(arms),
        *_worth(comparison),
    )


def pairs(arms: Sequence[ArmResult], reference: str) -> tuple[tuple[str, str], ...]:
    """The differences that a verdict speaks of, (arm, minus arm), from what is known before test is looked at.

    Every arm but the most frequent label against the reference; then, where they are not among these: what speaks for
    pretraining against scratch and against the other way of using the same base, the best base against the others,
    the best neural arm against the linear model, and what answers together with it against it alone.
    """
    found = [(arm.name, reference) for arm in arms if arm.name not in (reference, "majority")]
    for base in _bases(arms):
        speaker, other, scratch = _speaker(arms, base), _other(arms, base), _scratch(arms, base)
        found += [(speaker.name, arm.name) for arm in (scratch, other) if arm is not None]
    rivals = _rivals(arms)
    found += [(rivals[0].name, arm.name) for arm in rivals[1:]]
    linear, neural = _named(arms, "tfidf"), _best(_neural(arms))
    found += [(neural.name, linear.name)] if neural and linear else []
    found += [(arm.name, linear.name) for arm in arms if linear and arm.mode == "ensemble"]
    once: list[tuple[str, str]] = []
    for one, other_name in found:
        if (one, other_name) not in once and (other_name, one) not in once:
            once.append((one, other_name))
    return tuple(once)


def speakers(arms: Sequence[ArmResult]) -> Iterator[tuple[ArmResult, ArmResult]]:
    """For each base what speaks for its pretraining, and the arm from scratch that it is held against."""
    for base in _bases(arms):
        scratch = _scratch(arms, base)
        if scratch is not None:
            yield _speaker(arms, base), scratch


# --- which arms are spoken of ---


def _neural(arms: Sequence[ArmResult]) -> list[ArmResult]:
    return [arm for arm in arms if arm.trained]


def _bases(arms: Sequence[ArmResult]) -> list[str | None]:
    return list(dict.fromkeys(arm.base for arm in arms if arm.mode in PRETRAINED))


def _named(arms: Sequence[ArmResult], name: str) -> ArmResult | None:
    return next((arm for arm in arms if arm.name == name), None)


def _best(arms: Sequence[ArmResult]) -> ArmResult | None:
    """On valid: test is not for choosing. The first of equals."""
    return max(arms, key=valid_accuracy, default=None)


def _speaker(arms: Sequence[ArmResult], base: str | None) -> ArmResult:
    """Of `full` and `frozen`, the one that is better on valid speaks for pretraining."""
    ours = sorted(
        (arm for arm in arms if arm.mode in PRETRAINED and arm.base == base), key=lambda arm: arm.mode != "full"
    )
    best = _best(ours)
    assert best is not None
    return best


def _other(arms: Sequence[ArmResult], base: str | None) -> ArmResult | None:
    speaker = _speaker(arms, base)
    return next((arm for arm in arms if arm.mode in PRETRAINED and arm.base == base and arm is not speaker), None)


def _scratch(arms: Sequence[ArmResult], base: str | None) -> ArmResult | None:
    """The scratch arm of the same base, or the one there is."""
    found = [arm for arm in arms if arm.mode == "scratch"]
    return next((arm for arm in found if arm.base == base), found[0] if found else None)


def _rivals(arms: Sequence[ArmResult]) -> list[ArmResult]:
    """Arms of several bases trained the same way, the best on valid first; empty where there are no two."""
    for mode in PRETRAINED:
        found = [arm for arm in arms if arm.mode == mode]
        if len(found) > 1:
            return sorted(found, key=valid_accuracy, reverse=True)
    return []


def _told(found: DifferenceResult) -> bool:
    """Whether there is a difference at all, as far as can be told."""
    return found.holm < ALPHA and _beyond(found.scores["accuracy"])


def _beyond(apart: Estimate) -> bool:
    return apart.low > 0 or apart.high < 0


# --- how numbers and arms are said ---


def _accuracy(arm: ArmResult) -> str:
    return f"{arm.scores['accuracy'].value:.3f}"


def _points(value: float, sign: str = "") -> str:
    """
    >>> _points(0.0621, "+"), _points(-0.0004, "+"), _points(-0.006)
    ('+6.2', '+0.0', '-0.6')
    """
    rounded = round(100 * value, 1) + 0.0  # which turns -0.0 into 0.0
    return f"{rounded:{sign}.1f}"


def _interval(apart: Estimate) -> str:
    return f"95 % interval {_points(apart.low)} to {_points(apart.high)}"


def _by(apart: Estimate) -> str:
    return f"{_points(apart.value, '+')} points, {_interval(apart)}"


def _seeds(arm: ArmResult) -> str:
    return _count(len(arm.runs), "seed")


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def _about(labels: float) -> int:
    """Two figures below a thousand, three above.

    >>> [_about(labels) for labels in (87.4, 234.0, 1347.0, 25749.0)]
    [87, 230, 1350, 25700]
    """
    figures = 2 if labels < 1000 else 3
    return int(round(labels, min(0, figures - 1 - floor(log10(labels)))))


def _base_name(arm: ArmResult) -> str:
    return arm.name.partition(":")[2] or arm.base or arm.name


def _called(arm: ArmResult, arms: Sequence[ArmResult]) -> str:
    """An arm in words; by its base, where there are several."""
    several = len(_bases(arms)) > 1
    if arm.mode == "scratch":
        return "the model from scratch"
    if arm.mode in PRETRAINED:
        return f"the pretrained {_base_name(arm)}" if several else "the pretrained model"
    return {"tfidf": "the linear model", "majority": "the most frequent label"}.get(arm.name, arm.name)


def _subject(speaker: ArmResult, arms: Sequence[ArmResult]) -> str:
    return "pretraining" if len(_bases(arms)) == 1 else f"the pretraining of {_base_name(speaker)}"


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _doubt(found: DifferenceResult) -> str:
    """Why a difference cannot be told, as the end of a sentence."""
    if _beyond(found.scores["accuracy"]):
        return "; among several comparisons, one like this comes by chance"
    match found.could_show:
        case "0.0":
            return ""
        case "none":
            return "; a study of this size could have shown no difference at all"
        case points:
            return f"; a study of this size could have shown a difference of {points} points"


# --- the sentences ---


def _main(comparison: Comparison) -> Iterator[str]:
    """What pretraining brought, for each base."""
    arms = comparison.arms
    if not _bases(arms):
        scratch = _scratch(arms, None)
        if scratch is not None:
            yield f"From scratch the model reaches {_level(scratch)}; there is no pretrained arm beside it."
    elif _scratch(arms, None) is None:
        every = [_speaker(arms, base) for base in _bases(arms)]
        said = [f"{_called(arm, arms)} reaches {_level(arm)}" for arm in every]
        yield f"{_upper(', '.join(said))}; there is no scratch arm, so what pretraining brought is not known."
        return
    for base in _bases(arms):
        speaker, scratch = _speaker(arms, base), _scratch(arms, base)
        assert scratch is not None
        found, subject = comparison.difference(speaker.name, scratch.name), _subject(speaker, arms)
        if found is None:
            yield f"Test accuracy is {_accuracy(scratch)} without {subject} and {_accuracy(speaker)} with it."
        else:
            yield _moved(subject, found, _accuracy(scratch), _accuracy(speaker), f", {_seeds(speaker)}")


def _level(arm: ArmResult) -> str:
    found = arm.scores["accuracy"]
    return f"{found.value:.3f} (95 % interval {found.low:.3f} to {found.high:.3f}, {_seeds(arm)})"


def _moved(subject: str, found: DifferenceResult, before: str, after: str, seeds: str) -> str:
    apart = found.scores["accuracy"]
    if _told(found):
        verb = "raised" if apart.value > 0 else "lowered"
        return f"{_upper(subject)} {verb} test accuracy from {before} to {after} ({_by(apart)}{seeds})."
    return (
        f"Whether {subject} helped cannot be told: {before} without it, {after} with it ({_by(apart)}{seeds})"
        f"{_doubt(found)}."
    )


def _ways(comparison: Comparison) -> Iterator[str]:
    """Where a base was trained whole and with its head alone: which of the two was meant, and how the other does."""
    arms = comparison.arms
    for base in _bases(arms):
        speaker, other = _speaker(arms, base), _other(arms, base)
        if other is None:
            continue
        start = (
            f"{_upper(_called(speaker, arms))} is the one {HOW[speaker.mode]}, which did best on valid; "
            f"{HOW[other.mode]} it reaches {_accuracy(other)}"
        )
        found = comparison.difference(other.name, speaker.name)
        if found is None:
            yield f"{start}."
            continue
        apart = found.scores["accuracy"]
        if _told(found):
            yield f"{start}, which is {'better on test' if apart.value > 0 else 'worse'} ({_by(apart)})."
        else:
            yield f"{start}, and which of the two is better cannot be told ({_by(apart)})."


def _between_bases(comparison: Comparison) -> Iterator[str]:
    rivals = _rivals(comparison.arms)
    for other in rivals[1:]:
        best = rivals[0]
        found = comparison.difference(best.name, other.name)
        one, two = _base_name(best), _base_name(other)
        if found is None:
            yield f"{_upper(HOW[best.mode])}, {one} reaches {_accuracy(best)} and {two} {_accuracy(other)}."
            continue
        apart = found.scores["accuracy"]
        numbers = f"{_accuracy(best)} against {_accuracy(other)} ({_by(apart)})"
        if _told(found):
            word = "better" if apart.value > 0 else "worse"
            yield f"{_upper(HOW[best.mode])}, {one} is a {word} base than {two}: {numbers}."
        else:
            yield f"Whether {one} or {two} is the better base cannot be told: {numbers}{_doubt(found)}."


def _against_reference(comparison: Comparison) -> Iterator[str]:
    """Where there is no scratch arm: the neural arms beside the reference that was chosen instead."""
    arms = comparison.arms
    reference = _named(arms, comparison.reference)
    if reference is None or _scratch(arms, None) is not None or reference.name == "tfidf":
        return
    if reference.mode in PRETRAINED:
        return  # said already: as the other way of using a base, or as the other base
    for base in _bases(arms):
        speaker = _speaker(arms, base)
        found = comparison.difference(speaker.name, reference.name)
        if found is not None:
            yield f"{_upper(_called(reference, arms))} reaches {_accuracy(reference)}; {_judged(found, speaker, arms)}."


def _judged(found: DifferenceResult, arm: ArmResult, arms: Sequence[ArmResult]) -> str:
    apart = found.scores["accuracy"]
    if _told(found):
        return f"{_called(arm, arms)} is {'better' if apart.value > 0 else 'worse'} than that ({_by(apart)})"
    return f"whether {_called(arm, arms)} is better than that cannot be told ({_by(apart)}){_doubt(found)}"


def _baselines(comparison: Comparison) -> Iterator[str]:
    arms = comparison.arms
    linear, neural, majority = _named(arms, "tfidf"), _best(_neural(arms)), _named(arms, "majority")
    if linear is not None:
        found = None if neural is None else comparison.difference(neural.name, linear.name)
        end = "" if found is None or neural is None else f"; {_judged(found, neural, arms)}"
        yield f"A linear model on word counts reaches {_accuracy(linear)}{end}."
        yield from _ensembles(comparison, linear)
    if majority is not None and neural is None:
        yield f"Always giving the most frequent label reaches {_accuracy(majority)}."


def _ensembles(comparison: Comparison, linear: ArmResult) -> Iterator[str]:
    for arm in comparison.arms:
        found = comparison.difference(arm.name, linear.name) if arm.mode == "ensemble" else None
        if found is not None:
            alone = f"against {_accuracy(linear)} of the linear model alone, {_by(found.scores['accuracy'])}"
            yield f"Together ({arm.name}) they reach {_accuracy(arm)} ({alone})."


def _degenerate(comparison: Comparison) -> Iterator[str]:
    for arm in comparison.arms:
        if arm.name != "majority":
            yield from _odd_runs(arm.runs, f"of {arm.name}")
    whole = {(arm.name, arm.labels) for arm in comparison.arms}
    budgets: dict[str, list[RunScores]] = {}
    for arm in comparison.curves:
        if arm.name != "majority" and (arm.name, arm.labels) not in whole:
            budgets.setdefault(arm.name, []).extend(arm.runs)
    for name, runs in budgets.items():
        yield from _odd_runs(runs, f"of {name} with fewer labels")


def _odd_runs(runs: Sequence[RunScores], whose: str) -> Iterator[str]:
    for kind, words in ODD.items():
        n = sum(run.degenerate == kind for run in runs)
        if n:
            share = "The only run" if len(runs) == 1 else f"{n} of {len(runs)} runs"
            yield f"{share} {whose} {words}."


def _leaks(comparison: Comparison) -> Iterator[str]:
    n = comparison.leaked
    if not n:
        return
    start = f"{n:,} of {comparison.rows:,} test rows {'is' if n == 1 else 'are'} also in train or valid"
    without = "without it" if n == 1 else "without them"
    said = [sentence for base in _bases(comparison.arms) for sentence in _leak_free(comparison, base)]
    yield f"{start}; {without}, {'; '.join(said)}." if said else f"{start}."


def _leak_free(comparison: Comparison, base: str | None) -> Iterator[str]:
    arms = comparison.arms
    speaker, scratch = _speaker(arms, base), _scratch(arms, base)
    if speaker.leak_free is None:
        return
    after = f"{speaker.leak_free['accuracy'].value:.3f}"
    found = None if scratch is None else comparison.difference(speaker.name, scratch.name)
    if scratch is None or scratch.leak_free is None or found is None or found.leak_free is None:
        yield f"{_called(speaker, arms)} reaches {after}"
        return
    apart, before = found.leak_free["accuracy"], f"{scratch.leak_free['accuracy'].value:.3f}"
    subject = _subject(speaker, arms)
    if found.holm < ALPHA and _beyond(apart):
        verb = "raised" if apart.value > 0 else "lowered"
        yield f"{subject} {verb} test accuracy from {before} to {after} ({_by(apart)})"
    else:
        yield f"whether {subject} helped cannot be told: {before} against {after} ({_by(apart)})"


def _single_seed(arms: Sequence[ArmResult]) -> Iterator[str]:
    neural = _neural(arms)
    if neural and all(len(arm.runs) == 1 for arm in neural):
        yield "One seed: the interval knows the test items and nothing of the luck of the draw."


def _worth(comparison: Comparison) -> Iterator[str]:
    """One sentence for each base: at the largest budget whose worth has a number, or else at the first beyond all."""
    arms = comparison.arms
    for base in _bases(arms):
        speaker = _speaker(arms, base)
        ours = sorted(
            (found for found in comparison.worth if found.arm == speaker.name), key=lambda found: found.labels
        )
        gains = [found for found in ours if _gains(found)]
        known = [found for found in gains if found.value is not None]
        if ours:
            yield _worth_said(comparison, (known[-1:] or gains[:1] or ours[-1:])[0])


def _gains(found: WorthResult) -> bool:
    return found.low is None or found.low > found.labels


def _worth_said(comparison: Comparison, found: WorthResult) -> str:
    arms = comparison.arms
    arm, reference = comparison.arm(found.arm), comparison.arm(found.reference)
    budgets = [curve.labels for curve in (*comparison.curves, reference) if curve.name == reference.name]
    least, most = min(budgets), max(budgets)
    name = "scratch" if reference.mode == "scratch" else _called(reference, arms)
    start = f"With {_count(found.labels, 'label')} {_called(arm, arms)} does"
    interval = f"(95 % interval {_span(found, least, most)})"
    if found.value is None:
        told = "pretraining is worth more labels than you have" if _gains(found) else _UNTOLD
        return f"{start} better than {name} with all {most:,} {interval}: {told}."
    value = _about(found.value)
    if value <= found.labels < found.value:
        value = round(found.value)  # so that a small gain is not rounded away
    if found.at_most:
        start = f"{start} no better than {name} with {least:,}"
    else:
        start = f"{start} as well as {name} with about {value:,}"
    if _gains(found) and value > found.labels:
        return f"{start} {interval}: pretraining is worth about {_count(value - found.labels, 'label')}."
    if found.high is not None and found.high < found.labels:
        return f"{start} {interval}: pretraining is not worth a label here."
    return f"{start} {interval}: {_UNTOLD}."


_UNTOLD = "whether pretraining is worth any labels cannot be told"


def _span(found: WorthResult, least: int, most: int) -> str:
    """The interval of the labels, where its ends may lie beyond what was tried."""
    if found.low is None:
        return f"beyond {most:,}"
    low = f"{least:,} or fewer" if found.low <= least else f"{_about(found.low):,}"
    if found.high is not None and found.high <= least:
        return low
    high = f"more than {most:,}" if found.high is None else f"{_about(found.high):,}"
    return f"{low} to {high}"
