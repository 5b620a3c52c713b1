"""The models that are served: classifiers, and causal models that continue a text. (Comparisons: `study.py`.)"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.batches.examples import EncodedExamples
from headstart.checkpoints.exchange import open_model
from headstart.checkpoints.folder import CONFIG
from headstart.config import CausalMaskedConfig, NextTokenConfig
from headstart.errors import CheckpointError, HeadstartError
from headstart.metrics import Floats
from headstart.model.model import Model
from headstart.reading.examples import Text
from headstart.runs.predictions import read_scored
from headstart.runs.run import PREDICTIONS, RUN
from headstart.serve.limits import ApiError
from headstart.serve.study import ServedStudy
from headstart.training.hardware import pick_device
from headstart.training.inference import tokens_for
from headstart.use.classifier import TextClassifier, calibrated
from headstart.use.explain import ORDERS, explain
from headstart.use.generate import Generated
from headstart.use.language_model import LanguageModel

SORTED_BATCHES = 4  # batches of tokens that are predicted in one call, so that rows can be sorted by length


@dataclass(frozen=True)
class ServedClassifier:
    """A classifier by its name, in the steps that the service takes: encode, predict, answer as JSON."""

    name: str
    classifier: TextClassifier
    examples: tuple[Text, ...] = ()
    title: str = ""  # for people; the name where there is none

    @property
    def tokens(self) -> int:
        """How many are gathered for one call."""
        return SORTED_BATCHES * tokens_for(self.classifier.device)

    def encode(self, texts: list[Text], fields: list[str]) -> EncodedExamples:
        """Texts as ids; one that the tokenizer cannot encode is an error that names its field."""
        try:
            return self.classifier.encode(texts)
        except HeadstartError:
            for text, field in zip(texts, fields, strict=True):
                try:
                    self.classifier.encode([text])
                except HeadstartError as error:
                    raise ApiError(422, "unreadable_text", str(error), field=field) from None
            raise

    def probabilities(self, encoded: EncodedExamples) -> Floats:
        """(n, C), as `TextClassifier.probabilities` gives them."""
        return calibrated(self.classifier.classify(encoded), self.classifier.temperature)

    def explain(self, text: Text, *, faithfulness: bool) -> Iterator[dict[str, Any]]:
        """The answer of /explain, in one step."""
        yield explain(self.classifier, text, orders=ORDERS if faithfulness else 0).to_json()

    def info(self) -> dict[str, Any]:
        examples = [text if isinstance(text, str) else list(text) for text in self.examples]
        own = {"labels": list(self.classifier.class_names), "temperature": self.classifier.temperature}
        names = {"name": self.name, "title": self.title or self.name}
        return {**names, "kind": "classifier", **own, **_info(self.classifier.model), "examples": examples}


@dataclass(frozen=True)
class ServedLanguageModel:
    """A model that continues text, by its name."""

    name: str
    language_model: LanguageModel
    examples: tuple[Text, ...] = ()
    title: str = ""

    def generate(self, text: str, **sampling: Any) -> Iterator[dict[str, Any]]:
        """One step for each generated piece; the last yields the answer of /continue."""
        for part in self.language_model.stream(text, **sampling):
            yield {"text": part.text, "stopped": part.stopped} if isinstance(part, Generated) else {}

    def info(self) -> dict[str, Any]:
        examples = [text for text in self.examples if isinstance(text, str)]
        own = {"name": self.name, "title": self.title or self.name, "kind": "language model", "labels": []}
        return {**own, **_info(self.language_model.model), "examples": examples}


Served = ServedClassifier | ServedLanguageModel | ServedStudy


def open_served(
    name: str, folder: Path, device: str = "auto", examples: tuple[Text, ...] = (), title: str = ""
) -> ServedClassifier | ServedLanguageModel:
    """A classifier or a causal language model, from a run folder, a model folder or a `transformers` folder."""
    _check_folder(folder)
    checkpoint = open_model(folder)
    if isinstance(checkpoint.model.head_config, NextTokenConfig | CausalMaskedConfig):
        checkpoint.model.to(pick_device(device))
        return ServedLanguageModel(name, LanguageModel(checkpoint, where=str(folder)), examples, title)
    return ServedClassifier(name, TextClassifier(checkpoint, device, where=str(folder)), examples, title)


def _check_folder(folder: Path) -> None:
    """What is no model is told apart: a run without one, or neither run nor study."""
    if (folder / CONFIG).is_file() or (folder / "model" / CONFIG).is_file():
        return
    if (folder / RUN).is_file():
        kept = "`headstart compare --keep-models` keeps every one, and the study folder can be served as a whole"
        raise CheckpointError(f"the run in {folder} has no model: {kept}")
    written = "headstart compare, finetune or pretrain wrote"
    raise CheckpointError(
        f"{folder} holds no run, no study and no model: give a folder that {written}, or a model folder"
    )


def valid_examples(folder: Path, most: int = 4, longest: int = 200) -> tuple[Text, ...]:
    """A few texts of valid, from each label in turn, where the folder is a run folder; none elsewhere."""
    path = folder / PREDICTIONS
    if not path.is_file():
        return ()
    by_label: dict[str, list[Text]] = {}
    for row in read_scored(path, "valid"):
        if 0 < len(row.text + (row.second or "")) <= longest:
            by_label.setdefault(row.label, []).append(row.text if row.second is None else (row.text, row.second))
    groups = [by_label[label] for label in sorted(by_label)]
    in_turn = [group[i] for i in range(most) for group in groups if i < len(group)]
    return tuple(dict.fromkeys(in_turn))[:most]


def _info(model: Model) -> dict[str, Any]:
    return {
        "family": model.config.family,
        "direction": model.config.direction,
        "parameters": sum(p.numel() for p in model.parameters()),
        "window": model.config.window,
    }
