"""An attack on options and recipes: odd values by the command line's own parser, in one process.

Each must end as a command may: done, or with a usage error or an error of headstart, never with a traceback.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from attack.cases import Outcome, WrongAnswer, judge, run_cases
from attack.world import make_world
from headstart.cli import main
from headstart.errors import HeadstartError

VALUES = (
    *("", " ", "0", "-1", "1", "2", "0.5", "-0.5", "1e-320", "1e308", "nan", "inf", "-inf", "1_000", "0x10", "１"),
    *("auto", "none", "true", "cpu", "cuda:99", "text", "label", ".", "..", "missing", "train.txt", "run", "base"),
    *("frozen", "scratch", "contrastive"),
    *("corpus.txt", "texts.csv", "a=b", "=", "lr=", "lr=1e-3", "a,b,,c", "../x", "é" * 300, "\x00", "\ud800", "*", "-"),
    *("[", "'", '"', "\n", "pos", "full", "all", "1,2,all", "99999999999999999999", "1000000", "9" * 5000, "--help"),
)
# What decides how long a command works is not drawn large: a training of a million steps is no error.
LENGTHS = ("steps", "epochs", "seeds", "trials", "orders", "max_tokens", "count", "least_steps", "jobs", "workers")
SMALL = "--steps 2 --window 8"
COMMANDS = {
    "finetune": f"finetune train.txt --valid valid.txt --init base --out OUT/run {SMALL}",
    "pretrain": f"pretrain corpus.txt --tokenizer tokenizer --init base --objective masked --out OUT/run {SMALL}",
    "tokens": "tokens corpus.txt --tokenizer tokenizer --workers 1 --out OUT/store",
    "train": "tokenizer train corpus.txt --size 90 --kind wordpiece --out OUT/tokenizer",
    "predict": "predict run texts.csv --out OUT/labels.csv",
    "evaluate": "evaluate run test.txt",
    "explain": "explain run 'a dull page'",
    "generate": "generate causal 'a dull page' --max-tokens 5",
    "fill": "fill base 'a dull <mask>'",
    "params": "params base",
    "doctor": "doctor train.txt",
    "plan": "plan train.txt",
    "export": "export hf OUT/hf --to hf",
    "import": "import hf OUT/model",
    "report": "report run --out OUT/report.html",
}


def run(cases: int, seed: int) -> list[Outcome]:
    return run_cases("options", cases, seed)


def prepare(folder: Path) -> None:
    make_world(folder)


def attack(folder: Path, number: int, draw: random.Random) -> Outcome:
    """A command with one or two odd options, an odd argument, or a recipe with odd lines."""
    name = draw.choice(sorted(COMMANDS))
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "deep" / "out"
        out.mkdir(parents=True)
        arguments = [argument.replace("OUT", str(out)) for argument in shlex.split(COMMANDS[name])]
        what = draw.random()
        if what < 0.2:
            arguments[draw.randrange(1, len(arguments))] = draw.choice(VALUES)
        elif what < 0.4 and name in ("finetune", "pretrain"):
            (out / "odd.toml").write_text(_recipe(draw, name), errors="surrogatepass")
            arguments.append(str(out / "odd.toml"))
        else:
            for _ in range(draw.choice((1, 1, 2))):
                arguments += _odd_option(draw, name)
        case = f"case {number}: {' '.join(argument[:40] for argument in arguments)!a}"
        with _copy(folder, Path(scratch)):
            return judge(case, lambda: _run(arguments))


@contextlib.contextmanager
def _copy(folder: Path, scratch: Path) -> Iterator[None]:
    """A copy of the world as the working folder: an odd `--out` may name anything in it."""
    before = Path.cwd()
    shutil.copytree(folder, scratch / "deep" / "world", ignore=shutil.ignore_patterns("tmp*"))
    os.chdir(scratch / "deep" / "world")
    try:
        yield
    finally:
        os.chdir(before)


def _run(arguments: list[str]) -> str:
    errors = io.StringIO()
    code: object = 0
    with (
        mock.patch.object(sys, "argv", ["headstart", *arguments]),
        mock.patch("headstart.cli.end_on_signals"),  # this process goes on
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO())),
        contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)),
        contextlib.redirect_stderr(errors),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
    said = errors.getvalue().encode(errors="backslashreplace").decode()  # as stderr prints it
    if "Traceback" in said:
        raise AssertionError(said[-2000:])
    if code in (1, 2):
        raise HeadstartError(said)
    if code not in (0, None):
        raise WrongAnswer(f"exit code {code}: {said[-500:]}")
    return "done"


def _names(command: str) -> dict[str, str]:
    """The options of a command that take a value, by their names in the code."""
    from typer.main import get_command

    from headstart.cli import app

    found = get_command(app)
    for part in ("tokenizer", "train") if command == "train" else (command,):
        found = found.commands[part]  # type: ignore[attr-defined]
    return {
        parameter.name or "": max(parameter.opts, key=len)
        for parameter in found.params
        if parameter.param_type_name == "option" and not getattr(parameter, "is_flag", False)
    }


def _odd_option(draw: random.Random, command: str) -> list[str]:
    names = _names(command)
    name = draw.choice(sorted(names))
    return [names[name], _value(draw, name)]


def _value(draw: random.Random, name: str) -> str:
    values = [value for value in VALUES if name not in LENGTHS or len(value) < 4]
    return draw.choice(values)


def _recipe(draw: random.Random, command: str) -> str:
    """Lines of TOML, most of them of settings that there are."""
    odd = ("1", "-1", "1e400", "nan", "''", "[]", "[1, 'a']", "{}", "true", "1979-05-27", "'''x", "0x", '"\\ud800"')
    names = [*(name for name in _names(command) if name not in LENGTHS), "nothing", "a.b", "[table]", ""]
    return "".join(f"{draw.choice(names)} = {draw.choice(odd)}\n" for _ in range(draw.randint(1, 3)))
