"""What every test may use."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import settings

settings.register_profile("headstart", deadline=None)  # nothing is asserted about time
settings.load_profile("headstart")
# A shell starts background jobs with Ctrl-C ignored, and the commands that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # the models here are tiny: a second thread costs more than it brings


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data sets: `$HEADSTART_DATA`, or `shared/data` beside the checkout."""
    folder = Path(os.environ.get("HEADSTART_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not (folder / "sst" / "train.txt").is_file():
        pytest.skip(f"no real data at {folder}: set HEADSTART_DATA to run this test")
    return folder
