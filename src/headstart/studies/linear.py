"""Logistic regression whose strength is chosen on held-out texts: what the linear probe and the TF-IDF baseline share.

The strength C is the inverse of the regularisation, as in scikit-learn. A path of strengths is fitted from small to
large, each from the coefficients of the one before, which takes a fraction of the time of fitting each anew.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from headstart.metrics import Floats, score
from headstart.reading.examples import Example, Examples
from headstart.reading.split import content_hash
from headstart.runs.comparison import ALPHA
from headstart.runs.tuning import ArmTuning, Tried
from headstart.studies.corrections import p_values_against_best
from headstart.studies.folds import Fold, choose_folds

Ints = NDArray[np.int64]
Features = Any  # (n, D), a numpy array or a scipy sparse matrix
HELD_OUT = 3  # of the texts on which features are screened, one in so many is held out
STRENGTHS = tuple(float(f"{digit}e{power}") for power in range(-7, 3) for digit in (1, 3))  # all that may be tried
ENOUGH = 1500  # held-out texts, after which no more folds are taken: time and memory stay bounded
ENOUGH_LOWER = 0.98  # times the loss so far: a loss above it has not fallen
TOLERANCES = {4: (1e-5, 1e-4), 8: (1e-9, 1e-6)}  # of the gradient, by bytes: the least it can tell, what is enough
TINY = 1e-12  # the probability of a class that no text of train has


@dataclass(frozen=True)
class FoldFeatures:
    """The features of a fold: to fit on, and to score on."""

    train: Features
    train_labels: Ints
    valid: Features
    valid_labels: Ints


@dataclass(frozen=True, eq=False)
class Attempt:
    """Settings, and the log-probabilities (n, C) that they gave for the held-out texts of all folds, fold by fold."""

    settings: Mapping[str, Any]
    log_probabilities: Floats
    labels: Ints
    seconds: float

    @property
    def correct(self) -> NDArray[np.bool_]:
        right: NDArray[np.bool_] = self.log_probabilities.argmax(1) == self.labels
        return right

    @cached_property
    def loss(self) -> float:
        return score(self.log_probabilities, self.labels)["loss"]

    @property
    def rank(self) -> tuple[float, float]:
        """The smaller, the better: by accuracy, and by loss where that is equal."""
        return -float(self.correct.mean()), self.loss

    @property
    def summary(self) -> str:
        """`layer 4, pool mean, strength 0.03: accuracy 0.7917 on 600 held-out texts`."""
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        return f"{settings}: accuracy {self.correct.mean():.4f} on {len(self.labels):,} held-out texts"

    def tried(self) -> Tried:
        accuracy, loss = self.rank
        return Tried(self.settings, -accuracy, loss, len(self.labels), self.seconds)


def logistic_regression(strength: float = 1.0, *, balanced: bool) -> Any:
    from sklearn.linear_model import LogisticRegression

    class_weight = "balanced" if balanced else None
    return LogisticRegression(C=strength, max_iter=1000, warm_start=True, class_weight=class_weight)


def fit(model: Any, features: Features, labels: Ints) -> Any:
    """Fit a model of `logistic_regression`, from its coefficients where it has some."""
    with _fitting():
        return _fit(model, features, labels)


def _fit(model: Any, features: Features, labels: Ints) -> Any:
    """The gradient of the penalty is the coefficients divided by C n: with a tolerance above it, a large C would stop
    at the coefficients of the C before it.

    On sparse features Newton's method takes a tenth of the steps of L-BFGS, each of them not much longer.
    """
    solver = "lbfgs" if isinstance(features, np.ndarray) else "newton-cg"
    tolerance = np.clip(0.1 / (model.C * len(labels)), *TOLERANCES[features.dtype.itemsize])
    model.set_params(solver=solver, tol=float(tolerance))
    return model.fit(features, labels)


@contextmanager
def _fitting() -> Iterator[None]:
    """What holds for the whole process while models are fitted, be it in several threads."""
    # One thread a product: they are too small to share, and threads that wait for each other take many times as long.
    with threadpool_limits(1, user_api="blas"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a line search that fails, 1,000 iterations: it is as good as it will be
        yield


def log_probabilities(model: Any, features: Features, classes: int) -> Floats:
    """(n, C), also for classes that the model has never seen."""
    probabilities = np.full((features.shape[0], classes), TINY)
    probabilities[:, model.classes_] = model.predict_proba(features)
    result: Floats = np.log(np.maximum(probabilities, TINY))
    return result


def weights(model: Any) -> tuple[Floats, Floats]:
    """(C, D) and (C,): the last layer of a network with the same probabilities.

    Of two classes scikit-learn has the log-odds z alone: the logits are -z / 2 and z / 2.
    """
    weight, bias = model.coef_.astype(np.float64), model.intercept_.astype(np.float64)
    if len(model.classes_) == 2:
        return np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    return weight, bias


def try_strengths(
    folds: Sequence[FoldFeatures],
    start: float,
    settings: Mapping[str, Any],
    classes: int,
    *,
    balanced: bool = False,
    until: float = math.inf,
) -> list[Attempt]:
    """Strengths from `start` upwards until the loss no longer falls; downwards too, if the start is the best.

    After `until`, on the clock `time.monotonic`, none is begun but the first.

    The loss falls and rises once as C grows, where accuracy goes up and down by single texts. It has stopped falling
    where two strengths in a row are not 2 % below all before them.
    """
    start_index = STRENGTHS.index(start)
    attempts: list[Attempt] = []
    for strengths in (STRENGTHS[start_index:], STRENGTHS[:start_index][::-1]):
        models = [logistic_regression(balanced=balanced) for _ in folds]
        losses = [attempt.loss for attempt in attempts[:1]]
        for c in strengths:
            attempts.append(try_strength(folds, models, c, settings, classes))
            losses.append(attempts[-1].loss)
            if time.monotonic() > until:
                return attempts
            if len(losses) > 2 and min(losses[-2:]) > ENOUGH_LOWER * min(losses[:-2]):
                break
        if attempts[0] not in (best_of(attempts), min(attempts, key=lambda attempt: attempt.loss)):
            break
    return attempts


def try_strength(
    folds: Sequence[FoldFeatures], models: Sequence[Any], strength: float, settings: Mapping[str, Any], classes: int
) -> Attempt:
    """Fit each fold's model with this strength, and score it: the folds side by side."""

    def fit_and_predict(fold: FoldFeatures, model: Any) -> Floats:
        if len(np.unique(fold.train_labels)) == 1:  # one class alone, which logistic regression refuses
            certain = np.where(np.arange(classes) == fold.train_labels[0], 0.0, np.log(TINY))
            return np.tile(certain, (len(fold.valid_labels), 1))
        _fit(model.set_params(C=strength), fold.train, fold.train_labels)
        return log_probabilities(model, fold.valid, classes)

    began = time.perf_counter()
    with _fitting(), ThreadPoolExecutor(min(len(folds), torch.get_num_threads())) as threads:
        predicted = list(threads.map(fit_and_predict, folds, models))
    labels = np.concatenate([fold.valid_labels for fold in folds])
    seconds = time.perf_counter() - began
    return Attempt({**settings, "strength": strength}, np.concatenate(predicted), labels, seconds)


