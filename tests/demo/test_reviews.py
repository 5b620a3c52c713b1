"""The reviews that ship: balanced, clean, neither trivial nor hopeless."""

from __future__ import annotations

import csv
import re
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headstart.cli import app
from headstart.demo import REVIEWS, split_of
from headstart.reading.examples import read_examples
from headstart.studies.baselines import baseline

SPLITS = ("train", "valid", "test")


@pytest.fixture(scope="module")
def rows() -> dict[str, list[tuple[str, str]]]:
    found = {}
    for split in SPLITS:
        with (REVIEWS / f"{split}.csv").open(encoding="utf-8", newline="") as file:
            found[split] = [(row["label"], row["text"]) for row in csv.DictReader(file)]
    return found


def test_two_classes_of_the_same_size(rows: dict[str, list[tuple[str, str]]]) -> None:
    every = [row for split in SPLITS for row in rows[split]]
    assert len(every) >= 800
    assert Counter(label for label, _ in every) == {"positif": len(every) // 2, "négatif": len(every) // 2}
    for split in SPLITS:
        share = sum(label == "positif" for label, _ in rows[split]) / len(rows[split])
        assert 0.45 < share < 0.55


def test_each_is_one_line_of_15_to_60_words(rows: dict[str, list[tuple[str, str]]]) -> None:
    for split in SPLITS:
        for _, text in rows[split]:
            assert 15 <= len(text.split()) <= 60, text
            assert text == " ".join(text.split())


def test_its_own_text_decides_a_review_s_split(rows: dict[str, list[tuple[str, str]]]) -> None:
    for split in SPLITS:
        assert {split_of(text) for _, text in rows[split]} == {split}


def test_no_two_are_made_by_one_pattern(rows: dict[str, list[tuple[str, str]]]) -> None:
    """No ten words in a row stand in two of them, and few begin alike."""
    runs: Counter[str] = Counter()
    openings: Counter[str] = Counter()
    every = [text for split in SPLITS for _, text in rows[split]]
    for text in every:
        words = re.findall(r"\w+", text.lower())
        openings[" ".join(words[:3])] += 1
        runs.update({" ".join(words[i : i + 10]) for i in range(len(words) - 9)})
    assert [run for run, count in runs.items() if count > 1] == []
    assert openings.most_common(1)[0][1] <= 0.01 * len(every)


def test_length_does_not_tell_the_label(rows: dict[str, list[tuple[str, str]]]) -> None:
    means = {
        label: [len(text.split()) for split in SPLITS for its, text in rows[split] if its == label]
        for label in ("positif", "négatif")
    }
    lengths = [sum(each) / len(each) for each in means.values()]
    assert abs(lengths[0] - lengths[1]) < 1.5


def test_the_doctor_finds_nothing_wrong() -> None:
    files = [str(REVIEWS / "train.csv")]
    files += [part for split in SPLITS[1:] for part in (f"--{split}", str(REVIEWS / f"{split}.csv"))]
    done = CliRunner().invoke(app, ["doctor", *files])
    assert done.exit_code == 0
    assert "nothing found wrong" in done.output


def test_a_linear_model_finds_it_neither_trivial_nor_hopeless(tmp_path: Path) -> None:
    splits = {split: read_examples(str(REVIEWS / f"{split}.csv"), text="text", label="label") for split in SPLITS}
    result = baseline("tfidf", splits, {}, tmp_path / "run")
    assert 0.70 < result["test"]["accuracy"] < 0.92
