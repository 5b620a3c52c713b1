"""Commands with little memory: an error in words, and with enough of it the same result."""

from __future__ import annotations

import random

from attack.cases import Outcome
from attack.commands import Commands, Ended
from attack.verbs import run_verbs

LEAST, MOST = 2**20, 2**28  # bytes beyond what the imports take


def run(cases: int, seed: int) -> list[Outcome]:
    return run_verbs(cases, seed, _limit)


def _limit(commands: Commands, arguments: list[str], draw: random.Random, seconds: float) -> Ended:
    room = LEAST * (MOST / LEAST) ** draw.random()
    return commands.run(arguments, RLIMIT_AS=commands.size + int(room))
