from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

from headstart.studies.locks import run_lock


def hold(path: str, ready: Any) -> None:
    with run_lock(Path(path)) as ours:
        ready.put(ours)
        signal.pause()


def test_a_run_is_held_by_one_process_and_free_once_that_is_dead(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    context = multiprocessing.get_context("spawn")
    ready = context.Queue()
    other = context.Process(target=hold, args=(str(run), ready))
    other.start()
    assert ready.get(timeout=60) is True
    with run_lock(run) as ours:
        assert not ours
    with run_lock(tmp_path / "runs" / "b") as another:
        assert another
    assert other.pid is not None
    os.kill(other.pid, signal.SIGKILL)
    other.join()
    with run_lock(run) as ours:
        assert ours
    with run_lock(run) as again:
        assert again
