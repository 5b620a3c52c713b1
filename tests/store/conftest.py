"""What the tests of the store share."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstart.store import plan
from headstart.tokenizers.tokenizer import Tokenizer
from tests.store.example_corpora import KINDS, made_texts, write_corpus


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    Tokenizer.train(made_texts(400), kind=request.param, size=900).save(folder)
    return Tokenizer.load(folder)


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return Tokenizer.train(made_texts(400), kind="bpe", size=500)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus.txt", made_texts(300, seed=1))


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "CHUNK", 4000)  # some fifteen chunks for `corpus`
