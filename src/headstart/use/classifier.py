"""A trained classifier, from its folder to predictions.

    reviews = TextClassifier.load("runs/reviews")
    reviews.predict(["A tender, witty book.", "Dull from the first page."])
    # [Prediction(label='pos', probabilities={'neg': 0.03, 'pos': 0.97}), Prediction(label='neg', …)]

Probabilities are calibrated: logits are divided by the temperature that was fitted on valid during training and is
kept in the model folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from headstart.batches.examples import EncodedExamples
from headstart.checkpoints.exchange import open_model
from headstart.checkpoints.folder import Checkpoint, check_tokenizer
from headstart.config import ClassifierConfig
from headstart.errors import ConfigError, ModelError
from headstart.metrics import Floats, Scores, score, softmax
from headstart.parallel import SINGLE, Parallel
from headstart.reading.examples import Example, Examples, Text
from headstart.runs.run import Result, RunFolder
from headstart.training.hardware import choose_precision, pick_device
from headstart.training.inference import classify

CHUNK = 4096  # texts that are read ahead, so that batches can be sorted by length


@dataclass(frozen=True)
class Prediction:
    """A label and the probability of each class; no label where the highest is below `abstain_below`."""

    label: str | None
    probabilities: Mapping[str, float]

    @classmethod
    def of(cls, class_names: Sequence[str], probabilities: Floats, abstain_below: float | None = None) -> Prediction:
        """From (C,) probabilities."""
        best = int(probabilities.argmax())
        sure = abstain_below is None or probabilities[best] >= abstain_below
        return cls(class_names[best] if sure else None, dict(zip(class_names, map(float, probabilities), strict=True)))

    @property
    def best(self) -> str:
        """The most probable label, whether or not the classifier abstains."""
        return max(self.probabilities, key=lambda name: self.probabilities[name])


class TextClassifier:
    """A model, its tokenizer and its class names, ready to answer."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: str = "auto",
        parallel: Parallel = SINGLE,
        *,
        where: str = "this model",
    ) -> None:
        head = checkpoint.model.head_config
        if not isinstance(head, ClassifierConfig):
            kind = "has no head" if head is None else f"is a {head.kind} model"
            raise ModelError(f"{where} {kind}, and no classifier: `headstart finetune` makes one of it")
        if checkpoint.tokenizer is None:
            raise ModelError(f"{where} has no tokenizer, so texts cannot be read: import it with one")
        check_tokenizer(checkpoint.model.config, checkpoint.tokenizer)
        self.parallel = parallel
        self.device = pick_device(device, parallel)
        self.model = checkpoint.model.to(self.device).eval()
        self.tokenizer = checkpoint.tokenizer
        self.class_names = checkpoint.class_names or tuple(str(k) for k in range(head.classes))
        self.temperature = checkpoint.temperature
        self.window = self.model.config.window
        self.precision = choose_precision("auto", self.device)
        self.result: Result | None = None

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto", parallel: Parallel = SINGLE) -> TextClassifier:
        """From a run folder, whose scores become `result`; a model folder; or a `transformers` folder."""
        classifier = cls(open_model(str(folder)), device, parallel, where=str(folder))
        run = RunFolder(folder)
        classifier.result = run.result() if run.done else None
        return classifier

    def predict(self, texts: Sequence[Text], *, abstain_below: float | None = None) -> list[Prediction]:
        """A prediction for each text (or pair), in order."""
        return list(self.stream(texts, abstain_below=abstain_below))

    def stream(self, texts: Iterable[Text], *, abstain_below: float | None = None) -> Iterator[Prediction]:
        """The same for any number of texts, without holding them all."""
        if abstain_below is not None and not 0 <= abstain_below <= 1:
            raise ConfigError("predict", [f"abstain_below is {abstain_below}, and must be from 0 to 1"])
        for row in self._stream_probabilities(texts):
            yield self.prediction(row, abstain_below)

    def prediction(self, probabilities: Floats, abstain_below: float | None = None) -> Prediction:
        """(C,) → the label, or none if it is not probable enough."""
        return Prediction.of(self.class_names, probabilities, abstain_below)

    def probabilities(self, texts: Sequence[Text]) -> Floats:
        """(n, C): the calibrated probability of each class, in the order of `class_names`."""
        rows = list(self._stream_probabilities(texts))
        return np.stack(rows) if rows else np.zeros((0, len(self.class_names)))

    def logits(self, texts: Sequence[Text]) -> Floats:
        """(n, C): log-probabilities before the temperature."""
        return self.classify(self.encode(texts))

    def classify(self, encoded: EncodedExamples) -> Floats:
        """The same for texts that are encoded already."""
        with torch.inference_mode():
            return classify(self.model, encoded, self.precision, parallel=self.parallel)

    def evaluate(self, examples: Examples) -> Scores:
        """Accuracy, macro-F1 and loss on labelled texts."""
        encoded = self.encode_examples(examples)
        return score(self.classify(encoded), encoded.labels)

    def encode(self, texts: Sequence[Text]) -> EncodedExamples:
        """Texts as ids, truncated to the model's window."""
        return self.encode_examples(Examples(tuple(to_example(text, number) for number, text in enumerate(texts, 1))))

    def encode_examples(self, examples: Examples) -> EncodedExamples:
        """Labelled texts as ids and class ids."""
        return EncodedExamples.of(examples, self.tokenizer, self.class_names, self.window)

    def _stream_probabilities(self, texts: Iterable[Text]) -> Iterator[Floats]:
        remaining = iter(texts)
        while chunk := list(islice(remaining, CHUNK)):
            yield from calibrated(self.logits(chunk), self.temperature)


def calibrated(log_probabilities: Floats, temperature: float) -> Floats:
    """Probabilities at a temperature: above 1 less confident, below 1 more.

    >>> calibrated(np.log([[0.9, 0.1]]), 2.0).round(2).tolist()
    [[0.75, 0.25]]
    """
    return softmax(log_probabilities / temperature)


def to_example(text: Text, number: int, label: str | None = None) -> Example:
    """Text `number` as an example; an error where it is neither a string nor a pair of strings."""
    first, second = text if isinstance(text, tuple) and len(text) == 2 else (text, None)
    if not isinstance(first, str) or not isinstance(second, str | None):
        raise ConfigError("texts", [f"text {number} is {text!r}, expected a string or a pair of strings"])
    return Example(first, label, second, "text", number)
