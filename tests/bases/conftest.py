"""A headstart that ships two tiny bases, and no network."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from headstart.checkpoints.folder import Checkpoint, save
from headstart.config import NextTokenConfig
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.tokenizers.tokenizer import Tokenizer
from tests.conftest import SIZES
from tests.studies.example_data import corpus, write_reviews

from .example_bases import ship


@pytest.fixture(scope="session")
def causal_base(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal model with a tied head and random weights."""
    torch.manual_seed(7)
    config = preset("small", vocabulary=tokenizer.size, direction="causal", **SIZES)
    folder = tmp_path_factory.mktemp("causal") / "model"
    save(Checkpoint(Model.build(config, NextTokenConfig()), tokenizer=tokenizer), folder)
    return folder


@pytest.fixture
def package(base: Path, causal_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the bases that ship: `masked-xx` and `causal-xx`. The current folder has data and no model."""

    def no_network(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(socket.socket, "connect", no_network)
    here = tmp_path / "here"
    here.mkdir()
    write_reviews(here / "reviews.txt", 120, 1)
    (here / "corpus.txt").write_text("\n".join(corpus(60, 2)) + "\n", encoding="utf-8")
    monkeypatch.chdir(here)
    return ship({"masked-xx": base, "causal-xx": causal_base}, tmp_path / "bases", monkeypatch)
