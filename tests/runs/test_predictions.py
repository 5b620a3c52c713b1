from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headstart.errors import DataError
from headstart.runs.predictions import Predictions, ScoredText, read_correct, read_predictions, read_scored

EXAMPLES = {
    "train": [ScoredText("unused", None, "no", "t.csv", 2)],
    "valid": [ScoredText("a", None, "no", "v.csv", 2), ScoredText("b", "second", "yes", "v.csv", 3)],
    "test": [ScoredText("c", None, "yes", "w.csv", 2)],
}
PROBABILITIES = {"valid": np.array([[0.9, 0.1], [0.6, 0.4]]), "test": np.array([[0.2, 0.8]])}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    logarithms = {name: np.log(rows) for name, rows in PROBABILITIES.items()}
    Predictions.of(("no", "yes"), EXAMPLES, logarithms).write(tmp_path / "predictions.parquet")
    return tmp_path / "predictions.parquet"


def test_predictions_are_read_back_by_split(path: Path) -> None:
    predictions = read_predictions(path)
    assert predictions.class_names == ("no", "yes") and len(predictions) == 3
    valid = predictions.split("valid")
    assert valid.texts == ["a", "b"] and valid.labels.tolist() == [0, 1]
    np.testing.assert_allclose(valid.probabilities, PROBABILITIES["valid"], rtol=1e-15)
    assert valid.examples(np.array([1])) == [EXAMPLES["valid"][1]]


def test_the_classes_may_be_given_in_another_order(path: Path) -> None:
    test = read_predictions(path, ("yes", "no")).split("test")
    assert test.labels.tolist() == [0]
    np.testing.assert_allclose(test.probabilities, [[0.8, 0.2]], rtol=1e-15)


def test_what_was_read_can_be_written_again(path: Path, tmp_path: Path) -> None:
    read_predictions(path).write(tmp_path / "again.parquet")
    assert (tmp_path / "again.parquet").read_bytes() == path.read_bytes()


def test_texts_and_correct_answers_without_the_probabilities(path: Path, tmp_path: Path) -> None:
    assert read_scored(path, "valid") == EXAMPLES["valid"]
    correct = read_correct(path, "valid")
    assert correct is not None and correct.tolist() == [True, False]
    assert read_correct(tmp_path / "missing.parquet", "valid") is None


def test_files_that_are_no_predictions(path: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="predictions for the classes no, maybe"):
        read_predictions(path, ("no", "maybe"))
    (tmp_path / "text.parquet").write_text("no table")
    for read in (read_predictions, lambda path: read_scored(path, "valid")):
        with pytest.raises(DataError, match="does not hold the predictions"):
            read(tmp_path / "text.parquet")


def test_a_small_file_that_unpacks_to_gigabytes_is_refused(path: Path) -> None:
    """One text in a dictionary, and a run of its number."""
    rows = 3000
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["a" * (2 << 20)]))
    names = ["split", "row", "path", "line", "second", "label", "predicted"]
    table = pa.table({"text": texts} | {name: ["valid"] * rows for name in names})
    pq.write_table(table, path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 10_000
    for read in (read_predictions, lambda path: read_scored(path, "valid")):
        with pytest.raises(DataError, match="it unpacks to more than"):
            read(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "predictions.parquet")
    with pytest.raises(DataError, match="expected a regular file"):
        read_scored(tmp_path / "predictions.parquet", "valid")


def test_columns_that_are_missing(path: Path) -> None:
    pq.write_table(pa.table({"label": ["a"], "split": ["valid"]}), path)
    with pytest.raises(DataError, match="does not hold the predictions"):
        read_scored(path, "valid")
    assert read_correct(path, "valid") is None
