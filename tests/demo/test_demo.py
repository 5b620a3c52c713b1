"""`headstart demo`: the answer, the next step, and what happens where something is missing."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headstart import demo
from headstart.checkpoints.exchange import open_model
from headstart.cli.demo import next_command
from headstart.files import LOCK, locked
from headstart.studies import study as comparing
from headstart.studies.finetune import finetune
from headstart.studies.recipes import read_settings
from headstart.studies.settings import CompareSettings
from headstart.wording import plain_text
from tests.cli.command_line import run
from tests.demo.conftest import RUNS


def test_it_tells_what_is_compared_and_answers(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: Any, **__: Any) -> None:
        raise AssertionError("the demo asked for the network")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    found = run("demo")
    assert found.exit_code == 0, found.stderr
    base, labels, comparison, *rest = found.stdout.split("\n\n")
    parameters = sum(p.numel() for p in open_model(tiny.parent / "bases" / demo.BASE).model.parameters())
    assert base.startswith(f"What does pretraining buy? `{demo.BASE}`, a network of {parameters / 1e6:.1f} million")
    assert "Grand Débat national of 2019" in base
    assert "one of 2: climat and école. « " in labels
    assert "from 20 and 40 labelled answers" in comparison
    assert "with 2 seeds and scored on 60 answers" in comparison
    for arm in ("full", "frozen", "scratch", "tfidf", "majority"):
        assert f" {arm} " in comparison
        assert f"\n{arm} " in "\n\n".join(rest)
    for sentence in json.loads(Path("headstart-demo/comparison.json").read_text())["verdict"]:
        assert plain_text(sentence) in found.stdout
    assert f"{RUNS} of {RUNS} runs done" in found.stderr
    assert found.stdout.splitlines()[-2] == "report: headstart-demo/report.html"
    assert Path("headstart-demo/report.html").is_file()
    assert not Path("headstart-demo/.lock").exists()


def test_the_answer_is_in_labels_and_in_points(tiny: Path) -> None:
    found = run("demo").stdout
    assert re.search(r"^test, by labels +20 +40$", found, re.M)
    assert re.search(r"^test, 40 labels ", found, re.M)
    assert re.search(r"With 20 labels pretraining (adds|lowers|shows) .*% interval ", found)
    assert re.search(r"Against the linear model, [\d.]+ %, that is [-+][\d.]+ points \(9\d(\.\d)? % interval ", found)


def test_its_last_line_is_the_command_for_ones_own_data(tiny: Path) -> None:
    first = run("demo").stdout.splitlines()[-1]
    assert first == "with your own texts and labels: headstart compare YOURS.csv"
    rows = (tiny / "debat" / "train.csv").read_text(encoding="utf-8")
    Path("YOURS.csv").write_text(rows.replace("label,text", "verdict,review"), encoding="utf-8")
    quick = ["--tune", "none", "--epochs", "1", "--seeds", "1", "--window", "16", "--test-share", "0.6", "--jobs", "1"]
    done = run(*shlex.split(first.partition(": ")[2])[1:], *quick)
    assert done.exit_code == 0, done.stderr


def test_the_command_is_named_as_it_can_be_typed_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "headstart"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)
    assert next_command(program) == "bin/headstart compare YOURS.csv"
    monkeypatch.chdir(program.parent.parent.parent)
    assert next_command(Path("/opt/bin/headstart")) == "/opt/bin/headstart compare YOURS.csv"
    assert next_command(Path("/usr/lib/headstart/__main__.py")) == "headstart compare YOURS.csv"
    monkeypatch.setenv("PATH", str(program.parent))
    assert next_command(program) == "headstart compare YOURS.csv"


def test_the_second_time_it_shows_what_it_found(tiny: Path) -> None:
    first = run("demo", "--out", "là-bas")
    manifests = {path: path.stat().st_mtime_ns for path in Path("là-bas").glob("runs/*/manifest.json")}
    assert len(manifests) == RUNS
    again = run("demo", "--out", "là-bas")
    assert (again.exit_code, again.stdout) == (0, first.stdout)
    done = f"{RUNS} of {RUNS} runs are done already: nothing is trained again, this is what they say"
    serve = "to see what each arm says of a text of yours: headstart serve 'là-bas'"
    assert again.stderr == f"study folder: là-bas\n{done}\n{serve}\n"
    assert {path: path.stat().st_mtime_ns for path in manifests} == manifests


def test_interrupted_it_goes_on(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def stopped(*arguments: Any, **options: Any) -> Any:
        runs.append(arguments[1])
        if len(runs) == 3:
            raise KeyboardInterrupt
        return finetune(*arguments, **options)

    monkeypatch.setattr(comparing, "finetune", stopped)
    broken = run("demo")
    assert broken.exit_code == 130
    assert broken.stdout.rstrip().endswith("none of which the base has read.")  # the story, and no answer
    assert broken.stderr.endswith(
        "interrupted: what is done is in headstart-demo, and the same command goes on from there\n"
    )
    again = run("demo")
    assert again.exit_code == 0, again.stderr
    assert again.stderr.startswith(f"study folder: headstart-demo\n10 of {RUNS} runs are done already\n")
    assert len(runs) == 3 + 12 - 2  # eight baselines and two of the arms were done


def test_what_is_missing_or_damaged_is_one_line(tiny: Path) -> None:
    base = tiny.parent / "bases" / demo.BASE

    def refused() -> str:
        found = run("demo")
        assert (found.exit_code, found.stdout, found.stderr.count("\n")) == (2, "", 1), found
        assert not Path("headstart-demo").exists()
        return found.stderr

    for path, words in [
        (tiny / "debat" / "valid.csv", "it cannot be read (No such file or directory)"),
        (tiny / "debat" / "DATASHEET.md", "it cannot be read (No such file or directory)"),
        (tiny / "demo.toml", "it cannot be read (No such file or directory)"),
        (base / "tokenizer.json", f"the base {demo.BASE}, which ships with headstart, lacks"),
        (base / "model.safetensors", f"the base {demo.BASE}, which ships with headstart, lacks"),
    ]:
        whole = path.read_bytes()
        path.unlink()
        assert words in (said := refused()) and str(path) in said
        assert "install headstart again" in said
        path.write_bytes(whole)
    for path, words in [
        (tiny / "debat" / "test.csv", "it is not the file that was released"),
        (tiny / "debat" / "DATASHEET.md", "it is not the file that was released"),
        (base / "model.safetensors", "is not the file that was released"),
    ]:
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        assert words in (said := refused()) and "install headstart again" in said
        path.write_bytes(whole)
    assert run("demo", "--quiet").exit_code == 0


def test_a_folder_here_of_the_base_s_name_is_not_taken(tiny: Path) -> None:
    Path(demo.BASE).mkdir()
    assert run("demo").exit_code == 0
    settings = Path("headstart-demo/study.toml").read_text(encoding="utf-8")
    assert str(tiny.parent / "bases" / demo.BASE) in settings


@pytest.mark.parametrize("name", ["letters.txt", "run.toml"])
def test_a_folder_of_something_else_is_left_alone(name: str, tiny: Path) -> None:
    Path("headstart-demo").mkdir()
    Path("headstart-demo", name).write_text("Chère tante,\n")
    found = run("demo")
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr == (
        "headstart: headstart-demo holds something that is no comparison: name another folder "
        "(--out FOLDER puts the demo elsewhere)\n"
    )
    assert [path.name for path in Path("headstart-demo").iterdir()] == [name]
    assert run("demo", "--out", "there", "--quiet").exit_code == 0


def test_a_file_where_the_folder_should_be(tiny: Path) -> None:
    Path("headstart-demo").write_text("mine")
    found = run("demo")
    assert (found.exit_code, found.stdout, found.stderr.count("\n")) == (2, "", 1)
    assert "headstart-demo is a file" in found.stderr and "--out FOLDER" in found.stderr
    assert Path("headstart-demo").read_text() == "mine"


def test_a_place_where_it_may_not_write(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = os.mkdir

    def forbidden(path: Any, *arguments: Any, **options: Any) -> None:
        if str(path) == "headstart-demo":
            raise PermissionError(13, "Permission denied", str(path))
        genuine(path, *arguments, **options)

    monkeypatch.setattr(os, "mkdir", forbidden)
    found = run("demo")
    assert (found.exit_code, found.stdout, found.stderr.count("\n")) == (2, "", 1), found
    assert "cannot write headstart-demo" in found.stderr and "Permission denied" in found.stderr
    assert found.stderr.endswith("(--out FOLDER puts the demo elsewhere)\n")
    assert run("demo", "--out", "there", "--quiet").exit_code == 0


def test_a_second_demo_beside_the_first(tiny: Path) -> None:
    """In the same folder it is told who is there; in another it runs."""
    assert run("demo", "--quiet").exit_code == 0
    with locked(Path("headstart-demo") / LOCK) as ours:
        assert ours
        found = run("demo")
        assert (found.exit_code, found.stdout) == (2, "")
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        assert found.stderr.splitlines()[-1] == (
            f"headstart: {holder} runs a demo in headstart-demo: wait for its end "
            "(--out FOLDER puts the demo elsewhere)"
        )
        assert run("demo", "--out", "there", "--quiet").exit_code == 0
    assert run("demo", "--quiet").exit_code == 0


def test_json_and_quiet(tiny: Path) -> None:
    quiet = run("demo", "--quiet")
    assert (quiet.exit_code, quiet.stdout, quiet.stderr) == (0, "", "")
    told = run("demo", "--json")
    assert json.loads(told.stdout) == json.loads(Path("headstart-demo/comparison.json").read_text())


def test_without_a_compiler_or_anything_else_on_the_path(tiny: Path) -> None:
    """In a process of its own, and with the two that `jobs` asks for."""
    demo.RECIPE.write_text(demo.RECIPE.read_text().replace("jobs = 1", "jobs = 2"))
    changes = (
        "".join(f"demo.{name} = Path({str(getattr(demo, name))!r})\n" for name in ("HERE", "DEBAT", "RECIPE"))
        + f"bases.HERE = Path({str(tiny.parent / 'bases')!r})\n"
    )
    script = Path("demo.py")
    script.write_text(
        "import sys\nfrom pathlib import Path\nfrom headstart import bases, demo\nfrom headstart.cli import main\n"
        f"{changes}if __name__ == '__main__':\n    sys.argv = ['headstart', 'demo']\n    main()\n"
    )
    surroundings = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX")}
    surroundings |= {"PATH": "/nowhere", "PYTHONPATH": str(Path(demo.__file__).parents[2])}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=surroundings, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "report: headstart-demo/report.html" in done.stdout


def test_its_settings_are_those_that_were_promised() -> None:
    splits = {"data": "train.csv", "valid": "valid.csv", "test": "test.csv"}
    settings = read_settings(CompareSettings, demo.RECIPE, {**splits, "init": [demo.BASE]})
    assert {"scratch", "frozen", "full"} <= set(settings.arms.split(","))
    assert settings.tune != "none"
    assert settings.labels is not None and len(settings.labels.split(",")) > 1
    assert settings.seeds == "auto" or settings.seeds >= 3


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
