"""docs/questions.md: what it is made of can be made again, and what it says is what was found."""

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

from headstart.batches.encoding import EncodedExamples
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
def found() -> Any:
    return json.loads((DOCS / "experiments.json").read_text(encoding="utf-8"))


@pytest.fixture
def tiny(experiments: Any) -> Any:
    return experiments.Size(pieces=300, width=16, window=32, steps=6, batch=4, review=400, epochs=1, rows=24)


# --- what is kept is what this source finds ---------------------------------------------------------------------------


def test_the_findings_are_of_this_source_and_these_reviews(experiments: Any, found: Any) -> None:
    assert found["made_from"] == experiments.fingerprint(), "run `make questions`"
    assert found["size"] == asdict(experiments.Size())


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_trained_again_they_are_the_same() -> None:
    done = subprocess.run([sys.executable, TOOLS / "questions.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_differs_is_named(questions: Any, found: Any) -> None:
    other = copy.deepcopy(found)
    assert list(questions.differences(found, other)) == []
    other["language_models"]["mask, positions"]["unseen"] += 0.01
    other["language_models"]["mask, positions"]["text"] += "!"
    other["points"].pop()
    places = [line.split(": ")[0] for line in questions.differences(found, other)]
    assert places == ["/points", "/language_models/mask, positions/unseen", "/language_models/mask, positions/text"]


# --- the experiments, at a tiny size ----------------------------------------------------------------------------------


def test_the_mask_is_what_hides_the_next_piece(experiments: Any, tiny: Any) -> None:
    ids, other = torch.tensor([5, 6, 7, 8]), torch.tensor([5, 6, 7, 9])
    for arm in experiments.ARMS:
        model = experiments.build(arm, tiny, NextTokenConfig(), tiny.window).eval()
        first, second = (model.backbone(each, Flat.from_lengths([4])) for each in (ids, other))
        assert torch.equal(first[:3], second[:3]) == arm.mask, arm


def test_with_the_mask_a_hidden_answer_changes_nothing(experiments: Any, tiny: Any) -> None:
    documents, pieces = experiments.documents("test", tiny), experiments.tokenizer(tiny)
    batches = CausalBatches(documents, pieces, window=tiny.window, batch_size=4, seed=0, evaluation=True)
    for arm in experiments.ARMS:
        model = experiments.build(arm, tiny, NextTokenConfig(), tiny.window).eval()
        seen, hidden = experiments.unseen_loss(model, batches), experiments.hidden_loss(model, batches, 10**6)
        assert (abs(seen - hidden) < 1e-9) == arm.mask, arm
        share, _ = experiments.next_token_share(model, batches)
        assert (share == 0) == arm.mask


def test_a_language_model_is_trained_and_looked_at(experiments: Any, tiny: Any) -> None:
    threads = torch.get_num_threads()
    found = experiments.language_model(experiments.ARMS[0], tiny)
    torch.set_num_threads(threads)
    assert len(found["curve"]) == len(experiments.points(tiny))
    assert found["text"]
    rows = np.array(found["look"])
    assert rows.shape == (len(experiments.spelled(tiny)),) * 2
    assert np.allclose(rows.sum(1), 1, atol=0.1) and np.triu(rows, 1).sum() == 0


def test_without_mask_and_positions_a_text_is_a_bag_of_words(experiments: Any, tiny: Any) -> None:
    threads = torch.get_num_threads()
    found = {arm: experiments.classifier(arm, tiny) for arm in experiments.ARMS}
    torch.set_num_threads(threads)
    for arm, each in found.items():
        assert (each["most"] < 1e-12) == (not arm.mask and not arm.positions), arm


def test_shuffled_reviews_have_the_same_words(experiments: Any, tiny: Any) -> None:
    pieces = experiments.tokenizer(tiny)
    test = EncodedExamples.of(experiments.examples("test", tiny.rows), pieces, experiments.LABELS, tiny.review)
    mixed = experiments.shuffle(test, tiny)
    for a, b in zip(test.starts, test.starts[1:], strict=False):
        one, other = test.ids[a:b], mixed.ids[a:b]
        assert one[0] == other[0] and one[-1] == other[-1]
        assert sorted(one) == sorted(other) and list(one) != list(other)
    text, shuffled = experiments.shuffled_text(tiny)
    assert sorted(text.split()) == sorted(shuffled.split()) and text != shuffled


# --- the page ---------------------------------------------------------------------------------------------------------


def test_what_the_page_says_is_what_was_found(questions: Any, found: Any) -> None:
    assert [claim for claim, true in questions.claims(found).items() if not true] == []


def test_the_page_is_not_made_where_it_would_say_what_is_not_so(questions: Any, found: Any) -> None:
    found["classifiers"]["no mask, no positions"]["most"] = 0.01
    with pytest.raises(SystemExit, match="neither mask nor positions: nothing moves"):
        questions.page(found, {})


def test_the_head_and_the_count(questions: Any, found: Any) -> None:
    swap = questions.swap()
    assert (swap["same"], swap["same_frozen"], swap["same_full"]) == (49, 49, 0)
    page = questions.page(found, {})
    for number in ("10,050,201", "402", "160,800", "21,018,401", "10,968,602", "7 × 50,001", "2 × 2", "49 of 49"):
        assert number in page, number
    assert 200 in questions.slips() and 800 in questions.slips() and 1000 not in questions.slips()


BETTER = {"value": 0.043, "low": 0.02, "high": 0.066, "holm": 0.01}
WORSE = {"value": -0.043, "low": -0.066, "high": -0.02, "holm": 0.01}
UNCLEAR = {"value": 0.043, "low": -0.004, "high": 0.09, "holm": 0.2}
NOT_SIGNIFICANT = {"value": 0.043, "low": 0.001, "high": 0.085, "holm": 0.08}
TOLD = "(+4.3 points, 95 % interval +2.0 to +6.6)"
TOLD_WORSE = "(−4.3 points, 95 % interval −6.6 to −2.0)"
NOT_TOLD = "(+4.3 points, 95 % interval −0.4 to +9.0)"
CORRECTED = ": the difference is not significant after Holm's correction (+4.3 points, 95 % interval +0.1 to +8.5)"
UNKNOWN = "(of the difference no interval is known)"


def made_up(scores: Mapping[str, float], *differences: tuple[str, str, Mapping[str, float]]) -> dict[str, Any]:
    """A comparison as docs/results has it."""
    rows = [
        {"arm": arm, "test": {"value": value, "low": value - 0.02, "high": value + 0.02}, "seeds": [0, 1]}
        for arm, value in scores.items()
    ]
    apart = [{"arm": one, "reference": other, **numbers} for one, other, numbers in differences]
    about = {"budgets": [], "curves": {}, "epochs": {}, "test_rows": 2000, "leaked_rows": 54}
    return {"rows": rows, "differences": apart, **about}


ARMS = {"scratch": 0.701, "frozen": 0.65, "full": 0.744, "tfidf": 0.85, "majority": 0.5}


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        (BETTER, f"Pretraining helped the lab's model: test accuracy rose from 0.701 to 0.744 {TOLD}."),
        (WORSE, f"Pretraining hurt the lab's model: test accuracy fell from 0.701 to 0.744 {TOLD_WORSE}."),
        (UNCLEAR, f"cannot be told: test accuracy is 0.701 without it, 0.744 with it {NOT_TOLD}."),
        (NOT_SIGNIFICANT, f"lab's model is 0.701 without pretraining and 0.744 with it{CORRECTED}."),
        (None, f"cannot be told: test accuracy is 0.701 without it, 0.744 with it {UNKNOWN}."),
    ],
)
def test_whether_pretraining_helped(questions: Any, numbers: Mapping[str, float] | None, said: str) -> None:
    study = made_up(ARMS, *([("full", "scratch", numbers)] if numbers else []))
    helped, _ = questions.pretraining(questions.Study("cls-books-lab-last", study), "the lab's model")
    assert helped.endswith(said)
    assert helped.startswith("Whether pretraining helped") == (numbers in (UNCLEAR, None))


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        (BETTER, f"The pretrained model is better than a linear model on word counts, which reaches 0.850 {TOLD}."),
        (WORSE, f"The pretrained model is worse than a linear model on word counts, which reaches 0.850 {TOLD_WORSE}."),
        (
            UNCLEAR,
            "Whether the pretrained model is better than a linear model on word counts, which reaches 0.850, "
            f"cannot be told {NOT_TOLD}.",
        ),
    ],
)
def test_whether_it_is_better_than_a_linear_model(questions: Any, numbers: Mapping[str, float], said: str) -> None:
    study = made_up(ARMS, ("full", "tfidf", numbers))
    assert questions.pretraining(questions.Study("cls-books-small", study), "`small`")[1] == said


