"""docs/questions.md: what it is made of can be made again, and what it says is what was found."""

from __future__ import annotations

import copy
import doctest
import importlib
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from headstart.config import NextToken
from headstart.model.layout import Flat
from headstart.text.batches import CausalBatches, Encoded

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RESULTS = (DOCS / "results.md").read_text(encoding="utf-8")


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(DOCS)
    return importlib.import_module("questions")


@pytest.fixture
def experiments(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(DOCS)
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
    done = subprocess.run([sys.executable, DOCS / "questions.py", "--check"], cwd=ROOT, capture_output=True, text=True)
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
        model = experiments.build(arm, tiny, NextToken(), tiny.window).eval()
        first, second = (model.backbone(each, Flat.of([4])) for each in (ids, other))
        assert torch.equal(first[:3], second[:3]) == arm.mask, arm


def test_with_the_mask_a_hidden_answer_changes_nothing(experiments: Any, tiny: Any) -> None:
    documents, pieces = experiments.documents("test", tiny), experiments.tokenizer(tiny)
    batches = CausalBatches(documents, pieces, window=tiny.window, batch_size=4, seed=0, whole=True)
    for arm in experiments.ARMS:
        model = experiments.build(arm, tiny, NextToken(), tiny.window).eval()
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
    test = Encoded.of(experiments.examples("test", tiny.rows), pieces, experiments.LABELS, tiny.review)
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
        questions.page(found, questions.results(RESULTS))


def test_the_head_and_the_count(questions: Any, found: Any) -> None:
    swap = questions.swap()
    assert (swap["same"], swap["same_frozen"], swap["same_full"]) == (49, 49, 0)
    page = questions.page(found, questions.results(RESULTS))
    for number in ("10,050,201", "402", "160,800", "21,018,401", "10,968,602", "7 × 50,001", "2 × 2", "49 of 49"):
        assert number in page, number
    assert 200 in questions.slips() and 800 in questions.slips() and 1000 not in questions.slips()


TABLES = """\
# Results

## cls-books

| what | test accuracy | 95 % interval |
|---|---|---|
| lab, from scratch (1) | 0.7535, 0.7490 | |
| lab, from scratch (3) | 0.799 | |
| lab, from scratch (2) | 0.701 | |
| lab, causal base, full (2) | 0.744 | 0.7 to 0.8 |
| TF-IDF and logistic regression (2) | 0.850 | |

It brought 4.3 points.

1. `a command`

### By the number of labels

| labels | 50 | 1,600 |
|---|---|---|
| full | 0.600 | 0.744 |
| scratch | 0.610 | 0.701 |

## What else
"""
OBJECTIVES = """
## Causal against masked, and next sentence

| objective | accuracy |
|---|---|
| masked | 0.912 |

Masked is better by 3 points (1 to 5).
"""


def test_questions_four_and_five_come_from_the_results(questions: Any, found: Any) -> None:
    page = questions.page(found, questions.results(TABLES))
    assert "Pretraining took lab from 0.701 to 0.744. A linear model on word counts has 0.850" in page
    assert "| lab, causal base | 0.701 |  | 0.744 | +4.3 |" in page
    assert "It brought 4.3 points." in page
    assert "| full − scratch, points | −1.0 | +4.3 |" in page
    assert "**Not measured yet.**" in page
    page = questions.page(found, questions.results(TABLES + OBJECTIVES))
    assert "Not measured" not in page
    assert "**Masked is better by 3 points (1 to 5).**" in page
    assert "| masked | 0.912 |" in page
    assert "(results.md#causal-against-masked-and-next-sentence)" in page


def test_results_that_cannot_be_quoted_are_named(questions: Any) -> None:
    with pytest.raises(SystemExit, match="By the number of labels"):
        questions.results(TABLES.replace("By the number", "After the number"))
    with pytest.raises(SystemExit, match="from scratch"):
        questions.results(TABLES.replace("from scratch", "drawn"))
    with pytest.raises(SystemExit, match="no rows `full` and `scratch`"):
        questions.results(TABLES.replace("| full |", "| everything |"))
    with pytest.raises(SystemExit, match="no column 'test accuracy'"):
        questions.results(TABLES.replace("test accuracy", "accuracy"))


def test_the_pictures_stand_alone(questions: Any) -> None:
    drawn = {name: text for name, text in questions.files().items() if name.endswith(".svg")}
    page = (DOCS / "questions.md").read_text(encoding="utf-8")
    assert len(drawn) == 4
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
    outcome = doctest.testmod(questions)
    assert outcome.attempted >= 2 and outcome.failed == 0
