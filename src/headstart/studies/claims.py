"""Several processes, one folder of runs, and no run done twice.

A process claims a run by locking a file that stands for it. The lock is the operating system's: it is gone the moment
the process is, however it ended, and the run is free for another to go on with.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from headstart.files import locked


def claim(run: Path) -> AbstractContextManager[bool]:
    """True while the run is ours, to the end of the block; False where another process has it."""
    return locked(run.parent / ".locks" / run.name)


def key_of(facts: Any) -> str:
    """Twelve letters for a run's settings and the fingerprints of what it reads: equal for equal facts only.

    >>> key_of({"lr": 1e-5, "seed": 0}) == key_of({"seed": 0, "lr": 1e-5}), key_of({"seed": 0}) == key_of({"seed": 1})
    (True, False)
    """
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def fingerprint_of(init: str) -> str:
    """A digest of the files behind a base; its name where there are none, as for a preset."""
    path = Path(init)
    path = path / "model" if (path / "model").is_dir() else path
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else []
    digest = hashlib.sha256(b"" if files else init.encode())
    for each in files:
        with each.open("rb") as file:
            digest.update(f"{each.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()
