"""Two classifiers that answer together: a fine-tuned model and the linear model, which are wrong on different texts.

Each is calibrated on valid first (a temperature); then their log-probabilities are added up, the share of each chosen
on valid too. Test has no part in it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from headstart.metrics import Floats, fit_temperature, score
from headstart.runs.run import RunFolder
from headstart.training.driver import open_run

SHARES = np.linspace(0.0, 1.0, 21)  # of the first


def ensemble(first: Path, second: Path, out: Path, *, seed: int = 0) -> dict[str, Any]:
    """Put two finished runs together, write a run folder without a model, and return what `result.json` holds.

    `seed` is that of the first, so that the comparison can pair it.
    """
    with open_run(out, "ensemble", {"of": [first.name, second.name], "seed": seed}, resume=True) as run:
        if run.done:
            return run.result_json()
        runs = [RunFolder(folder) for folder in (first, second)]
        result_of_first = runs[0].result()
        predictions = [folder.predictions(result_of_first.class_names) for folder in runs]
        labels = predictions[0].labels
        logarithms = [np.log(np.maximum(each.probabilities.astype(np.float64), 1e-12)) for each in predictions]
        share, blended = blend(logarithms[0], logarithms[1], labels, predictions[0].of_split("valid"))
        result: dict[str, Any] = {"valid": None, "test": None}
        for name in result:
            rows = predictions[0].of_split(name)
            result[name] = score(blended[rows], labels[rows]) if rows.any() else None
        names, counts = result_of_first.class_names, dict(result_of_first.rows)
        result |= {"mode": "ensemble", "share": share, "labels": list(names), "rows": counts}
        answers = replace(predictions[0], probabilities=np.exp(blended))
        run.finish(None, result, {"data": dict(runs[0].manifest().data)}, answers)
        return result


def blend(one: Floats, other: Floats, labels: NDArray[np.int64], valid: NDArray[np.bool_]) -> tuple[float, Floats]:
    """The share of the first, and (n, C) log-probabilities of both together; the rows in `valid` choose.

    >>> sure, unsure = np.log([[0.9, 0.1], [0.2, 0.8]]), np.log([[0.5, 0.5], [0.5, 0.5]])
    >>> blend(sure, unsure, np.array([0, 1]), np.array([True, True]))[0]
    1.0
    """
    one, other = (each / fit_temperature(each[valid], labels[valid]) for each in (one, other))
    found = [(share, log_softmax(share * one + (1 - share) * other, axis=1)) for share in SHARES.tolist()]
    return min(found, key=lambda each: score(each[1][valid], labels[valid])["loss"])
