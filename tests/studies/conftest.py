from __future__ import annotations

from pathlib import Path

import pytest

from headstart.text.tokenizer import Tokenizer
from tests.studies.made_up import make_store, make_tokenizer, write_reviews


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.txt, valid.txt, test.txt, tokenizer/ and store/."""
    folder = tmp_path_factory.mktemp("world")
    for name, count, seed in (("train", 120, 3), ("valid", 60, 4), ("test", 60, 5)):
        write_reviews(folder / f"{name}.txt", count, seed)
    tokenizer = make_tokenizer()
    tokenizer.save(folder / "tokenizer")
    make_store(folder, tokenizer)
    return folder


@pytest.fixture(scope="session")
def tokenizer(world: Path) -> Tokenizer:
    return Tokenizer.load(world / "tokenizer")
