from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.errors import ConfigError, DataError
from headstart.reading.examples import Example, Examples
from headstart.studies.fingerprints import split_fingerprints
from headstart.studies.settings import FinetuneSettings
from headstart.studies.splits import draw_budget, read_splits
from tests.studies.example_data import write_reviews


def made(labels: str) -> Examples:
    return Examples(tuple(Example(f"text {i}", label, None, "made up", i) for i, label in enumerate(labels)))


@given(st.text("abc", min_size=3, max_size=60).filter(lambda text: len(set(text)) > 1), st.integers(0, 5), st.data())
def test_subsets_are_nested_balanced_and_in_order(labels: str, seed: int, data: Any) -> None:
    rows = made(labels)
    counts = st.integers(len(set(labels)), len(labels))
    few, many = sorted((data.draw(counts), data.draw(counts)))
    small, large = draw_budget(rows, few, seed), draw_budget(rows, many, seed)
    assert len(small.rows) == few
    assert set(small.rows) <= set(large.rows)
    assert [row.line for row in large.rows] == sorted(row.line for row in large.rows)
    have, had = Counter(row.label for row in large.rows), Counter(labels)
    # A class has fewer than another only where it has no more to give.
    most = max(have.values())
    assert all(have[label] >= most - 1 or have[label] == had[str(label)] for label in had)


def test_another_seed_draws_others_and_the_same_the_same() -> None:
    rows = made("ab" * 50)
    assert draw_budget(rows, 10, 0) == draw_budget(rows, 10, 0)
    assert draw_budget(rows, 10, 0) != draw_budget(rows, 10, 1)
    assert draw_budget(rows, 100, 7).rows == rows.rows


@pytest.mark.parametrize(
    ("count", "words"), [(101, "101 labels are asked for, and train has 100"), (1, "1 label is fewer than the 2")]
)
def test_too_many_and_too_few_labels(count: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        draw_budget(made("ab" * 50), count, 0)


def test_what_has_no_file_is_parted_from_train_by_content(tmp_path: Path) -> None:
    path = write_reviews(tmp_path / "all.txt", 300, 1)
    said: list[str] = []
    settings = FinetuneSettings(data=str(path), init="x", test_share=0.2)
    found = read_splits(settings, said.append)
    assert list(found) == ["train", "valid", "test"]
    assert sum(len(part.rows) for part in found.values()) == 300
    assert 40 < len(found["test"].rows) < 80
    assert said == [
        f"no valid file: {len(found['valid'].rows)} rows of the training file are kept aside to choose on",
        f"no test file: {len(found['test'].rows)} rows of the training file are kept aside as the test",
    ]
    # Valid is the same whether or not a test is parted too.
    assert read_splits(FinetuneSettings(data=str(path), init="x"))["valid"].rows == found["valid"].rows


def test_rows_that_cannot_be_read_are_left_out_where_asked(tmp_path: Path) -> None:
    train, valid = write_reviews(tmp_path / "train.txt", 20, 1), write_reviews(tmp_path / "valid.txt", 10, 2)
    for path, line in ((train, "no label here\n"), (valid, " ||| nor here\n")):
        path.write_text(line + path.read_text())
    settings = FinetuneSettings(data=str(train), valid=str(valid), init="x")
    with pytest.raises(DataError, match=r"train.txt, line 1: .*leave such rows out with --skip-bad"):
        read_splits(settings)
    said: list[str] = []
    found = read_splits(replace(settings, skip_bad=True), said.append)
    assert {name: len(part.rows) for name, part in found.items()} == {"train": 20, "valid": 10}
    assert said[0] == "left out 2, these:"
    assert [line.split(": ")[0] for line in said[1:]] == [f"  {train}, line 1", f"  {valid}, line 1"]


def test_one_class_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("a ||| x\na ||| y\n")
    with pytest.raises(DataError, match="all rows have the label 'a'"):
        read_splits(FinetuneSettings(data=str(tmp_path / "one.txt"), valid=str(tmp_path / "one.txt"), init="x"))


def test_the_fingerprint_is_of_what_is_said() -> None:
    rows = made("abab")
    moved = Examples(tuple(Example(row.text, row.label, None, "elsewhere", row.line + 1) for row in rows.rows))
    assert split_fingerprints({"train": rows}) == split_fingerprints({"train": moved})
    for other in ("abba", "aba"):
        assert split_fingerprints({"train": rows}) != split_fingerprints({"train": made(other)})
