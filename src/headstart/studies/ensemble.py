"""Two classifiers that answer together: a fine-tuned model and the linear model, which are wrong on different texts.

Each is calibrated on valid first (a temperature); then their log-probabilities are added up, the share of each chosen
on valid too. Test has no part in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from headstart.checkpoints.folder import read_json
from headstart.metrics import Floats, fit_temperature, score
from headstart.training.driver import open_run

SHARES = np.linspace(0.0, 1.0, 21)  # of the first


def ensemble(first: Path, second: Path, out: Path, *, seed: int = 0) -> dict[str, Any]:
    """Put two finished runs together, write a run folder without a model, and return what `result.json` holds.

    `seed` is that of the first, so that the comparison can pair it.
    """
    import pyarrow as pa
    import pyarrow.parquet

    with open_run(out, "ensemble", {"of": [first.name, second.name], "seed": seed}, resume=True) as run:
        if run.done:
            return run.result()
        table = pyarrow.parquet.read_table(first / "predictions.parquet")
        results = [read_json(folder / "result.json") for folder in (first, second)]
        labels = results[0]["labels"]
        split = np.array(table["split"].to_pylist())
        targets = np.array([labels.index(label) for label in table["label"].to_pylist()], dtype=np.int64)
        said = [_logarithms(folder, labels) for folder in (first, second)]
        share, together = blend(said[0], said[1], targets, split == "valid")
        for k, label in enumerate(labels):
            name = f"probability:{label}"
            table = table.set_column(table.column_names.index(name), name, pa.array(np.exp(together[:, k])))
        answers = pa.array([labels[k] for k in together.argmax(1)])
        table = table.set_column(table.column_names.index("predicted"), "predicted", answers)
        result: dict[str, Any] = {
            name: score(together[split == name], targets[split == name]) if (split == name).any() else None
            for name in ("valid", "test")
        }
        result |= {"mode": "ensemble", "share": share, "labels": labels, "rows": results[0]["rows"]}
        run.finish(None, result, {"data": read_json(first / "manifest.json")["data"]}, table)
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


def _logarithms(folder: Path, labels: list[str]) -> Floats:
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(folder / "predictions.parquet")
    found = np.stack([table[f"probability:{label}"].to_numpy() for label in labels], axis=1).astype(np.float64)
    return np.log(np.maximum(found, 1e-12))
