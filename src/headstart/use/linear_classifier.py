"""The linear model of a comparison, from its run folder to predictions.

linear = LinearClassifier.load("study/runs/tfidf-240-seed0-…")
linear.predict(["A tender, witty book."])  # [Prediction(label='pos', probabilities={'neg': 0.1, 'pos': 0.9})]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headstart.parallel import SINGLE, Parallel
from headstart.reading.examples import Text
from headstart.runs.run import LINEAR
from headstart.studies.linear_model import LinearModel
from headstart.use.classifier import Prediction, TextClassifier, calibrated
from headstart.use.linear_words import content


@dataclass(frozen=True, eq=False)
class LinearClassifier:
    """Logistic regression on TF-IDF, ready to answer."""

    model: LinearModel

    @classmethod
    def load(cls, run: str | Path) -> LinearClassifier:
        return cls(LinearModel.load(Path(run) / LINEAR))

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.model.class_names

    def predict(self, texts: Sequence[Text], *, abstain_below: float | None = None) -> list[Prediction]:
        """A prediction for each text (or pair), in order, with calibrated probabilities."""
        scores = self.model.log_probabilities([content(text) for text in texts])
        rows = calibrated(scores, self.model.temperature)
        return [Prediction.of(self.class_names, row, abstain_below) for row in rows]


def open_classifier(
    folder: str | Path, device: str = "auto", parallel: Parallel = SINGLE
) -> TextClassifier | LinearClassifier:
    """The classifier of a run or model folder: a network, or the linear model of a comparison."""
    if (Path(folder) / LINEAR).is_file():
        return LinearClassifier.load(folder)
    return TextClassifier.load(folder, device, parallel)
