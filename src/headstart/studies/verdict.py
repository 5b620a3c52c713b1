"""A comparison in words: what to use and what it costs, what pretraining brought, what would settle what is open.

One paragraph each, then notes. Every word follows from the decisions of the comparison and every number is one of its
numbers. What stands between two `**` is to be emphasised.

>>> from headstart.runs.comparison import Comparison
>>> from headstart.studies.contrasts import choose_contrasts
>>> verdict(Comparison(("no", "yes"), 100, 0, "scratch", (), (), (), ()), choose_contrasts((), "scratch"))
()
"""

from __future__ import annotations

from collections.abc import Iterator

from headstart.runs.comparison import ArmResult, Comparison, valid_accuracy
from headstart.studies.contrasts import Contrasts
from headstart.studies.gain import SO_FAR, pretraining_gain, still_improving
from headstart.studies.labels_saved import fewer_labels, labels_saved
from headstart.studies.notes import notes
from headstart.studies.open_questions import open_questions
from headstart.studies.recommendation import LIKELY, SAME_COST, Recommendation, cost_ratio, recommend
from headstart.studies.words import (
    accuracy,
    arm_name,
    capitalized,
    cost_parts,
    interval,
    points,
    signed,
    size,
    times,
)
from headstart.wording import listed, two_digits

LONGEST_TITLE = 90
LONGEST_BASE = 20  # of the base's name in the title


def verdict(comparison: Comparison, contrasts: Contrasts) -> tuple[str, ...]:
    """Three paragraphs, of which the last is there only where something is open; then label budgets and notes."""
    if not comparison.arms:
        return ()
    paragraphs = (_what_to_use, pretraining_gain, open_questions)
    return (
        *filter(None, (" ".join(paragraph(comparison, contrasts)) for paragraph in paragraphs)),
        *fewer_labels(comparison, contrasts),
        *labels_saved(comparison, contrasts),
        *notes(comparison, contrasts),
    )


def title(comparison: Comparison, contrasts: Contrasts) -> str:
    """The verdict in a line of at most 90 characters."""
    chosen = recommend(comparison)
    if chosen is None:
        return "There is nothing to recommend" if comparison.arms else ""
    if not chosen.beats_majority:
        return "No arm is shown to do better than always giving the most frequent label"
    name = "the ensemble" if chosen.arm.mode == "ensemble" else arm_name(chosen.arm, contrasts, LONGEST_BASE)
    start = f"{capitalized(name) if chosen.rival is None else f'Use {name}'}: {accuracy(chosen.arm)} correct"
    end = _pretraining_in_short(comparison, contrasts)
    whole = f"{start}; {end}" if end else start
    return whole if len(whole) <= LONGEST_TITLE else start


def _pretraining_in_short(comparison: Comparison, contrasts: Contrasts) -> str:
    arms = max(contrasts.bases, key=lambda arms: valid_accuracy(arms.best), default=None)
    scratch = None if arms is None else arms.scratch
    difference = None if arms is None or scratch is None else comparison.difference(arms.best.name, scratch.name)
    if difference is None:
        return ""
    gain = size(difference.scores["accuracy"].value) + (SO_FAR if arms is not None and still_improving(arms) else "")
    words = {"better": f"pretraining adds {gain}", "worse": f"pretraining lowers it by {gain}"}
    return words.get(difference.decision, "pretraining shows no gain")


# --- what to use, and what it costs ---


