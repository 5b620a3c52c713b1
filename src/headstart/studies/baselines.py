"""The baselines of every comparison: the most frequent class, and a linear model on n-grams.

majority  every row gets the shares of the classes in train
tfidf     logistic regression on TF-IDF of word n-grams (1 and 2) and character n-grams (2 to 5); valid chooses C
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headstart.metrics import Floats, score
from headstart.reading.examples import Examples
from headstart.runs.predictions import Predictions
from headstart.studies.fingerprints import split_fingerprints
from headstart.studies.splits import draw_budget
from headstart.training.driver import open_run

Kind = Literal["majority", "tfidf"]
KINDS: tuple[Kind, ...] = ("majority", "tfidf")
INVERSE_REGULARISATION = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)  # C of the logistic regression


def baseline(
    kind: Kind, splits: Mapping[str, Examples], settings: Mapping[str, Any], out: str | Path
) -> dict[str, Any]:
    """Fit it, write a run folder without a model, and return what `result.json` holds.

    `settings` name the files of the splits, and may hold a label budget, `labels`, with the `seed` that draws it.
    """
    with open_run(out, "baseline", {"kind": kind, **settings}, resume=True) as run:
        if run.done:
            return run.result_json()
        class_names = splits["train"].class_names
        if "labels" in settings:
            splits = {**splits, "train": draw_budget(splits["train"], settings["labels"], settings["seed"])}
        labels = {name: _class_ids(part, class_names) for name, part in splits.items()}
        chosen: dict[str, Any] = {}
        if kind == "majority":
            predicted = _majority(labels, len(class_names))
        else:
            predicted, chosen = _tfidf(splits, labels)
        result: dict[str, Any] = {name: score(rows, labels[name]) for name, rows in predicted.items()}
        result |= {
            "mode": "baseline",
            "kind": kind,
            "labels": list(class_names),
            "rows": {name: len(part.rows) for name, part in splits.items()},
            **chosen,
        }
        rows = {name: part.rows for name, part in splits.items()}
        fingerprints = {"data": split_fingerprints(splits)}
        run.finish(None, result, fingerprints, Predictions.of(class_names, rows, predicted))
        return result


def _class_ids(part: Examples, class_names: tuple[str, ...]) -> NDArray[np.int64]:
    return np.array([class_names.index(str(row.label)) for row in part.rows], dtype=np.int64)


def _majority(labels: Mapping[str, NDArray[np.int64]], classes: int) -> dict[str, Floats]:
    shares = np.log(np.bincount(labels["train"], minlength=classes) / len(labels["train"]))
    return {name: np.tile(shares, (len(ids), 1)) for name, ids in labels.items() if name != "train"}


def _tfidf(
    splits: Mapping[str, Examples], labels: Mapping[str, NDArray[np.int64]]
) -> tuple[dict[str, Floats], dict[str, Any]]:
    """Log-probabilities for valid and test; of equal accuracies on valid, the C with the least loss."""
    from sklearn.linear_model import LogisticRegression

    features = _features(splits)
    fits = []
    for c in INVERSE_REGULARISATION:
        model = LogisticRegression(C=c, max_iter=1000).fit(features["train"], labels["train"])
        scores = score(_log(model.predict_proba(features["valid"])), labels["valid"])
        fits.append((-scores["accuracy"], scores["loss"], c, model))
    *_, c, model = min(fits, key=lambda fit: fit[:3])
    predicted = {name: _log(model.predict_proba(rows)) for name, rows in features.items() if name != "train"}
    return predicted, {"strength": c, "features": int(features["train"].shape[1])}


def _features(splits: Mapping[str, Examples]) -> dict[str, Any]:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_union

    texts = {name: [row.content for row in part.rows] for name, part in splits.items()}
    words = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\w+|[^\w\s]", sublinear_tf=True, dtype=np.float32)
    letters = TfidfVectorizer(analyzer="char", ngram_range=(2, 5), sublinear_tf=True, dtype=np.float32)
    union = make_union(words, letters).fit(texts["train"])
    return {name: union.transform(part) for name, part in texts.items()}


def _log(probabilities: Floats) -> Floats:
    return np.log(np.maximum(probabilities.astype(np.float64), 1e-300))
