"""The linear probe: logistic regression on the vectors of a frozen backbone, all of it chosen on held-out texts.

Chosen are the layer (each one, or the mean of all), the pooling and the strength of the regularisation. Every layer
with every pooling is screened on a sample of the texts; the best few are tried on all folds with many strengths. No
seed has a part in it. The result is an ordinary classifier: the backbone up to the chosen layer under a linear head.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.batches.examples import EncodedExamples
from headstart.config import ClassifierConfig, ModelConfig, Pool
from headstart.metrics import Floats, fit_temperature
from headstart.model.heads import ClassifierHead
from headstart.model.model import Model
from headstart.parallel import SINGLE, Parallel
from headstart.reading.examples import Examples
from headstart.runs.tuning import ArmTuning
from headstart.studies import linear
from headstart.studies.linear import Attempt, FoldFeatures, Ints
from headstart.studies.settings import FinetuneSettings
from headstart.training.inference import frozen_features, pooled_layers

START = 1e-3  # the strength that the search begins with
SCREENING_STRENGTH = 1e-2
SCREENING_ROWS = 2000
FINALISTS = 3  # layers and poolings that are tried on all folds
Vectors = NDArray[np.float32]  # (n, D)


class Source(NamedTuple):
    """Where a text's vector comes from."""

    layer: int | Literal["all"]  # counted from 1; `all` is the mean of all layers
    pool: Pool


class Scaling(NamedTuple):
    """What brings every feature to mean 0 and standard deviation 1."""

    mean: Floats  # (D,)
    deviation: Floats  # (D,); infinite for a feature that is constant but for rounding, which is then left out

    @classmethod
    def of(cls, vectors: Vectors) -> Scaling:
        mean, deviation = vectors.mean(0, dtype=np.float64), vectors.std(0, dtype=np.float64)
        return cls(mean, np.where(deviation > 1e-5 * np.abs(mean), deviation, np.inf))

    def apply(self, vectors: Vectors) -> Vectors:
        return ((vectors - self.mean) / self.deviation).astype(np.float32)


@dataclass(frozen=True)
class FittedProbe:
    """The classifier, how it was chosen, and what it says of valid."""

    model: Model
    tuning: ArmTuning
    valid: Floats  # (n, C) log-probabilities; from models that had not seen the text, where valid was trained on
    temperature: float


@dataclass(frozen=True)
class FrozenTexts:
    """Texts with their labels, and the frozen backbone that turns them into vectors."""

    base: Model
    encoded: EncodedExamples
    classes: int
    balanced: bool  # whether each class is weighed by the inverse of its share
    parallel: Parallel

    def take(self, rows: Ints) -> FrozenTexts:
        return replace(self, encoded=self.encoded.take(rows))

    def vectors(self, sources: Sequence[Source]) -> dict[Source, Vectors]:
        """The vectors of all texts; no layer is computed that no source needs."""
        last = self.base.config.layers
        depth = max(last if source.layer == "all" else source.layer for source in sources)
        pooled = pooled_layers(self.base.truncated(depth), self.encoded, sources, self.parallel)
        return dict(zip(sources, pooled.cpu().numpy(), strict=True))

    def fit(self, vectors: Vectors, rows: Ints, strength: float) -> tuple[Scaling, Any]:
        """The scaling of these rows, and the logistic regression on them."""
        scaling = Scaling.of(vectors[rows])
        regression = linear.logistic_regression(strength, balanced=self.balanced)
        return scaling, linear.fit(regression, scaling.apply(vectors[rows]), self.encoded.labels[rows])

    def folds(self, vectors: Vectors, rows: Sequence[tuple[Ints, Ints]]) -> list[FoldFeatures]:
        """The features of each fold, whose rows are given; scaled by those that are trained on."""
        labels = self.encoded.labels
        folds = []
        for train, valid in rows:
            scaling = Scaling.of(vectors[train])
            features = [scaling.apply(vectors[part]) for part in (train, valid)]
            folds.append(FoldFeatures(features[0], labels[train], features[1], labels[valid]))
        return folds


def fit_probe(
    base: Model,
    examples: Mapping[str, Examples],
    encoded: Mapping[str, EncodedExamples],
    classes: int,
    settings: FinetuneSettings,
    log: Callable[[str], None] = lambda text: None,
    parallel: Parallel = SINGLE,
) -> FittedProbe:
    """Choose layer, pooling and strength, and fit them on train; or, with `settings.refit`, on train and valid."""
    count = len(encoded["train"])
    joined = EncodedExamples.joined([encoded["train"], encoded["valid"]])
    folds = linear.fold_rows(examples["train"], examples["valid"], whole=settings.labels is None)
    sample = linear.sample_folds(folds, (*examples["train"].rows, *examples["valid"].rows), SCREENING_ROWS)
    texts = FrozenTexts(base, joined, classes, settings.balanced, parallel)
    chosen, vectors, tuning = choose(texts, sources(base.config, settings), sample, folds)
    log(f"linear probe: {chosen.summary}")
    source, strength = Source(chosen.settings["layer"], chosen.settings["pool"]), chosen.settings["strength"]
    train, valid = np.split(np.arange(len(joined)), [count])
    scaling, regression = texts.fit(vectors, train, strength)
    predicted = linear.log_probabilities(regression, scaling.apply(vectors[valid]), classes)
    temperature = fit_temperature(predicted, joined.labels[valid])
    if settings.refit:
        temperature = fit_temperature(chosen.log_probabilities, chosen.labels)
        scaling, regression = texts.fit(vectors, np.arange(len(joined)), strength)
    return FittedProbe(linear_classifier(base, source, scaling, regression), tuning, predicted, temperature)


