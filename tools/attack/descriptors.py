"""Commands with few file descriptors: an error in words, and with more of them the same result."""

from __future__ import annotations

import random

from attack.cases import Outcome
from attack.commands import Commands, Ended
from attack.verbs import run_verbs


def run(cases: int, seed: int) -> list[Outcome]:
    return run_verbs(cases, seed, _limit)


def _limit(commands: Commands, arguments: list[str], draw: random.Random, seconds: float) -> Ended:
    return commands.run(arguments, RLIMIT_NOFILE=draw.randint(4, 24))