def _what_to_use(comparison: Comparison, contrasts: Contrasts) -> Iterator[str]:
    chosen = recommend(comparison)
    if chosen is None:
        yield "**There is nothing to recommend**: only always giving the most frequent label was tried."
        return
    arm, name = chosen.arm, arm_name(chosen.arm, contrasts)
    correct = f"{accuracy(arm)} of the {comparison.rows:,} test texts correctly"
    if not chosen.beats_majority:
        majority = comparison.arm("majority")
        own = arm.scores["accuracy"]
        yield f"**No arm is shown to do better than always giving the most frequent label**, {accuracy(majority)}."
        yield f"{capitalized(name)} labels {correct} (95 % interval {100 * own.low:.1f} to {100 * own.high:.1f} %)."
        return
    if chosen.rival is None:
        yield f"**{capitalized(name)} labels {correct}**; there is nothing to compare it with."
    else:
        it = f"Trained on {arm.budget:,} texts, it" if comparison.curves else "It"
        yield f"**Use {name}.** {it} labels {correct}, {_beside(comparison, contrasts, chosen, chosen.rival)}"
    yield from _cost(chosen, contrasts)
    if chosen.further is not None:
        yield _further(comparison, contrasts, chosen, chosen.further)


def _beside(comparison: Comparison, contrasts: Contrasts, chosen: Recommendation, rival: ArmResult) -> str:
    """The rival's accuracy and how far it is from the chosen arm's; where that is not significant, why this arm."""
    level = f"{arm_name(rival, contrasts)} {accuracy(rival)}"
    difference = comparison.difference(rival.name, chosen.arm.name)
    if difference is None:
        return f"{level}."
    match difference.decision:
        case "better" | "worse" as decided:
            way = "more" if decided == "better" else "fewer"
            return f"{level}: {size(difference.scores['accuracy'].value)} {way} ({interval(difference)})."
        case "equivalent":
            reason = f"less than the {points(comparison.matters)} points that matter"
            cheaper = ", so the cheaper one will do"
        case _:
            reason, cheaper = "not significant", ", so take the cheaper one until that is settled"
            if difference.better <= 1 - LIKELY:
                cheaper = f", but it is behind with a probability of {100 * (1 - difference.better):.0f} %"
    if difference.better > 1 - LIKELY and cost_ratio(chosen.arm, rival) <= SAME_COST:
        on_valid = valid_accuracy(chosen.arm) > valid_accuracy(rival)
        cheaper = ", and this one did better on valid" if on_valid else ""
    return f"{level}: {signed(difference)}, {reason}{cheaper}."


def _further(comparison: Comparison, contrasts: Contrasts, chosen: Recommendation, arm: ArmResult) -> str:
    level = f"{capitalized(arm_name(arm, contrasts))} reaches {accuracy(arm)}"
    difference = comparison.difference(arm.name, chosen.arm.name)
    if difference is None:
        return f"{level}."
    significant = difference.decision in ("better", "worse")
    return f"{level}: {signed(difference)}{'' if significant else ', not significant'}."


def _cost(chosen: Recommendation, contrasts: Contrasts) -> Iterator[str]:
    """What the chosen arm takes, and the rival beside it."""
    arm, rival, seconds = chosen.arm, chosen.rival, chosen.arm.cost.seconds
    own = [*([] if seconds is None else [f"{two_digits(seconds)} s to train"]), *cost_parts(arm)]
    if not own:
        return
    other = "" if rival is None or rival.name == "majority" else _rival_cost(arm, rival)
    yield (
        f"It takes {listed(own)}; {arm_name(rival, contrasts)} {other}."
        if rival and other
        else f"It takes {listed(own)}."
    )


def _rival_cost(arm: ArmResult, rival: ArmResult) -> str:
    """Its time to train against the arm's; the rest where that is not the same."""
    if not arm.cost.seconds or not rival.cost.seconds:
        return ""
    ratio, in_all = rival.cost.seconds / arm.cost.seconds, f"({two_digits(rival.cost.seconds)} s)"
    rest = [] if cost_parts(rival) == cost_parts(arm) else cost_parts(rival)
    if ratio > SAME_COST:
        return f"takes {listed([f'{times(ratio)} times as long to train {in_all}', *rest])}"
    if ratio < 1 / SAME_COST:
        return f"trains {times(1 / ratio)} times as fast {in_all}" + (f" and takes {listed(rest)}" if rest else "")
    return f"takes {listed([f'about as long to train {in_all}', *rest])}"
