"""Cases of an attack, in a process of their own with limits on time and memory; where it ends early, another goes on.

A test is a module with `prepare(folder)`, which writes the whole files, and `attack(folder, number, draw)`, which
damages a copy and uses it. A case is decided by its number and the seed alone.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from headstart.errors import HeadstartError, is_out_of_memory

SECONDS = 120  # for one case; most take a fraction of a second, and longer on a busy machine
MEMORY = 8 * 2**30  # address space of the process, of which torch takes a good part
GOOD = ("answered", "refused", "stopped, the same in the end")


class WrongAnswer(Exception):
    """An answer that the files do not give."""


@dataclass(frozen=True)
class Outcome:
    """What a case came to: good, or one of `traceback`, `memory`, `hang`, `crash`, `wrong answer` and `lost`."""

    case: str
    kind: str
    detail: str = ""

    @property
    def good(self) -> bool:
        return self.kind in GOOD


def run_cases(test: str, cases: int, seed: int) -> list[Outcome]:
    """So many cases of a test."""
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        import_module(f"attack.{test}").prepare(Path(folder))
        while len(outcomes) < cases:
            command = [sys.executable, __file__, test, folder, str(seed), str(len(outcomes)), str(cases)]
            environment = {**os.environ, "TMPDIR": folder}  # what a killed process leaves is removed with the folder
            worker = subprocess.run(command, capture_output=True, text=True, env=environment)
            outcomes += [Outcome(**json.loads(line)) for line in worker.stdout.splitlines()]
            if len(outcomes) < cases:  # it ended within a case
                kind = "hang" if worker.returncode == -signal.SIGALRM else "crash"
                outcomes.append(Outcome(f"case {len(outcomes)}", kind, worker.stderr[-2000:]))
    return outcomes


def work(test: str, folder: Path, seed: int, first: int, cases: int) -> None:
    """The cases from `first` on, one line of JSON each."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    attack: Callable[[Path, int, random.Random], Outcome] = import_module(f"attack.{test}").attack
    for number in range(first, cases):
        signal.alarm(SECONDS)  # ends the process, also from within a library
        print(json.dumps(asdict(attack(folder, number, random.Random(f"{seed}/{number}")))), flush=True)


def judge(case: str, use: Callable[[], str]) -> Outcome:
    """What the use of something damaged came to."""
    try:
        answer = use()
    except WrongAnswer as error:
        return Outcome(case, "wrong answer", str(error))
    except HeadstartError as error:
        kind = "refused" if _is_printable(str(error)) else "traceback"
        return Outcome(case, kind, ascii(str(error)))
    except BaseException as error:  # a library's panic is no Exception
        kind = "memory" if is_out_of_memory(error) else "traceback"
        return Outcome(case, kind, traceback.format_exc()[-2000:])
    return Outcome(case, "answered", answer)


def _is_printable(message: str) -> bool:
    """Whether the command line can print it: half of a surrogate pair from a file cannot be."""
    try:
        message.encode()
    except UnicodeEncodeError:
        return False
    return True


if __name__ == "__main__":
    test, folder, seed, first, cases = sys.argv[1:]
    work(test, Path(folder), int(seed), int(first), int(cases))
