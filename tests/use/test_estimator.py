from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks

from headstart import HeadstartClassifier
from headstart.errors import ConfigError
from tests.studies.example_data import reviews

ROWS = reviews(90, 6)
TEXTS, LABELS = [text for _, text in ROWS], [label for label, _ in ROWS]


def made(base: Path, **changes: Any) -> HeadstartClassifier:
    return HeadstartClassifier(base=str(base), **{"epochs": 6, "lr": 5e-3, **changes})


@pytest.fixture(scope="module")
def fitted(base: Path) -> HeadstartClassifier:
    return made(base).fit(TEXTS, LABELS)


def test_it_fits_and_answers(fitted: HeadstartClassifier) -> None:
    other = reviews(40, 77)
    assert fitted.score([text for _, text in other], [label for label, _ in other]) > 0.9
    assert fitted.classes_.tolist() == ["neg", "pos"]
    chances = fitted.predict_proba(TEXTS[:7])
    assert chances.shape == (7, 2)
    assert chances.sum(1) == pytest.approx(np.ones(7))
    assert fitted.predict(TEXTS[:7]).tolist() == fitted.classes_[chances.argmax(1)].tolist()


@pytest.mark.parametrize(
    "labels", [[3 + 4 * (label == "pos") for label in LABELS], [label == "pos" for label in LABELS]]
)
def test_labels_are_whatever_they_are(base: Path, labels: Any) -> None:
    model = made(base, epochs=1).fit(np.array(TEXTS, dtype=object), labels)
    assert set(model.predict(TEXTS).tolist()) <= set(np.asarray(labels).tolist())
    assert model.predict(TEXTS).dtype == np.asarray(labels).dtype


def test_the_same_twice_and_another_with_another_seed(base: Path, fitted: HeadstartClassifier) -> None:
    again = clone(fitted).fit(TEXTS, LABELS)
    assert np.array_equal(again.predict_proba(TEXTS), fitted.predict_proba(TEXTS))
    other = made(base, seed=1).fit(TEXTS, LABELS)
    assert not np.array_equal(other.predict_proba(TEXTS), fitted.predict_proba(TEXTS))


def test_a_preset_trains_its_own_tokenizer() -> None:
    sizes = {"epochs": 1, "settings": {"window": 16}}
    model = HeadstartClassifier("bert-tiny", **sizes).fit(TEXTS[:20], LABELS[:20])  # type: ignore[arg-type]
    assert model.predict(TEXTS[:3]).shape == (3,)


def test_valid_is_the_old_name_of_valid_share(base: Path) -> None:
    old, new = made(base, epochs=1, valid=0.4), made(base, epochs=1, valid_share=0.4)
    first, second = (model.fit(TEXTS, LABELS).classifier_.result for model in (old, new))
    assert first is not None and first.rows == {"train": 54, "valid": 36}
    assert first == second


def test_pairs(base: Path) -> None:
    model = made(base, epochs=1).fit([(text, "tale") for text in TEXTS], LABELS)
    assert model.predict(np.array([["witty", "dull"]])).shape == (1,)


def test_frozen_and_other_settings(base: Path) -> None:
    model = made(base, mode="frozen", epochs=1, settings={"dropout": 0.0}).fit(TEXTS, LABELS)
    assert model.predict(TEXTS[:2]).shape == (2,)
    with pytest.raises(ConfigError, match="did you mean 'dropout'"):
        made(base, settings={"dropuot": 0.0}).fit(TEXTS, LABELS)


def test_inside_scikit_learn(base: Path) -> None:
    model = made(base, epochs=2, mode="frozen")
    assert cross_val_score(model, TEXTS, LABELS, cv=2).shape == (2,)
    search = GridSearchCV(model, {"lr": [1e-3, 1e-2], "settings": [None, {"dropout": 0.0}]}, cv=2).fit(TEXTS, LABELS)
    assert search.best_params_.keys() == {"lr", "settings"}
    lower = FunctionTransformer(lambda texts: [text.lower() for text in texts])
    piped = make_pipeline(lower, model).fit([text.upper() for text in TEXTS], LABELS)
    assert piped.predict([TEXTS[0].upper()]).shape == (1,)


APPLICABLE = (
    "check_estimator_cloneable",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_estimator_repr",
    "check_no_attributes_set_in_init",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_mixin_order",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
)


@pytest.mark.parametrize("name", APPLICABLE)
def test_scikit_learns_own_checks_that_need_no_table_of_numbers(name: str) -> None:
    getattr(estimator_checks, name)("HeadstartClassifier", HeadstartClassifier())


def test_the_others_are_skipped_for_what_it_is() -> None:
    """scikit-learn feeds tables of numbers to its other checks, and knows by the tag that texts are wanted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checks = list(estimator_checks.estimator_checks_generator(HeadstartClassifier(), legacy=True))
    assert [check.func.__name__ for _, check in checks] == ["check_estimator_cloneable"]


def test_the_others_on_texts(base: Path, fitted: HeadstartClassifier) -> None:
    """What the skipped checks ask, asked with texts."""
    model = made(base, epochs=1)
    parameters = model.get_params()
    assert model.fit(TEXTS, LABELS) is model  # fit returns itself
    assert model.get_params() == parameters  # and leaves the parameters alone
    added = {name for name in vars(model) if name not in parameters}
    assert all(name.endswith("_") and not name.startswith("_") for name in added)
    state = {name: id(value) for name, value in vars(fitted).items()}
    whole = fitted.predict_proba(TEXTS)
    assert {name: id(value) for name, value in vars(fitted).items()} == state  # predicting changes nothing
    assert whole[::-1] == pytest.approx(fitted.predict_proba(TEXTS[::-1]), abs=1e-6)  # nor does order
    assert whole[:5] == pytest.approx(fitted.predict_proba(TEXTS[:5]), abs=1e-6)  # nor the rest of the set
    with pytest.raises(NotFittedError):
        made(base).predict(TEXTS)
    with pytest.raises(ValueError, match="requires y to be passed, but the target y is None"):
        made(base).fit(TEXTS, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        made(base).fit(TEXTS, LABELS[:-1])
    copy = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(copy.predict_proba(TEXTS), whole)


@pytest.mark.parametrize(
    ("texts", "labels", "changes", "words"),
    [
        ("one text", ["a"], {}, "a single string was given"),
        ([], [], {}, "there are none"),
        (["a", 3.5], ["a", "b"], {}, "text 2 is 3.5, expected a string"),
        (["a", "b"], ["x", "x"], {}, "all 2 labels are"),
        (["a", "b"], [["x", "y"], ["x", "z"]], {}, "2 dimensions"),
        (TEXTS, LABELS, {"valid_share": 1.5}, "valid_share is 1.5, and must be a share"),
        (TEXTS, LABELS, {"valid": 1.5}, "valid_share is 1.5, and must be a share"),
    ],
)
def test_bad_input(base: Path, texts: Any, labels: Any, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        made(base, **changes).fit(texts, labels)


def test_a_handful_of_texts_will_do(base: Path) -> None:
    model = made(base, epochs=1).fit(["witty", "dull", "bright"], ["a", "b", "a"])
    assert set(model.predict(["witty"])) <= {"a", "b"}


def test_someone_who_looks_on_sees_a_bar(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(base, epochs=1).fit(TEXTS, LABELS)
    assert capsys.readouterr().out == ""
    made(base, epochs=1, progress=True).fit(TEXTS, LABELS)
    assert "valid: accuracy " in capsys.readouterr().out
