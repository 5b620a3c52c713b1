"""Numbers and arms of a comparison in words, the same in the verdict, the notes under it and the title of the page."""

from __future__ import annotations

from headstart.runs.comparison import ArmResult, DifferenceResult
from headstart.studies.contrasts import PRETRAINED, STUDENTS, Contrasts
from headstart.wording import two_digits

NAMES = {
    "full": "the fine-tuned model",
    "full+self": "the self-trained model",
    "full+teacher": "the distilled model",
    "frozen": "the frozen model",
    "contrastive": "the contrastive model",
    "scratch": "the model from scratch",
}
BASELINES = {
    "tfidf": "the linear model",
    "tfidf+self": "the self-trained linear model",
    "majority": "always giving the most frequent label",
}


# --- arms ---


def base_name(arm: ArmResult) -> str:
    return arm.name.partition(":")[2] or arm.base or arm.name


def arm_name(arm: ArmResult, contrasts: Contrasts, longest: int | None = None) -> str:
    """An arm in words; with its base, where there are several. `longest`: how long the base's name may be."""
    if arm.mode == "ensemble":
        return f"the ensemble {arm.name}"
    if not arm.trained:
        return BASELINES.get(arm.name, arm.name)
    several = len(contrasts.bases) > 1 if arm.mode in (*PRETRAINED, *STUDENTS) else ":" in arm.name
    return f"{NAMES[arm.mode]} ({shortened(base_name(arm), longest)})" if several else NAMES[arm.mode]


def shortened(text: str, longest: int | None) -> str:
    """
    >>> shortened("a-base-with-a-long-name", 10), shortened("causal", 10)
    ('a-base-wi…', 'causal')
    """
    return text if longest is None or len(text) <= longest else f"{text[: longest - 1]}…"


def capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


# --- numbers ---


def percent(share: float) -> str:
    """Rounded as in a table of shares.

    >>> percent(0.7578), f"{0.8425:.3f}", percent(0.8425)
    ('75.8 %', '0.843', '84.3 %')
    """
    return f"{100 * float(f'{share:.3f}'):.1f} %"


def accuracy(arm: ArmResult) -> str:
    return percent(arm.scores["accuracy"].value)


def points(value: float, sign: str = "") -> str:
    """
    >>> points(0.0621, "+"), points(-0.0004, "+"), points(-0.006)
    ('+6.2', '0.0', '-0.6')
    """
    rounded = round(100 * value, 1) + 0.0  # which turns -0.0 into 0.0
    return f"{rounded:{sign if rounded else ''}.1f}"


def end(value: float, sign: str = "") -> str:
    """An end of an interval: one that is almost zero shows on which side of zero it is.

    >>> end(0.081), end(-0.00042, "+"), end(0.0)
    ('8.1', '-0.04', '0.0')
    """
    return f"{100 * value:{sign}.1g}" if 0.00001 < abs(value) < 0.0005 else points(value, sign)


def size(value: float) -> str:
    """The size of a difference, whichever way round it is.

    >>> size(-0.0462), size(0.01)
    ('4.6 points', '1.0 points')
    """
    return f"{points(abs(value))} points"


def interval(difference: DifferenceResult) -> str:
    """Of the size of a difference, where the interval excludes zero."""
    estimate = difference.scores["accuracy"]
    low, high = sorted((abs(estimate.low), abs(estimate.high)))
    return f"{100 * difference.level:.3g} % interval {end(low)} to {end(high)}"


def signed(difference: DifferenceResult) -> str:
    """A difference and its interval, with signs."""
    estimate = difference.scores["accuracy"]
    ends = f"{end(estimate.low, '+')} to {end(estimate.high, '+')}"
    return f"{points(estimate.value, '+')} points ({100 * difference.level:.3g} % interval {ends})"


def times(ratio: float) -> str:
    """
    >>> times(1.84), times(41.3), times(1234.0)
    ('1.8', '41', '1,200')
    """
    return f"{float(f'{ratio:.2g}'):,.0f}" if ratio >= 10 else f"{ratio:.2g}"


# --- cost ---


def cost_parts(arm: ArmResult) -> list[str]:
    """What an arm takes beside its training: time for each text, and room."""
    cost = arm.cost
    parts = [] if cost.milliseconds is None else [f"{two_digits(cost.milliseconds)} ms a text"]
    return [*parts, *([] if cost.megabytes is None else [f"{two_digits(cost.megabytes)} MB"])]
