"""TF-IDF and logistic regression, chosen on held-out texts: which n-grams, and how strong the regularisation.

The n-grams of train and valid are counted once. What a fold, or train alone, would have made of them (which n-grams
there are, and how rare each is) follows from the counts of its rows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headstart.metrics import Floats, fit_temperature
from headstart.reading.examples import Examples
from headstart.runs.tuning import ArmTuning
from headstart.studies import linear
from headstart.studies.linear import Attempt, Features, FoldFeatures, Ints
from headstart.studies.ngrams import LENGTHS, NgramVocabulary
from headstart.studies.row_space import row_space

NGRAMS = {"words": ("words",), "characters": ("characters",), "words+characters": ("words", "characters")}
START = 1.0  # the strength that the search begins with
SCREENING_STRENGTH = 10.0
SCREENING_FOLDS = 2
SCREENING_ROWS = 2000
CUT_SHORT = "time was up: the search ended with the best so far"


def count_ngrams(texts: Sequence[str]) -> tuple[dict[str, NgramVocabulary], dict[str, Features]]:
    """The n-grams of some texts, of words and of characters, and how often each text has them."""
    vocabularies = {kind: NgramVocabulary.of(kind, texts) for kind in LENGTHS}
    return vocabularies, {kind: vocabulary.count(texts) for kind, vocabulary in vocabularies.items()}


class Weighting:
    """From counts to TF-IDF, by the n-grams of some rows: the same numbers as `TfidfVectorizer` fitted on them."""

    def __init__(self, counts: Mapping[str, Any], ngrams: str, rows: Ints) -> None:
        from sklearn.feature_extraction.text import TfidfTransformer

        self.parts = []  # (kind, the columns that these rows have, their weights)
        for kind in NGRAMS[ngrams]:
            own = counts[kind][rows]
            columns = np.flatnonzero(own.getnnz(axis=0))
            self.parts.append((kind, columns, TfidfTransformer(sublinear_tf=True).fit(own[:, columns])))

    def apply(self, counts: Mapping[str, Any], rows: Ints | None = None) -> Features:
        from scipy.sparse import hstack

        picked = {kind: counts[kind] if rows is None else counts[kind][rows] for kind, _, _ in self.parts}
        return hstack([idf.transform(picked[kind][:, columns]) for kind, columns, idf in self.parts], format="csr")


@dataclass(frozen=True)
class FittedTfidf:
    """The linear model, how it was chosen, and what it says of valid."""

    vocabularies: Mapping[str, NgramVocabulary]
    weighting: Weighting
    regression: Any
    classes: int
    tuning: ArmTuning
    strength: float
    valid: Floats  # (n, C) log-probabilities, from a model of train alone
    temperature: float

    def predict(self, texts: Sequence[str]) -> Floats:
        counts = {kind: self.vocabularies[kind].count(texts) for kind, _, _ in self.weighting.parts}
        return linear.log_probabilities(self.regression, self.weighting.apply(counts), self.classes)

    @property
    def size(self) -> int:
        """How many n-grams it knows."""
        return sum(len(columns) for _, columns, _ in self.weighting.parts)

    @property
    def bytes(self) -> int:
        """Of the coefficients and the weights of the n-grams in float32, and of the n-grams themselves."""
        numbers = self.regression.coef_.size + self.regression.intercept_.size + self.size
        text = sum(
            sum(len(ngram.encode()) for ngram in self.vocabularies[kind].names[columns])
            for kind, columns, _ in self.weighting.parts
        )
        return int(4 * numbers + text)


def fit_tfidf(
    train: Examples,
    valid: Examples,
    labels: Mapping[str, Ints],
    classes: int,
    *,
    whole: bool = True,
    refit: bool = False,
    until: float = math.inf,
) -> FittedTfidf:
    """Choose n-grams and strength, and fit them on train; or, with `refit`, on train and valid.

    Where train is not the `whole` of it but a label budget, or has labels that a model gave, valid alone is chosen on.
    After `until`, on the clock `time.monotonic`, the best so far is taken.
    """
    rows = (*train.rows, *valid.rows)
    y = np.concatenate([labels["train"], labels["valid"]])
    vocabularies, counts = count_ngrams([row.content for row in rows])
    search = TfidfSearch(counts, y, classes)
    folds = linear.fold_rows(train, valid, whole=whole)
    sample = linear.sample_folds(folds, rows, SCREENING_ROWS)[:SCREENING_FOLDS]
    chosen, tuning = search.choose(sample, folds, until)
    train_rows, valid_rows = np.split(np.arange(len(rows)), [len(train.rows)])
    weighting, regression = search.fit(chosen, train_rows)
    predicted = linear.log_probabilities(regression, weighting.apply(counts, valid_rows), classes)
    temperature = fit_temperature(predicted, labels["valid"])
    if refit:
        temperature = fit_temperature(chosen.log_probabilities, chosen.labels)
        weighting, regression = search.fit(chosen, np.arange(len(rows)))
    strength = chosen.settings["strength"]
    return FittedTfidf(vocabularies, weighting, regression, classes, tuning, strength, predicted, temperature)


@dataclass(frozen=True)
class TfidfSearch:
    """The n-grams of all texts, counted, and their labels."""

    counts: Mapping[str, Any]
    labels: Ints
    classes: int

    def fold(self, ngrams: str, train: Ints, valid: Ints) -> FoldFeatures:
        weighting = Weighting(self.counts, ngrams, train)
        train_rows, valid_rows = (weighting.apply(self.counts, rows) for rows in (train, valid))
        if space := row_space(train_rows, self.classes):
            train_rows, valid_rows = space.rows, space.project(valid_rows)
        return FoldFeatures(train_rows, self.labels[train], valid_rows, self.labels[valid])

    def choose(
        self, sample: Sequence[tuple[Ints, Ints]], folds: Sequence[tuple[Ints, Ints]], until: float = math.inf
    ) -> tuple[Attempt, ArmTuning]:
        """Which n-grams, at one strength on a sample of some folds; then the strength, on the whole of the folds."""
        began = time.perf_counter()
        screened: list[Attempt] = []
        features: dict[str, list[FoldFeatures]] = {}
        for ngrams in NGRAMS:
            if not screened or time.monotonic() < until:
                features[ngrams] = [self.fold(ngrams, *rows) for rows in sample]
                models = [linear.logistic_regression(balanced=False) for _ in sample]
                settings, strength = {"ngrams": ngrams}, SCREENING_STRENGTH
                screened.append(linear.try_strength(features[ngrams], models, strength, settings, self.classes))
        ngrams = linear.best_of(screened).settings["ngrams"]
        # Few texts are their own sample: the features of its folds are there already.
        known = [fold for fold, rows, own in zip(features[ngrams], sample, folds, strict=False) if _equal(rows, own)]
        known += [self.fold(ngrams, *rows) for rows in folds[len(known) :]]
        attempts = linear.try_strengths(known, START, {"ngrams": ngrams}, self.classes, until=until)
        chosen = linear.best_of(attempts)
        notes = (CUT_SHORT,) if time.monotonic() > until else ()
        return chosen, linear.tuning_of(chosen, screened, attempts, time.perf_counter() - began, notes)

    def fit(self, chosen: Attempt, rows: Ints) -> tuple[Weighting, Any]:
        weighting = Weighting(self.counts, chosen.settings["ngrams"], rows)
        features, labels = weighting.apply(self.counts, rows), self.labels[rows]
        regression = linear.logistic_regression(chosen.settings["strength"], balanced=False)
        space = row_space(features, self.classes)
        if space is None:
            return weighting, linear.fit(regression, features, labels)
        linear.fit(regression, space.rows, labels)
        regression.coef_ = space.to_features(regression.coef_)
        regression.n_features_in_ = features.shape[1]
        return weighting, regression


def _equal(one: tuple[Ints, Ints], other: tuple[Ints, Ints]) -> bool:
    """Whether two folds have the same rows."""
    return all(map(np.array_equal, one, other))
