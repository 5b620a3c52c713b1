from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headstart.errors import DataError, TrainingError
from headstart.studies import compare
from headstart.studies.workers import WorkerFailure, run_workers


def fail(path: str, problem: str) -> None:
    raise DataError(path, problem)


def test_an_error_in_a_worker_is_told_once_and_without_a_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TrainingError, match=r"^train\.csv: x{500}") as caught:
        run_workers(fail, ("train.csv", "x" * 100_000), 2)
    assert str(caught.value).endswith("the same command goes on from there")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("others_did_it", [True, False])
def test_a_worker_that_was_killed_is_an_error_where_something_is_missing(
    others_did_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    study: Any = SimpleNamespace(settings=SimpleNamespace(processes=4, device="cpu", to_mapping=dict), folder="s")
    study.done, study.deadline = False, 0.0

    def killed(*args: object, **kwargs: object) -> None:
        study.done = others_did_it
        raise WorkerFailure("1 of 4 processes ended early (exit code -9)")

    monkeypatch.setattr(compare, "run_workers", killed)
    said: list[str] = []
    if others_did_it:
        compare.run_study(study, log=said.append)
        assert said == [
            "1 of 4 processes ended early (exit code -9): the others did their runs, and nothing is missing"
        ]
    else:
        with pytest.raises(TrainingError, match=r"ended early .* run the same command again"):
            compare.run_study(study, log=said.append)
