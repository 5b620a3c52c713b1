"""Folds: every text is scored once, copies stay together, and small classes are never missing from train."""

from __future__ import annotations

import random

from headstart.reading.examples import Example, Examples
from headstart.studies.folds import ENOUGH, FOLDS, choose_folds


def examples(labels: str, prefix: str = "text") -> Examples:
    return Examples(tuple(Example(f"{prefix} {i}", label, None, "made up", i) for i, label in enumerate(labels)))


def test_every_text_is_scored_once_and_never_trained_on_in_its_fold() -> None:
    train, valid = examples("ab" * 40), examples("ab" * 10, "other")
    folds = choose_folds(train, valid)
    assert len(folds) == FOLDS
    scored = [row for fold in folds for row in fold.valid.rows]
    assert sorted(row.text for row in scored) == sorted(row.text for row in (*train.rows, *valid.rows))
    for fold in folds:
        assert not {row.text for row in fold.train.rows} & {row.text for row in fold.valid.rows}
        assert [row.label for row in fold.valid.rows].count("a") == 10


def test_a_large_valid_is_used_as_it_is() -> None:
    train, valid = examples("ab" * 40), examples("ab" * (ENOUGH // 2), "other")
    (only,) = choose_folds(train, valid)
    assert only.valid is valid
    assert only.train is train


def test_a_valid_that_is_larger_than_train_is_used_as_it_is() -> None:
    """Settings for a label budget of 20 are chosen with models of 20 labels."""
    (only,) = choose_folds(examples("ab" * 10), examples("ab" * 11, "other"))
    assert (len(only.train.rows), len(only.valid.rows)) == (20, 22)


def test_copies_of_a_text_stay_in_one_fold() -> None:
    train = examples("ab" * 30)
    copies = Examples(tuple(Example(row.text.upper(), row.label, None, "copy", i) for i, row in enumerate(train.rows)))
    for fold in choose_folds(train, copies):
        assert not {row.text.lower() for row in fold.train.rows} & {row.text.lower() for row in fold.valid.rows}


def test_a_class_with_one_text_is_trained_on_and_never_scored() -> None:
    for fold in choose_folds(examples("ab" * 20 + "c"), examples("ab" * 5, "other")):
        assert "c" in fold.train.class_names
        assert "c" not in fold.valid.class_names


def test_more_classes_than_a_fold_can_hold() -> None:
    labels = "abcdefghijklmnopqrstuvwxyz" * 2
    folds = choose_folds(examples(labels), examples("", "other"))
    assert sum(len(fold.valid.rows) for fold in folds) == len(labels)
    assert all(len(fold.train.class_names) == 26 for fold in folds)
    assert max(len(fold.valid.rows) for fold in folds) - min(len(fold.valid.rows) for fold in folds) <= 1


def test_the_order_of_rows_has_no_say() -> None:
    train = examples("abc" * 30)
    shuffled = Examples(tuple(random.Random(1).sample(train.rows, len(train.rows))))
    before, after = (choose_folds(each, examples("abc", "other")) for each in (train, shuffled))
    assert [{row.text for row in fold.valid.rows} for fold in before] == [
        {row.text for row in fold.valid.rows} for fold in after
    ]
