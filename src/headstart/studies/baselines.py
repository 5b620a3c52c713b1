"""The baselines of every comparison: the most frequent class, and a linear model on n-grams.

majority  every row gets the shares of the classes in train
tfidf     logistic regression on TF-IDF; held-out texts choose the n-grams (words, characters, both) and the strength C
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from headstart.metrics import Floats, score
from headstart.reading.examples import Examples
from headstart.runs.predictions import Predictions
from headstart.runs.run import LINEAR
from headstart.studies.fingerprints import split_fingerprints
from headstart.studies.linear import Ints
from headstart.studies.linear_model import LinearModel
from headstart.studies.splits import draw_budget
from headstart.studies.tfidf import FittedTfidf, fit_tfidf
from headstart.training.driver import open_run

Kind = Literal["majority", "tfidf"]
KINDS: tuple[Kind, ...] = ("majority", "tfidf")


def baseline(
    kind: Kind,
    splits: Mapping[str, Examples],
    settings: Mapping[str, Any],
    out: str | Path,
    *,
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
            model, predicted, own = _tfidf(splits, labels, len(class_names), settings, until)
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
        fingerprints = {"data": split_fingerprints(splits)}
        run.finish(None, result, fingerprints, Predictions.of(class_names, rows, predicted))
        return result


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


def _tfidf(
    splits: Mapping[str, Examples], labels: Mapping[str, Ints], classes: int, settings: Mapping[str, Any], until: float
) -> tuple[FittedTfidf, dict[str, Floats], dict[str, Any]]:
    """The model, its log-probabilities of valid and test, and what `result.json` says of how they came about."""
    whole, refit = "labels" not in settings, settings.get("refit", False)
    model = fit_tfidf(splits["train"], splits["valid"], labels, classes, whole=whole, refit=refit, until=until)
    result: dict[str, Any] = {
        "strength": model.strength,
        "features": model.size,
        "temperature": model.temperature,
        "tuning": model.tuning.to_json(),
        "cost": {"predict_seconds": None, "bytes": model.bytes},
    }
    if "test" not in splits:
        return model, {"valid": model.valid}, result
    began = time.perf_counter()
    test = model.predict([row.content for row in splits["test"].rows])
    result["cost"]["predict_seconds"] = (time.perf_counter() - began) / len(test)
    return model, {"valid": model.valid, "test": test}, result