def best_of(attempts: Sequence[Attempt]) -> Attempt:
    """Of equal ones the first."""
    return min(attempts, key=lambda attempt: attempt.rank)


def tuning_of(
    chosen: Attempt,
    screened: Sequence[Attempt],
    finalists: Sequence[Attempt],
    seconds: float,
    notes: tuple[str, ...] = (),
) -> ArmTuning:
    """The record of a search: a few sets of features were screened, and the best of them tried on all folds."""
    others = [attempt for attempt in finalists if attempt is not chosen]
    p_values = p_values_against_best(chosen.correct, [attempt.correct for attempt in others])
    repeated = [attempt.settings for attempt in finalists]
    only_screened = [attempt for attempt in screened if attempt.settings not in repeated]
    return ArmTuning(
        chosen=chosen.settings,
        tried=tuple(attempt.tried() for attempt in (*only_screened, *finalists)),
        seconds=seconds,
        as_good=sum(p >= ALPHA for p in p_values),
        notes=notes,
    )


def fold_rows(train: Examples, valid: Examples, *, whole: bool = True) -> list[tuple[Ints, Ints]]:
    """Folds as indices of the rows of train and valid together: those to train on, and those to score on.

    Where the `whole` of train is not to be seen, because a label budget leaves texts out, it is valid as it is. Of many
    folds only the first are taken, if they hold out enough texts to choose on.
    """
    folds = choose_folds(train, valid) if whole else (Fold(train, valid),)
    position = {id(row): index for index, row in enumerate((*train.rows, *valid.rows))}
    result: list[tuple[Ints, Ints]] = []
    for fold in folds:
        if sum(len(held_out) for _, held_out in result) >= ENOUGH:
            break
        parts = (np.array([position[id(row)] for row in part.rows], np.int64) for part in (fold.train, fold.valid))
        result.append((next(parts), next(parts)))
    return result


def sample_folds(folds: Sequence[tuple[Ints, Ints]], rows: Sequence[Example], count: int) -> list[tuple[Ints, Ints]]:
    """So many rows of the folds, drawn by what the texts say, so that the order of the rows does not matter.

    Of several folds, each row is still held out once. Of a single one, one row in three is held out.
    """

    def sample(part: Ints, size: int) -> Ints:
        hashes = np.array([content_hash(rows[index].content) for index in part], dtype=np.uint64)
        return np.sort(part[np.argsort(hashes, kind="stable")[:size]])

    if len(folds) == 1:
        train, valid = folds[0]
        held_out = min(len(valid), count // HELD_OUT)
        return [(sample(train, count - held_out), sample(valid, held_out))]
    kept = sample(np.concatenate(folds[0]), count)
    return [(np.intersect1d(train, kept), np.intersect1d(valid, kept)) for train, valid in folds]
