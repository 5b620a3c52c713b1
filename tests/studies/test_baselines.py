from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from headstart.metrics import score
from headstart.reading.examples import Example, Examples
from headstart.runs.tuning import ArmTuning
from headstart.studies import baselines, linear, row_space
from headstart.studies.baselines import baseline
from headstart.studies.contrasts import NOT_USED
from headstart.studies.linear_model import LinearModel
from headstart.studies.settings import FinetuneSettings
from headstart.studies.splits import read_splits
from headstart.studies.tfidf import CUT_SHORT, NGRAMS, TfidfSearch, Weighting, count_ngrams
from tests.studies.example_data import reviews


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
    tuning = ArmTuning.from_json(result["tuning"])
    assert tuning.best is not None
    assert result["strength"] == tuning.chosen["strength"] in linear.STRENGTHS
    assert {each.settings["ngrams"] for each in tuning.tried} == NGRAMS.keys()
    assert result["cost"]["predict_seconds"] > 0
    assert result["cost"]["bytes"] > 4 * result["features"]
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


KNOWN = {"pos": ["fine", "grand"], "neg": ["dull", "bland"]}
OTHERS = {"pos": ["witty", "deft", "warm", "bright"], "neg": ["stale", "grim", "flat", "limp"]}


def opinions(count: int, seed: int, *words: dict[str, list[str]]) -> list[tuple[str, str]]:
    """A word of each list for a text of each mood."""
    draw = random.Random(seed)
    moods = ("pos", "neg")
    return [(mood, " ".join(draw.choice(each[mood]) for each in words)) for _ in range(count) for mood in moods]


@pytest.fixture
def little_known() -> tuple[dict[str, Examples], Examples]:
    """Labelled texts hold two words of each mood; in unlabelled ones these stand beside others."""
    splits = {
        "train": examples(opinions(6, 0, KNOWN, KNOWN)),
        "valid": examples([*opinions(10, 1, KNOWN, OTHERS), *opinions(10, 2, OTHERS, OTHERS)]),
        "test": examples(opinions(100, 3, OTHERS, OTHERS)),
    }
    rows = (*examples(opinions(200, 4, KNOWN, OTHERS)).rows, *splits["train"].rows)
    return splits, Examples(tuple(replace(row, label=None) for row in rows))


def test_the_linear_model_learns_from_texts_without_labels(
    little_known: tuple[dict[str, Examples], Examples], tmp_path: Path
) -> None:
    splits, unlabelled = little_known
    alone = baseline("tfidf", splits, {}, tmp_path / "alone")
    result = baseline("tfidf+self", splits, {}, tmp_path / "run", unlabelled=unlabelled, keep_model=True)
    assert alone["test"]["accuracy"] < 0.7
    assert result["test"]["accuracy"] > 0.95
    assert result["rows"] == {"train": 12, "valid": 40, "test": 200}
    known = {row.text for row in splits["train"].rows}
    assert result["self_training"]["texts"] == sum(row.text not in known for row in unlabelled.rows)
    assert result["self_training"]["used"]
    fingerprints = json.loads((tmp_path / "run" / "manifest.json").read_text())["data"]
    assert fingerprints.keys() == {"train", "valid", "test", "unlabelled"}
    kept = LinearModel.load(tmp_path / "run" / "linear.safetensors")
    answers = kept.log_probabilities([row.content for row in splits["test"].rows]).argmax(1)
    right = [kept.class_names[k] == row.label for k, row in zip(answers, splits["test"].rows, strict=True)]
    assert np.mean(right) == result["test"]["accuracy"]


def test_what_the_self_trained_model_learns_does_not_hang_on_test(
    little_known: tuple[dict[str, Examples], Examples], tmp_path: Path
) -> None:
    splits, unlabelled = little_known
    other = {**splits, "test": examples([(label, "grim") for label in ("pos", "neg")])}
    results = [
        baseline("tfidf+self", parts, {}, tmp_path / str(k), unlabelled=unlabelled)
        for k, parts in enumerate((splits, other))
    ]
    assert results[0]["valid"] == results[1]["valid"]
    assert results[0]["strength"] == results[1]["strength"]


def test_labels_of_a_budget_and_refitting_go_with_unlabelled_texts(
    little_known: tuple[dict[str, Examples], Examples], tmp_path: Path
) -> None:
    splits, unlabelled = little_known
    drawn = baseline("tfidf+self", splits, {"labels": 4, "seed": 1}, tmp_path / "drawn", unlabelled=unlabelled)
    assert drawn["rows"]["train"] == 4
    refitted = baseline("tfidf+self", splits, {"refit": True}, tmp_path / "refit", unlabelled=unlabelled)
    plain = baseline("tfidf+self", splits, {}, tmp_path / "plain", unlabelled=unlabelled)
    assert refitted["valid"] == plain["valid"]  # held out all the same
    assert refitted["test"] != plain["test"]


