"""docs/questions.md: its measurements are reproducible, and what it says is what was measured."""

from __future__ import annotations

import copy
import doctest
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from headstart.batches.language import CausalBatches
from headstart.config import NextTokenConfig
from headstart.model.layout import Flat

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TOOLS = ROOT / "tools"
RECIPE = ROOT / "recipes" / "objectives.sh"


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(TOOLS)
    return importlib.import_module("questions")


@pytest.fixture
def experiments(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(TOOLS)
    return importlib.import_module("experiments")


@pytest.fixture
def measured() -> Any:
    return json.loads((DOCS / "experiments.json").read_text(encoding="utf-8"))


@pytest.fixture
def tiny(experiments: Any) -> Any:
    return experiments.Settings(
        vocabulary=300, width=16, window=32, steps=6, batch_size=4, text_window=600, epochs=1, rows=24
    )


# --- docs/experiments.json is what the experiments measure ------------------------------------------------------------


def test_the_measurements_have_these_settings_and_answers(experiments: Any, measured: Any) -> None:
    assert measured["fingerprint"] == experiments.fingerprint(), "run `make questions`"
    assert measured["settings"] == asdict(experiments.Settings())


def test_the_fingerprint_follows_settings_and_data(
    experiments: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = experiments.fingerprint()
    with monkeypatch.context() as patch:
        patch.setattr(experiments, "PROMPT", "Ce livre")
        assert experiments.fingerprint() != original
    with monkeypatch.context() as patch:
        patch.setattr(experiments, "labelled_files", lambda: {"train": Path(__file__)})
        assert experiments.fingerprint() != original
    assert experiments.fingerprint() == original


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_training_again_gives_the_same_measurements() -> None:
    done = subprocess.run([sys.executable, TOOLS / "questions.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_differs_is_named(questions: Any, measured: Any) -> None:
    other = copy.deepcopy(measured)
    assert list(questions.differences(measured, other)) == []
    other["language_models"]["mask, positions"]["test_loss"] += 0.01
    other["language_models"]["mask, positions"]["text"] += "!"
    other["curve_steps"].pop()
    places = [line.split(": ")[0] for line in questions.differences(measured, other)]
    assert places == [
        "/curve_steps",
        "/language_models/mask, positions/test_loss",
        "/language_models/mask, positions/text",
    ]


# --- the experiments, at a tiny size ----------------------------------------------------------------------------------


def test_the_mask_is_what_hides_the_next_token(experiments: Any, tiny: Any) -> None:
    ids, other = torch.tensor([5, 6, 7, 8]), torch.tensor([5, 6, 7, 9])
    for arm in experiments.ARMS:
        model = experiments.build(arm, tiny, NextTokenConfig(), tiny.window).eval()
        first, second = (model.backbone(tokens, Flat.from_lengths([4])) for tokens in (ids, other))
        assert torch.equal(first[:3], second[:3]) == arm.mask, arm


def test_with_the_mask_prefixes_have_the_same_loss(experiments: Any, tiny: Any) -> None:
    documents, tokenizer = experiments.documents("test", tiny), experiments.tokenizer(tiny)
    batches = CausalBatches(documents, tokenizer, window=tiny.window, batch_size=4, seed=0, evaluation=True)
    for arm in experiments.ARMS:
        model = experiments.build(arm, tiny, NextTokenConfig(), tiny.window).eval()
        full, prefixes = experiments.test_loss(model, batches), experiments.prefix_loss(model, batches, 10**6)
        assert (abs(full - prefixes) < 1e-9) == arm.mask, arm
        share, _, _ = experiments.next_token_attention(model, batches)
        assert (share == 0) == arm.mask


def test_a_language_model_is_trained_and_measured(experiments: Any, tiny: Any) -> None:
    threads = torch.get_num_threads()
    measured = experiments.language_model(experiments.ARMS[0], tiny)
    torch.set_num_threads(threads)
    assert len(measured["curve"]) == len(experiments.curve_steps(tiny))
    assert measured["text"]
    rows = np.array(measured["attention"])
    assert rows.shape == (len(experiments.tokenizer(tiny).encode(experiments.SENTENCE)),) * 2
    assert np.allclose(rows.sum(1), 1, atol=0.1) and np.triu(rows, 1).sum() == 0


def test_without_mask_and_positions_a_text_is_a_bag_of_words(experiments: Any, tiny: Any) -> None:
    threads = torch.get_num_threads()
    measured = {arm: experiments.classifier(arm, tiny) for arm in experiments.ARMS}
    torch.set_num_threads(threads)
    for arm, model in measured.items():
        assert (model["largest_shift"] < 1e-12) == (not arm.mask and not arm.positions), arm


def test_shuffled_answers_have_the_same_words(experiments: Any, tiny: Any) -> None:
    test = experiments.encoded("test", tiny)
    mixed = experiments.shuffle(test, tiny)
    for a, b in zip(test.starts, test.starts[1:], strict=False):
        one, other = test.ids[a:b], mixed.ids[a:b]
        assert one[0] == other[0] and one[-1] == other[-1]
        assert sorted(one) == sorted(other) and list(one) != list(other)
    text, shuffled = experiments.first_answer(tiny)
    assert sorted(text.split()) == sorted(shuffled.split()) and text != shuffled


# --- the page ---------------------------------------------------------------------------------------------------------


def test_what_the_page_says_is_what_was_measured(questions: Any, measured: Any) -> None:
    assert [claim for claim, true in questions.claims(measured).items() if not true] == []


def test_the_page_is_not_made_where_it_would_say_what_is_not_so(questions: Any, measured: Any) -> None:
    measured["classifiers"]["no mask, no positions"]["largest_shift"] = 0.01
    with pytest.raises(SystemExit, match="neither mask nor positions: no probability changes"):
        questions.page(measured, {})


def test_the_head_and_the_count(questions: Any, measured: Any) -> None:
    swap = questions.head_swap()
    assert (swap["unchanged"], swap["unchanged_frozen"], swap["unchanged_full"]) == (49, 49, 0)
    page = questions.page(measured, {})
    for number in ("10,050,201", "402", "160,800", "21,018,401", "10,968,602", "7 × 50,001", "2 × 2", "49 of 49"):
        assert number in page, number
    assert questions.single_mistakes() & {200, 800, 1000} == {200, 800}


BETTER = {"value": 0.043, "low": 0.02, "high": 0.066, "holm": 0.01}
WORSE = {"value": -0.043, "low": -0.066, "high": -0.02, "holm": 0.01}
UNCLEAR = {"value": 0.043, "low": -0.004, "high": 0.09, "holm": 0.2}
NOT_SIGNIFICANT = {"value": 0.043, "low": 0.001, "high": 0.085, "holm": 0.08}
HIGHER = "(+4.3 points, 95 % interval +2.0 to +6.6)"
LOWER = "(−4.3 points, 95 % interval −6.6 to −2.0)"
EITHER = "(+4.3 points, 95 % interval −0.4 to +9.0)"
CORRECTED = "the difference is not significant after Holm's correction (+4.3 points, 95 % interval +0.1 to +8.5)"
NO_INTERVAL = "(the study has no interval for the difference)"


def study(scores: Mapping[str, float], *differences: tuple[str, str, Mapping[str, float]]) -> dict[str, Any]:
    """A comparison as docs/results has it."""
    estimates = {arm: {"value": value, "low": value - 0.02, "high": value + 0.02} for arm, value in scores.items()}
    return {
        "rows": [{"arm": arm, "test": estimate, "seeds": [0, 1]} for arm, estimate in estimates.items()],
        "differences": [{"arm": one, "reference": other, **numbers} for one, other, numbers in differences],
        "budgets": [100],
        "curves": {arm: {"100": estimate} for arm, estimate in estimates.items()},
        "epochs": {},
        "test_rows": 2000,
        "leaked_rows": 54,
    }


def page(questions: Any, measured: Any, **studies: Mapping[str, Any]) -> str:
    """The page with these studies as its only results; a dash in a study's name is written as an underscore."""
    names = {name: name.replace("_", "-") for name in studies}
    return str(questions.page(measured, {names[n]: questions.Study(names[n], each) for n, each in studies.items()}))


ARMS = {"scratch": 0.701, "frozen": 0.65, "full": 0.744, "tfidf": 0.85, "majority": 0.5}


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        (BETTER, f"Pretraining helped `small`: test accuracy rose from 0.701 to 0.744 {HIGHER}."),
        (WORSE, f"Pretraining hurt `small`: test accuracy fell from 0.701 to 0.744 {LOWER}."),
        (UNCLEAR, f"cannot be told: test accuracy is 0.701 without it, 0.744 with it {EITHER}."),
        (NOT_SIGNIFICANT, f"Test accuracy of `small` is 0.701 without pretraining and 0.744 with it: {CORRECTED}."),
        (None, f"cannot be told: test accuracy is 0.701 without it, 0.744 with it {NO_INTERVAL}."),
    ],
)
def test_whether_pretraining_helped(
    questions: Any, measured: Any, numbers: Mapping[str, float] | None, sentence: str
) -> None:
    differences = [("full", "scratch", numbers)] if numbers else []
    text = page(questions, measured, cls_books_small=study(ARMS, *differences))
    start = "Whether pretraining helped `small` " if numbers in (UNCLEAR, None) else ""
    assert f"\n**{start}{sentence}** Whether the pretrained model" in text


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        (
            BETTER,
            f"The pretrained model is better than a linear model on word counts, which reaches 0.850 {HIGHER}.",
        ),
        (WORSE, f"The pretrained model is worse than a linear model on word counts, which reaches 0.850 {LOWER}."),
        (
            UNCLEAR,
            "Whether the pretrained model is better than a linear model on word counts, which reaches 0.850, "
            f"cannot be told {EITHER}.",
        ),
    ],
)
def test_whether_it_is_better_than_a_linear_model(
    questions: Any, measured: Any, numbers: Mapping[str, float], sentence: str
) -> None:
    assert f"** {sentence}\n" in page(questions, measured, cls_books_small=study(ARMS, ("full", "tfidf", numbers)))


