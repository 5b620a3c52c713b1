"""`headstart demo`: the answer, the next step, and what happens where something is missing."""

from __future__ import annotations

import csv
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headstart import demo
from headstart.studies import study as comparing
from headstart.studies.finetune import finetune
from headstart.studies.recipes import read_settings
from headstart.studies.settings import CompareSettings
from headstart.wording import plain_text
from tests.cli.command_line import run


def test_it_answers_and_says_what_to_do_next(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: Any, **__: Any) -> None:
        raise AssertionError("the demo asked for the network")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    found = run("demo")
    assert found.exit_code == 0, found.stderr
    for arm in ("scratch", "frozen", "full", "tfidf", "majority"):
        assert f"\n{arm} " in found.stdout
    for sentence in json.loads(Path("headstart-demo/comparison.json").read_text())["verdict"]:
        assert plain_text(sentence) in found.stdout
    opening = "a classifier of answers in French, trained from scratch, on a frozen base"
    assert found.stderr.startswith(f"study folder: headstart-demo\n{opening}")
    assert "8 of 8 runs done" in found.stderr
    *_, blank, report, last = found.stdout.splitlines()
    assert (blank, report) == ("", "report: headstart-demo/report.html")
    command = f"headstart compare YOURS.csv {tiny}/demo.toml --init {tiny}/lab-fr"
    assert last == f"with your own texts and labels: {command}"
    rows = (tiny / "debat" / "train.csv").read_text(encoding="utf-8")
    Path("YOURS.csv").write_text(rows.replace("label,text", "verdict,review"), encoding="utf-8")
    assert run(*shlex.split(command)[1:], "--test-share", "0.6").exit_code == 0
    assert Path("headstart-demo/report.html").is_file()


