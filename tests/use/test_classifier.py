from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headstart import TextClassifier as FromTheTop
from headstart.checkpoints.folder import Checkpoint, load, save
from headstart.errors import ConfigError, HeadstartError, ModelError, NotFinite
from headstart.metrics import fit_temperature
from headstart.model.heads import ClassifierHead
from headstart.reading.examples import Example, Examples
from headstart.serve.models import ServedClassifier
from headstart.training import inference
from headstart.use import classifier as module
from headstart.use.classifier import TextClassifier, calibrated
from headstart.use.explain import explain
from headstart.use.export import export
from tests.studies.example_data import reviews


@pytest.fixture(scope="module")
def classifier(trained: Path) -> TextClassifier:
    return TextClassifier.load(trained)


TEXTS = [text for _, text in reviews(50, 9)]


def test_it_answers_in_the_order_asked_whatever_the_batches(
    classifier: TextClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = np.concatenate([classifier.probabilities([text]) for text in TEXTS])
    assert classifier.probabilities(TEXTS) == pytest.approx(alone, abs=1e-6)
    monkeypatch.setattr(module, "CHUNK", 7)
    monkeypatch.setitem(inference.TOKENS, "cpu", 40)
    assert classifier.probabilities(TEXTS) == pytest.approx(alone, abs=1e-6)
    answers = classifier.predict(TEXTS)
    assert [list(answer.probabilities.values()) for answer in answers] == [
        pytest.approx(row, abs=1e-6) for row in alone
    ]
    assert [answer.label for answer in answers] == [classifier.class_names[k] for k in alone.argmax(1)]


def test_it_is_right(classifier: TextClassifier) -> None:
    truth = [label for label, _ in reviews(50, 9)]
    assert (
        np.mean([answer.label == label for answer, label in zip(classifier.predict(TEXTS), truth, strict=True)]) > 0.9
    )
    assert FromTheTop is TextClassifier


def test_a_stream_reads_no_more_than_it_needs(classifier: TextClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 4)
    read: list[str] = []

    def endless() -> Any:
        while True:
            read.append("a witty tale")
            yield read[-1]

    answers = classifier.stream(endless())
    next(answers)
    assert len(read) == 4


def test_unsure_answers_have_no_label(classifier: TextClassifier) -> None:
    every = classifier.predict(TEXTS)
    limit = float(np.median([max(answer.probabilities.values()) for answer in every]))
    some = classifier.predict(TEXTS, abstain_below=limit)
    for before, after in zip(every, some, strict=True):
        sure = max(before.probabilities.values()) >= limit
        assert after.label == (before.label if sure else None)
        assert after.best == before.label
        assert after.probabilities == before.probabilities
    assert any(answer.label is None for answer in some)


def test_the_temperature_that_training_found_is_used(trained: Path, classifier: TextClassifier) -> None:
    result = json.loads((trained / "result.json").read_text())
    assert classifier.temperature == result["temperature"] != 1.0
    rows = [row for row in pq.read_table(trained / "predictions.parquet").to_pylist() if row["split"] == "valid"]
    raw = np.log([[row["probability:neg"], row["probability:pos"]] for row in rows])
    labels = np.array([["neg", "pos"].index(row["label"]) for row in rows])
    assert fit_temperature(raw, labels) == pytest.approx(classifier.temperature)
    calm = classifier.probabilities([row["text"] for row in rows])
    assert calm == pytest.approx(calibrated(raw, classifier.temperature), abs=1e-5)
    # It lowers the loss on the rows that it was fitted to, as these count.
    n = len(rows)
    aim = np.full((n, 2), 0.5 / (n + 2))
    aim[np.arange(n), labels] += 1 - 1 / (n + 2)
    assert -(aim * np.log(calm)).sum() < -(aim * raw).sum()


@given(st.integers(2, 5), st.floats(0.3, 5.0), st.integers(0, 100))
def test_a_known_temperature_is_found_again(classes: int, truth: float, seed: int) -> None:
    """Labels drawn at one temperature, logits told at another: the ratio comes back, as near as 4,000 rows allow."""
    draw = np.random.default_rng(seed)
    logits = draw.normal(size=(4000, classes)) * 2
    chances = calibrated(logits, 1.0)
    labels = (chances.cumsum(1) > draw.random((4000, 1))).argmax(1)
    told = logits * truth
    told -= np.log(np.exp(told).sum(1, keepdims=True))
    assert fit_temperature(told, labels) == pytest.approx(truth, rel=0.15)


def test_a_set_without_a_mistake_asks_for_no_certainty() -> None:
    rows = np.log(np.array([[0.8, 0.2]] * 10))
    found = calibrated(rows, fit_temperature(rows, np.zeros(10, dtype=np.int64)))
    assert found[0, 0] == pytest.approx(1 - 1 / 12 / 2, abs=1e-3)  # the share that the right class counts for


def test_pairs_empty_texts_and_long_ones(classifier: TextClassifier) -> None:
    answers = classifier.predict(["", ("witty", "dull"), "dull " * 500, "\U0001f600 ﷽"])
    assert all(sum(answer.probabilities.values()) == pytest.approx(1.0) for answer in answers)
    assert classifier.predict([]) == []
    assert classifier.probabilities([]).shape == (0, 2)


def test_the_temperature_survives_a_folder_and_a_bad_one_is_refused(trained: Path, tmp_path: Path) -> None:
    checkpoint = load(trained)
    save(Checkpoint(checkpoint.model, checkpoint.class_names, checkpoint.tokenizer, 2.5), tmp_path / "m")
    assert load(tmp_path / "m").temperature == 2.5
    config = (tmp_path / "m" / "config.json").read_text()
    (tmp_path / "m" / "config.json").write_text(config.replace('"temperature": 2.5', '"temperature": 0'))
    with pytest.raises(HeadstartError, match=r"'temperature' is 0, expected a number from 0\.001 to 1000"):
        load(tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text(config.replace(',\n  "temperature": 2.5', ""))
    assert load(tmp_path / "m").temperature == 1.0  # a folder from before there was one


def test_what_is_no_classifier_says_so(base: Path, trained: Path, tmp_path: Path, classifier: TextClassifier) -> None:
    with pytest.raises(ModelError, match=r"is a masked model, and no classifier: `headstart finetune`"):
        TextClassifier.load(base)
    save(Checkpoint(load(trained).model), tmp_path / "bare")
    with pytest.raises(ModelError, match="has no tokenizer"):
        TextClassifier.load(tmp_path / "bare")
    with pytest.raises(ConfigError, match=r"abstain_below is 2, and must be from 0 to 1"):
        classifier.predict(["a"], abstain_below=2)
    with pytest.raises(ConfigError, match=r"text 2 is 3, expected a string"):
        classifier.predict(["a", 3])  # type: ignore[list-item]


def test_labels_without_names_are_numbers(trained: Path) -> None:
    checkpoint = load(trained)
    assert TextClassifier(Checkpoint(checkpoint.model, (), checkpoint.tokenizer)).class_names == ("0", "1")


def test_predicting_changes_nothing(classifier: TextClassifier) -> None:
    before = [p.clone() for p in classifier.model.parameters()]
    classifier.predict(TEXTS)
    assert all(torch.equal(a, b) for a, b in zip(before, classifier.model.parameters(), strict=True))
    assert not classifier.model.training


def test_no_answer_is_made_of_scores_that_are_no_numbers(trained: Path, tmp_path: Path) -> None:
    """Weights that are numbers, and so large that what they give is none."""
    checkpoint = load(trained)
    head = checkpoint.model.head
    assert isinstance(head, ClassifierHead)
    head.out.weight.data.fill_(3e38)
    save(checkpoint, tmp_path / "m")
    classifier = TextClassifier.load(tmp_path / "m")
    rows = tuple(Example(text, label, None, "made", n) for n, (label, text) in enumerate(reviews(4, 9)))
    served = ServedClassifier("m", classifier)
    for answer in (
        lambda: classifier.predict(TEXTS[:2]),
        lambda: classifier.evaluate(Examples(rows)),
        lambda: explain(classifier, TEXTS[0]),
        lambda: served.probabilities(classifier.encode(TEXTS[:2])),
        lambda: export(tmp_path / "m", tmp_path / "out", "onnx", valid=Examples(rows)),
    ):
        with pytest.raises(NotFinite, match="no finite numbers"):
            answer()
    assert not (tmp_path / "out").exists()