def test_unlabelled_texts_that_are_all_in_train_change_nothing(
    little_known: tuple[dict[str, Examples], Examples], tmp_path: Path
) -> None:
    splits, _ = little_known
    alone = baseline("tfidf", splits, {}, tmp_path / "alone")
    result = baseline("tfidf+self", splits, {}, tmp_path / "run", unlabelled=splits["train"])
    assert result["self_training"] == {"texts": 0, "labels": 0, "used": False}
    assert result["valid"] == alone["valid"] and result["test"] == alone["test"]


@pytest.mark.parametrize("refit", [False, True])
def test_unlabelled_texts_of_another_kind_are_not_used(
    little_known: tuple[dict[str, Examples], Examples], tmp_path: Path, refit: bool
) -> None:
    """In these, what stands beside a known word is of the other mood. Valid shows it."""
    splits, _ = little_known
    contrary = {"pos": OTHERS["neg"], "neg": OTHERS["pos"]}
    rows = examples(opinions(200, 4, KNOWN, contrary, contrary)).rows
    unlabelled = Examples(tuple(replace(row, label=None) for row in rows))
    alone = baseline("tfidf", splits, {"refit": refit}, tmp_path / "alone")
    result = baseline("tfidf+self", splits, {"refit": refit}, tmp_path / "run", unlabelled=unlabelled)
    assert result["self_training"]["labels"] > 100 and not result["self_training"]["used"]
    assert result["tuning"]["notes"] == [NOT_USED]
    assert result["valid"] == alone["valid"] and result["test"] == alone["test"]