OBJECTIVES = {"full:causal": 0.7, "full:masked": 0.75, "full:both": 0.76, "scratch": 0.65, "tfidf": 0.85}


@pytest.mark.parametrize(
    ("numbers", "first", "second"),
    [
        (
            BETTER,
            f"Masked is the better objective: test accuracy is 0.750, and 0.700 after causal pretraining {HIGHER}.",
            f"Next sentence adds to masked: 0.760 with it, 0.750 without {HIGHER}.",
        ),
        (
            WORSE,
            f"Masked is the worse objective: test accuracy is 0.750, and 0.700 after causal pretraining {LOWER}.",
            f"Next sentence takes away from masked: 0.760 with it, 0.750 without {LOWER}.",
        ),
        (
            UNCLEAR,
            "Whether masked or causal is better cannot be told: test accuracy is 0.750 after masked pretraining, "
            f"0.700 after causal {EITHER}.",
            f"Whether next sentence adds anything to masked cannot be told: 0.760 with it, 0.750 without {EITHER}.",
        ),
    ],
)
def test_which_objective_is_better(
    questions: Any, measured: Any, numbers: Mapping[str, float], first: str, second: str
) -> None:
    differences = [("full:masked", "full:causal", numbers), ("full:both", "full:masked", numbers)]
    assert f"\n**{first}** {second}\n" in page(questions, measured, objectives=study(OBJECTIVES, *differences))


