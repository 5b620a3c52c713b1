"""An attack on the folder of a comparison: its files damaged at random, then served and reported on as the commands do.

It must be refused, or answer with finite numbers of every arm that is whole; an arm that is not says so. What must not
happen: any other exception, a traceback in the service's log, an answer that cannot be sent as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attack.cases import Outcome, WrongAnswer, judge, run_cases
from attack.mutations import mutate_bytes, mutate_json, mutate_linear, mutate_lines, mutate_safetensors
from attack.world import compare_settings, make_world
from headstart.cli.serve import _open
from headstart.report.page import write_report
from headstart.runs.run import LINEAR
from headstart.serve.limits import Limits
from headstart.serve.study import ServedStudy
from headstart.studies.compare import compare

MUTATIONS = {
    ".json": mutate_json,
    ".toml": mutate_lines,
    ".jsonl": mutate_lines,
    ".safetensors": mutate_safetensors,
    ".parquet": mutate_bytes,
}
TEXTS = ("a bright page of this line", "", ("the dull word", "a vivid line"))


def run(cases: int, seed: int) -> list[Outcome]:
    return run_cases("studies", cases, seed)


def prepare(folder: Path) -> None:
    make_world(folder)
    compare(compare_settings(folder), folder / "study")


def attack(folder: Path, number: int, draw: random.Random) -> Outcome:
    with tempfile.TemporaryDirectory() as name:
        damaged = Path(name) / "study"
        shutil.copytree(folder / "study", damaged)
        files = sorted(path for path in damaged.rglob("*") if path.suffix in MUTATIONS)
        kinds = sorted({path.name for path in files})  # there are many of some, and one comparison.json
        changed = []
        for kind in draw.sample(kinds, k=draw.choice((1, 1, 1, 2))):
            path = draw.choice([path for path in files if path.name == kind])
            changed.append(_damage(draw, path))
        with_report = draw.random() < 0.3
        return judge(f"case {number}: {', '.join(changed)}", lambda: _use(damaged, with_report))


def _damage(draw: random.Random, path: Path) -> str:
    if draw.random() < 0.1:
        path.unlink()
        return f"{path.name} removed"
    usual = mutate_linear if path.name == LINEAR else MUTATIONS[path.suffix]
    mutation = draw.choice((usual, usual, usual, mutate_bytes))
    path.write_bytes(mutation(draw, path.read_bytes()))
    return f"{mutation.__name__} of {path.parent.name}/{path.name}"


def _use(folder: Path, with_report: bool) -> str:
    """As `headstart report` and `headstart serve` do; the log of the service has no traceback."""
    if with_report:
        write_report([folder], folder.parent / "report.html")
    with contextlib.redirect_stderr(io.StringIO()), _no_tracebacks():
        served = _open(str(folder), "cpu", Limits(), None, local=True)
        if not isinstance(served, ServedStudy):
            raise WrongAnswer(f"it is served as a {type(served).__name__}")
        json.dumps(served.info(), allow_nan=False).encode()
        arms = 0
        for budget in served.study.budgets:
            for text in TEXTS:
                *_, answer = served.compare(served.select(budget, None), text, words=True)
                json.dumps(answer, allow_nan=False).encode()
                arms += sum(_check(arm) for arm in answer["arms"])
    return f"{arms} answers"


def _check(arm: dict[str, Any]) -> bool:
    """Whether an arm answered; raises where its answer is none."""
    if "error" in arm:
        return False
    shares = arm["probabilities"]
    if not (arm["label"] in shares and math.isclose(sum(shares.values()), 1.0, abs_tol=1e-6)):
        raise WrongAnswer(f"{arm['name']} says {arm['label']!r} of {shares}")
    return True


@contextlib.contextmanager
def _no_tracebacks() -> Iterator[None]:
    """Raise what was written to the log with a traceback."""
    found: list[BaseException] = []

    class Found(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and record.exc_info[1] is not None:
                found.append(record.exc_info[1])

    handler = Found()
    logging.getLogger("headstart").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("headstart").removeHandler(handler)
    if found:
        raise AssertionError("a traceback in the log") from found[0]
