"""What the service is asked: requests for every route, each with the answer that the models give offline."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from attack.models import prepare
from attack.world import compare_settings, make_world
from headstart.serve.models import ServedClassifier, ServedLanguageModel, open_served
from headstart.serve.study import ServedStudy, open_study
from headstart.studies.compare import compare

TEXTS = [f"a {word} book, {line}" for word in ("good", "dull", "witty") for line in ("page by page", "é" * 9, "")]
Models = tuple[ServedClassifier, ServedLanguageModel, ServedStudy]


@dataclass(frozen=True)
class Question:
    """A request, and the answer that the models give offline."""

    path: str
    body: dict[str, Any]
    answer: dict[str, Any]


def open_models(folder: Path) -> Models:
    """A classifier, a causal model and a comparison, of whose models one is kept open at a time."""
    prepare(folder / "models")
    make_world(folder)
    settings = replace(compare_settings(folder), arms="scratch", labels=None)
    compare(settings, folder / "study")
    classifier = open_served("reviews", folder / "models" / "ours-classifier", "cpu")
    writer = open_served("writer", folder / "models" / "ours-next-token", "cpu")
    assert isinstance(classifier, ServedClassifier) and isinstance(writer, ServedLanguageModel)
    return classifier, writer, open_study("study", folder / "study", "cpu", 1)


def make_questions(classifier: ServedClassifier, writer: ServedLanguageModel, study: ServedStudy) -> list[Question]:
    """Most of them for /predict, some for each other route."""
    predictions = [asdict(prediction) for prediction in classifier.classifier.predict(TEXTS)]
    found = [
        Question("/predict", {"text": text}, {"model": "reviews", "predictions": [prediction]})
        for text, prediction in zip(TEXTS, predictions, strict=True)
    ] * 10
    for text in TEXTS:
        *_, explained = classifier.explain(text, faithfulness=False)
        found.append(Question("/explain", {"text": text, "faithfulness": False}, {"model": "reviews", **explained}))
        *_, continued = writer.generate(text, max_tokens=8, temperature=0.0)
        found.append(Question("/continue", {"text": text, "max_tokens": 8}, {"model": "writer", **continued}))
        *_, compared = study.compare(study.select(None, None), text, words=True)
        found.append(Question("/compare", {"text": text}, compared))
    return found


def same(one: Any, other: Any) -> bool:
    """Whether two answers are the same, but for the last digits of their numbers.

    >>> same({"a": [0.25, "b"]}, {"a": [0.250001, "b"]}), same([1], [1, 2]), same({"a": 1.0}, {"b": 1.0})
    (True, False, False)
    """
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) < 2e-5  # weights of words come rounded to five digits
    return bool(one == other)