def sources(config: ModelConfig, settings: FinetuneSettings) -> list[Source]:
    """Every layer and pooling that can be chosen; `pool` and `read` leave some of them."""
    pools: tuple[Pool, ...] = ("mean", "last") if config.direction == "causal" else ("mean", "first", "last")
    layers: tuple[int | Literal["all"], ...] = (*range(1, config.layers + 1), "all")
    if settings.pool is not None:
        pools = (settings.pool,)
    if settings.read is not None:
        layers = ("all",) if settings.read == "all" else (config.layers,)
    return [Source(layer, pool) for layer in layers for pool in pools]


def choose(
    texts: FrozenTexts,
    sources: Sequence[Source],
    sample: Sequence[tuple[Ints, Ints]],
    folds: Sequence[tuple[Ints, Ints]],
) -> tuple[Attempt, Vectors, ArmTuning]:
    """What does best on the held-out texts of the folds, with its vectors of all texts, and the record of the search.

    `sample` has the rows of the folds to screen on: few, since every source has a vector for each of them.
    """
    began = time.perf_counter()
    rows = np.unique(np.concatenate([part for fold in sample for part in fold]))
    few, others = texts.take(rows), np.setdiff1d(np.arange(len(texts.encoded)), rows)
    few_vectors = few.vectors(sources)
    few_folds = [(np.searchsorted(rows, train), np.searchsorted(rows, valid)) for train, valid in sample]
    screened = []
    for source in sources:
        features = few.folds(few_vectors[source], few_folds)
        models = [linear.logistic_regression(balanced=texts.balanced) for _ in features]
        screened.append(linear.try_strength(features, models, SCREENING_STRENGTH, source._asdict(), texts.classes))
    order = sorted(range(len(sources)), key=lambda k: screened[k].rank)
    finalists = [sources[k] for k in order[:FINALISTS]]
    other_vectors = texts.take(others).vectors(finalists)
    attempts: list[Attempt] = []
    vectors: dict[Source, Vectors] = {}
    for source in finalists:
        vectors[source] = np.empty((len(texts.encoded), texts.base.config.width), np.float32)
        vectors[source][rows], vectors[source][others] = few_vectors[source], other_vectors[source]
        features = texts.folds(vectors[source], folds)
        attempts += linear.try_strengths(features, START, source._asdict(), texts.classes, balanced=texts.balanced)
    chosen = linear.best_of(attempts)
    tuning = linear.tuning_of(chosen, screened, attempts, time.perf_counter() - began)
    return chosen, vectors[Source(chosen.settings["layer"], chosen.settings["pool"])], tuning


def linear_classifier(base: Model, source: Source, scaling: Scaling, regression: Any) -> Model:
    """The backbone up to the chosen layer under a linear head, the logistic regression."""
    layers = base.config.layers if source.layer == "all" else source.layer
    read: Literal["last", "all"] = "all" if source.layer == "all" else "last"
    head = ClassifierConfig(classes=len(linear.weights(regression)[1]), pool=source.pool, read=read, dropout=0.0)
    model = base.truncated(layers).with_head(head).freeze()
    set_head(model, scaling, regression)
    return model.eval()


def set_head(model: Model, scaling: Scaling, regression: Any) -> None:
    """Make the logistic regression, with its scaling folded in, the last layer of a classifier."""
    weight, bias = linear.weights(regression)
    weight = weight / scaling.deviation
    bias = bias - weight @ scaling.mean
    assert isinstance(model.head, ClassifierHead)
    with torch.no_grad():
        model.head.out.weight.copy_(torch.from_numpy(weight))
        model.head.out.bias.copy_(torch.from_numpy(bias))


def fit_head(
    model: Model,
    encoded: Mapping[str, EncodedExamples],
    precision: torch.dtype,
    *,
    balanced: bool,
    strength: float | None = None,
) -> float:
    """Fit the last layer of a classifier on the vectors of train. Returns the strength: the one given, or the best on
    valid.
    """
    assert isinstance(model.head, ClassifierHead)
    train = frozen_features(model, encoded["train"], precision).cpu().numpy()
    scaling, labels = Scaling.of(train), encoded["train"].labels
    if strength is None:
        valid = frozen_features(model, encoded["valid"], precision).cpu().numpy()
        fold = FoldFeatures(scaling.apply(train), labels, scaling.apply(valid), encoded["valid"].labels)
        attempts = linear.try_strengths([fold], START, {}, model.head.config.classes, balanced=balanced)
        strength = linear.best_of(attempts).settings["strength"]
    regression = linear.logistic_regression(strength, balanced=balanced)
    set_head(model, scaling, linear.fit(regression, scaling.apply(train), labels))
    return strength
