"""What the arms answered, read from the predictions of their runs: confusion, calibration, mistakes, class by class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headstart.metrics import temperature_scaled
from headstart.runs.comparison import ArmResult, Comparison
from headstart.runs.predictions import Predictions
from headstart.runs.run import PREDICTIONS, RunFolder
from headstart.studies.by_class import ClassDifference, class_differences
from headstart.studies.contrasts import choose_contrasts
from headstart.studies.scores import reliability
from headstart.studies.statistics import ArmPredictions

MISTAKES = 10
LONGEST = 4000  # characters of a text that are kept


@dataclass(frozen=True)
class Mistake:
    """A text that was classified wrongly, and the model's confidence."""

    text: str
    second: str | None
    label: str
    predicted: str
    confidence: float
    file: str  # its name: the folder it lies in says nothing to who is sent the page
    line: int
    length: int  # of the text, of which LONGEST characters are kept


@dataclass(frozen=True)
class Answers:
    """The predictions of the runs of one arm on a split, and the probabilities after temperature scaling."""

    runs: tuple[Predictions, ...]
    scaled: tuple[NDArray[np.float64], ...]  # (I, C) of each run, by the temperature that fits valid

    @property
    def stacked(self) -> ArmPredictions:
        return ArmPredictions(np.stack([run.probabilities for run in self.runs]), self.runs[0].labels)


@dataclass(frozen=True)
class ByClass:
    """The difference of two arms, class by class."""

    arm: str
    reference: str
    classes: tuple[ClassDifference, ...]


def read_answers(arm: ArmResult, root: Path, class_names: tuple[str, ...], split: str) -> Answers | None:
    """None where no run has predictions."""
    runs, scaled = [], []
    for run in arm.runs:
        predictions = read_split(root / run.path, class_names, split)
        if predictions is not None:
            valid = read_split(root / run.path, class_names, "valid")
            runs.append(predictions)
            scaled.append(
                predictions.probabilities
                if valid is None
                else temperature_scaled(predictions.probabilities, valid.probabilities, valid.labels)
            )
    return Answers(tuple(runs), tuple(scaled)) if runs else None


def read_split(path: Path, class_names: tuple[str, ...], split: str) -> Predictions | None:
    """A run's predictions on a split; None where it has none."""
    if not (path / PREDICTIONS).is_file():
        return None
    return RunFolder(path).predictions(class_names).split(split) or None


def bins(answers: Answers) -> tuple[tuple[float, float, int], ...]:
    """Mean confidence, accuracy and number of answers in each bin of confidence, after temperature scaling."""
    labels = np.concatenate([run.labels for run in answers.runs])
    return reliability(np.concatenate(answers.scaled), labels)


def by_class(comparison: Comparison, answers: Mapping[str, Answers | None]) -> Iterator[ByClass]:
    """The best pretrained arm minus scratch, and minus the linear model."""
    for arm, reference in choose_contrasts(comparison.arms, comparison.reference).primary:
        one, other = answers[arm], answers[reference]
        if one is not None and other is not None:
            yield ByClass(arm, reference, class_differences(one.stacked, other.stacked, comparison.class_names))


def confusion(labels: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> tuple[tuple[int, ...], ...]:
    counts = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (labels, predicted), 1)
    return tuple(tuple(map(int, row)) for row in counts)


def most_confident_mistakes(predictions: Predictions | None) -> tuple[Mistake, ...]:
    """The wrong predictions with the highest confidence."""
    if predictions is None:
        return ()
    predicted, confidence = predictions.probabilities.argmax(1), predictions.probabilities.max(1)
    wrong = np.flatnonzero(predicted != predictions.labels)
    worst = wrong[np.argsort(-confidence[wrong], kind="stable")][:MISTAKES]
    return tuple(
        Mistake(
            text=row.text[:LONGEST],
            second=None if row.second is None else row.second[:LONGEST],
            label=row.label,
            predicted=predictions.class_names[predicted[k]],
            confidence=float(confidence[k]),
            file=Path(row.path).name,
            line=row.line,
            length=len(row.text),
        )
        for k, row in zip(worst, predictions.examples(worst), strict=True)
    )