def test_unlabelled_texts_are_bounded_and_drawn_by_what_they_say(
    little_known: tuple[dict[str, Examples], Examples], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits, unlabelled = little_known
    monkeypatch.setattr(baselines, "MOST_CHARACTERS", 500)
    backwards = Examples(unlabelled.rows[::-1])
    results = [
        baseline("tfidf+self", splits, {}, tmp_path / str(k), unlabelled=texts)
        for k, texts in enumerate((unlabelled, backwards))
    ]
    assert 30 < results[0]["self_training"]["texts"] < 70
    assert results[0]["valid"] == results[1]["valid"]


@pytest.mark.parametrize("ngrams", NGRAMS)
def test_weights_from_counts_are_those_of_a_vectorizer_of_the_rows(ngrams: str) -> None:
    """The n-grams of all texts are counted once; a fold still knows nothing of texts that it does not train on."""
    texts = [text for _, text in reviews(40, 1)]
    vocabularies, counts = count_ngrams(texts)
    rows, others = np.arange(0, 40, 3), np.arange(1, 40, 3)
    weighting = Weighting(counts, ngrams, rows)
    own = {
        "words": TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\w+|[^\w\s]", sublinear_tf=True),
        "characters": TfidfVectorizer(analyzer="char", ngram_range=(2, 5), sublinear_tf=True),
    }
    for kind in NGRAMS[ngrams]:
        own[kind].fit([texts[row] for row in rows])
    for part in (rows, others):
        expected = []
        for kind, columns, _ in weighting.parts:
            order = [own[kind].vocabulary_[name] for name in vocabularies[kind].names[columns]]
            assert sorted(order) == list(range(len(own[kind].vocabulary_)))
            expected.append(own[kind].transform([texts[row] for row in part]).toarray()[:, order])
        np.testing.assert_allclose(weighting.apply(counts, part).toarray(), np.hstack(expected), atol=1e-6)


def test_a_large_strength_is_fitted_to_its_end_from_the_one_before() -> None:
    """A path from small to large gives the models that fitting each anew gives."""
    rows = reviews(120, 2)
    _, counts = count_ngrams([text for _, text in rows])
    labels = np.array([label == "pos" for label, _ in rows]).astype(np.int64)
    fold = TfidfSearch(counts, labels, 2).fold("words", np.arange(80), np.arange(80, 120))
    path = linear.try_strengths([fold], 1.0, {}, 2)
    anew = [linear.logistic_regression(balanced=False)]
    for attempt in path:
        alone = linear.try_strength([fold], anew, attempt.settings["strength"], {}, 2)
        anew = [linear.logistic_regression(balanced=False)]
        np.testing.assert_allclose(attempt.log_probabilities, alone.log_probabilities, rtol=0.05, atol=0.01)


@pytest.mark.parametrize("few_rows", [0, 3000])
def test_the_scores_of_a_search_are_those_of_the_optimum(few_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the features themselves and in the space of the rows: what regression at a tight tolerance gives."""
    monkeypatch.setattr(row_space, "FEW_ROWS", few_rows)
    rows = reviews(90, 2)
    _, counts = count_ngrams([text for _, text in rows])
    labels = np.arange(90) % 3
    folds = [(np.arange(30, 90), np.arange(30)), (np.arange(60), np.arange(60, 90))]
    chosen, tuning = TfidfSearch(counts, labels, 3).choose(folds, folds)
    ngrams = chosen.settings["ngrams"]
    for tried in (each for each in tuning.tried if each.settings["ngrams"] == ngrams):
        expected = []
        for train, valid in folds:
            weighting = Weighting(counts, ngrams, train)
            model = LogisticRegression(C=tried.settings["strength"], tol=1e-10, max_iter=10_000)
            model.fit(weighting.apply(counts, train).astype(np.float64), labels[train])
            expected.append(model.predict_log_proba(weighting.apply(counts, valid)))
        assert tried.loss == pytest.approx(
            score(np.concatenate(expected), labels[[*range(30), *range(60, 90)]])["loss"], rel=2e-3
        )


def test_a_search_ends_when_its_time_is_up(tmp_path: Path) -> None:
    """With one kind of n-grams and one strength, and it says so."""
    splits = {name: examples(reviews(count, seed)) for seed, (name, count) in enumerate(PARTS.items())}
    result = baseline("tfidf", splits, {}, tmp_path / "short", until=time.monotonic() - 1)
    assert [each["settings"]["ngrams"] for each in result["tuning"]["tried"]] == ["words", "words"]
    assert result["tuning"]["notes"] == [CUT_SHORT]
    assert result["test"]["accuracy"] > 0.5
    whole = baseline("tfidf", splits, {}, tmp_path / "whole")
    assert len(whole["tuning"]["tried"]) > 5
    assert whole["tuning"]["notes"] == []


def test_characters_are_chosen_where_they_know_more(tmp_path: Path) -> None:
    """Every word is new, and its ending says the class."""
    draw = random.Random(0)

    def word(label: str) -> str:
        return "".join(draw.choices("bcdfgklm", k=6)) + {"a": "on", "b": "it"}[label]

    parts = {name: [(label, word(label)) for label in "ab" * count] for name, count in PARTS.items()}
    result = baseline("tfidf", {name: examples(rows) for name, rows in parts.items()}, {}, tmp_path / "run")
    assert result["tuning"]["chosen"]["ngrams"] != "words"
    assert result["test"]["accuracy"] == 1.0
    assert {each["rows"] for each in result["tuning"]["tried"][3:]} == {90}  # held out once each, by the path of C


PARTS = {"train": 30, "valid": 15, "test": 10}


def test_refit_fits_on_valid_too_and_scores_it_held_out(tmp_path: Path) -> None:
    """What only valid has shows in test, and the score of valid stays that of a model of train."""
    splits = {
        "train": examples([("a", f"red {i}") for i in range(9)] + [("b", f"blue {i}") for i in range(9)]),
        "valid": examples([("a", "scarlet"), ("b", "navy"), ("b", "navy blue"), ("a", "scarlet red")]),
        "test": examples([("a", "scarlet scarlet"), ("b", "navy navy")] * 2),
    }
    plain, refit = (baseline("tfidf", splits, given, tmp_path / str(len(given))) for given in ({}, {"refit": True}))
    assert refit["tuning"]["chosen"] == plain["tuning"]["chosen"]
    assert refit["valid"] == plain["valid"]
    assert refit["test"]["loss"] < plain["test"]["loss"]
    assert refit["test"]["accuracy"] == 1.0
    assert refit["features"] > plain["features"]


def test_refit_counts_valid_for_the_majority(tmp_path: Path) -> None:
    refit = baseline("majority", SPLITS, {"refit": True}, tmp_path / "run")
    assert refit["test"]["loss"] == pytest.approx(-(3 * np.log(2 / 6) + np.log(4 / 6)) / 4)
    assert refit["valid"]["loss"] == pytest.approx(-(np.log(0.75) + np.log(0.25)) / 2)


def test_a_budget_trains_on_fewer(tmp_path: Path) -> None:
    result = baseline("majority", SPLITS, {"labels": 2, "seed": 0}, tmp_path / "run")
    assert result["rows"]["train"] == 2
    assert result["test"]["loss"] == pytest.approx(np.log(2))


def test_a_budget_chooses_on_valid_alone(tmp_path: Path) -> None:
    result = baseline("tfidf", SPLITS, {"labels": 2, "seed": 0}, tmp_path / "run")
    assert {each["rows"] for each in result["tuning"]["tried"]} == {2}


def test_cls_books_is_where_others_have_it(data: Path, tmp_path: Path) -> None:
    """TF-IDF and logistic regression with characters is reported at 0.853 there."""
    train, valid, test = (str(data / "cls-books" / f"{name}.review.spm") for name in ("train", "valid", "test"))
    splits = read_splits(FinetuneSettings(data=train, valid=valid, test=test, init="x"))
    assert baseline("tfidf", splits, {}, tmp_path / "run")["test"]["accuracy"] == pytest.approx(0.853, abs=0.01)
