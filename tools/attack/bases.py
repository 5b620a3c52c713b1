"""An attack on the bases that ship: a file of one damaged at random, then opened by its name.

Such a base is refused by its digests. Where the digests are damaged, it is unknown, refused, or what was released.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import tempfile
from pathlib import Path
from unittest import mock

from attack.cases import Outcome, WrongAnswer, judge, run_cases
from attack.mutations import mutate_bytes, mutate_json, mutate_lines, mutate_safetensors
from attack.world import make_world
from headstart import bases
from headstart.checkpoints.exchange import open_model
from headstart.use.language_model import LanguageModel

NAME = "base"
MUTATIONS = {".json": mutate_json, ".safetensors": mutate_safetensors, "": mutate_lines}


def run(cases: int, seed: int) -> list[Outcome]:
    return run_cases("bases", cases, seed)


def prepare(folder: Path) -> None:
    """A package of one small base, as `headstart.bases` is one."""
    make_world(folder)
    package = folder / "package"
    shutil.copytree(folder / "base", package / NAME)
    files = sorted((package / NAME).iterdir())
    sums = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {NAME}/{file.name}\n" for file in files)
    (package / bases.SUMS).write_text(sums)


def attack(folder: Path, number: int, draw: random.Random) -> Outcome:
    with tempfile.TemporaryDirectory() as name:
        package = Path(name) / "package"
        shutil.copytree(folder / "package", package)
        path = draw.choice(sorted(path for path in package.rglob("*") if path.is_file()))
        if draw.random() < 0.1:
            path.unlink()
        else:
            path.write_bytes(draw.choice((MUTATIONS[path.suffix], mutate_bytes))(draw, path.read_bytes()))
        case = f"case {number}: {path.relative_to(package)}"
        with mock.patch.object(bases, "HERE", package):
            return judge(case, lambda: _use(folder / "package"))


def _use(released: Path) -> str:
    """As `headstart bases` and `headstart fill NAME` do."""
    names = bases.shipped()
    found = bases.find(NAME)
    if not found.exists():
        raise bases.no_such_model(NAME)
    files = sorted((released / NAME).iterdir())
    other = [file.name for file in files if (found / file.name).read_bytes() != file.read_bytes()]
    if other:
        raise WrongAnswer(f"{NAME} of {names} is opened, with another {', '.join(other)}")
    LanguageModel(open_model(found)).fill("a dull <mask>")
    return "the base that was released"
