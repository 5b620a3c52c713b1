"""An ensemble of a fine-tuned model and the linear model, which are wrong on different texts.

Each is calibrated on valid first (a temperature); then their log-probabilities are averaged, with weights that are
chosen on valid too. Test has no part in it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.metrics import Floats, fit_temperature, score
from headstart.runs.run import RunFolder
from headstart.training.driver import open_run

WEIGHTS = np.linspace(0.0, 1.0, 21)  # of the first


def ensemble(first: Path, second: Path, out: Path, *, seed: int = 0) -> dict[str, Any]:
    """Combine two finished runs, write a run folder without a model, and return what `result.json` holds.

    `seed` is that of the first, so that the comparison can pair it.
    """
    with open_run(out, "ensemble", {"of": [first.name, second.name], "seed": seed}, resume=True) as run:
        if run.done:
            return run.result_json()
        runs = [RunFolder(folder) for folder in (first, second)]
        first_result = runs[0].result()
        predictions = [folder.predictions(first_result.class_names) for folder in runs]
        labels = predictions[0].labels
        one, other = (np.log(np.maximum(each.probabilities.astype(np.float64), 1e-12)) for each in predictions)
        weight, blended = blend(one, other, labels, predictions[0].of_split("valid"))
        result: dict[str, Any] = {"valid": None, "test": None}
        for name in result:
            rows = predictions[0].of_split(name)
            result[name] = score(blended[rows], labels[rows]) if rows.any() else None
        result |= {"mode": "ensemble", "share": weight, "labels": list(first_result.class_names)}
        result["rows"] = dict(first_result.rows)
        combined = replace(predictions[0], probabilities=np.exp(blended))
        run.finish(None, result, {"data": dict(runs[0].manifest().data)}, combined)
        return result


def blend(one: Floats, other: Floats, labels: NDArray[np.int64], valid: NDArray[np.bool_]) -> tuple[float, Floats]:
    """The weight of the first, and the blended (n, C) log-probabilities; the weight is chosen on the rows in `valid`.

    >>> sure, unsure = np.log([[0.9, 0.1], [0.2, 0.8]]), np.log([[0.5, 0.5], [0.5, 0.5]])
    >>> blend(sure, unsure, np.array([0, 1]), np.array([True, True]))[0]
    1.0
    """
    from scipy.special import log_softmax

    one, other = (each / fit_temperature(each[valid], labels[valid]) for each in (one, other))
    blends = [(weight, log_softmax(weight * one + (1 - weight) * other, axis=1)) for weight in WEIGHTS.tolist()]
    return min(blends, key=lambda each: score(each[1][valid], labels[valid])["loss"])
