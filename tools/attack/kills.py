"""Commands killed at random moments, then run again: the result must be that of an undisturbed run, and no more."""

from __future__ import annotations

import random

from attack.cases import Outcome
from attack.commands import Commands, Ended
from attack.verbs import run_verbs


def run(cases: int, seed: int) -> list[Outcome]:
    return run_verbs(cases, seed, _kill)


def _kill(commands: Commands, arguments: list[str], draw: random.Random, seconds: float) -> Ended:
    ended = commands.run(arguments, kill_after=draw.uniform(0, seconds))
    while ended.code and draw.random() < 0.3:  # and again, while it goes on
        ended = commands.run(arguments, kill_after=draw.uniform(0, seconds))
    return ended
