"""The service by which processes share a GPU, with a stand-in for NVIDIA's program."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from headstart.errors import DataError
from headstart.studies import gpu_sharing, workers
from headstart.studies.gpu_sharing import CONTROL, FOLDER, shared_gpu, starting_to_share

STAND_IN = """#!/bin/sh
echo "$@ $(cat) {folder}=$CUDA_MPS_PIPE_DIRECTORY" >> {log}
exit {code}
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the program was called with, a line each."""
    monkeypatch.delenv(FOLDER, raising=False)
    monkeypatch.setattr(gpu_sharing, "DEFAULT_FOLDER", tmp_path / "none")
    monkeypatch.setattr(gpu_sharing, "TRIAL", "")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    install(tmp_path)
    return tmp_path / "log"


def install(folder: Path, code: int = 0) -> None:
    program = folder / CONTROL
    program.write_text(STAND_IN.format(folder=FOLDER, log=folder / "log", code=code))
    program.chmod(0o755)


def test_it_runs_for_as_long_as_the_workers_do(calls: Path) -> None:
    with shared_gpu() as environment:
        folder = environment[FOLDER]
        assert Path(folder).is_dir()
        assert calls.read_text().splitlines() == [f"-d  {FOLDER}={folder}"]
    assert calls.read_text().splitlines()[1:] == [f" quit {FOLDER}={folder}"]
    assert not Path(folder).exists()


def test_a_service_that_does_not_start_or_work_is_not_used(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_sharing, "TRIAL", "raise SystemExit(1)")
    with shared_gpu() as environment:
        assert environment == {}
    assert len(calls.read_text().splitlines()) == 2  # it was started, and ended
    install(calls.parent, code=1)
    with shared_gpu() as environment:
        assert environment == {}
    assert len(calls.read_text().splitlines()) == 3


def test_one_that_is_there_already_is_left_alone(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, "/somewhere")
    with shared_gpu() as environment:
        assert environment == {}
    monkeypatch.delenv(FOLDER)
    (calls.parent / "none").mkdir()
    with shared_gpu() as environment:
        assert environment == {}
    assert not calls.exists()


def test_as_many_processes_as_can_share_a_gpu(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert workers.default_jobs("cuda") == 8
    assert workers.default_jobs("cpu") == 2
    monkeypatch.setattr(workers, "can_share", lambda: False)
    assert workers.default_jobs("cuda") == 3
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert workers.default_jobs("cuda") == 1


def environment_of(folder: str) -> None:
    Path(folder, str(os.getpid())).write_text(os.environ.get(FOLDER, ""))


def test_workers_get_the_environment(calls: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with shared_gpu() as environment:
        workers.run_workers(environment_of, (str(out),), 2, environment)
    assert len({path.read_text() for path in out.iterdir()} - {""}) == 1
    assert len(list(out.iterdir())) == 2


def test_it_is_started_while_other_things_are_done(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program waits here until the block has begun, which it could not if the block waited for it."""
    begun = threading.Event()
    run = gpu_sharing._run

    def late(*arguments: Any) -> bool:
        assert begun.wait(30)
        return run(*arguments)

    monkeypatch.setattr(gpu_sharing, "_run", late)
    with starting_to_share(wanted=True) as sharing:
        assert not calls.exists()
        begun.set()
        assert Path(sharing()[FOLDER]).is_dir()
    assert [line.split()[0] for line in calls.read_text().splitlines()] == ["-d", "quit"]


@pytest.mark.parametrize("wanted", [True, False])
def test_it_ends_where_the_data_are_bad(calls: Path, wanted: bool) -> None:
    with pytest.raises(DataError), starting_to_share(wanted=wanted):
        raise DataError("train.csv", "is empty")
    lines = calls.read_text().splitlines() if calls.exists() else []
    assert [line.split()[0] for line in lines] == (["-d", "quit"] if wanted else [])