def test_a_difference_is_found_whichever_way_round(questions: Any, measured: Any) -> None:
    objectives = study(OBJECTIVES, ("full:causal", "full:masked", BETTER))
    assert "**Masked is the worse objective" in page(questions, measured, objectives=objectives)


def test_an_arm_that_is_not_there_is_named(questions: Any, measured: Any) -> None:
    with pytest.raises(SystemExit, match=r"objectives\.json: .* needs the arm 'full:causal', and it has full:masked"):
        page(questions, measured, objectives=study({"full:masked": 0.75}))


def test_questions_four_and_five_come_from_the_results(questions: Any, measured: Any) -> None:
    lab = study(ARMS, ("full", "scratch", BETTER), ("frozen", "scratch", WORSE), ("full", "tfidf", WORSE))
    small = study({**ARMS, "full+tfidf": 0.87}, ("full", "scratch", UNCLEAR))
    text = page(questions, measured, cls_books_lab_last=lab)
    assert "54 of the 2,000 test rows are also in train or valid" in text
    text = page(questions, measured, cls_books_lab_last=lab, cls_books_small=small)
    assert "**Pretraining helped the lab's model" in text and "**Whether pretraining helped `small`" in text
    assert text.count("Not measured yet") == 1


def test_what_is_not_measured_is_said(questions: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(questions.results, "RESULTS", tmp_path)
    files = questions.files()
    assert files["questions.md"].count("Not measured yet") == 2
    assert "images/labels.svg" not in files["questions.md"] and "images/labels.svg" not in files


def test_the_arms_of_the_recipe_are_on_the_page(
    questions: Any, objectives: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """From the folder of a study to the page."""
    recipe = RECIPE.read_text(encoding="utf-8")
    assert re.findall(r'--init "(\w+)=', recipe) == ["causal", "masked", "both"]
    assert "--arms full,scratch:masked " in recipe
    questions.results.write(tmp_path / "objectives.json", questions.results.from_folder(objectives))
    monkeypatch.setattr(questions.results, "RESULTS", tmp_path)
    files = questions.files()
    text = files["questions.md"]
    assert text.count("Not measured yet") == 1 and NO_INTERVAL not in text
    assert "That is with 120 labels" in text
    picture = files["images/objectives-by-labels.svg"]
    assert all(f">{arm}<" in picture for arm in ("causal", "masked", "with next sentence", "TF-IDF"))
    assert "…" not in picture
    assert "](images/objectives-by-labels.svg)" in text


def test_the_pictures_are_files_of_their_own(questions: Any) -> None:
    drawn = {name: text for name, text in questions.files().items() if name.endswith(".svg")}
    page = (DOCS / "questions.md").read_text(encoding="utf-8")
    assert len(drawn) >= 4
    for name, text in drawn.items():
        root = ElementTree.fromstring(text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.get("role") == "img" and root.get("aria-label")
        assert len(text.encode()) < 60_000
        assert f"]({name})" in page
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_one_command_makes_every_generated_page(questions: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = importlib.import_module("generate")
    monkeypatch.setattr(generate, "command_line", str)
    monkeypatch.setattr(generate, "performance", str)
    assert questions.files().items() <= generate.pages().items()


def test_examples(questions: Any) -> None:
    outcome = doctest.testmod(questions.results)
    assert outcome.attempted > 0 and outcome.failed == 0
