"""For this folder: one thread, since its models are so small that handing work round costs more than the work, and no
deadline, since the first call of a torch function takes longer than any later one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

settings.register_profile("model", deadline=None)
settings.load_profile("model")


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
