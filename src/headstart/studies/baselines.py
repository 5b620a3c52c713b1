"""The baselines of every comparison: the most frequent class, and a linear model on n-grams.

majority    every row gets the shares of the classes in train
tfidf       logistic regression on TF-IDF; held-out texts choose the n-grams (words, characters, both) and the strength
tfidf+self  the same once more, on the unlabelled texts too, where the answer of `tfidf` to them is sure (self-training)
            unless that does worse on valid: then it is `tfidf`
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from headstart.metrics import Floats, score
from headstart.reading.examples import Examples
from headstart.reading.split import content_hash
from headstart.runs.predictions import Predictions
from headstart.runs.run import LINEAR
from headstart.studies.contrasts import NOT_USED, TFIDF_SELF_TRAINED
from headstart.studies.fingerprints import split_fingerprints
from headstart.studies.linear import Ints
from headstart.studies.linear_model import LinearModel
from headstart.studies.splits import draw_budget
from headstart.studies.tfidf import FittedTfidf, fit_tfidf
from headstart.studies.unlabelled import not_in, sure_answers
from headstart.training.driver import open_run

Kind = Literal["majority", "tfidf", "tfidf+self"]
CONFIDENCE = 0.5  # from which an answer becomes a label
MOST_CHARACTERS = 4_000_000  # of unlabelled texts: some twenty seconds, and a gigabyte for their n-grams


def baseline(
    kind: Kind,
    splits: Mapping[str, Examples],
    settings: Mapping[str, Any],
    out: str | Path,
    *,
    unlabelled: Examples | None = None,
    keep_model: bool = False,
    until: float = math.inf,
) -> dict[str, Any]:
    """Fit it, write a run folder (with the linear model, if `keep_model`), and return what `result.json` holds.

    `settings` name the files of the splits. They may hold a label budget, `labels`, with the `seed` that draws it; and
    `refit`, to fit what is tested on train and valid together. A search that is not over at `until`, on the clock
    `time.monotonic`, ends with the best so far.
    """
    with open_run(out, "baseline", {"kind": kind, **settings}, resume=True) as run:
        if run.done:
            return run.result_json()
        class_names = splits["train"].class_names
        if "labels" in settings:
            splits = {**splits, "train": draw_budget(splits["train"], settings["labels"], settings["seed"])}
        labels = {name: _class_ids(part, class_names) for name, part in splits.items()}
        if kind == "majority":
            predicted, own = _majority(labels, len(class_names), refit=settings.get("refit", False))
        else:
            more = None if unlabelled is None else _bounded(not_in(unlabelled, splits["train"]))
            model, predicted, own = _tfidf(splits, labels, len(class_names), settings, more, until)
            if keep_model:
                LinearModel.of(model, class_names).save(Path(out) / LINEAR)
        result: dict[str, Any] = {name: score(rows, labels[name]) for name, rows in predicted.items()}
        result |= {
            "mode": "baseline",
            "kind": kind,
            "labels": list(class_names),
            "rows": {name: len(part.rows) for name, part in splits.items()},
            **own,
        }
        rows = {name: part.rows for name, part in splits.items()}
        read = splits if unlabelled is None else {**splits, "unlabelled": unlabelled}
        fingerprints = {"data": split_fingerprints(read)}
        run.finish(None, result, fingerprints, Predictions.of(class_names, rows, predicted))
        return result


def kinds(*, unlabelled: bool) -> tuple[Kind, ...]:
    """The baselines of a comparison, which may have unlabelled texts."""
    return ("majority", "tfidf", TFIDF_SELF_TRAINED) if unlabelled else ("majority", "tfidf")


def _class_ids(part: Examples, class_names: tuple[str, ...]) -> Ints:
    return np.array([class_names.index(str(row.label)) for row in part.rows], dtype=np.int64)


def _majority(labels: Mapping[str, Ints], classes: int, *, refit: bool) -> tuple[dict[str, Floats], dict[str, Any]]:
    both = np.concatenate([labels["train"], labels["valid"]])
    seen = {"valid": labels["train"], "test": both if refit else labels["train"]}
    predicted = {}
    for name in labels.keys() & seen.keys():
        shares = np.log(np.bincount(seen[name], minlength=classes) / len(seen[name]))
        predicted[name] = np.tile(shares, (len(labels[name]), 1))
    ordered = {name: predicted[name] for name in seen if name in predicted}
    return ordered, {"cost": {"predict_seconds": 0.0, "bytes": 4 * classes}}


def _bounded(texts: Examples) -> Examples:
    """As many as time and memory bound, drawn by what they say, so that the order of the rows does not matter."""
    kept, left = [], MOST_CHARACTERS
    for row in sorted(texts.rows, key=lambda row: content_hash(row.content)):
        if len(row.content) <= left:
            kept.append(row)
            left -= len(row.content)
    return replace(texts, rows=tuple(kept))


def _rank(model: FittedTfidf, labels: Mapping[str, Ints]) -> tuple[float, float]:
    """On valid, the smaller the better: by accuracy, and by loss where that is equal."""
    scores = score(model.valid, labels["valid"])
    return -scores["accuracy"], scores["loss"]


def _tfidf(
    splits: Mapping[str, Examples],
    labels: Mapping[str, Ints],
    classes: int,
    settings: Mapping[str, Any],
    unlabelled: Examples | None,
    until: float,
) -> tuple[FittedTfidf, dict[str, Floats], dict[str, Any]]:
    """The model, its log-probabilities of valid and test, and what `result.json` says of how they came about.

    With unlabelled texts, a first model answers them, and its sure answers are labels of a second. Both learn from
    train alone, so that valid can choose the settings of the second, and which of the two is better.
    """
    whole, refit = "labels" not in settings, settings.get("refit", False)
    train, valid = splits["train"], splits["valid"]
    self_training = {"texts": 0 if unlabelled is None else len(unlabelled.rows), "labels": 0, "used": False}
    model: FittedTfidf | None = None
    if unlabelled is not None and unlabelled.rows:  # all of them may be texts of train
        first = fit_tfidf(train, valid, labels, classes, whole=whole, until=until)
        answers = first.predict([row.content for row in unlabelled.rows]) / first.temperature
        sure, given = sure_answers(answers, labels["train"], CONFIDENCE)
        more = replace(train, rows=(*train.rows, *(unlabelled.rows[k] for k in sure)))
        of_both = {**labels, "train": np.concatenate([labels["train"], given])}
        second = fit_tfidf(more, valid, of_both, classes, whole=False, refit=refit, until=until)
        used = _rank(second, labels) <= _rank(first, labels)
        self_training |= {"labels": len(sure), "used": used}
        if used:
            model = second
        elif not refit:
            model = first
    if model is None:
        model = fit_tfidf(train, valid, labels, classes, whole=whole, refit=refit, until=until)
    tuning = model.tuning
    if self_training["labels"] and not self_training["used"]:
        tuning = replace(tuning, notes=(*tuning.notes, NOT_USED))
    result: dict[str, Any] = {
        "strength": model.strength,
        "features": model.size,
        "temperature": model.temperature,
        "tuning": tuning.to_json(),
        "cost": {"predict_seconds": None, "bytes": model.bytes},
        **({} if unlabelled is None else {"self_training": self_training}),
    }
    if "test" not in splits:
        return model, {"valid": model.valid}, result
    began = time.perf_counter()
    test = model.predict([row.content for row in splits["test"].rows])
    result["cost"]["predict_seconds"] = (time.perf_counter() - began) / len(test)
    return model, {"valid": model.valid, "test": test}, result
