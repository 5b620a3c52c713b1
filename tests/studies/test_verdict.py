"""Each case is a comparison made by hand and what a colleague would say of it."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from headstart.runs.comparison import (
    ArmResult,
    Comparison,
    Components,
    Cost,
    Decision,
    DifferenceResult,
    Estimate,
    Mode,
    RunScores,
    WorthResult,
)
from headstart.runs.tuning import ArmTuning
from headstart.studies.contrasts import NOT_USED, choose_contrasts
from headstart.studies.plan import study_needed
from headstart.studies.recommendation import recommend
from headstart.studies.verdict import LONGEST_TITLE, title, verdict

MODES: dict[str, Mode] = {
    "contrastive": "contrastive",
    "scratch": "scratch",
    "frozen": "frozen",
    "full": "full",
    "full+self": "full+self",
    "full+teacher": "full+teacher",
    "ensemble": "ensemble",
}
COSTS = {
    "tfidf": Cost(2.9, 0.21, 12.3),
    "majority": Cost(0.1, 0.0001, 0.0),
    "frozen": Cost(8.2, 5.1, 88.0),
    "scratch": Cost(118.0, 5.1, 88.0),
    "full": Cost(131.0, 5.1, 88.0),
}


def arm(
    name: str,
    accuracy: float,
    *,
    valid: float | None = None,
    seeds: int = 5,
    labels: int = 1800,
    odd: tuple[str, ...] = (),
    leak_free: float | None = None,
    cost: Cost | None = None,
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
        cost=COSTS.get(kind, Cost()) if cost is None else cost,
    )


def apart(
    one: str,
    other: str,
    value: float,
    low: float,
    high: float,
    *,
    level: float = 0.95,
    holm: float | None = None,
    decision: Decision | None = None,
    primary: bool = False,
    components: Components | None = None,
    leak_free: tuple[float, float, float] | None = None,
    leak_free_level: float | None = None,
) -> DifferenceResult:
    """A difference that is decided by its interval, unless the decision is given."""
    by_interval: Decision = "better" if low > 0 else "worse" if high < 0 else "undecided"
    p = 0.5 if by_interval == "undecided" else 0.001
    return DifferenceResult(
        arm=one,
        reference=other,
        scores={"accuracy": Estimate(value, low, high)},
        better=0.9,
        p=p,
        holm=p if holm is None else holm,
        detectable=0.02,
        mcnemar=None,
        leak_free=None if leak_free is None else {"accuracy": Estimate(*leak_free)},
        level=level,
        decision=decision or by_interval,
        primary=primary,
        components=components,
        leak_free_level=leak_free_level,
    )


def compared(
    arms: list[ArmResult],
    differences: list[DifferenceResult] | None = None,
    *,
    reference: str = "scratch",
    leaked: int = 0,
    curves: list[ArmResult] | None = None,
    worth: list[WorthResult] | None = None,
    matters: float = 0.0,
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
        matters=matters,
    )


def said_of(comparison: Comparison) -> tuple[str, ...]:
    return verdict(comparison, choose_contrasts(comparison.arms, comparison.reference))


def title_of(comparison: Comparison) -> str:
    return title(comparison, choose_contrasts(comparison.arms, comparison.reference))


SCRATCH, FULL, LINEAR, MAJORITY = arm("scratch", 0.804), arm("full", 0.866), arm("tfidf", 0.853), arm("majority", 0.5)
FROZEN = arm("frozen", 0.841, valid=0.83)
GAIN = apart("full", "scratch", 0.062, 0.044, 0.079)
ADDS = "**Pretraining adds 6.2 points** (95 % interval 4.4 to 7.9): 86.6 % with it, 80.4 % without."
UNKNOWN = "**What pretraining brought is not known**: no model was trained from scratch beside it."
NO_BASE = "**No pretrained model was compared**, so what pretraining would bring is not known."
BEATEN = apart("full", "tfidf", 0.013, 0.002, 0.024)
USE_FULL = (
    "**Use the fine-tuned model.** It labels 86.6 % of the 2,000 test texts correctly, the linear model 85.3 %: "
    "1.3 points fewer (95 % interval 0.2 to 2.4). It takes 131 s to train, 5.1 ms a text and 88 MB; the linear model "
    "trains 45 times as fast (2.9 s) and takes 0.21 ms a text and 12 MB."
)
USE_FULL_OF_1800 = USE_FULL.replace("It labels", "Trained on 1,800 texts, it labels")

CASES: dict[str, tuple[Comparison, str, tuple[str, ...]]] = {
    "nothing": (compared([]), "", ()),
    "the fine-tuned model is best": (
        compared([SCRATCH, FULL, LINEAR, MAJORITY], [GAIN, BEATEN]),
        "Use the fine-tuned model: 86.6 % correct; pretraining adds 6.2 points",
        (USE_FULL, ADDS),
    ),
    "the other way round in the records": (
        compared(
            [SCRATCH, FULL, LINEAR],
            [apart("scratch", "full", -0.062, -0.079, -0.044), apart("tfidf", "full", -0.013, -0.024, -0.002)],
        ),
        "Use the fine-tuned model: 86.6 % correct; pretraining adds 6.2 points",
        (USE_FULL, ADDS),
    ),
    "the linear model wins, and pretraining shows no gain": (
        compared(
            [arm("scratch", 0.708), arm("full", 0.712), arm("tfidf", 0.758)],
            [
                apart("full", "scratch", 0.004, -0.029, 0.037, level=0.975),
                apart("full", "tfidf", -0.046, -0.081, -0.01),
            ],
        ),
        "Use the linear model: 75.8 % correct; pretraining shows no gain",
        (
            "**Use the linear model.** It labels 75.8 % of the 2,000 test texts correctly, the fine-tuned model "
            "71.2 %: 4.6 points fewer (95 % interval 1.0 to 8.1). It takes 2.9 s to train, 0.21 ms a text and 12 MB; "
            "the fine-tuned model takes 45 times as long to train (131 s), 5.1 ms a text and 88 MB.",
            "**Pretraining shows no significant gain**: 71.2 % with it, 70.8 % without, +0.4 points (97.5 % interval "
            "-2.9 to +3.7). A gain above 3.7 points is unlikely.",
        ),
    ),
    "the linear model is level: the cheaper one": (
        compared([SCRATCH, FULL, LINEAR], [GAIN, apart("full", "tfidf", 0.013, -0.002, 0.028)]),
        "Use the linear model: 85.3 % correct; pretraining adds 6.2 points",
        (
            "**Use the linear model.** It labels 85.3 % of the 2,000 test texts correctly, the fine-tuned model "
            "86.6 %: +1.3 points (95 % interval -0.2 to +2.8), not significant, so take the cheaper one until that "
            "is settled. It takes 2.9 s to train, 0.21 ms a text and 12 MB; the fine-tuned model takes 45 times as "
            "long to train (131 s), 5.1 ms a text and 88 MB.",
            ADDS,
        ),
    ),
    "equivalent": (
        compared(
            [SCRATCH, arm("full", 0.81), arm("tfidf", 0.806)],
            [
                apart("full", "scratch", 0.006, 0.001, 0.011, decision="equivalent"),
                apart("full", "tfidf", 0.004, -0.009, 0.017, decision="equivalent"),
            ],
            matters=0.02,
        ),
        "Use the linear model: 80.6 % correct; pretraining shows no gain",
        (
            "**Use the linear model.** It labels 80.6 % of the 2,000 test texts correctly, the fine-tuned model "
            "81.0 %: +0.4 points (95 % interval -0.9 to +1.7), less than the 2.0 points that matter, so the cheaper "
            "one will do. It takes 2.9 s to train, 0.21 ms a text and 12 MB; the fine-tuned model takes 45 times as "
            "long to train (131 s), 5.1 ms a text and 88 MB.",
            "**Pretraining makes no difference that matters**: 81.0 % with it, 80.4 % without, +0.6 points (95 % "
            "interval +0.1 to +1.1), within the 2.0 points that matter.",
        ),
    ),
    "it hurt": (
        compared([SCRATCH, arm("full", 0.78)], [apart("full", "scratch", -0.024, -0.041, -0.007)]),
        "Use the model from scratch: 80.4 % correct; pretraining lowers it by 2.4 points",
        (
            "**Use the model from scratch.** It labels 80.4 % of the 2,000 test texts correctly, the fine-tuned model "
            "78.0 %: 2.4 points fewer (95 % interval 0.7 to 4.1). It takes 118 s to train, 5.1 ms a text and 88 MB; "
            "the fine-tuned model takes about as long to train (131 s).",
            "**Pretraining lowers accuracy by 2.4 points** (95 % interval 0.7 to 4.1): 78.0 % with it, 80.4 % without.",
        ),
    ),
    "two of the same cost: the better on valid": (
        compared([SCRATCH, arm("full", 0.812)], [apart("full", "scratch", 0.008, -0.006, 0.022)]),
        "Use the fine-tuned model: 81.2 % correct; pretraining shows no gain",
        (
            "**Use the fine-tuned model.** It labels 81.2 % of the 2,000 test texts correctly, the model from scratch "
            "80.4 %: -0.8 points (95 % interval -2.2 to +0.6), not significant, and this one did better on valid. It "
            "takes 131 s to train, 5.1 ms a text and 88 MB; the model from scratch takes about as long to train "
            "(118 s).",
            "**Pretraining shows no significant gain**: 81.2 % with it, 80.4 % without, +0.8 points (95 % interval "
            "-0.6 to +2.2). A gain above 2.2 points is unlikely.",
        ),
    ),
    "too few seeds for anything, and no costs": (
        compared(
            [arm("scratch", 0.804, cost=Cost()), arm("full", 0.823, cost=Cost())],
            [apart("full", "scratch", 0.019, -0.925, 0.962)],
        ),
        "Use the fine-tuned model: 82.3 % correct; pretraining shows no gain",
        (
            "**Use the fine-tuned model.** It labels 82.3 % of the 2,000 test texts correctly, the model from scratch "
            "80.4 %: -1.9 points (95 % interval -96.2 to +92.5), not significant, and this one did better on valid.",
            "**Pretraining shows no significant gain**: 82.3 % with it, 80.4 % without, +1.9 points (95 % interval "
            "-92.5 to +96.2). This study is too small to rule out even a large gain.",
        ),
    ),
    "baselines alone": (
        compared([LINEAR, MAJORITY], [apart("tfidf", "majority", 0.353, 0.33, 0.37)], reference="majority"),
        "Use the linear model: 85.3 % correct",
        (
            "**Use the linear model.** It labels 85.3 % of the 2,000 test texts correctly, always giving the most "
            "frequent label 50.0 %: 35.3 points fewer (95 % interval 33.0 to 37.0). It takes 2.9 s to train, 0.21 ms a "
            "text and 12 MB.",
            NO_BASE,
        ),
    ),
    "nothing beats the most frequent label": (
        compared(
            [arm("scratch", 0.508), arm("tfidf", 0.511), MAJORITY], [apart("tfidf", "scratch", 0.003, -0.02, 0.026)]
        ),
        "No arm is shown to do better than always giving the most frequent label",
        (
            "**No arm is shown to do better than always giving the most frequent label**, 50.0 %. The linear model "
            "labels 51.1 % of the 2,000 test texts correctly (95 % interval 49.1 to 53.1 %).",
            NO_BASE,
        ),
    ),
    "one arm alone, and leaks": (
        compared([arm("full", 0.866, leak_free=0.86)], leaked=1200, reference="full"),
        "The fine-tuned model: 86.6 % correct",
        (
            "**The fine-tuned model labels 86.6 % of the 2,000 test texts correctly**; there is nothing to compare it "
            "with. It takes 131 s to train, 5.1 ms a text and 88 MB.",
            UNKNOWN,
            "1,200 of the 2,000 test texts also stand in train or valid. Without them the fine-tuned model reaches "
            "86.0 %.",
        ),
    ),
    "full and frozen that are level, and a linear model that is not": (
        compared(
            [SCRATCH, FROZEN, FULL, arm("tfidf", 0.79)],
            [GAIN, apart("full", "frozen", 0.025, -0.01, 0.06), apart("full", "tfidf", 0.076, 0.05, 0.1)],
        ),
        "Use the frozen model: 84.1 % correct; pretraining adds 6.2 points",
        (
            "**Use the frozen model.** It labels 84.1 % of the 2,000 test texts correctly, the fine-tuned model "
            "86.6 %: +2.5 points (95 % interval -1.0 to +6.0), not significant, so take the cheaper one until that "
            "is settled. It takes 8.2 s to train, 5.1 ms a text and 88 MB; the fine-tuned model takes 16 times as long "
            "to train (131 s). The linear model reaches 79.0 %.",
            "**Pretraining adds 6.2 points** (95 % interval 4.4 to 7.9): 86.6 % with it (full), 80.4 % without.",
        ),
    ),
    "frozen is better on valid and worse on test": (
        compared(
            [SCRATCH, arm("frozen", 0.841, valid=0.9), FULL],
            [apart("frozen", "scratch", 0.037, 0.02, 0.05), apart("full", "frozen", 0.025, 0.01, 0.04)],
        ),
        "Use the fine-tuned model: 86.6 % correct; pretraining adds 3.7 points",
        (
            "**Use the fine-tuned model.** It labels 86.6 % of the 2,000 test texts correctly, the frozen model "
            "84.1 %: 2.5 points fewer (95 % interval 1.0 to 4.0). It takes 131 s to train, 5.1 ms a text and 88 MB; "
            "the frozen model trains 16 times as fast (8.2 s).",
            "**Pretraining adds 3.7 points** (95 % interval 2.0 to 5.0): 84.1 % with it (frozen, the better on "
            "valid), 80.4 % without.",
        ),
    ),
    "two bases beside one scratch, that are level": (
        compared(
            [arm("scratch", 0.8), arm("frozen:causal", 0.85), arm("frozen:masked", 0.854), arm("tfidf", 0.82)],
            [
                apart("frozen:causal", "scratch", 0.05, 0.03, 0.07),
                apart("frozen:masked", "scratch", 0.054, 0.03, 0.07),
                apart("frozen:masked", "frozen:causal", 0.004, -0.01, 0.018),
                apart("frozen:masked", "tfidf", 0.034, 0.01, 0.058),
            ],
        ),
        "Use the frozen model (masked): 85.4 % correct; pretraining adds 5.4 points",
        (
            "**Use the frozen model (masked).** It labels 85.4 % of the 2,000 test texts correctly, the frozen model "
            "(causal) 85.0 %: -0.4 points (95 % interval -1.8 to +1.0), not significant, and this one did better on "
            "valid. It takes 8.2 s to train, 5.1 ms a text and 88 MB; the frozen model (causal) takes about as long to "
            "train (8.2 s). The linear model reaches 82.0 %: -3.4 points (95 % interval -5.8 to -1.0).",
            "**The pretraining of causal adds 5.0 points** (95 % interval 3.0 to 7.0): 85.0 % with it, 80.0 % without. "
            "**The pretraining of masked adds 5.4 points** (95 % interval 3.0 to 7.0): 85.4 % with it, 80.0 % without. "
            "Whether masked or causal is the better base is open: 85.4 % against 85.0 % (frozen), +0.4 points (95 % "
            "interval -1.0 to +1.8).",
        ),
    ),
    "two bases and no scratch": (
        compared(
            [arm("full:plain", 0.81), arm("full:film", 0.85, valid=0.9)],
            [apart("full:film", "full:plain", 0.04, 0.02, 0.06)],
            reference="full:plain",
        ),
        "Use the fine-tuned model (film): 85.0 % correct",
        (
            "**Use the fine-tuned model (film).** It labels 85.0 % of the 2,000 test texts correctly, the fine-tuned "
            "model (plain) 81.0 %: 4.0 points fewer (95 % interval 2.0 to 6.0). It takes 131 s to train, 5.1 ms a text "
            "and 88 MB; the fine-tuned model (plain) takes about as long to train (131 s).",
            f"{UNKNOWN} The base film is better than plain: 85.0 % against 81.0 % (full), +4.0 points (95 % interval "
            "+2.0 to +6.0).",
        ),
    ),
    "degenerate runs": (
        compared(
            [
                arm("scratch", 0.804, odd=("no better than majority",)),
                arm("full", 0.866, odd=("one class only", "one class only", "no better than majority")),
                LINEAR,
                arm("majority", 0.5, odd=("one class only",)),
            ],
            [GAIN, BEATEN],
            curves=[
                arm("scratch", 0.5, labels=50, odd=("one class only",) * 3),
                arm("scratch", 0.6, labels=100, odd=("one class only",)),
                arm("scratch", 0.804, odd=("no better than majority",)),
            ],
        ),
        "Use the fine-tuned model: 86.6 % correct; pretraining adds 6.2 points",
        (
            USE_FULL_OF_1800,
            ADDS,
            "1 of 5 runs of scratch did no better than always giving the most frequent label.",
            "2 of 5 runs of full answered with one class only.",
            "1 of 5 runs of full did no better than always giving the most frequent label.",
            "4 of 10 runs of scratch with fewer labels answered with one class only.",
        ),
    ),
    "one seed": (
        compared(
            [arm("scratch", 0.804, seeds=1), arm("full", 0.866, seeds=1, odd=("one class only",)), LINEAR],
            [GAIN, BEATEN],
        ),
        "Use the fine-tuned model: 86.6 % correct; pretraining adds 6.2 points",
        (
            USE_FULL,
            ADDS,
            "The only run of full answered with one class only.",
            "One seed: the interval covers the choice of test items, and not how far another seed would differ.",
        ),
    ),
    "a leak that made the difference": (
        compared(
            [arm("scratch", 0.804, leak_free=0.801), arm("full", 0.866, leak_free=0.803), LINEAR],
            [replace(GAIN, leak_free={"accuracy": Estimate(0.002, -0.02, 0.024)}, leak_free_level=0.95), BEATEN],
            leaked=1,
        ),
        "Use the fine-tuned model: 86.6 % correct; pretraining adds 6.2 points",
        (
            USE_FULL,
            ADDS,
            "1 of the 2,000 test texts also stands in train or valid. Without it pretraining shows no significant "
            "gain: 80.3 % with it, 80.1 % without, +0.2 points (95 % interval -2.0 to +2.4). A gain above 2.4 points "
            "is unlikely.",
        ),
    ),
    "leaks that change nothing": (
        compared(
            [arm("scratch", 0.804, leak_free=0.801), arm("full", 0.866, leak_free=0.86), LINEAR],
            [replace(GAIN, leak_free={"accuracy": Estimate(0.059, 0.04, 0.077)}, leak_free_level=0.975), BEATEN],
            leaked=13,
        ),
        "Use the fine-tuned model: 86.6 % correct; pretraining adds 6.2 points",
        (
            USE_FULL,
            ADDS,
            "13 of the 2,000 test texts also stand in train or valid. Without them pretraining adds 5.9 points (97.5 % "
            "interval 4.0 to 7.7): 86.0 % with it, 80.1 % without.",
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_said(name: str) -> None:
    comparison, line, paragraphs = CASES[name]
    assert said_of(comparison) == paragraphs
    assert title_of(comparison) == line


# --- what would settle what is open ---


def third_paragraph(components: Components, *, seeds: int = 5, matters: float = 0.0, reference: str = "tfidf") -> str:
    """Of a study of 2,000 test texts with one primary question that is open."""
    arms = [arm("scratch", 0.8, seeds=seeds), arm("full", 0.86, seeds=seeds), LINEAR]
    difference = apart("full", reference, 0.01, -0.02, 0.04, primary=True, components=components)
    decided = apart("full", "tfidf" if reference == "scratch" else "scratch", 0.05, 0.03, 0.07, primary=True)
    third = said_of(compared(arms, [difference, decided], matters=matters))[2]
    assert third.startswith("**Still open: ")
    return third.removeprefix("**Still open: ")


BETTER = "whether the fine-tuned model does better than the linear model.** "


def test_test_texts_that_settle_it() -> None:
    """By the normal distribution (1.96 + 0.84)² · 0.16 / 0.02² = 3,140, rounded up 3,200; for 4 points a quarter."""
    components = Components(items=0.16, seeds=(), unshared=())
    sentence = "To find 2.0 points with a power of 80 % would take about 3,200 test texts; this study has 2,000."
    assert third_paragraph(components) == f"{BETTER}{sentence} More seeds alone would not decide it."
    enough = "This study finds 4.0 points with a power of 80 %, so the difference is probably smaller."
    assert enough in third_paragraph(components, matters=0.04)


def test_seeds_that_settle_it() -> None:
    """With two arms whose seeds differ by 2 points, more than (1.96 + 0.84)² · 2 · 0.02² / 0.02² = 15.7."""
    components = Components(items=0.2, seeds=(0.0004, 0.0004), unshared=(0.0, 0.0))
    wanted = r"would take about [\d,]+ test texts and (20|30|50) seeds; this study has 2,000 and 5\."
    assert re.search(rf"^whether pretraining helps\.\*\* .*{wanted}$", third_paragraph(components, reference="scratch"))
    alone = Components(items=0.0, seeds=(0.0004, 0.0004), unshared=(0.001, 0.001))  # its texts are enough by far
    assert re.search(
        r"would take about (20|30|50) seeds; this study has 5\.$", third_paragraph(alone, reference="scratch")
    )
    hopeless = Components(items=0.01, seeds=(1.0, 1.0), unshared=(0.0, 0.0))
    assert "The seeds differ too much to find 2.0 points" in third_paragraph(hopeless, reference="scratch")


def test_two_open_questions_take_what_the_harder_one_takes() -> None:
    easy, hard = (Components(items=items, seeds=(), unshared=()) for items in (0.16, 0.32))
    differences = [
        apart("full", "scratch", 0.01, -0.02, 0.04, primary=True, components=easy),
        apart("full", "tfidf", 0.01, -0.02, 0.04, primary=True, components=hard),
    ]
    third = said_of(compared([SCRATCH, FULL, LINEAR], differences))[2]
    assert "whether pretraining helps and whether the fine-tuned model does better than the linear model.**" in third
    assert "about 6,300 test texts" in third  # twice 3,140


def test_one_seed_says_nothing_of_what_settles_it() -> None:
    paragraph = third_paragraph(Components(items=0.16, seeds=(), unshared=()), seeds=1)
    assert paragraph == f"{BETTER}What would settle it is not known with one seed: use at least 3."


def test_an_ensemble_is_named_beside_the_linear_model() -> None:
    ensemble = replace(arm("ensemble", 0.87), name="full+tfidf")
    comparison = compared(
        [SCRATCH, FULL, LINEAR, ensemble], [GAIN, BEATEN, apart("full+tfidf", "tfidf", 0.017, 0.003, 0.031)]
    )
    expected = (
        "The ensemble full+tfidf reaches 87.0 %; against the linear model, +1.7 points (95 % interval +0.3 to +3.1)."
    )
    assert expected in said_of(comparison)


# --- label budgets ---

CURVE = [arm("scratch", 0.6 + 0.04 * k, labels=n) for k, n in enumerate([50, 100, 200, 400, 800, 1800])]


def worth(labels: int, low: float | None, *, beyond: bool = False, reference: str = "scratch") -> WorthResult:
    return WorthResult("full", reference, labels, low, beyond)


BUDGETS: dict[str, tuple[list[WorthResult], str]] = {
    "labels saved": (
        [worth(200, 904.0)],
        "With 200 labels the fine-tuned model does as well as the model from scratch with at least 900 (at 95 %).",
    ),
    "the largest budget that has a number": (
        [worth(400, 1800.0, beyond=True), worth(200, 488.0), worth(100, 250.0)],
        "With 200 labels the fine-tuned model does as well as the model from scratch with at least 488 (at 95 %).",
    ),
    "more than there are": (
        [worth(100, 1800.0, beyond=True), worth(200, 1800.0, beyond=True)],
        "With 100 labels the fine-tuned model does better than the model from scratch with 1,800, the most that were "
        "tried (at 95 %).",
    ),
    "it may be": (
        [worth(200, 140.0)],
        "Whether pretraining is worth any labels against the model from scratch cannot be told.",
    ),
    "against the linear model": (
        [worth(200, None, reference="tfidf")],
        "Whether pretraining is worth any labels against the linear model cannot be told.",
    ),
}


@pytest.mark.parametrize("name", BUDGETS)
def test_what_is_said_of_labels(name: str) -> None:
    worths, expected = BUDGETS[name]
    paragraphs = said_of(compared([SCRATCH, FULL, LINEAR], [GAIN, BEATEN], curves=CURVE, worth=worths))
    assert paragraphs == (USE_FULL_OF_1800, ADDS, expected)


@pytest.mark.parametrize(
    ("value", "low", "high", "decision", "expected"),
    [
        (
            0.02,
            0.01,
            0.03,
            "better",
            "The self-trained model is 2.0 points better than {} (95 % interval 1.0 to 3.0): {}.",
        ),
        (
            -0.02,
            -0.03,
            -0.01,
            "worse",
            "The self-trained model is 2.0 points worse than {} (95 % interval 1.0 to 3.0): {}.",
        ),
        (0.0, -0.01, 0.01, "equivalent", "The self-trained model and {} are equally good: {}, {points}."),
        (0.0, -0.01, 0.01, "undecided", "The self-trained model and {}: {}, {points}, not significant."),
    ],
)
def test_a_student_beside_the_linear_model_that_had_its_texts(
    value: float, low: float, high: float, decision: Decision, expected: str
) -> None:
    arms = [SCRATCH, FULL, arm("full+self", 0.88), LINEAR, arm("tfidf+self", 0.88 - value)]
    student = apart("full+self", "tfidf+self", value, low, high, decision=decision, primary=True)
    words = expected.format(
        "the linear model that had the same texts",
        f"88.0 % and {100 * (0.88 - value):.1f} %",
        points="0.0 points (95 % interval -1.0 to +1.0)",
    )
    assert words in said_of(compared(arms, [GAIN, student]))[1]


def test_texts_without_labels_that_the_linear_model_did_not_use_are_told() -> None:
    notes = (NOT_USED,)
    for own, told in ((notes, True), ((), False)):
        linear = replace(arm("tfidf+self", 0.84), tuning=ArmTuning({"strength": 1.0}, (), 1.0, notes=own))
        paragraphs = said_of(compared([SCRATCH, FULL, LINEAR, linear], [GAIN]))
        assert any("tfidf+self is tfidf" in paragraph for paragraph in paragraphs) == told


def test_what_cannot_be_told_of_several_bases_is_said_once() -> None:
    arms = [SCRATCH, arm("full:causal", 0.85), arm("full:masked", 0.854)]
    gains = [apart(f"full:{base}", "scratch", 0.05, 0.03, 0.07) for base in ("causal", "masked")]
    worths = [WorthResult(f"full:{base}", "scratch", 200, 140.0, False) for base in ("causal", "masked")]
    paragraphs = said_of(compared(arms, gains, curves=CURVE, worth=worths))
    assert paragraphs[2:] == (
        "Whether the pretraining of causal and masked is worth any labels against the model from scratch cannot be "
        "told.",
    )


def test_what_is_said_of_a_smaller_budget() -> None:
    arms = [SCRATCH, FULL, LINEAR]
    curves = [arm("scratch", 0.437, labels=120), arm("full", 0.893, labels=120), arm("tfidf", 0.89, labels=120), *arms]
    differences = (
        replace(apart("full", "scratch", 0.456, 0.43, 0.48, level=0.975), budget=120),
        replace(apart("full", "tfidf", 0.003, -0.01, 0.016), budget=120),
    )
    comparison = replace(compared(arms, [GAIN, BEATEN], curves=curves), curve_differences=differences)
    assert said_of(comparison)[2:] == (
        "**With 120 labels pretraining adds 45.6 points** (97.5 % interval 43.0 to 48.0): 89.3 % with it, 43.7 % "
        "without. Against the linear model, 89.0 %, that is +0.3 points (95 % interval -1.0 to +1.6), not significant.",
    )
    alone = replace(compared([FULL, LINEAR], [BEATEN], curves=curves[1:]), curve_differences=differences[1:])
    assert said_of(alone)[2:] == (
        "With 120 labels the fine-tuned model reaches 89.3 %. Against the linear model, 89.0 %, that is +0.3 points "
        "(95 % interval -1.0 to +1.6), not significant.",
    )
    assert Comparison.from_json(comparison.to_json()) == comparison


# --- any comparison ---


def drawn(seed: int) -> Comparison:
    """Any arms with any costs, and a difference for each pair of them that is tested, which fits their accuracies."""
    draw = random.Random(seed)
    names = ["scratch", "frozen:ours", "full:ours", "full:a-base-with-quite-a-long-name", "tfidf", "majority"]
    chosen = [name for name in names if draw.random() < 0.8] or ["tfidf"]
    kinds = ("one class only", "no better than majority")
    seeds, leaked, matters = draw.randint(1, 6), draw.choice([0, 1, 13]), draw.choice([0.0, 0.02])
    middle, spread = draw.uniform(0.3, 0.9), draw.choice([0.01, 0.05, 0.1])

    def make(name: str, labels: int) -> ArmResult:
        accuracy = middle + draw.uniform(-spread, spread)
        return arm(
            name,
            accuracy,
            valid=accuracy + draw.uniform(-0.02, 0.02),
            seeds=seeds,
            labels=labels,
            odd=tuple(draw.choice(kinds) for _ in range(draw.randint(0, 2))),
            leak_free=accuracy + 0.003 if leaked else None,
            cost=Cost() if draw.random() < 0.1 else Cost(draw.uniform(0.1, 900), draw.uniform(0.01, 30), 50.0),
        )

    arms = [make(name, 1800) for name in chosen]
    value_of = {each.name: each.scores["accuracy"].value for each in arms}
    reference = draw.choice(chosen)
    differences = []
    contrasts = choose_contrasts(arms, reference)
    for one, other in contrasts.pairs:
        seeded = sum(len(each.runs) > 1 for each in arms if each.name in (one, other))
        components = Components(draw.uniform(0.05, 0.3), (draw.uniform(0, 0.001),) * seeded, (0.05,) * seeded)
        value, half = value_of[one] - value_of[other], draw.uniform(0.002, 0.1)
        low, high = value - half, value + half
        equivalent = -matters < low and high < matters
        differences.append(
            apart(
                one,
                other,
                value,
                low,
                high,
                level=draw.choice([0.95, 0.975, 1 - 0.05 / 3]),
                decision="equivalent" if equivalent else None,
                primary=(one, other) in contrasts.primary,
                components=components,
                leak_free=(value, low, high) if leaked else None,
                leak_free_level=0.95,
            )
        )
    curves = [make(name, labels) for name in chosen for labels in (50, 200)] + arms
    comparison = compared(arms, differences, reference=reference, leaked=leaked, curves=curves, matters=matters)
    smaller = tuple(replace(each, budget=budget) for budget in (50, 200) for each in differences if each.primary)
    return replace(comparison, curve_differences=smaller)


def numbers(comparison: Comparison) -> Iterator[str]:
    """Every number of a comparison as it may be said."""
    yield from (f"{comparison.rows:,}", f"{comparison.leaked:,}", f"{100 * comparison.matters:.1f}")
    for each in (*comparison.arms, *comparison.curves):
        yield f"{each.budget:,}"
        yield from map(str, range(1, len(each.runs) * 2 + 1))  # runs and those that are odd, over two budgets
        for scores in (each.scores, each.leak_free or {}):
            for score in scores.values():
                yield from (f"{100 * round(x, 3):.1f}" for x in (score.value, score.low, score.high))
                yield from (f"{100 * x:.1f}" for x in (score.low, score.high))
        for x in (each.cost.seconds, each.cost.milliseconds, each.cost.megabytes):
            if x is not None:
                yield f"{x:,.0f}" if x >= 10 else f"{x:.2g}"
        for other in comparison.arms:
            if each.cost.seconds and other.cost.seconds:
                ratio = each.cost.seconds / other.cost.seconds
                yield f"{float(f'{ratio:.2g}'):,.0f}" if ratio >= 10 else f"{ratio:.2g}"
    for difference in comparison.differences:
        yield f"{100 * difference.level:.3g}"
        assert difference.components is not None
        needed = study_needed(difference.components, comparison.matters or 0.02, difference.level)
        yield from (f"{number:,}" for number in needed or ())
        for scores in (difference.scores, difference.leak_free or {}):
            for score in scores.values():
                yield from (f"{abs(100 * x):.1f}" for x in (score.value, score.low, score.high))
                yield from (f"{abs(100 * x):.1g}" for x in (score.low, score.high) if abs(x) < 0.0005)


def sentences(paragraph: str) -> list[str]:
    return re.split(r"(?<=[A-Za-z%)])\. (?=[A-Z0-9*])", paragraph.replace("** ", " ").replace("**", ""))


@pytest.mark.parametrize("seed", range(400))
def test_any_comparison_reads_well(seed: int) -> None:
    comparison = drawn(seed)
    known = {"95", "80", "2.0", "3", *numbers(comparison)}
    paragraphs = said_of(comparison)
    assert len(paragraphs) >= 2
    for paragraph in paragraphs:
        assert paragraph.count("**") % 2 == 0
        assert paragraph.endswith(".") and ".." not in paragraph and "  " not in paragraph
        assert set(re.findall(r"\d[\d,]*(?:\.\d+)?", paragraph)) <= known, paragraph
        for sentence in sentences(paragraph):
            assert sentence.lstrip("*")[0].isupper() or sentence[0].isdigit()
            assert len([word for word in sentence.split() if word != "%"]) <= 40, sentence
    still_open = any(each.primary and each.decision == "undecided" for each in comparison.differences)
    assert all("**" in paragraph for paragraph in paragraphs[: 3 if still_open else 2])
    assert any(paragraph.startswith("**Still open: ") for paragraph in paragraphs) == still_open
    assert 0 < len(title_of(comparison)) <= LONGEST_TITLE


@pytest.mark.parametrize("seed", range(400))
def test_words_and_decisions_agree(seed: int) -> None:
    comparison = drawn(seed)
    contrasts = choose_contrasts(comparison.arms, comparison.reference)
    first, second, *_ = said_of(comparison)
    chosen = recommend(comparison)
    if chosen is None:
        return
    others = [other.name for other in comparison.arms if other.name != "majority"]
    differences = [comparison.difference(chosen.arm.name, other) for other in others]
    assert all(each is None or each.decision != "worse" for each in differences)  # nothing is significantly better
    words = {"better": " adds ", "worse": " lowers accuracy ", "equivalent": " no difference that matters"}
    if len(contrasts.bases) == 1 and contrasts.scratch is not None:
        gain = comparison.difference(contrasts.bases[0].best.name, contrasts.scratch.name)
        assert gain is not None
        assert words.get(gain.decision, " shows no significant gain") in second
    if chosen.rival is not None and chosen.beats_majority:
        gap = comparison.difference(chosen.rival.name, chosen.arm.name)
        assert ("points fewer" in first) == (gap is not None and gap.decision == "worse")
        assert "points more" not in first


LEVEL = [apart("full", "scratch", 0.01, -0.02, 0.04), apart("full", "tfidf", 0.02, -0.01, 0.05)]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({"scratch": 100, "full": 110, "tfidf": 5}, "tfidf"),
        ({"scratch": 100, "full": 110, "tfidf": 90}, "full"),  # all cost the same: the best on valid
        ({"scratch": 100, "full": 900, "tfidf": 400}, "scratch"),
        ({"scratch": None, "full": 1, "tfidf": 100}, "tfidf"),  # one is not known: by kind
    ],
)
def test_of_those_that_are_level_the_cheapest_is_recommended(seconds: dict[str, float | None], expected: str) -> None:
    accuracy = {"scratch": 0.80, "full": 0.81, "tfidf": 0.79}
    arms = [arm(name, accuracy[name], cost=Cost(time)) for name, time in seconds.items()]
    chosen = recommend(compared(arms, LEVEL))
    assert chosen is not None and chosen.arm.name == expected


@pytest.mark.parametrize(("probability", "expected"), [(0.96, "full"), (0.94, "frozen")])
def test_an_arm_that_is_probably_better_is_recommended_though_it_costs_more(probability: float, expected: str) -> None:
    difference = replace(apart("full", "frozen", 0.025, -0.01, 0.06, level=0.998), better=probability)
    comparison = compared([arm("scratch", 0.7), FULL, FROZEN, LINEAR], [difference, BEATEN, GAIN])
    chosen = recommend(comparison)
    assert chosen is not None and chosen.arm.name == expected
    ending = {
        "full": "the frozen model 84.1 %: -2.5 points (99.8 % interval -6.0 to +1.0), not significant, but it is "
        "behind with a probability of 96 %.",
        "frozen": "the fine-tuned model 86.6 %: +2.5 points (99.8 % interval -1.0 to +6.0), not significant, so take "
        "the cheaper one until that is settled.",
    }
    assert ending[expected] in said_of(comparison)[0]


@pytest.mark.parametrize(
    ("improving", "who"),
    [({"scratch"}, "Scratch was"), ({"full"}, "Full was"), ({"full", "scratch"}, "Full and scratch were")],
)
def test_a_gain_over_an_arm_that_was_cut_short_is_one_so_far(improving: set[str], who: str) -> None:
    arms = [
        replace(each, tuning=ArmTuning({}, (), 1.0, improving=each.name in improving))
        for each in (SCRATCH, FULL, LINEAR)
    ]
    comparison = compared(arms, [GAIN, BEATEN])
    assert said_of(comparison)[1] == (
        "**Pretraining adds 6.2 points so far** (95 % interval 4.4 to 7.9): 86.6 % with it, 80.4 % without. "
        f"{who} still improving with more epochs: --tune thorough and more --minutes train longer."
    )
    assert title_of(comparison).endswith("pretraining adds 6.2 points so far")


def test_an_arm_that_may_be_no_better_than_majority_is_not_recommended() -> None:
    unsure = replace(arm("scratch", 0.55, cost=Cost(0.1)), scores={"accuracy": Estimate(0.55, 0.1, 0.99)})
    comparison = compared([unsure, FULL, MAJORITY], [apart("full", "scratch", 0.3, -0.1, 0.7)])
    chosen = recommend(comparison)
    assert chosen is not None and chosen.arm.name == "full" and chosen.beats_majority


def test_two_arms_that_were_not_tested_differ_where_their_intervals_do_not_overlap() -> None:
    for accuracy, expected in ((0.80, "full:a"), (0.83, "frozen:b")):  # each interval is two points to either side
        chosen = recommend(compared([arm("full:a", 0.86), arm("frozen:b", accuracy)]))
        assert chosen is not None and chosen.arm.name == expected


def test_a_title_is_short_whatever_the_base_is_called() -> None:
    name = "a-name-that-goes-on-and-on-" * 5
    arms = [arm("scratch", 0.8), arm(f"full:{name}", 0.9), arm("full:other", 0.85)]
    comparison = compared(arms, [apart(f"full:{name}", "scratch", 0.1, 0.08, 0.12)])
    assert title_of(comparison).startswith("Use the fine-tuned model (a-name-that-goes-on…): 90.0 % correct")
    assert len(title_of(comparison)) <= LONGEST_TITLE