def test_the_second_time_it_shows_what_it_found(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run("demo", "--out", "là-bas")
    manifests = {path: path.stat().st_mtime_ns for path in Path("là-bas").glob("runs/*/manifest.json")}
    assert len(manifests) == 8
    again = run("demo", "--out", "là-bas")
    assert (again.exit_code, again.stdout) == (0, first.stdout)
    done = "8 of 8 runs are done already: nothing is trained again, this is what they say"
    assert again.stderr == f"study folder: là-bas\n{done}\n"
    assert {path: path.stat().st_mtime_ns for path in manifests} == manifests
    out = Path("là-bas").resolve()
    monkeypatch.chdir(tiny)
    near = run("demo", "--out", str(out)).stdout.splitlines()[-1]
    assert near.endswith(": headstart compare YOURS.csv demo.toml --init lab-fr")


def test_interrupted_it_goes_on(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def stopped(*arguments: Any, **options: Any) -> Any:
        runs.append(arguments[1])
        if len(runs) == 3:
            raise KeyboardInterrupt
        return finetune(*arguments, **options)

    monkeypatch.setattr(comparing, "finetune", stopped)
    broken = run("demo")
    assert (broken.exit_code, broken.stdout) == (130, "")
    assert broken.stderr.endswith(
        "interrupted: what is done is in headstart-demo, and the same command goes on from there\n"
    )
    again = run("demo")
    assert again.exit_code == 0
    assert again.stderr.startswith(
        "study folder: headstart-demo\n4 of 8 runs are done already\n"
    )  # two baselines and two of the arms
    assert len(runs) == 3 + 4


def test_what_is_missing_or_damaged_is_one_line(tiny: Path) -> None:
    weights, tokenizer = tiny / "lab-fr" / "model.safetensors", tiny / "lab-fr" / "tokenizer.json"

    def refused() -> str:
        found = run("demo")
        assert (found.exit_code, found.stdout, found.stderr.count("\n")) == (2, "", 1), found
        assert found.stderr.endswith("(it came with headstart: install that again)\n")
        assert not Path("headstart-demo").exists()
        return found.stderr

    for damaged, words in [
        (tiny / "debat" / "valid.csv", "no such file"),
        (tiny / "demo.toml", "no such file"),
        (tokenizer, "has no tokenizer"),
        (weights, "there is no file"),
        (tiny / "lab-fr" / "config.json", "there is no file"),
    ]:
        whole = damaged.read_bytes()
        damaged.unlink()
        assert words in refused()
        damaged.write_bytes(whole)
    weights.write_bytes(weights.read_bytes()[:-9])
    assert "cannot be read as safetensors" in refused()
    shutil.rmtree(tiny / "lab-fr")
    assert f"there is no file or folder {tiny / 'lab-fr'}" in refused()


def test_a_folder_of_something_else_is_left_alone(tiny: Path) -> None:
    Path("headstart-demo").mkdir()
    Path("headstart-demo/letters.txt").write_text("Chère tante,\n")
    found = run("demo")
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr == "headstart: headstart-demo holds something that is no comparison: name another folder\n"
    assert [path.name for path in Path("headstart-demo").iterdir()] == ["letters.txt"]


def test_json_and_quiet(tiny: Path) -> None:
    quiet = run("demo", "--quiet")
    assert (quiet.exit_code, quiet.stdout, quiet.stderr) == (0, "", "")
    told = run("demo", "--json")
    assert json.loads(told.stdout) == json.loads(Path("headstart-demo/comparison.json").read_text())


def test_without_a_compiler_or_anything_else_on_the_path(tiny: Path) -> None:
    """In a process of its own, and with the two that `jobs` asks for."""
    demo.RECIPE.write_text(demo.RECIPE.read_text().replace("jobs = 1", "jobs = 2"))
    names = ("HERE", "DEBAT", "BASE", "RECIPE")
    changes = "".join(f"demo.{name} = Path({str(getattr(demo, name))!r})\n" for name in names)
    script = Path("demo.py")
    script.write_text(
        f"import sys\nfrom pathlib import Path\nfrom headstart import demo\nfrom headstart.cli import main\n{changes}"
        "if __name__ == '__main__':\n    sys.argv = ['headstart', 'demo']\n    main()\n"
    )
    surroundings = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX")}
    surroundings |= {"PATH": "/nowhere", "PYTHONPATH": str(Path(demo.__file__).parents[2])}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=surroundings, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "report: headstart-demo/report.html" in done.stdout


def test_its_settings_are_those_that_were_promised() -> None:
    splits = {"data": "train.csv", "valid": "valid.csv", "test": "test.csv"}
    settings = read_settings(CompareSettings, demo.RECIPE, {**splits, "init": ["lab-fr"]})
    assert (settings.arms, settings.seeds) == ("scratch,frozen,full", 3)


@pytest.mark.slow
def test_the_demo_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = run("demo")
    assert found.exit_code == 0, found.stderr
    with (demo.DEBAT / "test.csv").open(encoding="utf-8", newline="") as file:
        rows = sum(1 for _ in csv.DictReader(file))
    about = json.loads(Path("headstart-demo/data.json").read_text())
    assert (about["rows"]["test"], about["leaked"]) == (rows, [])
    scores = {
        arm["name"]: arm["scores"]["accuracy"]["value"]
        for arm in json.loads(Path("headstart-demo/comparison.json").read_text())["arms"]
    }
    assert scores.keys() == {"scratch", "frozen", "full", "tfidf", "majority"}
    assert min(scores["full"], scores["tfidf"]) > scores["majority"] + 0.05


def test_make_says_that_there_is_no_python(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    for name in ("Makefile", "pyproject.toml", "requirements.lock", "requirements-torch.lock"):
        shutil.copy(root / name, tmp_path / name)
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "demo", "PYTHON=no-such-python"]
    done = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout.startswith("make: headstart needs Python 3.11 or newer with venv and pip")
    assert done.stdout.count("\n") == 1
    assert not (tmp_path / ".venv").exists()
