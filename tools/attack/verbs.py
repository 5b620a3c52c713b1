"""Commands that write, disturbed in some way and then run again: they must leave what an undisturbed one leaves."""

from __future__ import annotations

import json
import random
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attack.cases import Outcome
from attack.commands import Commands, Ended

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
def commands(processes: int = 1) -> Iterator[tuple[list[Commands], Path]]:
    """So many servers of commands, which run at the same time, and the folder of their world."""
    from attack.world import make_world

    with tempfile.TemporaryDirectory() as name:
        make_world(Path(name))
        running = [Commands(Path(name)) for _ in range(processes)]
        try:
            yield running, Path(name)
        finally:
            for each in running:
                each.close()


def run_verbs(cases: int, seed: int, disturb: Disturb) -> list[Outcome]:
    """Run each verb in turn, disturbed as `disturb` does it, then undisturbed, and compare."""
    outcomes = []
    names = list(VERBS)[: max(cases, 1)]
    with commands() as ([running], world):
        expected, times = {}, {}
        for name in names:
            ended = running.run(arguments(name, world / "expected"))
            assert ended.code == 0, f"{name}: {ended.said}"
            expected[name], times[name] = contents(world / "expected"), ended.seconds
            shutil.rmtree(world / "expected")
        for number in range(cases):
            name, out = names[number % len(names)], world / f"case-{number}"
            draw = random.Random(f"{seed}/{number}")
            disturbed = disturb(running, arguments(name, out), draw, times[name])
            again = running.run(arguments(name, out)) if disturbed.code else disturbed
            outcomes.append(judge_disturbed(f"case {number}: {name}", disturbed, again, contents(out), expected[name]))
            shutil.rmtree(out, ignore_errors=True)
    return outcomes


def arguments(verb: str, out: Path) -> list[str]:
    return [argument.replace("OUT", str(out)) for argument in VERBS[verb].split()]


def judge_disturbed(
    case: str, disturbed: Ended, again: Ended, found: dict[str, Any], expected: dict[str, Any]
) -> Outcome:
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
