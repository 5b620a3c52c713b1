"""tools/faithfulness.py: it tells good weights from bad ones, runs every method, and the page has its table."""

from __future__ import annotations

import csv
import importlib
import random
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from headstart.use.classifier import TextClassifier
from headstart.use.explain import explain
from headstart.use.words import tokenize
from tests.use.example_classifiers import planted, planted_text

ROOT = Path(__file__).parents[1]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("faithfulness")


def test_the_deciding_word_is_comprehensive_and_sufficient(tool: ModuleType) -> None:
    classifier = TextClassifier(planted("small", "mean"), "cpu")
    text = planted_text(random.Random(0), "pos", count=9, at=4)
    subject = tool.Subject(classifier, text, tokenize(classifier, text), 1, ["page"] * 10)
    decides = (np.arange(10) == 4).astype(float)
    right, wrong = tool.scores(subject, decides), tool.scores(subject, -decides)
    for way in tool.WAYS:
        assert right[f"comprehensiveness, {way}"] > wrong[f"comprehensiveness, {way}"] + 0.1
        assert right[f"sufficiency, {way}"] < wrong[f"sufficiency, {way}"]


def test_every_method_has_a_row_and_the_one_that_ships_is_measured(tool: ModuleType) -> None:
    classifier = TextClassifier(planted("lab", "last"), "cpu")
    text = planted_text(random.Random(0), "pos", count=9, at=4)
    tokenized = tokenize(classifier, text)
    rows = tool.measure_text(tool.Subject(classifier, text, tokenized, 1, ["page"] * 10), np.arange(10.0))
    assert [row["method"] for row in rows] == list(tool.METHODS)
    question = tool.Question(classifier, tokenized, 1)
    shipped = [word.weight for word in explain(classifier, text, label="pos", orders=0).words]
    assert tool.METHODS[tool.SHIPPED](question) == pytest.approx(shipped, abs=1e-6)


def test_the_page_has_the_table_of_the_file(tool: ModuleType) -> None:
    with (ROOT / "docs" / "results" / "faithfulness.csv").open(encoding="utf-8", newline="") as file:
        rows = [
            {k: v if k in ("model", "method") else float(v) for k, v in row.items() if v}
            for row in csv.DictReader(file)
        ]
    assert tool.page_table(rows) in (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")