OBJECTIVES = {"full:causal": 0.7, "full:masked": 0.75, "full:both": 0.76, "scratch": 0.65, "tfidf": 0.85}


@pytest.mark.parametrize(
    ("numbers", "first", "second"),
    [
        (
            BETTER,
            f"Masked is the better objective: test accuracy is 0.750, and 0.700 after causal pretraining {TOLD}.",
            f"Next sentence adds to masked: 0.760 with it, 0.750 without {TOLD}.",
        ),
        (
            WORSE,
            f"Masked is the worse objective: test accuracy is 0.750, and 0.700 after causal pretraining {TOLD_WORSE}.",
            f"Next sentence takes away from masked: 0.760 with it, 0.750 without {TOLD_WORSE}.",
        ),
        (
            UNCLEAR,
            "Whether masked or causal is better cannot be told: test accuracy is 0.750 after masked pretraining, "
            f"0.700 after causal {NOT_TOLD}.",
            f"Whether next sentence adds anything to masked cannot be told: 0.760 with it, 0.750 without {NOT_TOLD}.",
        ),
    ],
)
def test_which_objective_is_better(questions: Any, numbers: Mapping[str, float], first: str, second: str) -> None:
    differences = [("full:masked", "full:causal", numbers), ("full:both", "full:masked", numbers)]
    assert questions.objectives(questions.Study("objectives", made_up(OBJECTIVES, *differences))) == (first, second)


