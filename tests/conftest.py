"""What every test may use."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings as hypothesis_settings

from headstart.checkpoints.folder import Checkpoint, save
from headstart.config import MaskedConfig
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.studies.compare import compare
from headstart.studies.finetune import finetune
from headstart.studies.settings import CompareSettings, FinetuneSettings
from headstart.tokenizers.tokenizer import Tokenizer
from tests.studies.example_data import make_store, make_tokenizer, write_reviews

SIZES = {"width": 32, "layers": 1, "heads": 2, "feed_forward": 48, "window": 32}

hypothesis_settings.register_profile("headstart", deadline=None)  # nothing is asserted about time
hypothesis_settings.load_profile("headstart")
# A shell starts background jobs with Ctrl-C ignored, and the commands that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # the models here are tiny: a second thread costs more than it brings


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, for the pages; a test that needs it is skipped where it is not installed."""
    chromium = os.environ.get("HEADSTART_CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        pytest.skip("no Chromium here: install it, or set HEADSTART_CHROMIUM")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data sets: `$HEADSTART_DATA`, or `shared/data` beside the checkout."""
    folder = Path(os.environ.get("HEADSTART_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not (folder / "sst" / "train.txt").is_file():
        pytest.skip(f"no real data at {folder}: set HEADSTART_DATA to run this test")
    return folder


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


@pytest.fixture(scope="session")
def base(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with random weights and the world's tokenizer."""
    torch.manual_seed(99)
    config = preset("small", vocabulary=tokenizer.size, **SIZES)
    folder = tmp_path_factory.mktemp("base") / "model"
    save(Checkpoint(Model.build(config, MaskedConfig()), tokenizer=tokenizer), folder)
    return folder


@pytest.fixture(scope="session")
def trained(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that tells made-up praise from made-up blame, with its valid set beside it."""
    folder = tmp_path_factory.mktemp("trained")
    train, valid = write_reviews(folder / "train.txt", 160, 1), write_reviews(folder / "valid.txt", 60, 2)
    settings = FinetuneSettings(data=str(train), valid=str(valid), init=str(base), epochs=6, lr=5e-3)
    finetune(settings, folder / "run")
    return folder / "run"


@pytest.fixture(scope="session")
def objectives(world: Path, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a comparison with the arms of recipes/objectives.sh, from bases of random weights."""
    folder = tmp_path_factory.mktemp("objectives")
    for seed, name in enumerate(("causal", "masked", "both")):
        torch.manual_seed(seed)
        model = Model.build(preset("small", vocabulary=tokenizer.size, **SIZES), MaskedConfig())
        save(Checkpoint(model, tokenizer=tokenizer), folder / name)
    settings = CompareSettings(
        data=str(world / "train.txt"),
        valid=str(world / "valid.txt"),
        test=str(world / "test.txt"),
        init=tuple(f"{name}={folder / name}" for name in ("causal", "masked", "both")),
        arms="full,scratch:masked",
        labels="40,all",
        seeds=2,
        epochs=2,
        batch_size=8,
        lr=2e-3,
        frozen_head="trained",
    )
    compare(settings, folder / "study")
    return folder / "study"
