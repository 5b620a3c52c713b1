"""Commands of headstart, each in a process that is forked from one which has imported everything.

So a disturbance at a random moment rarely falls into the imports.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from attack.cases import MEMORY

SECONDS = 300.0  # after which a command counts as one that hangs


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int  # negative: by that signal
    said: str
    seconds: float

    @property
    def problem(self) -> str | None:
        """What must not happen however it is disturbed."""
        if "Traceback (most recent call last)" in self.said:
            return "traceback"
        if self.code < 0:
            return "hang" if self.code == -signal.SIGALRM else "crash"
        return None


class Commands:
    """Runs commands of headstart in the folder of the world."""

    def __init__(self, world: Path) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(world)}
        self._server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=world,
            env=environment,
        )

    def run(
        self,
        arguments: list[str],
        kill_after: float | None = None,
        environment: dict[str, str] | None = None,
        **limits: int,
    ) -> Ended:
        """Limits are in the words of the system, `RLIMIT_FSIZE=4096`. With an `environment` it ends as Python does."""
        assert self._server.stdin is not None and self._server.stdout is not None
        job = {"arguments": arguments, "kill_after": kill_after, "environment": environment, "limits": limits}
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        return Ended(**json.loads(self._server.stdout.readline()))

    @property
    def size(self) -> int:
        """Bytes of address space that a command has before it begins."""
        pages = int(Path(f"/proc/{self._server.pid}/statm").read_text().split()[0])
        return pages * resource.getpagesize()

    def close(self) -> None:
        self._server.communicate()


def serve() -> None:
    """For each job of standard input fork a process; say how it ended."""
    import_module("pydantic")  # which typer imports late
    for name in (
        "doctor.clean",
        "report.page",
        "studies.compare",
        "studies.pretrain",
        "studies.sweep",
        "training.parallel",
        "use.export",
        "use.predict",
    ):
        import_module(f"headstart.{name}")
    for line in sys.stdin:
        print(json.dumps(vars(_fork(json.loads(line)))), flush=True)


def _fork(job: dict[str, Any]) -> Ended:
    with tempfile.TemporaryFile() as output:
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            _become(job, output.fileno())
        code = _wait(child, job["kill_after"])
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # workers that it left
        output.seek(0)
        return Ended(code, output.read()[-20_000:].decode(errors="replace"), time.monotonic() - began)


def _become(job: dict[str, Any], output: int) -> None:
    """In the child: run the command, within the limits."""
    os.setsid()
    faulthandler.register(signal.SIGUSR1, file=output)  # where it hangs, it is asked where
    for stream in (1, 2):
        os.dup2(output, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout, sys.stderr = open(1, "w"), open(2, "w")  # noqa: SIM115
    code = 1
    try:
        from headstart.cli import main

        sys.argv = ["headstart", *job["arguments"]]
        os.environ.update(job["environment"] or {})
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        for name, value in job["limits"].items():
            resource.setrlimit(getattr(resource, name), (value, resource.getrlimit(getattr(resource, name))[1]))
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(OSError):
            sys.stderr.flush()
            sys.stdout.flush()
        if job["environment"] is None:
            os._exit(code)
    sys.exit(code)


def _wait(child: int, kill_after: float | None) -> int:
    deadline = time.monotonic() + (SECONDS if kill_after is None else kill_after)
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            if kill_after is None:
                os.kill(child, signal.SIGUSR1)
                time.sleep(0.5)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -signal.SIGKILL if kill_after is not None else -signal.SIGALRM
        time.sleep(0.002)


if __name__ == "__main__":
    serve()