def test_a_difference_is_found_whichever_way_round(questions: Any) -> None:
    study = questions.Study("objectives", made_up(OBJECTIVES, ("full:causal", "full:masked", BETTER)))
    assert study.points("full:causal", "full:masked") == "+4.3 (+2.0 to +6.6)"
    assert study.points("full:masked", "full:causal") == "−4.3 (−6.6 to −2.0)"
    assert questions.objectives(study)[0].startswith("Masked is the worse objective")


def test_an_arm_that_is_not_there_is_named(questions: Any) -> None:
    study = questions.Study("objectives", made_up({"full:masked": 0.75}))
    with pytest.raises(
        SystemExit, match=r"objectives\.json: .* tells of the arm 'full:causal', and it has full:masked"
    ):
        questions.objectives(study)


def test_questions_four_and_five_come_from_the_results(questions: Any, found: Any, tmp_path: Path) -> None:
    lab = made_up(ARMS, ("full", "scratch", BETTER), ("frozen", "scratch", WORSE), ("full", "tfidf", WORSE))
    small = made_up({**ARMS, "full+tfidf": 0.87}, ("full", "scratch", UNCLEAR))
    page = questions.page(found, {"cls-books-lab-last": questions.Study("cls-books-lab-last", lab)})
    assert "| pretrained, all trained | 0.744 (0.724 to 0.764) |\n" in page
    assert "| head alone − scratch, points | −4.3 (−6.6 to −2.0) |\n" in page
    assert "54 of the 2,000 test rows are also in train or valid" in page
    measured = {name: questions.Study(name, each) for name, each in zip(questions.BOOKS, (lab, small), strict=True)}
    page = questions.page(found, measured)
    assert "**Pretraining helped the lab's model" in page and "**Whether pretraining helped `small`" in page
    assert "| the same together with TF-IDF |  | 0.870 (0.850 to 0.890) |\n" in page
    assert page.count("Not measured yet") == 1


def test_what_is_not_measured_is_said(questions: Any, found: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(questions.results, "RESULTS", tmp_path)
    made = questions.files()
    assert made["questions.md"].count("Not measured yet") == 2
    assert "images/labels.svg" not in made["questions.md"] and "images/labels.svg" not in made


def test_the_arms_of_the_recipe_are_told_of(
    questions: Any, found: Any, objectives: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """From the folder of a study to the page."""
    recipe = RECIPE.read_text(encoding="utf-8")
    assert re.findall(r'--init "(\w+)=', recipe) == ["causal", "masked", "both"]
    assert "--arms full,scratch:masked " in recipe
    questions.results.write(tmp_path / "objectives.json", questions.results.gather(objectives))
    monkeypatch.setattr(questions.results, "RESULTS", tmp_path)
    made = questions.files()
    page = made["questions.md"]
    assert page.count("Not measured yet") == 1 and UNKNOWN not in page
    assert "| labels | 40 | 120 | with 120, minus scratch, points |" in page
    for arm in ("causal", "masked", "with next sentence", "TF-IDF"):
        assert re.search(rf"^\| {arm} \| [01]\.\d+ \(.*\) \| [01]\.\d+ \(.*\) \| [+−]\d", page, re.MULTILINE), arm
    picture = made["images/objectives-by-labels.svg"]
    assert ">with next sentence<" in picture and "…" not in picture
    assert "](images/objectives-by-labels.svg)" in page


def test_the_pictures_stand_alone(questions: Any) -> None:
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
    monkeypatch.setattr(generate, "scaling", str)
    assert questions.files().items() <= generate.pages().items()


def test_examples(questions: Any) -> None:
    for module in (questions, questions.results):
        outcome = doctest.testmod(module)
        assert outcome.attempted > 0 and outcome.failed == 0
