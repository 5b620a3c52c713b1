"""`headstart compare` as a user types it. What it does is tested with the study; here, what it asks and says."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headstart.cli import progress as progress_module
from headstart.cli.progress import RunProgress, StudyProgress, seconds_left, study_progress, summary
from headstart.config import read_toml, to_toml
from headstart.errors import ConfigError
from headstart.runs.events import Evaluated, Step, event_writer
from headstart.studies.outcomes import Arm
from headstart.studies.planned_runs import PlannedRun
from headstart.studies.recipes import read_settings
from headstart.studies.settings import CompareSettings
from tests.studies.example_data import make_tokenizer, write_reviews

from .command_line import run

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    make_tokenizer().save(folder / "tokenizer")
    for seed, (name, count) in enumerate((("train", 40), ("valid", 30), ("test", 40))):
        write_reviews(folder / f"{name}.txt", count, seed)
    return folder


def arguments(place: Path, out: Path, *more: str) -> list[str]:
    files = [text for name, key in (("train", "data"), ("valid", "valid"), ("test", "test"))
             for text in (f"--{key}", str(place / f"{name}.txt"))]  # fmt: skip
    preset = ["--init", "small", "--tokenizer", str(place / "tokenizer"), "--arms", "scratch", "--epochs", "1"]
    return ["compare", *files, *preset, "--tune", "none", "--seeds", "2", "--out", str(out), *more]


def interrupt(process: subprocess.Popen[str]) -> None:
    """As a terminal does it: to the command, its workers and where they come from."""
    os.killpg(process.pid, signal.SIGINT)


def terminate(process: subprocess.Popen[str]) -> None:
    """As `kill` and most schedulers do it: to the command alone."""
    process.terminate()


def terminate_all(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGTERM)


@pytest.mark.parametrize("stop", [interrupt, terminate, pytest.param(terminate_all, marks=pytest.mark.slow)])
def test_every_worker_saves_and_ends_when_the_command_is_stopped(
    place: Path, tmp_path: Path, stop: Callable[[subprocess.Popen[str]], None]
) -> None:
    command = [sys.executable, "-m", "headstart", *arguments(place, tmp_path / "s", "--jobs", "2", "--epochs", "6")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not any(path.stat().st_size for path in tmp_path.glob("s/runs/scratch-*/events.jsonl")):
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.05)
    stop(process)
    said = process.communicate()[1]  # which ends when the last of them has closed it
    assert process.returncode == 130
    assert "interrupted: what is done is in" in said
    assert "Traceback" not in said
    assert len(list(tmp_path.glob("s/runs/scratch-*/manifest.json"))) < 2
    assert list(tmp_path.glob("s/runs/scratch-*/checkpoints/step-*/state.json"))


def test_a_comparison_says_its_verdict_and_writes_its_page(place: Path, tmp_path: Path) -> None:
    found = run(*arguments(place, tmp_path / "s"))
    assert found.exit_code == 0, found.stderr
    assert re.search(r"^scratch +2 +0\.\d{4} +0\.\d{3} to ", found.stdout, re.M)
    assert re.search(r"^majority +1 ", found.stdout, re.M)
    assert "Use the linear model. It labels 100.0 % of the" in found.stdout and "**" not in found.stdout
    assert f"report: {tmp_path / 's' / 'report.html'}" in found.stdout
    assert f"headstart serve {tmp_path / 's'}" in found.stderr
    assert "scratch, 40 labels, seed 1: valid 0." in found.stderr
    assert "(4 of 4 runs done)" in found.stderr
    page = (tmp_path / "s" / "report.html").read_text()
    comparison = json.loads((tmp_path / "s" / "comparison.json").read_text())
    assert f"<h1>{comparison['title']}</h1>".replace(" %", "\u00a0%") in page
    assert "<strong>Use the linear model.</strong> It labels" in page
    again = run(*arguments(place, tmp_path / "s"))
    assert "4 of 4 runs are done already" in again.stderr
    assert again.stdout == found.stdout
    assert (tmp_path / "s" / "report.html").read_text() == page
    as_json = run(*arguments(place, tmp_path / "s", "--json", "--quiet"))
    assert json.loads(as_json.stdout)["verdict"] == comparison["verdict"]
    assert as_json.stderr == ""


def test_what_is_wrong_is_one_line_before_any_training(place: Path, tmp_path: Path) -> None:
    found = run(*arguments(place, tmp_path / "s", "--labels", "50"))
    assert found.exit_code == 2
    assert found.stderr.splitlines()[-1] == "headstart: labels: 50 labels are asked for, and train has 40"
    assert not (tmp_path / "s").exists()


def test_a_recipe_for_fine_tuning_will_do(tmp_path: Path) -> None:
    found = read_settings(CompareSettings, RECIPES / "minbert.toml", {"frozen": ["dropout=0.1"]})
    assert found.init == ("runs/bert",)
    assert (found.full, found.frozen) == (("lr=1e-05",), ("lr=0.001", "dropout=0.1"))
    assert read_settings(CompareSettings, RECIPES / "lab.toml", {"init": ["here"]}).init == ("here",)
    assert read_settings(CompareSettings, RECIPES / "lab.toml", {"pile": "text.txt"}).pile == ("text.txt",)
    # And so will what a study wrote down.
    (tmp_path / "study.toml").write_text(to_toml({"study": "compare", **found.to_mapping()}))
    assert read_settings(CompareSettings, tmp_path / "study.toml", {}) == found
    assert read_toml(tmp_path / "study.toml")["frozen"] == ["lr=0.001", "dropout=0.1"]
    (tmp_path / "bad.toml").write_text("frozen = 3")
    with pytest.raises(ConfigError, match="frozen is 3, and must be a table"):
        read_settings(CompareSettings, tmp_path / "bad.toml", {})


def planned(arm: str, labels: int, folder: Path) -> PlannedRun:
    settings = {"frozen_head": "probe"} if arm == "frozen" else {}
    return PlannedRun(Arm(arm, "baseline" if arm == "tfidf" else "full", "x"), labels, 0, settings, folder, False)


def test_the_time_left_is_reckoned_by_arm_and_budget(tmp_path: Path) -> None:
    def progress(arm: str, labels: int, share: float, seconds: float) -> RunProgress:
        return RunProgress(planned(arm, labels, tmp_path), share, None, seconds)

    done = [progress("full", 100, 1.0, 60.0), progress("scratch", 100, 1.0, 30.0)]
    assert seconds_left(done) == 0
    # Another of each, one half done, and one of a budget that nothing is known of: reckoned as the slowest.
    rest = [progress("full", 100, 0.5, 30.0), progress("scratch", 100, 0.0, 0.0), progress("full", 10, 0.0, 0.0)]
    assert seconds_left([*done, *rest]) == pytest.approx(30 + 30 + 60)
    assert summary([*done, *rest], 1) == "2 of 5 runs done, about 2 min left"
    assert summary([*done, *rest], 2) == "2 of 5 runs done, about 60 s left"
    assert summary([progress("full", 100, 0.0, 0.0)], 1) == "0 of 1 runs done"
    # A baseline and a linear probe are done in no time, and the others will not be.
    first = [progress("tfidf", 100, 1.0, 0.2), progress("frozen", 100, 1.0, 2.0), progress("full", 100, 0.0, 0.0)]
    assert summary(first, 1) == "2 of 3 runs done"
    assert summary(first[:1], 1) == "1 of 1 runs done"


def test_the_board_reads_what_any_process_writes(tmp_path: Path) -> None:
    running, waiting, over = (planned(name, 40, tmp_path / name) for name in ("full", "frozen", "scratch"))
    steps = [Step(0, i, 10, loss=0.5, parts={}, lr=0.1, gradient=1.0, tokens=i, seconds=3.0) for i in range(1, 5)]
    running.folder.mkdir()
    with event_writer(running.folder / "events.jsonl", 0) as write:
        for step in steps:
            write(step)
        write(Evaluated(1.0, 4, {"accuracy": 0.75}, best=True))
    with (running.folder / "events.jsonl").open("a") as file:
        file.write('{"event": "st')  # a line that is being written
    (running.folder / "run.toml").touch()
    os.utime(running.folder / "run.toml", (0, 0))  # begun long ago, and interrupted
    over.folder.mkdir()
    (over.folder / "result.json").write_text(json.dumps({"valid": {"accuracy": 0.5}}))
    (over.folder / "manifest.json").write_text(json.dumps({"seconds": 12.0}))

    class Study:
        untrained, trials, tuned = (), (), {}  # type: ignore[var-annotated]
        runs = (running, waiting, over)
        settings = CompareSettings(data="x", init=("y",))

    study = StudyProgress(Study())  # type: ignore[arg-type]
    assert [(run.share, run.best) for run in study.read()] == [(0.4, 0.75), (0.0, None), (1.0, 0.5)]
    screen = Console(width=100, file=io.StringIO())
    screen.print(study.table())
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert re.search(r"full +0/1 +0\.7500 +seed 0 40 %", shown)
    assert re.search(r"scratch +1/1 +0\.5000", shown)
    assert "1 of 3 runs done, about 48 s left" in shown  # 6 steps of one and 10 of another, 3 s each


def test_what_a_run_does_before_it_trains_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taught, interrupted = (planned(name, 40, tmp_path / name) for name in ("full+teacher", "full+self"))
    for each in (taught, interrupted):
        each.folder.mkdir()
    (interrupted.folder / "stage.txt").write_text("round 1: 30 of 90 answers are sure and become labels")

    class Study:
        untrained, trials, tuned = (), (), {}  # type: ignore[var-annotated]
        runs = (taught, interrupted)
        done = False
        settings = CompareSettings(data="x", init=("y",))

    study: Any = Study()
    monkeypatch.setattr(progress_module, "INTERVAL", 0.01)
    with study_progress(study, quiet=False):
        time.sleep(0.5)  # what an interrupted run said is not said again
        (taught.folder / "stage.txt").write_text("teacher big: 30 of 90 texts")
    assert capsys.readouterr().err.splitlines() == ["full+teacher, 40 labels, seed 0: teacher big: 30 of 90 texts"]
    screen = Console(width=120, file=io.StringIO())
    screen.print(StudyProgress(study).table())
    assert re.search(r"full\+teacher +0/1 +seed 0: teacher big: 30 of 90 texts", screen.file.getvalue())  # type: ignore[attr-defined]
    with event_writer(taught.folder / "events.jsonl", 0) as write:
        write(Step(0, 1, 4, loss=0.5, parts={}, lr=0.1, gradient=1.0, tokens=9, seconds=3.0))
    screen.print(StudyProgress(study).table())
    assert re.search(r"full\+teacher +0/1 +seed 0 25 %", screen.file.getvalue())  # type: ignore[attr-defined]
