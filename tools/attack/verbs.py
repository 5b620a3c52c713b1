"""Commands that write, disturbed in some way and then run again: they must leave what an undisturbed one leaves.

Each command runs in a process that is forked from one which has imported everything, so that a disturbance at a
random moment rarely falls into the imports.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from attack.cases import MEMORY, Outcome

SECONDS = 300.0  # after which a command counts as one that hangs
SMALL = "--change width=16 --change layers=1 --change heads=2 --change feed_forward=24 --window 16"
VERBS = {
    "finetune": "finetune train.txt --valid valid.txt --init base --epochs 2 --save-every 3 --out OUT/run --resume",
    "pretrain": f"pretrain corpus.txt --tokenizer tokenizer {SMALL} --steps 12 --save-every 3 --out OUT/run --resume",
    "tokens": "tokens corpus.txt --tokenizer tokenizer --workers 1 --valid 0.1 --out OUT/store",
    "tokenizer": "tokenizer train corpus.txt --size 90 --kind wordpiece --out OUT/tokenizer",
    "compare": "compare train.txt --valid valid.txt --test test.txt --init base --arms scratch,full --tune none "
    "--seeds 2 --epochs 1 --jobs 1 --out OUT/study",
    "sweep": "sweep train.txt --valid valid.txt --init base --epochs 1 --grid lr=1e-3,1e-2 --out OUT/study --resume",
    "report": "report run --out OUT/report.html",
    "doctor": "doctor train.txt --valid valid.txt --clean OUT/clean",
    "predict": "predict run texts.csv --out OUT/labels.csv",
    "export": "export hf OUT/hf --to hf",
    "import": "import hf OUT/model",
}
TIMES = ("seconds", "cost", "memory", "verdict")  # the verdict names the costs; what it rests on is compared
NOT_COMPARED = ("manifest.json", "report.html")  # times and the command line; the rest of the page is comparison.json


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

    def run(self, arguments: list[str], kill_after: float | None = None, **limits: int) -> Ended:
        """`limits` are in the words of the system: `RLIMIT_FSIZE=4096`."""
        assert self._server.stdin is not None and self._server.stdout is not None
        job = {"arguments": arguments, "kill_after": kill_after, "limits": limits}
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
        os._exit(code)


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


def contents(folder: Path) -> dict[str, Any]:
    """What a command left: every file by its name, without locks and without what time and memory things took."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or path.name == ".lock" or path.parent.name == ".locks":
            continue
        if path.name in NOT_COMPARED:
            found[name] = None
        elif path.suffix in (".json", ".jsonl"):
            lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
            found[name] = [without_times(json.loads(line)) for line in lines]
        else:
            found[name] = path.read_bytes()
    return found


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(entry) for key, entry in value.items() if key not in TIMES}
    return [without_times(entry) for entry in value] if isinstance(value, list) else value


Disturb = Callable[[Commands, list[str], random.Random, float], Ended]


@contextmanager
def commands() -> Iterator[tuple[Commands, Path]]:
    from attack.world import make_world

    with tempfile.TemporaryDirectory() as name:
        make_world(Path(name))
        running = Commands(Path(name))
        try:
            yield running, Path(name)
        finally:
            running.close()


def run_verbs(cases: int, seed: int, disturb: Disturb) -> list[Outcome]:
    """Run each verb in turn, disturbed as `disturb` does it, then undisturbed, and compare."""
    outcomes = []
    names = list(VERBS)[: max(cases, 1)]
    with commands() as (running, world):
        expected, times = {}, {}
        for name in names:
            ended = running.run(_arguments(name, world / "expected"))
            assert ended.code == 0, f"{name}: {ended.said}"
            expected[name], times[name] = contents(world / "expected"), ended.seconds
            shutil.rmtree(world / "expected")
        for number in range(cases):
            name, out = names[number % len(names)], world / f"case-{number}"
            draw = random.Random(f"{seed}/{number}")
            disturbed = disturb(running, _arguments(name, out), draw, times[name])
            again = running.run(_arguments(name, out)) if disturbed.code else disturbed
            outcomes.append(_judge(f"case {number}: {name}", disturbed, again, contents(out), expected[name]))
            shutil.rmtree(out, ignore_errors=True)
    return outcomes


def _arguments(verb: str, out: Path) -> list[str]:
    return [argument.replace("OUT", str(out)) for argument in VERBS[verb].split()]


def _judge(case: str, disturbed: Ended, again: Ended, found: dict[str, Any], expected: dict[str, Any]) -> Outcome:
    killed = disturbed.code == -signal.SIGKILL
    for ended in (again,) if killed else (disturbed, again):
        if ended.problem is not None:
            return Outcome(case, ended.problem, ended.said[-3000:])
    if found.keys() != expected.keys():
        return Outcome(case, "lost", f"files {sorted(found.keys() ^ expected.keys())}; {again}"[:2000])
    other = [name for name in found if found[name] != expected[name]]
    if other:
        return Outcome(case, "wrong answer", f"other contents of {other}; {again}"[:2000])
    kind = "stopped, the same in the end" if disturbed.code else "answered"
    return Outcome(case, kind, disturbed.said[-300:])


if __name__ == "__main__":
    serve()
