from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
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


def wait(folder: str) -> None:
    """What a worker does that is not training, such as to label texts as a teacher."""
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(120)


@pytest.mark.parametrize("ignored", [False, True])
def test_workers_end_with_a_command_that_is_terminated(ignored: bool, tmp_path: Path) -> None:
    """Also where SIGINT is ignored, as it is in what a script runs in the background."""
    command = (
        "from headstart.signals import interrupt_on_sigterm; from headstart.studies.workers import run_workers; "
        "from tests.studies.test_workers import wait; interrupt_on_sigterm(); "
        f"run_workers(wait, ({str(tmp_path)!r},), 2)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", command],
        cwd=Path(__file__).parents[2],
        start_new_session=True,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler),
    )
    try:
        while len(list(tmp_path.iterdir())) < 2:
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.05)
        process.terminate()
        process.communicate(timeout=60)  # ends when the last of them has closed stderr
        assert process.returncode != 0
        assert not any(Path(f"/proc/{path.name}").exists() for path in tmp_path.iterdir())
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


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
