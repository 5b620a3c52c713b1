"""What every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data sets: `$HEADSTART_DATA`, or `shared/data` beside the checkout."""
    folder = Path(os.environ.get("HEADSTART_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not (folder / "sst" / "train.txt").is_file():
        pytest.skip(f"no real data at {folder}: set HEADSTART_DATA to run this test")
    return folder
