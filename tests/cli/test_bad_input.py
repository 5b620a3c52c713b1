"""Files that a user may well hand to `headstart compare`: what is said of them, in one line and before any training."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from headstart.reading.split import split_position
from headstart.studies import base_size
from headstart.studies.base_size import Size
from headstart.studies.compare import open_study
from headstart.studies.settings import CompareSettings
from tests.studies.example_data import corpus, make_tokenizer, reviews, write_reviews

from .command_line import Result, run

FRENCH = """
le la les un une des du et ou mais donc car ni que qui dont dans sur sous avec sans pour par chez entre maison jardin
fenêtre chemin rivière montagne cuisine lumière oiseau soleil nuage journée matinée soirée heureux heureuse grande
petite ancienne nouvelle verte blanche tranquille bruyante douce sévère regardait marchait chantait travaillait écoutait
pensait attendait trouvait donnait prenait disait
"""


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_size, "SIZES", (Size(64, 1, 64),))


def write_table(path: Path, header: list[str], rows: Iterable[Iterable[str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def tiny_preset(place: Path) -> list[str]:
    """One run from scratch, in a second."""
    make_tokenizer().save(place / "tokenizer")
    arms = ["--init", "bert-tiny", "--tokenizer", str(place / "tokenizer"), "--arms", "scratch"]
    return [*arms, "--seeds", "1", "--epochs", "1", "--tune", "none"]


def compare(data: Path, *more: str) -> Result:
    return run(
        "compare",
        str(data),
        "--device",
        "cpu",
        "--tune",
        "none",
        "--seeds",
        "1",
        "--out",
        str(data.parent / "s"),
        *more,
    )


def refused(data: Path, *more: str) -> str:
    """The line that it ends with; nothing was trained."""
    outcome = compare(data, *more)
    assert outcome.exit_code == 2, outcome.stderr
    assert not list((data.parent / "s").glob("runs/*"))
    return outcome.stderr.splitlines()[-1]


# Labels


def test_a_file_without_a_label_column_says_which_columns_there_are(tmp_path: Path) -> None:
    rows = [(text, str(i), "2026") for i, (_, text) in enumerate(reviews(60, 0))]
    said = refused(write_table(tmp_path / "a.csv", ["text", "number", "year"], rows))
    assert "which column is the label? There are: 'text', 'number', 'year'" in said
    assert "--label" in said
    said = refused(write_table(tmp_path / "b.csv", ["text"], ([text] for text, *_ in rows)))
    assert "which column is the label? There are: 'text'" in said
    assert "no column 'topic'" in refused(tmp_path / "a.csv", "--label", "topic")


def test_a_column_of_ids_is_no_label(tmp_path: Path) -> None:
    rows = [(text, f"id-{i}") for i, (_, text) in enumerate(reviews(60, 0))]
    said = refused(write_table(tmp_path / "a.csv", ["text", "number"], rows))
    assert "60 rows have 60 labels, and 60 of them stand in one row only (such as 'id-0')" in said
    assert "--label" in said


def rare_class(place: Path, text: str) -> Path:
    rows = [(text, label) for label, text in reviews(150, 0)]
    return write_table(place / "a.csv", ["text", "label"], [*rows, (text, "rare")])


def test_a_class_with_one_row_is_kept_in_train_and_said(tmp_path: Path) -> None:
    # Where its row would go by its content: to test, to train, to valid.
    for text, low, high in (("a", 0, 0.2), ("b", 0.2, 0.9), ("c", 0.9, 1)):
        text = next(f"{text} {i}" for i in range(1000) if low <= split_position(f"{text} {i}") < high)
        place = tmp_path / text.replace(" ", "-")
        place.mkdir()
        lines: list[str] = []
        settings = CompareSettings(data=str(rare_class(place, text)), seeds=1, arms="scratch", device="cpu")
        study = open_study(settings, place / "s", log=lines.append)
        in_train = [row.text for row in study.splits["train"].rows if row.label == "rare"]
        assert in_train == [text]
        assert all(row.label != "rare" for name in ("valid", "test") for row in study.splits[name].rows)
        said = [line for line in lines if "no score is of them: 'rare' (1 row)" in line]
        assert bool(said) == (low != 0.2)


def test_a_class_with_one_row_is_compared_to_the_end(tmp_path: Path) -> None:
    outcome = compare(rare_class(tmp_path, "z"), *tiny_preset(tmp_path))
    assert outcome.exit_code == 0, outcome.stderr
    assert "tfidf" in outcome.stdout


def test_more_classes_than_a_fold_has_rows(tmp_path: Path) -> None:
    draw = random.Random(0)
    rows = [(f"{text} {name}", f"class {name}") for name in range(40) for _, text in reviews(4, draw.randrange(10**6))]
    data = write_table(tmp_path / "a.csv", ["text", "label"], rows)
    assert "30 labels are fewer than the 40 classes" in refused(data, "--labels", "30")
    outcome = compare(data, *tiny_preset(tmp_path))
    assert outcome.exit_code == 0, outcome.stderr


# The pile


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    return write_reviews(tmp_path / "labels.txt", 200, 0)


def with_pile(labels: Path, pile: Path | str, *more: str) -> Result:
    quick = ["--seeds", "1", "--epochs", "1", "--arms", "frozen", "--tune", "none"]
    return compare(labels, "--pile", str(pile), *quick, *more)


def test_a_pile_that_cannot_be_read(labels: Path) -> None:
    empty, binary = labels.with_name("empty.txt"), labels.with_name("binary.txt")
    empty.write_text("\n\n  \n")
    binary.write_bytes(bytes(range(256)) * 40)
    labels.with_name("picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(200))
    for pile, problem in (
        (empty, "holds no text"),
        (binary, "binary.txt, line 1: "),
        (labels.with_name("picture.png"), "picture.png"),
        (labels.with_name("nowhere.txt"), "no such file"),
    ):
        outcome = with_pile(labels, pile)
        assert outcome.exit_code == 2, pile
        assert problem in outcome.stderr.splitlines()[-1], outcome.stderr
        assert not list(labels.parent.rglob("study.toml")), pile  # nothing half-written


def test_no_minutes_are_no_time(labels: Path) -> None:
    for minutes in ("0", "-3", "nan"):
        said = refused(labels, "--minutes", minutes)
        assert "minutes" in said
        assert "above 0" in said


def test_a_pile_in_another_language_is_reported(labels: Path) -> None:
    draw = random.Random(0)
    pile = labels.with_name("pile.txt")
    pile.write_text(
        "".join(" ".join(draw.choices(FRENCH.split(), k=12)) + ".\n" for _ in range(1500)), encoding="utf-8"
    )
    outcome = with_pile(labels, pile)
    assert outcome.exit_code == 0, outcome.stderr
    assert "the pile seems to be in another language than the labelled texts" in outcome.stderr
    assert "smaller than the labelled texts" not in outcome.stderr


def test_a_pile_smaller_than_the_labels_is_reported(labels: Path) -> None:
    pile = labels.with_name("pile.txt")
    pile.write_text("\n".join(corpus(20, 5)))
    outcome = with_pile(labels, pile)
    assert outcome.exit_code == 0, outcome.stderr
    assert "is smaller than the labelled texts" in outcome.stderr
    assert "another language" not in outcome.stderr


def test_the_labelled_file_as_its_own_pile(labels: Path) -> None:
    outcome = with_pile(labels, labels)
    assert outcome.exit_code == 0, outcome.stderr
    held_out = sum(int(line.split()[3]) for line in outcome.stderr.splitlines() if line.startswith("no "))
    assert f"pile: {200 - held_out} documents" in outcome.stderr
    assert f"{held_out} more hold a text of valid or test: left out" in outcome.stderr
    assert "is smaller than the labelled texts" in outcome.stderr


def test_a_pile_of_nothing_but_held_out_texts(labels: Path) -> None:
    test = write_reviews(labels.with_name("test.txt"), 40, 7)
    outcome = with_pile(labels, test, "--test", str(test))
    assert outcome.exit_code == 2
    assert "nothing is left to pretrain on: 40 documents" in outcome.stderr.splitlines()[-1]


# Unlabelled texts


def test_an_unlabelled_file_that_is_the_test_file_is_refused(tmp_path: Path) -> None:
    data, test = write_reviews(tmp_path / "train.txt", 60, 0), write_reviews(tmp_path / "test.txt", 30, 1)
    copy = tmp_path / "fresh.txt"
    copy.write_text(
        "\n".join(line.partition("|||")[2].upper() for line in test.read_text().splitlines()), encoding="utf-8"
    )
    said = refused(data, "--test", str(test), "--unlabelled", str(copy))
    assert "all of its 30 texts are in test, from which no model may learn" in said
    assert not (tmp_path / "s").exists()


def test_unlabelled_texts_where_nothing_can_learn_from_them(tmp_path: Path) -> None:
    data = write_reviews(tmp_path / "train.txt", 150, 0)
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(text for _, text in reviews(40, 2)), encoding="utf-8")
    said = refused(data, "--unlabelled", str(texts), *tiny_preset(tmp_path)[:6])
    assert "--unlabelled is for the arm full" in said
    assert "rounds is for unlabelled texts" in refused(data, "--rounds", "2")
    texts.write_text("\n", encoding="utf-8")
    assert "holds no text" in refused(data, "--unlabelled", str(texts))
