"""Label budgets in words: what pretraining adds with fewer labels, and how many labels it saves."""

from __future__ import annotations

from collections.abc import Iterator
from math import floor, log10

from headstart.runs.comparison import Comparison, WorthResult
from headstart.studies.contrasts import PRETRAINED, STUDENTS, TFIDF_SELF_TRAINED, Contrasts
from headstart.studies.gain import beside_linear, effect, method_of
from headstart.studies.words import accuracy, arm_name, base_name, signed
from headstart.wording import listed, plural


def fewer_labels(comparison: Comparison, contrasts: Contrasts) -> Iterator[str]:
    """A paragraph for each smaller budget: what pretraining and self-training add, and how far the linear model is."""
    for budget in dict.fromkeys(difference.budget for difference in comparison.curve_differences):
        level = {arm.name: accuracy(arm) for arm in comparison.curves if arm.budget == budget}
        labels = plural(budget or 0, "label")
        sentences: list[str] = []
        for difference in (each for each in comparison.curve_differences if each.budget == budget):
            arm, reference = comparison.arm(difference.arm), comparison.arm(difference.reference)
            if arm.mode in STUDENTS and reference.name == TFIDF_SELF_TRAINED:
                levels = f"{level[arm.name]} and {level[reference.name]}"
                sentences.append(beside_linear(f"With {labels} {arm_name(arm, contrasts)}", difference, levels))
                continue
            if arm.mode in STUDENTS or (arm.mode in PRETRAINED and reference.mode == "scratch"):
                levels = f"{level[arm.name]} with it, {level[reference.name]} without"
                what = f"With {labels} {method_of(arm, contrasts)}"
                sentences.append(effect(what, difference, levels, comparison.matters))
                continue
            if not sentences:
                sentences.append(f"With {labels} {arm_name(arm, contrasts)} reaches {level[arm.name]}.")
            significant = "" if difference.decision in ("better", "worse") else ", not significant"
            other = f"{arm_name(reference, contrasts)}, {level[reference.name]}"
            sentences.append(f"Against {other}, that is {signed(difference)}{significant}.")
        yield " ".join(sentences)


def labels_saved(comparison: Comparison, contrasts: Contrasts) -> Iterator[str]:
    """For each base and reference: the largest budget whose gain has a number; else the first that beats all labels."""
    open_questions: dict[str, list[str]] = {}  # by reference: the bases of which it cannot be told
    for arms in contrasts.bases:
        of_arm = [worth for worth in comparison.worth if worth.arm == arms.best.name]
        for name in dict.fromkeys(worth.reference for worth in of_arm):
            worths = sorted((worth for worth in of_arm if worth.reference == name), key=lambda worth: worth.budget)
            gains = [worth for worth in worths if worth.low is not None and worth.low > worth.budget]
            numbers = [worth for worth in gains if not worth.beyond]
            reference = arm_name(comparison.arm(name), contrasts)
            for worth in numbers[-1:] or gains[:1]:
                yield f"{label_worth(worth, arm_name(arms.best, contrasts), reference)}."
            if not gains:
                open_questions.setdefault(reference, []).append(base_name(arms.best))
    for reference, bases in open_questions.items():
        pretraining = "pretraining" if len(contrasts.bases) == 1 else f"the pretraining of {listed(bases)}"
        yield f"Whether {pretraining} is worth any labels against {reference} cannot be told."


def label_worth(worth: WorthResult, arm: str, reference: str) -> str:
    """How many labels the reference needs at least to do as well as the arm.

    >>> label_worth(WorthResult("full", "scratch", 200, 904.0), "full", "scratch")
    'With 200 labels full does as well as scratch with at least 900 (at 95 %)'
    """
    start = f"With {plural(worth.budget, 'label')} {arm}"
    if worth.low is None:
        return f"{start} is not significantly better than {reference} with its smallest budget"
    if worth.beyond:
        return f"{start} does better than {reference} with {worth.low:,.0f}, the most that were tried (at 95 %)"
    low = _round(worth.low)
    return (
        f"{start} does as well as {reference} with at least {low if low <= worth.low else floor(worth.low):,} (at 95 %)"
    )


def _round(budget: float) -> int:
    """Two figures below a thousand, three above.

    >>> [_round(budget) for budget in (87.4, 234.0, 1347.0, 25749.0)]
    [87, 230, 1350, 25700]
    """
    figures = 2 if budget < 1000 else 3
    return int(round(budget, min(0, figures - 1 - floor(log10(budget)))))
