from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from headstart.reading.examples import Example, Examples
from headstart.studies.baselines import INVERSE_REGULARISATION, baseline
from headstart.studies.settings import FinetuneSettings
from headstart.studies.splits import read_splits


def examples(rows: list[tuple[str, str]]) -> Examples:
    return Examples(tuple(Example(text, label, None, "made up", i) for i, (label, text) in enumerate(rows)))


SPLITS = {
    "train": examples([("a", "red"), ("a", "crimson red"), ("a", "dark red"), ("b", "blue")]),
    "valid": examples([("a", "red"), ("b", "blue")]),
    "test": examples([("b", "light blue"), ("a", "red red"), ("b", "blue and blue"), ("b", "blue")]),
}


def test_majority_answers_with_the_shares_of_train(tmp_path: Path) -> None:
    result = baseline("majority", SPLITS, {}, tmp_path / "run")
    assert result["test"]["accuracy"] == 0.25
    assert result["test"]["loss"] == pytest.approx(-(3 * np.log(0.25) + np.log(0.75)) / 4)
    table = pq.read_table(tmp_path / "run" / "predictions.parquet").to_pylist()
    assert {(row["probability:a"], row["probability:b"]) for row in table} == {(0.75, 0.25)}
    assert [row["split"] for row in table] == ["valid"] * 2 + ["test"] * 4


def test_tfidf_learns_and_says_what_it_chose(tmp_path: Path) -> None:
    result = baseline("tfidf", SPLITS, {}, tmp_path / "run")
    assert result["test"]["accuracy"] == 1.0
    assert result["strength"] in INVERSE_REGULARISATION
    assert result["rows"] == {"train": 4, "valid": 2, "test": 4}
    assert not (tmp_path / "run" / "model").exists()
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    # Done once is done: the folder answers, whatever the splits.
    assert baseline("tfidf", {}, {}, tmp_path / "run") == result


def test_the_strength_is_chosen_on_valid_alone(tmp_path: Path) -> None:
    other = {**SPLITS, "test": examples([("a", "blue"), ("b", "red")])}
    first = baseline("tfidf", SPLITS, {}, tmp_path / "one")
    second = baseline("tfidf", other, {}, tmp_path / "two")
    assert first["strength"] == second["strength"]
    assert second["test"]["accuracy"] == 0.0


def test_a_budget_trains_on_fewer(tmp_path: Path) -> None:
    result = baseline("majority", SPLITS, {"labels": 2, "seed": 0}, tmp_path / "run")
    assert result["rows"]["train"] == 2
    assert result["test"]["loss"] == pytest.approx(np.log(2))


def test_cls_books_is_where_others_have_it(data: Path, tmp_path: Path) -> None:
    """TF-IDF and logistic regression with characters is reported at 0.853 there."""
    train, valid, test = (str(data / "cls-books" / f"{name}.review.spm") for name in ("train", "valid", "test"))
    splits = read_splits(FinetuneSettings(data=train, valid=valid, test=test, init="x"))
    assert baseline("tfidf", splits, {}, tmp_path / "run")["test"]["accuracy"] == pytest.approx(0.853, abs=0.01)
