"""The answers that ship: what DATASHEET.md says of them is so, and tools/debat.py makes them again."""

from __future__ import annotations

import csv
import doctest
import importlib
import lzma
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headstart.demo import DEBAT
from headstart.doctor.examine import examine
from headstart.doctor.near_duplicates import words
from headstart.reading.examples import Examples, read_examples
from headstart.studies.baselines import baseline

ROOT = Path(__file__).parents[2]
SPLITS = ("train", "valid", "test")
SHARED = ROOT.parent / "shared" / "data"


@pytest.fixture(scope="module")
def splits() -> dict[str, Examples]:
    return {split: read_examples(DEBAT / f"{split}.csv", text="text", label="label") for split in SPLITS}


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("debat")


@pytest.fixture(scope="module")
def datasheet() -> str:
    return (DEBAT / "DATASHEET.md").read_text(encoding="utf-8")


def test_the_datasheet_names_labels_source_and_licence(splits: dict[str, Examples], datasheet: str) -> None:
    listed = set(re.findall(r"^\| `(\w+)` \|", datasheet, flags=re.MULTILINE))
    assert len(listed) == 12
    for split in SPLITS:
        assert {row.label for row in splits[split].rows} == listed
    for said in ("Grand Débat national", "data.gouv.fr", "2019", "Licence Ouverte 2.0", "**Not good for**"):
        assert said in datasheet


def test_every_label_has_nearly_as_many_answers(splits: dict[str, Examples]) -> None:
    for split in SPLITS:
        counts = Counter(row.label for row in splits[split].rows)
        assert max(counts.values()) <= 1.1 * min(counts.values())


def test_the_datasheet_has_rows_and_digests(datasheet: str, tool: Any) -> None:
    assert tool.files_table(DEBAT) in datasheet


def test_the_doctor_finds_nothing_wrong(splits: dict[str, Examples]) -> None:
    assert examine(splits["train"], splits["valid"], splits["test"]).findings == ()


def test_no_way_to_reach_anyone(splits: dict[str, Examples], tool: Any) -> None:
    assert [row.text for split in SPLITS for row in splits[split].rows if tool.has_contact(row.text)] == []


def test_no_ten_words_in_a_row_stand_in_two_splits(splits: dict[str, Examples]) -> None:
    def runs(split: str) -> set[tuple[str, ...]]:
        texts = [tuple(words(row.text)) for row in splits[split].rows]
        return {text[i : i + 10] for text in texts for i in range(len(text) - 9)}

    train, valid, test = map(runs, SPLITS)
    assert (train & test, train & valid, valid & test) == (set(), set(), set())


def test_a_linear_model_finds_it_neither_trivial_nor_hopeless(splits: dict[str, Examples], tmp_path: Path) -> None:
    some = splits | {"train": Examples(splits["train"].rows[:600])}
    assert 0.7 < baseline("tfidf", some, {}, tmp_path / "run")["test"]["accuracy"] < 0.95


# --- tools/debat.py ---


def test_the_examples_of_the_tool(tool: Any) -> None:
    outcome = doctest.testmod(tool, verbose=False)
    assert (outcome.attempted > 0, outcome.failed) == (True, 0)


def test_what_is_dropped(tool: Any, tmp_path: Path) -> None:
    wishes = "des trains, une gare et un bus qui passent le dimanche"
    rows = {
        "train": [
            ("elus", "Écouter les maires des petites communes."),
            ("elus", "écouter les maires des petites communes"),  # twice
            ("sante", "Les médecins manquent à la campagne."),  # also in test
            ("impots", "Écrivez-moi: jean@exemple.fr"),
        ],
        "valid": [("transports", f"Je voudrais {wishes}, merci."), ("elus", "Un référendum par an suffirait.")],
        "test": [
            ("sante", "Les médecins manquent à la campagne."),
            ("elus", "Moins de députés"),
            ("elus", "Députés, moins de"),
        ],
    }
    for split, answers in rows.items():
        with (tmp_path / f"{split}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("label", "text"), *answers])
    pile = [f"Chez nous, {wishes} !", "Oui: moins de députés, et vite."]
    kept, dropped = tool.subset(tmp_path, pile)
    assert {split: [(row.label, row.text) for row in kept[split]] for split in SPLITS} == {
        "train": [("élus", "Écouter les maires des petites communes.")],
        "valid": [("élus", "Un référendum par an suffirait.")],
        "test": [("santé", "Les médecins manquent à la campagne."), ("élus", "Députés, moins de")],
    }
    assert {split: sum(dropped[split].values()) for split in SPLITS} == {"train": 3, "valid": 1, "test": 1}


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the raw set and the pretraining text in ../shared/data")
def test_the_tool_makes_what_ships(tool: Any, tmp_path: Path, datasheet: str) -> None:
    with lzma.open(SHARED / "corpora" / "fr-granddebat.txt.xz", "rt", encoding="utf-8") as pile:
        kept, dropped = tool.subset(SHARED / "granddebat-topics", pile)
    tool.write(kept, tmp_path)
    for split in SPLITS:
        assert (tmp_path / f"{split}.csv").read_bytes() == (DEBAT / f"{split}.csv").read_bytes()
    assert tool.dropped_table(dropped) in datasheet
