"""What pretraining brought, in words, base by base."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headstart.runs.comparison import ArmResult, Comparison, DifferenceResult
from headstart.studies.contrasts import DISTILLED, STUDENTS, TFIDF_SELF_TRAINED, BaseArms, Contrasts
from headstart.studies.words import accuracy, arm_name, base_name, capitalized, interval, points, signed, size
from headstart.wording import listed

TOO_WIDE = 0.25  # an interval that reaches so far rules nothing out
SO_FAR = " so far"  # said of a gain where more epochs would change it


def pretraining_gain(comparison: Comparison, contrasts: Contrasts) -> Iterator[str]:
    """Sentences of the verdict's second paragraph."""
    if not contrasts.bases:
        yield "**No pretrained model was compared**, so what pretraining would bring is not known."
        return
    if contrasts.scratch is None:
        yield "**What pretraining brought is not known**: no model was trained from scratch beside it."
    else:
        for arms in contrasts.bases:
            yield _gain(comparison, contrasts, arms)
    yield from _competing_bases(comparison, contrasts)
    yield from _student_gains(comparison, contrasts)


def method_of(arm: ArmResult, contrasts: Contrasts) -> str:
    """What an arm does beside learning from labels."""
    if arm.mode == DISTILLED:
        return "the teacher" if len(contrasts.bases) == 1 else f"the teacher of {base_name(arm)}"
    if arm.mode not in STUDENTS:
        return pretraining_of(arm, contrasts)
    what = "self-training on the unlabelled texts"
    return what if len(contrasts.bases) == 1 else f"{what} from {base_name(arm)}"


def pretraining_of(arm: ArmResult, contrasts: Contrasts) -> str:
    return "pretraining" if len(contrasts.bases) == 1 else f"the pretraining of {base_name(arm)}"


def effect(
    pretraining: str, difference: DifferenceResult, levels: str, matters: float = 0.0, *, so_far: bool = False
) -> str:
    """What pretraining did, with the accuracies that `levels` names and the interval of the difference."""
    estimate = difference.scores["accuracy"]
    amount = size(estimate.value) + (SO_FAR if so_far else "")
    match difference.decision:
        case "better":
            return f"**{pretraining} adds {amount}** ({interval(difference)}): {levels}."
        case "worse":
            return f"**{pretraining} lowers accuracy by {amount}** ({interval(difference)}): {levels}."
        case "equivalent":
            within = f"within the {points(matters)} points that matter"
            return f"**{pretraining} makes no difference that matters**: {levels}, {signed(difference)}, {within}."
        case _:
            unlikely = _unlikely(estimate.high)
            return f"**{pretraining} shows no significant gain**: {levels}, {signed(difference)}. {unlikely}."


def _unlikely(high: float) -> str:
    """Which gain is unlikely, by the upper end of the interval."""
    if high <= 0:
        return "A gain is unlikely"
    if high > TOO_WIDE:
        return "This study is too small to rule out even a large gain"
    return f"A gain above {points(high)} points is unlikely"


def _gain(comparison: Comparison, contrasts: Contrasts, arms: BaseArms) -> str:
    assert arms.scratch is not None
    pretraining = capitalized(pretraining_of(arms.best, contrasts))
    of_arm = f" ({arms.best.mode})" if arms.others else ""
    if any(_test_accuracy(other) > _test_accuracy(arms.best) for other in arms.others):
        of_arm = f" ({arms.best.mode}, the {'better' if len(arms.others) == 1 else 'best'} on valid)"
    levels = f"{accuracy(arms.best)} with it{of_arm}, {accuracy(arms.scratch)} without"
    difference = comparison.difference(arms.best.name, arms.scratch.name)
    if difference is None:
        return f"**{pretraining} was not tested**: {levels}."
    improving = still_improving(arms)
    found = effect(pretraining, difference, levels, comparison.matters, so_far=bool(improving))
    return " ".join([found, *_cut_short(improving)])


def still_improving(arms: BaseArms) -> list[ArmResult]:
    """Those of the two whose accuracy still rose with the number of epochs when there was no time for more."""
    pair = filter(None, (arms.best, arms.scratch))
    return [arm for arm in pair if arm.tuning is not None and arm.tuning.improving]


def _cut_short(improving: Sequence[ArmResult]) -> Iterator[str]:
    if improving:
        were = "was" if len(improving) == 1 else "were"
        names = capitalized(listed([arm.name for arm in improving]))
        yield f"{names} {were} still improving with more epochs: --tune thorough and more --minutes train longer."


def _student_gains(comparison: Comparison, contrasts: Contrasts) -> Iterator[str]:
    for name, other in contrasts.primary:
        arm, difference = comparison.arm(name), comparison.difference(name, other)
        if arm.mode not in STUDENTS or difference is None:
            continue
        if other == TFIDF_SELF_TRAINED:
            levels = f"{accuracy(arm)} and {accuracy(comparison.arm(other))}"
            yield beside_linear(capitalized(arm_name(arm, contrasts)), difference, levels)
            continue
        levels = f"{accuracy(arm)} with it, {accuracy(comparison.arm(other))} without"
        yield effect(capitalized(method_of(arm, contrasts)), difference, levels, comparison.matters)


def beside_linear(student: str, difference: DifferenceResult, levels: str) -> str:
    """A student, and the linear model that had the same unlabelled texts, with their accuracies."""
    linear, amount = "the linear model that had the same texts", size(difference.scores["accuracy"].value)
    match difference.decision:
        case "better" | "worse" as decided:
            return f"{student} is {amount} {decided} than {linear} ({interval(difference)}): {levels}."
        case "equivalent":
            return f"{student} and {linear} are equally good: {levels}, {signed(difference)}."
        case _:
            return f"{student} and {linear}: {levels}, {signed(difference)}, not significant."


def _test_accuracy(arm: ArmResult) -> float:
    return arm.scores["accuracy"].value


def _competing_bases(comparison: Comparison, contrasts: Contrasts) -> Iterator[str]:
    """The base that is best on valid beside each of the others, used the same way."""
    for other in contrasts.competing[1:]:
        best = contrasts.competing[0]
        one, two = base_name(best), base_name(other)
        levels = f"{accuracy(best)} against {accuracy(other)} ({best.mode})"
        difference = comparison.difference(best.name, other.name)
        if difference is None:
            yield f"The base {one} reaches {accuracy(best)} and {two} {accuracy(other)} ({best.mode})."
            continue
        match difference.decision:
            case "better":
                yield f"The base {one} is better than {two}: {levels}, {signed(difference)}."
            case "worse":
                yield f"The base {one} is worse than {two}: {levels}, {signed(difference)}."
            case "equivalent":
                yield f"The bases {one} and {two} are equally good: {levels}, {signed(difference)}."
            case _:
                yield f"Whether {one} or {two} is the better base is open: {levels}, {signed(difference)}."
