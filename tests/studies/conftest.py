from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headstart.checkpoints.folder import Checkpoint, save
from headstart.config import Masked
from headstart.model.model import Model
from headstart.model.presets import preset
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


SIZES = {"width": 32, "layers": 1, "heads": 2, "feed_forward": 48, "window": 32}


@pytest.fixture(scope="session")
def base(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with random weights and the world's tokenizer."""
    torch.manual_seed(99)
    config = preset("small", vocabulary=tokenizer.size, **SIZES)
    folder = tmp_path_factory.mktemp("base") / "model"
    save(Checkpoint(Model.build(config, Masked()), tokenizer=tokenizer), folder)
    return folder
