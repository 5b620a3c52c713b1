"""The models that are served: classifiers, and causal models that continue a text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headstart.batches.encoding import EncodedExamples
from headstart.checkpoints.exchange import open_model
from headstart.checkpoints.folder import Checkpoint
from headstart.config import NextTokenConfig
from headstart.errors import HeadstartError, ModelError
from headstart.metrics import Floats
from headstart.model.model import Model
from headstart.reading.examples import Text
from headstart.runs.predictions import read_scored
from headstart.runs.run import PREDICTIONS
from headstart.serve.limits import Refusal
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.training.hardware import pick_device
from headstart.training.inference import classify, tokens_for
from headstart.use.classifier import TextClassifier, calibrated
from headstart.use.explain import explain
from headstart.use.generate import Generated, Sampling, stream
from headstart.use.perturbation import ORDERS

ROUNDS = 4  # batches' worth of tokens that are gathered, so that there is something to sort by length


@dataclass(frozen=True)
class ServedClassifier:
    """A classifier by its name, in the steps that a service takes: read the texts, answer them, say it as JSON."""

    name: str
    classifier: TextClassifier
    examples: tuple[Text, ...] = ()

    @property
    def tokens(self) -> int:
        """As many as are gathered for one call."""
        return ROUNDS * tokens_for(self.classifier.device)

    def read(self, texts: list[Text], fields: list[str]) -> EncodedExamples:
        """Texts as ids; one that the tokenizer cannot read is refused by its field."""
        try:
            return self.classifier.encode(texts)
        except HeadstartError:
            for text, field in zip(texts, fields, strict=True):
                try:
                    self.classifier.encode([text])
                except HeadstartError as error:
                    raise Refusal(422, "unreadable_text", str(error), field=field) from None
            raise

    def probabilities(self, encoded: EncodedExamples) -> Floats:
        """(n, C), as `TextClassifier.probabilities` has them."""
        ours = self.classifier
        with torch.inference_mode():
            found = classify(ours.model, encoded, ours.precision, tokens=self.tokens // ROUNDS)
        if not np.isfinite(found).all():
            raise ModelError("the model's scores are no finite numbers: its weights are damaged")
        return calibrated(found, ours.temperature)

    def answers(self, rows: Floats, abstain_below: float | None) -> list[dict[str, Any]]:
        """What /predict says of each row, in the words of `TextClassifier.predict`."""
        labels = self.classifier.class_names
        said = []
        for row in rows:
            best = int(row.argmax())
            sure = abstain_below is None or row[best] >= abstain_below
            shares = dict(zip(labels, map(float, row), strict=True))
            said.append({"label": labels[best] if sure else None, "probabilities": shares})
        return said

    def explain(self, text: Text, *, faithfulness: bool) -> Iterator[dict[str, Any]]:
        """What /explain says, in one step."""
        yield explain(self.classifier, text, orders=ORDERS if faithfulness else 0).to_json()

    def info(self) -> dict[str, Any]:
        ours = self.classifier
        return {
            "name": self.name,
            "kind": "classifier",
            "labels": list(ours.class_names),
            "temperature": ours.temperature,
            **_size(ours.model),
            "examples": [text if isinstance(text, str) else list(text) for text in self.examples],
        }


@dataclass(frozen=True)
class ServedLanguageModel:
    """A causal model with its next-token head, by its name."""

    name: str
    model: Model
    tokenizer: Tokenizer
    examples: tuple[Text, ...] = ()

    def go_on(self, text: str, settings: Sampling) -> Iterator[dict[str, Any]]:
        """What /continue says, at the last of as many steps as there are pieces."""
        for part in stream(self.model, self.tokenizer, text, settings):
            yield {"text": part.text, "stopped": part.stopped} if isinstance(part, Generated) else {}

    def info(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": "language model",
            "labels": [],
            **_size(self.model),
            "examples": [text for text in self.examples if isinstance(text, str)],
        }


Served = ServedClassifier | ServedLanguageModel


def open_served(name: str, folder: Path, device: str = "auto", examples: tuple[Text, ...] = ()) -> Served:
    """A classifier or a causal language model, from a run folder, a model folder or one of `transformers`."""
    checkpoint = open_model(folder)
    if isinstance(checkpoint.model.head_config, NextTokenConfig):
        return _language_model(name, checkpoint, device, folder, examples)
    return ServedClassifier(name, TextClassifier(checkpoint, device, where=str(folder)), examples)


def _language_model(
    name: str, checkpoint: Checkpoint, device: str, folder: Path, examples: tuple[Text, ...]
) -> ServedLanguageModel:
    if checkpoint.tokenizer is None:
        raise ModelError(f"{folder} has no tokenizer, so texts cannot be read: import it with one")
    model = checkpoint.model.to(pick_device(device)).eval()
    return ServedLanguageModel(name, model, checkpoint.tokenizer, examples)


def valid_examples(folder: Path, most: int = 4, longest: int = 200) -> tuple[Text, ...]:
    """A few texts of valid, each label in its turn, where the folder is a run's; none elsewhere."""
    path = folder / PREDICTIONS
    if not path.is_file():
        return ()
    by_label: dict[str, list[Text]] = {}
    for row in read_scored(path, "valid"):
        if 0 < len(row.text + (row.second or "")) <= longest:
            by_label.setdefault(row.label, []).append(row.text if row.second is None else (row.text, row.second))
    kinds = [by_label[label] for label in sorted(by_label)]
    in_turn = [kind[i] for i in range(most) for kind in kinds if i < len(kind)]
    return tuple(dict.fromkeys(in_turn))[:most]


def _size(model: Model) -> Mapping[str, Any]:
    return {
        "family": model.config.family,
        "direction": model.config.direction,
        "parameters": sum(p.numel() for p in model.parameters()),
        "window": model.config.window,
    }
