from __future__ import annotations

import pytest

from headstart.errors import DataError, TrainingError
from headstart.studies.workers import run_workers


def fail(path: str, problem: str) -> None:
    raise DataError(path, problem)


def test_an_error_in_a_worker_is_told_once_and_without_a_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TrainingError, match=r"^train\.csv: x{500}") as caught:
        run_workers(fail, ("train.csv", "x" * 100_000), 2)
    assert str(caught.value).endswith("the same command goes on from there")
    assert capfd.readouterr().err == ""
