"""Several processes, one folder of runs, and no run done twice.

A process takes a run by locking a file beside it. The lock is the operating system's: it is gone the moment the process
is, however that ended, and another process can take over.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from headstart.files import locked

POLL = 0.05  # seconds between two tries for a lock


def run_lock(run: Path) -> AbstractContextManager[bool]:
    """True while this process holds the run, to the end of the block; False where another does."""
    return locked(run.parent / ".locks" / run.name)


@contextmanager
def wait_for_lock(run: Path) -> Iterator[None]:
    while True:
        with run_lock(run) as acquired:
            if acquired:
                yield
                return
        time.sleep(POLL)
