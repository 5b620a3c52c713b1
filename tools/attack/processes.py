"""Commands in two processes, as torchrun starts them, of which one is killed at a random moment, or none.

The other must end, with an error in words. Both started again must leave what undisturbed ones leave. Every process
that is not killed ends as Python does, not on the spot: threads of torch.distributed must not abort it.
"""

from __future__ import annotations

import random
import shutil
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from attack.cases import Outcome
from attack.commands import Commands, Ended
from attack.verbs import arguments, commands, contents, judge_disturbed

NAMES = ("finetune", "pretrain", "tokens", "predict")
PATIENCE = "60"  # seconds that a process waits for another which says nothing


def run(cases: int, seed: int) -> list[Outcome]:
    outcomes = []
    names = NAMES[: max(cases, 1)]
    with commands(processes=2) as (pair, world):
        expected, times = {}, {}
        for name in names:
            ended = _run(pair, name, world / "expected")
            assert not any(each.code for each in ended), f"{name}: {ended}"
            expected[name], times[name] = contents(world / "expected"), ended[0].seconds
            shutil.rmtree(world / "expected")
        for number in range(cases):
            name, out = names[number % len(names)], world / f"case-{number}"
            draw = random.Random(f"{seed}/{number}")
            rank = draw.choice((0, 1, None))
            disturbed = _run(pair, name, out, rank, draw.uniform(0, times[name]))
            again = _run(pair, name, out) if any(each.code for each in disturbed) else disturbed
            case = f"case {number}: {name}, {'none' if rank is None else f'rank {rank}'} killed"
            outcomes.append(judge_disturbed(case, worst(disturbed), worst(again), contents(out), expected[name]))
            shutil.rmtree(out, ignore_errors=True)
    return outcomes


def _run(
    pair: list[Commands], name: str, out: Path, killed: int | None = None, after: float | None = None
) -> list[Ended]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}

    def run(rank: int) -> Ended:
        environment = {**place, "RANK": str(rank), "LOCAL_RANK": str(rank), "HEADSTART_TIMEOUT": PATIENCE}
        return pair[rank].run(arguments(name, out), after if rank == killed else None, environment)

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(run, range(2)))


def worst(ended: list[Ended]) -> Ended:
    """The process that speaks for both: one with a problem that is no kill, else one that did not end well."""
    return max(ended, key=lambda each: (each.problem is not None and each.code != -signal.SIGKILL, each.code != 0))
