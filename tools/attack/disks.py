"""Commands on a disk that is full at a random size of a file: an error in words; with room again the same result."""

from __future__ import annotations

import random

from attack.cases import Outcome
from attack.commands import Commands, Ended
from attack.verbs import run_verbs

LARGEST = 60_000  # bytes, somewhat more than the largest file that a command of the world writes


def run(cases: int, seed: int) -> list[Outcome]:
    return run_verbs(cases, seed, _fill)


def _fill(commands: Commands, arguments: list[str], draw: random.Random, seconds: float) -> Ended:
    return commands.run(arguments, RLIMIT_FSIZE=int(LARGEST ** draw.random()))
