"""Ctrl-C and SIGTERM: exit code 130, no traceback, and nothing unfinished is left. Real processes and real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headstart.files import new_file, new_folder
from headstart.signals import Terminated, interrupt_on_sigterm

HEADSTART = [sys.executable, "-m", "headstart"]


@pytest.fixture
def _handled() -> object:
    before = signal.getsignal(signal.SIGTERM)
    interrupt_on_sigterm()
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("_handled")
@pytest.mark.parametrize("make", [new_file, new_folder])
def test_sigterm_leaves_nothing_unfinished(tmp_path: Path, make: type) -> None:
    with pytest.raises(Terminated), make(tmp_path / "out") as unfinished:
        assert unfinished.parent.exists()
        signal.raise_signal(signal.SIGTERM)
    assert not list(tmp_path.iterdir())
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL  # a second one ends the process


def test_under_torchrun_the_second_sigterm_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    before = signal.getsignal(signal.SIGTERM)
    try:
        interrupt_on_sigterm()
        with pytest.raises(Terminated):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_predict_leaves_no_hidden_folder(trained: Path, tmp_path: Path, asked: signal.Signals) -> None:
    command = [*HEADSTART, "predict", str(trained), "-", "--out", str(tmp_path / "out.csv")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for(process, lambda: bool(list(tmp_path.iterdir())))  # it waits for texts, and has begun to write
        process.send_signal(asked)
        said = process.communicate()[1]
    assert (process.returncode, said) == (130, "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_no_traceback_where_the_interpreter_is_about_to_exit(asked: signal.Signals) -> None:
    late = f"import atexit, signal; atexit.register(signal.raise_signal, {int(asked)}); "
    command = [sys.executable, "-c", late + "from headstart.cli import main; main()", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (-asked, "")
    assert done.stdout.startswith("headstart ")


def test_control_c_while_the_workers_of_tokens_start(world: Path, tmp_path: Path) -> None:
    command = [*HEADSTART, "tokens", str(world / "train.txt"), "--tokenizer", str(world / "tokenizer")]
    more = ["--out", str(tmp_path / "store"), "--workers", "2"]
    with subprocess.Popen([*command, *more], stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        wait_for(process, lambda: any(map(handles_control_c, workers_of(process.pid))))
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
        said = process.communicate()[1]
    assert process.returncode == 130
    assert said == f"{tmp_path / 'store'} is half-written: the same command goes on from there\n"


def wait_for(process: subprocess.Popen[str], ready: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not ready():
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.002)


def workers_of(pid: int) -> list[Path]:
    """The processes that `multiprocessing` started from this one, but for its resource tracker."""
    try:
        children = [
            child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
        ]
        return [
            path for child in children if b"spawn_main" in ((path := Path("/proc") / child) / "cmdline").read_bytes()
        ]
    except OSError:
        return []


def handles_control_c(process: Path) -> bool:
    """Whether Python runs in it, and would answer with a traceback; the modules that it needs are imported next."""
    try:
        status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
    except OSError:
        return False
    return bool(int(status["SigCgt"], 16) & 1 << signal.SIGINT - 1)
