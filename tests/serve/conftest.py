from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from headstart.serve.app import create_app
from headstart.serve.models import ServedClassifier, ServedLanguageModel, open_served
from headstart.studies.compare import compare
from headstart.studies.settings import CompareSettings
from headstart.use.classifier import TextClassifier
from tests.serve.example_models import save_classifier, save_language_model
from tests.studies.example_data import make_tokenizer, reviews


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Model folders by name: reviews (neg, pos), topics (three labels), writer (causal)."""
    folder, tokenizer = tmp_path_factory.mktemp("served"), make_tokenizer()
    return {
        "reviews": save_classifier(folder / "reviews", tokenizer),
        "topics": save_classifier(folder / "topics", tokenizer, ("art", "law", "sea")),
        "writer": save_language_model(folder / "writer", tokenizer),
    }


@pytest.fixture(scope="session")
def offline(folders: dict[str, Path]) -> TextClassifier:
    return TextClassifier.load(folders["reviews"], "cpu")


@pytest.fixture(scope="session")
def served(folders: dict[str, Path]) -> ServedClassifier:
    found = open_served("reviews", folders["reviews"], "cpu", examples=("a witty tale", "a dull tale"))
    assert isinstance(found, ServedClassifier)
    return found


@pytest.fixture(scope="session")
def topics(folders: dict[str, Path]) -> ServedClassifier:
    found = open_served("topics", folders["topics"], "cpu")
    assert isinstance(found, ServedClassifier)
    return found


@pytest.fixture(scope="session")
def writer(folders: dict[str, Path]) -> ServedLanguageModel:
    found = open_served("writer", folders["writer"], "cpu")
    assert isinstance(found, ServedLanguageModel)
    return found


@pytest.fixture
def client(served: ServedClassifier, topics: ServedClassifier, writer: ServedLanguageModel) -> Iterator[TestClient]:
    with TestClient(create_app([served, topics, writer])) as client:
        yield client


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return [text for _, text in reviews(40, seed=11)]


@pytest.fixture(scope="session")
def study(world: Path, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a comparison: four arms and the most frequent label, with 40 and with 120 labels."""
    settings = CompareSettings(
        data=str(world / "train.txt"),
        valid=str(world / "valid.txt"),
        test=str(world / "test.txt"),
        init=(str(base),),
        labels="40,all",
        seeds=2,
        epochs=1,
        batch_size=16,
        lr=2e-3,
        jobs=1,
    )
    folder = tmp_path_factory.mktemp("compared") / "books"
    compare(settings, folder)
    return folder
