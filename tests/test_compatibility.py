"""Folders that an earlier headstart wrote can still be read, and an interrupted run of it goes on to the same end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import run

FIXTURES = Path(__file__).parent / "fixtures" / "version-0.1.0"
SETS = ("--data", "train.txt", "--valid", "valid.txt", "--test", "test.txt")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to work in: runs are named by the paths they were given, which are relative."""
    copy = tmp_path / "written before"
    shutil.copytree(FIXTURES, copy)
    monkeypatch.chdir(copy)
    return copy


def done(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_token_store_is_trained_on(folder: Path) -> None:
    done(
        "pretrain", "--store", "store", "--init", "pretrained", "--objective", "masked", "--steps", "2", "--out", "new"
    )
    assert [event["event"] for event in events(folder / "new" / "events.jsonl")][:2] == ["step", "step"]


def test_a_pretrained_model_fills_gaps(folder: Path) -> None:
    assert "story" in done("fill", "pretrained", "a <mask> story", "--json")


def test_a_trained_classifier_scores_as_it_did(folder: Path) -> None:
    then = json.loads((folder / "finetuned" / "result.json").read_text(encoding="utf-8"))["test"]
    now = json.loads(done("evaluate", "finetuned", "test.txt", "--json"))
    assert now["rows"] == 30
    assert now["accuracy"] == then["accuracy"]
    assert now["loss"] == pytest.approx(then["loss"], abs=1e-6)


def test_runs_and_studies_are_reported(folder: Path) -> None:
    done("report", "pretrained", "finetuned", "compared", "swept", "--out", "page.html")
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert "scratch" in page
    assert "lr" in page


def test_a_comparison_that_is_done_is_not_done_again(folder: Path) -> None:
    runs = sorted(path.name for path in (folder / "compared" / "runs").iterdir())
    then = json.loads((folder / "compared" / "comparison.json").read_text(encoding="utf-8"))
    command = ("--init", "base=pretrained", "--arms", "scratch,full", "--seeds", "2", "--labels", "20,all")
    then_usual = ("--tune", "none", "--batch-size", "8")  # the defaults of that version
    now = json.loads(
        done("compare", *SETS, *command, *then_usual, "--epochs", "1", "--lr", "1e-2", "--out", "compared", "--json")
    )
    assert sorted(path.name for path in (folder / "compared" / "runs").iterdir() if path.name != ".locks") == runs
    assert [(arm["name"], arm["scores"]["accuracy"]["value"]) for arm in now["arms"]] == [
        (arm["name"], arm["scores"]["accuracy"]["value"]) for arm in then["arms"]
    ]


def test_a_sweep_that_is_done_is_not_done_again(folder: Path) -> None:
    runs = sorted(path.name for path in (folder / "swept" / "runs").iterdir())
    command = ("--init", "pretrained", "--grid", "lr=1e-3,1e-2", "--epochs", "1", "--out", "swept", "--resume")
    done("sweep", *SETS, *command)
    assert sorted(path.name for path in (folder / "swept" / "runs").iterdir() if path.name != ".locks") == runs


def test_an_interrupted_run_goes_on_to_the_same_end(folder: Path) -> None:
    settings = ("--epochs", "3", "--lr", "1e-2", "--save-every", "5", "--average", "0.9", "--optimizer", "muon")
    done("finetune", *SETS, "--init", "pretrained", *settings, "--out", "interrupted", "--resume")
    then = [event for event in events(folder / "uninterrupted-events.jsonl") if event["event"] == "step"]
    now = [event for event in events(folder / "interrupted" / "events.jsonl") if event["event"] == "step"]
    assert [event["step"] for event in now] == [event["step"] for event in then]
    assert [event["loss"] for event in now] == pytest.approx([event["loss"] for event in then], rel=1e-4)
