"""Each case is a comparison made by hand and the sentences a person would say of it."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from headstart.runs.comparison import ArmResult, Comparison, DifferenceResult, Estimate, Mode, RunScores, WorthResult
from headstart.studies.contrasts import choose_contrasts
from headstart.studies.verdict import verdict

MODES: dict[str, Mode] = {"scratch": "scratch", "frozen": "frozen", "full": "full"}


def arm(
    name: str,
    accuracy: float,
    *,
    valid: float | None = None,
    seeds: int = 5,
    labels: int = 1800,
    odd: tuple[str, ...] = (),
    leak_free: float | None = None,
) -> ArmResult:
    """An arm with an interval of two points to each side; `odd` is what is odd about its first runs."""
    kind, _, base = name.partition(":")
    mode = MODES.get(kind, "baseline")
    scores = {"accuracy": accuracy, "macro_f1": accuracy, "calibration": 0.1}
    on_valid = {**scores, "accuracy": accuracy if valid is None else valid}
    runs = tuple(
        RunScores(f"runs/{name}-{seed}", seed, on_valid, scores, odd[seed] if seed < len(odd) else None)
        for seed in range(1 if mode == "baseline" else seeds)
    )
    return ArmResult(
        name=name,
        mode=mode,
        base=None if mode == "baseline" else base or "base",
        budget=labels,
        runs=runs,
        scores={"accuracy": Estimate(accuracy, accuracy - 0.02, accuracy + 0.02)},
        leak_free=None if leak_free is None else {"accuracy": Estimate(leak_free, leak_free - 0.02, leak_free + 0.02)},
    )


def apart(
    one: str,
    other: str,
    value: float,
    low: float,
    high: float,
    *,
    holm: float | None = None,
    detectable: float = 0.02,
    leak_free: tuple[float, float, float] | None = None,
) -> DifferenceResult:
    p = 0.5 if low <= 0 <= high else 0.001
    return DifferenceResult(
        arm=one,
        reference=other,
        scores={"accuracy": Estimate(value, low, high)},
        better=0.9,
        p=p,
        holm=p if holm is None else holm,
        detectable=detectable,
        mcnemar=None,
        leak_free=None if leak_free is None else {"accuracy": Estimate(*leak_free)},
    )


def compared(
    arms: list[ArmResult],
    differences: list[DifferenceResult] | None = None,
    *,
    reference: str = "scratch",
    leaked: int = 0,
    curves: list[ArmResult] | None = None,
    worth: list[WorthResult] | None = None,
) -> Comparison:
    return Comparison(
        class_names=("no", "yes"),
        rows=2000,
        leaked=leaked,
        reference=reference,
        arms=tuple(arms),
        differences=tuple(differences or ()),
        curves=tuple(curves or ()),
        worth=tuple(worth or ()),
    )


def said_of(comparison: Comparison) -> tuple[str, ...]:
    return verdict(comparison, choose_contrasts(comparison.arms, comparison.reference))


SCRATCH, FULL, LINEAR, MAJORITY = arm("scratch", 0.804), arm("full", 0.866), arm("tfidf", 0.853), arm("majority", 0.5)
FROZEN = arm("frozen", 0.841, valid=0.83)
GAIN = apart("full", "scratch", 0.062, 0.044, 0.079)
RAISED = "Pretraining raised test accuracy from 0.804 to 0.866 (+6.2 points, 95 % interval 4.4 to 7.9, 5 seeds)."

CASES: dict[str, tuple[Comparison, tuple[str, ...]]] = {
    "nothing": (compared([]), ()),
    "it helped": (compared([SCRATCH, FULL], [GAIN]), (RAISED,)),
    "the other way round in the records": (
        compared([SCRATCH, FULL], [apart("scratch", "full", -0.062, -0.079, -0.044)], reference="full"),
        (RAISED,),
    ),
    "it hurt": (
        compared([SCRATCH, arm("full", 0.78)], [apart("full", "scratch", -0.024, -0.041, -0.007)]),
        ("Pretraining lowered test accuracy from 0.804 to 0.780 (-2.4 points, 95 % interval -4.1 to -0.7, 5 seeds).",),
    ),
    "it cannot be told": (
        compared([SCRATCH, arm("full", 0.812)], [apart("full", "scratch", 0.008, -0.006, 0.022)]),
        (
            "Whether pretraining helped cannot be told: 0.804 without it, 0.812 with it (+0.8 points, 95 % interval "
            "-0.6 to 2.2, 5 seeds); a study of this size could have shown a difference of 2.0 points.",
        ),
    ),
    "the same answers": (
        compared([SCRATCH, arm("full", 0.804)], [apart("full", "scratch", 0.0, -0.0, 0.0, detectable=0.0)]),
        (
            "Whether pretraining helped cannot be told: 0.804 without it, 0.804 with it (+0.0 points, 95 % interval "
            "0.0 to 0.0, 5 seeds).",
        ),
    ),
    "no difference worked out": (
        compared([SCRATCH, FULL]),
        ("Test accuracy is 0.804 without pretraining and 0.866 with it.",),
    ),
    "a linear model that is beaten": (
        compared([SCRATCH, FULL, LINEAR, MAJORITY], [GAIN, apart("full", "tfidf", 0.013, 0.002, 0.024)]),
        (
            RAISED,
            "A linear model on word counts reaches 0.853; the pretrained model is better than that "
            "(+1.3 points, 95 % interval 0.2 to 2.4).",
        ),
    ),
    "a linear model that wins": (
        compared([SCRATCH, LINEAR], [apart("tfidf", "scratch", 0.049, 0.03, 0.068)]),
        (
            "From scratch the model reaches 0.804 (95 % interval 0.784 to 0.824, 5 seeds); "
            "there is no pretrained arm beside it.",
            "A linear model on word counts reaches 0.853; the model from scratch is worse than that "
            "(-4.9 points, 95 % interval -6.8 to -3.0).",
        ),
    ),
    "a linear model that is level": (
        compared([SCRATCH, FULL, LINEAR], [GAIN, apart("full", "tfidf", 0.013, -0.002, 0.028, detectable=0.021)]),
        (
            RAISED,
            "A linear model on word counts reaches 0.853; whether the pretrained model is better than that cannot be "
            "told (+1.3 points, 95 % interval -0.2 to 2.8); a study of this size could have shown a difference of 2.1 "
            "points.",
        ),
    ),
    "too few seeds for anything": (
        compared([SCRATCH, FULL], [apart("full", "scratch", 0.019, -0.925, 0.962, detectable=1.045)]),
        (
            "Whether pretraining helped cannot be told: 0.804 without it, 0.866 with it (+1.9 points, 95 % interval "
            "-92.5 to 96.2, 5 seeds); a study of this size could have shown no difference at all.",
        ),
    ),
    "baselines alone": (
        compared([LINEAR, MAJORITY], [apart("tfidf", "majority", 0.353, 0.33, 0.37)], reference="majority"),
        ("A linear model on word counts reaches 0.853.", "Always giving the most frequent label reaches 0.500."),
    ),
    "no scratch, beside the linear model": (
        compared([FULL, LINEAR], [apart("full", "tfidf", 0.013, 0.002, 0.024)], reference="tfidf"),
        (
            "The pretrained model reaches 0.866 (95 % interval 0.846 to 0.886, 5 seeds); "
            "there is no scratch arm, so what pretraining brought is not known.",
            "A linear model on word counts reaches 0.853; the pretrained model is better than that "
            "(+1.3 points, 95 % interval 0.2 to 2.4).",
        ),
    ),
    "no scratch, beside the majority": (
        compared([FULL, MAJORITY], [apart("full", "majority", 0.366, 0.34, 0.39)], reference="majority"),
        (
            "The pretrained model reaches 0.866 (95 % interval 0.846 to 0.886, 5 seeds); "
            "there is no scratch arm, so what pretraining brought is not known.",
            "The most frequent label reaches 0.500; the pretrained model is better than that "
            "(+36.6 points, 95 % interval 34.0 to 39.0).",
        ),
    ),
    "full and frozen": (
        compared([SCRATCH, FROZEN, FULL], [GAIN, apart("full", "frozen", 0.025, 0.01, 0.04)]),
        (
            RAISED,
            "The pretrained model is the one with every weight trained, which did best on valid; with the head alone "
            "trained it reaches 0.841, which is worse (-2.5 points, 95 % interval -4.0 to -1.0).",
        ),
    ),
    "frozen is better on valid and worse on test": (
        compared(
            [SCRATCH, arm("frozen", 0.841, valid=0.9), FULL],
            [apart("frozen", "scratch", 0.037, 0.02, 0.05), apart("full", "frozen", 0.025, 0.01, 0.04)],
        ),
        (
            "Pretraining raised test accuracy from 0.804 to 0.841 (+3.7 points, 95 % interval 2.0 to 5.0, 5 seeds).",
            "The pretrained model is the one with the head alone trained, which did best on valid; with every weight "
            "trained it reaches 0.866, which is better on test (+2.5 points, 95 % interval 1.0 to 4.0).",
        ),
    ),
    "full and frozen that are level": (
        compared([SCRATCH, FROZEN, FULL], [GAIN, apart("full", "frozen", 0.025, -0.01, 0.06)]),
        (
            RAISED,
            "The pretrained model is the one with every weight trained, which did best on valid; with the head alone "
            "trained it reaches 0.841, and which of the two is better cannot be told (-2.5 points, 95 % interval -6.0 "
            "to 1.0).",
        ),
    ),
    "full beside frozen and no scratch": (
        compared([FROZEN, FULL], [apart("full", "frozen", 0.025, 0.01, 0.04)], reference="frozen"),
        (
            "The pretrained model reaches 0.866 (95 % interval 0.846 to 0.886, 5 seeds); "
            "there is no scratch arm, so what pretraining brought is not known.",
            "The pretrained model is the one with every weight trained, which did best on valid; with the head alone "
            "trained it reaches 0.841, which is worse (-2.5 points, 95 % interval -4.0 to -1.0).",
        ),
    ),
    "two bases, each beside its own scratch": (
        compared(
            [
                arm("scratch:causal", 0.8),
                arm("scratch:masked", 0.79),
                arm("full:causal", 0.85),
                arm("full:masked", 0.87),
            ],
            [
                apart("full:causal", "scratch:causal", 0.05, 0.03, 0.07),
                apart("full:masked", "scratch:masked", 0.08, 0.06, 0.1),
                apart("full:masked", "full:causal", 0.02, 0.004, 0.036),
            ],
            reference="scratch:causal",
        ),
        (
            "The pretraining of causal raised test accuracy from 0.800 to 0.850 "
            "(+5.0 points, 95 % interval 3.0 to 7.0, 5 seeds).",
            "The pretraining of masked raised test accuracy from 0.790 to 0.870 "
            "(+8.0 points, 95 % interval 6.0 to 10.0, 5 seeds).",
            "With every weight trained, masked is a better base than causal: 0.870 against 0.850 "
            "(+2.0 points, 95 % interval 0.4 to 3.6).",
        ),
    ),
    "two bases beside one scratch, that are level": (
        compared(
            [arm("scratch", 0.8), arm("frozen:causal", 0.85), arm("frozen:masked", 0.854), arm("tfidf", 0.82)],
            [
                apart("frozen:causal", "scratch", 0.05, 0.03, 0.07),
                apart("frozen:masked", "scratch", 0.054, 0.03, 0.07),
                apart("frozen:masked", "frozen:causal", 0.004, -0.01, 0.018, detectable=0.0204),
                apart("frozen:masked", "tfidf", 0.034, 0.01, 0.058),
            ],
        ),
        (
            "The pretraining of causal raised test accuracy from 0.800 to 0.850 "
            "(+5.0 points, 95 % interval 3.0 to 7.0, 5 seeds).",
            "The pretraining of masked raised test accuracy from 0.800 to 0.854 "
            "(+5.4 points, 95 % interval 3.0 to 7.0, 5 seeds).",
            "A linear model on word counts reaches 0.820; the pretrained masked is better than that "
            "(+3.4 points, 95 % interval 1.0 to 5.8).",
            "Whether masked or causal is the better base cannot be told: 0.854 against 0.850 (+0.4 points, 95 % "
            "interval -1.0 to 1.8); a study of this size could have shown a difference of 2.0 points.",
        ),
    ),
    "two bases and no scratch: which is the better comes first": (
        compared(
            [arm("full:plain", 0.81), arm("full:film", 0.85, valid=0.9)],
            [apart("full:film", "full:plain", 0.04, 0.02, 0.06)],
            reference="full:plain",
        ),
        (
            "With every weight trained, film is a better base than plain: 0.850 against 0.810 (+4.0 points, 95 % "
            "interval 2.0 to 6.0).",
            "The pretrained plain reaches 0.810 (95 % interval 0.790 to 0.830, 5 seeds), the pretrained film reaches "
            "0.850 (95 % interval 0.830 to 0.870, 5 seeds); there is no scratch arm, so what pretraining brought is "
            "not known.",
        ),
    ),
    "two bases used in different ways are not compared": (
        compared([SCRATCH, arm("full:causal", 0.85), arm("frozen:masked", 0.87)]),
        (
            "Test accuracy is 0.804 without the pretraining of causal and 0.850 with it.",
            "Test accuracy is 0.804 without the pretraining of masked and 0.870 with it.",
        ),
    ),
    "degenerate runs": (
        compared(
            [
                arm("scratch", 0.804, odd=("no better than majority",)),
                arm("full", 0.866, odd=("one class only", "one class only", "no better than majority")),
                arm("majority", 0.5, odd=("one class only",)),
            ],
            [GAIN],
            curves=[
                arm("scratch", 0.5, labels=50, odd=("one class only",) * 3),
                arm("scratch", 0.6, labels=100, odd=("one class only",)),
                arm("scratch", 0.804, odd=("no better than majority",)),
            ],
        ),
        (
            RAISED,
            "1 of 5 runs of scratch did no better than always giving the most frequent label.",
            "2 of 5 runs of full answered with one class only.",
            "1 of 5 runs of full did no better than always giving the most frequent label.",
            "4 of 10 runs of scratch with fewer labels answered with one class only.",
        ),
    ),
    "one seed": (
        compared([arm("scratch", 0.804, seeds=1), arm("full", 0.866, seeds=1, odd=("one class only",))], [GAIN]),
        (
            "Pretraining raised test accuracy from 0.804 to 0.866 (+6.2 points, 95 % interval 4.4 to 7.9, 1 seed).",
            "The only run of full answered with one class only.",
            "One seed: the interval covers the choice of test items, and not how far another seed would differ.",
        ),
    ),
    "leaks": (
        compared(
            [arm("scratch", 0.804, leak_free=0.801), arm("full", 0.866, leak_free=0.86)],
            [replace(GAIN, leak_free={"accuracy": Estimate(0.059, 0.04, 0.077)})],
            leaked=13,
        ),
        (
            RAISED,
            "13 of 2,000 test rows are also in train or valid; without them, pretraining raised test accuracy from "
            "0.801 to 0.860 (+5.9 points, 95 % interval 4.0 to 7.7).",
        ),
    ),
    "a leak that made the difference": (
        compared(
            [arm("scratch", 0.804, leak_free=0.801), arm("full", 0.866, leak_free=0.803)],
            [replace(GAIN, leak_free={"accuracy": Estimate(0.002, -0.02, 0.024)})],
            leaked=1,
        ),
        (
            RAISED,
            "1 of 2,000 test rows is also in train or valid; without it, whether pretraining helped cannot be told: "
            "0.801 without it, 0.803 with it (+0.2 points, 95 % interval -2.0 to 2.4).",
        ),
    ),
    "leaks and no scratch": (
        compared([arm("full", 0.866, leak_free=0.86)], leaked=1200, reference="full"),
        (
            "The pretrained model reaches 0.866 (95 % interval 0.846 to 0.886, 5 seeds); "
            "there is no scratch arm, so what pretraining brought is not known.",
            "1,200 of 2,000 test rows are also in train or valid; without them, the pretrained model reaches 0.860.",
        ),
    ),
    "leaks and baselines alone": (
        compared([LINEAR], leaked=2, reference="tfidf"),
        ("A linear model on word counts reaches 0.853.", "2 of 2,000 test rows are also in train or valid."),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_said(name: str) -> None:
    comparison, expected = CASES[name]
    assert said_of(comparison) == expected


# --- label budgets ---

CURVE = [arm("scratch", 0.6 + 0.04 * k, labels=n) for k, n in enumerate([50, 100, 200, 400, 800, 1800])]


def worth(labels: int, low: float | None, *, beyond: bool = False, reference: str = "scratch") -> WorthResult:
    return WorthResult("full", reference, labels, low, beyond)


BUDGETS: dict[str, tuple[list[WorthResult], str]] = {
    "labels saved": (
        [worth(200, 904.0)],
        "What the pretrained model does with 200 labels takes scratch at least 900 (at 95 %).",
    ),
    "the largest budget that has a number": (
        [worth(400, 1800.0, beyond=True), worth(200, 488.0), worth(100, 250.0)],
        "What the pretrained model does with 200 labels takes scratch at least 488 (at 95 %).",
    ),
    "more than there are": (
        [worth(100, 1800.0, beyond=True), worth(200, 1800.0, beyond=True)],
        "What the pretrained model does with 100 labels takes scratch more than 1,800 (at 95 %).",
    ),
    "it may be": ([worth(200, 140.0)], "Whether pretraining is worth any labels against scratch cannot be told."),
    "against the linear model": (
        [worth(200, None, reference="tfidf")],
        "Whether pretraining is worth any labels against the linear model cannot be told.",
    ),
}


@pytest.mark.parametrize("name", BUDGETS)
def test_what_labels_are_worth(name: str) -> None:
    worths, expected = BUDGETS[name]
    full = arm("full", 0.866, labels=1800)
    comparison = compared([CURVE[-1], full, arm("tfidf", 0.8)], [GAIN], curves=[*CURVE, full], worth=worths)
    assert said_of(comparison)[-1] == expected


def test_every_judgement_has_its_pair() -> None:
    """With the contrasts that are chosen, no sentence lacks its interval."""
    arms = [arm("scratch", 0.8), FROZEN, FULL, LINEAR, MAJORITY]
    differences = [apart(one, other, 0.02, 0.01, 0.03) for one, other in choose_contrasts(arms, "scratch").pairs]
    said = said_of(compared(arms, differences))
    assert len(said) == 3
    assert all("95 % interval" in sentence for sentence in said)


# --- numbers come from the comparison ---


def drawn(seed: int) -> Comparison:
    """Any arms, any differences between them, any budgets."""
    draw = random.Random(seed)
    names = ["scratch", "frozen:ours", "full:ours", "full:theirs", "tfidf", "majority"]
    chosen = [name for name in names if draw.random() < 0.8] or ["tfidf"]
    kinds = ("one class only", "no better than majority")
    seeds, leaked = draw.randint(1, 6), draw.choice([0, 1, 13])

    def make(name: str, labels: int) -> ArmResult:
        odd = tuple(draw.choice(kinds) for _ in range(draw.randint(0, 2)))
        free = draw.random() if leaked else None
        return arm(
            name, draw.uniform(0.1, 0.9), valid=draw.random(), seeds=seeds, labels=labels, odd=odd, leak_free=free
        )

    arms = [make(name, 1800) for name in chosen]
    reference = draw.choice(chosen)
    differences = []
    for one, other in choose_contrasts(arms, reference).pairs:
        low, value, high = sorted(draw.uniform(-0.2, 0.3) for _ in range(3))
        free = (value, low, high) if leaked else None
        differences.append(apart(one, other, value, low, high, detectable=draw.random() / 5, leak_free=free))
    curves = [make(name, labels) for name in chosen for labels in (50, 200)] + arms
    worths = []
    for each in arms:
        if each.mode in ("full", "frozen") and "scratch" in chosen:
            least, beyond = draw.choice([(None, False), (draw.uniform(50, 1700), False), (1800.0, True)])
            worths.append(WorthResult(each.name, "scratch", draw.choice([50, 200]), least, beyond))
    return compared(arms, differences, reference=reference, leaked=leaked, curves=curves, worth=worths)


def numbers(comparison: Comparison) -> Iterator[str]:
    """Every number of a comparison as it may be said."""
    yield from (f"{comparison.rows:,}", f"{comparison.leaked:,}")
    for each in (*comparison.arms, *comparison.curves):
        yield f"{each.budget:,}"
        yield from map(str, range(1, len(each.runs) * 2 + 1))  # seeds, runs and those that are odd, over two budgets
        for scores in (each.scores, each.leak_free or {}):
            for found in scores.values():
                yield from (f"{x:.3f}" for x in (found.value, found.low, found.high))
    for difference in comparison.differences:
        yield f"{100 * difference.detectable:.1f}"
        for scores in (difference.scores, difference.leak_free or {}):
            for found in scores.values():
                yield from (f"{abs(100 * x):.1f}" for x in (found.value, found.low, found.high))
    for needed in comparison.worth:
        if needed.low is not None:
            rounded = [int(float(f"{needed.low:.{figures}g}")) for figures in (2, 3)] + [int(needed.low)]
            yield from (f"{n:,}" for n in rounded)


def test_every_number_is_one_of_the_comparison() -> None:
    for seed in range(200):
        comparison = drawn(seed)
        known = set(numbers(comparison))
        said = said_of(comparison)
        assert said
        for sentence in said:
            assert sentence[0].isupper() or sentence[0].isdigit()
            assert sentence.endswith(".")
            found = re.findall(r"\d[\d,]*(?:\.\d+)?", re.sub(r"95 % interval|at 95 %", "", sentence))
            assert set(found) <= known, (seed, sentence)
