"""What a model has to beat: the commonest class, and a linear model on counts of words and letters.

majority  every row gets the shares of the classes in train
tfidf     logistic regression on TF-IDF of words (1 and 2 in a row) and characters (2 to 5); valid chooses its strength
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from headstart.metrics import Floats, score
from headstart.reading.examples import Examples
from headstart.runs.predictions import Predictions
from headstart.studies.fingerprints import split_fingerprints
from headstart.studies.splits import draw_budget
from headstart.training.driver import open_run

Kind = Literal["majority", "tfidf"]
KINDS: tuple[Kind, ...] = ("majority", "tfidf")
STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)  # C of the logistic regression: the larger, the freer


def baseline(
    kind: Kind, splits: Mapping[str, Examples], settings: Mapping[str, Any], out: str | Path
) -> dict[str, Any]:
    """Fit it, write a run folder without a model, and return what `result.json` holds.

    `settings` say what the splits were read from, and may hold `labels` and `seed`: a label budget.
    """
    with open_run(out, "baseline", {"kind": kind, **settings}, resume=True) as run:
        if run.done:
            return run.result_json()
        labels = splits["train"].class_names
        train = splits["train"]
        if "labels" in settings:
            train = draw_budget(train, settings["labels"], settings["seed"])
        splits = {**splits, "train": train}
        scored = {name: part for name, part in splits.items() if name != "train"}
        targets = {name: _targets(part, labels) for name, part in splits.items()}
        chosen: dict[str, Any] = {}
        if kind == "majority":
            predicted = _majority(scored, targets["train"], len(labels))
        else:
            predicted, chosen = _tfidf(splits, targets)
        result: dict[str, Any] = {name: score(rows, targets[name]) for name, rows in predicted.items()}
        result |= {
            "mode": "baseline",
            "kind": kind,
            "labels": list(labels),
            "rows": {name: len(part.rows) for name, part in splits.items()},
            **chosen,
        }
        texts = {name: part.rows for name, part in splits.items()}
        run.finish(None, result, {"data": split_fingerprints(splits)}, Predictions.of(labels, texts, predicted))
        return result


def _targets(part: Examples, labels: tuple[str, ...]) -> Any:
    return np.array([labels.index(str(row.label)) for row in part.rows], dtype=np.int64)


def _majority(scored: Mapping[str, Examples], train: Any, classes: int) -> dict[str, Floats]:
    shares = np.log(np.bincount(train, minlength=classes) / len(train))
    return {name: np.tile(shares, (len(part.rows), 1)) for name, part in scored.items()}


def _tfidf(splits: Mapping[str, Examples], targets: Mapping[str, Any]) -> tuple[dict[str, Floats], dict[str, Any]]:
    """Log-probabilities for valid and test; of strengths that do equally well on valid, the one with the least loss."""
    from sklearn.linear_model import LogisticRegression

    counted = _counts(splits)
    fits = []
    for strength in STRENGTHS:
        model = LogisticRegression(C=strength, max_iter=1000).fit(counted["train"], targets["train"])
        scores = score(_log(model.predict_proba(counted["valid"])), targets["valid"])
        fits.append((-scores["accuracy"], scores["loss"], strength, model))
    *_, strength, model = min(fits, key=lambda fit: fit[:3])
    predicted = {name: _log(model.predict_proba(rows)) for name, rows in counted.items() if name != "train"}
    return predicted, {"strength": strength, "features": int(counted["train"].shape[1])}


def _counts(splits: Mapping[str, Examples]) -> dict[str, Any]:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_union

    texts = {name: [row.content for row in part.rows] for name, part in splits.items()}
    words = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\w+|[^\w\s]", sublinear_tf=True, dtype=np.float32)
    letters = TfidfVectorizer(analyzer="char", ngram_range=(2, 5), sublinear_tf=True, dtype=np.float32)
    union = make_union(words, letters).fit(texts["train"])
    return {name: union.transform(part) for name, part in texts.items()}


def _log(probabilities: Floats) -> Floats:
    return np.log(np.maximum(probabilities.astype(np.float64), 1e-300))
