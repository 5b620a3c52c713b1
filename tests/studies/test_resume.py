"""Exact resume, with real processes and real kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headstart.runs.events import Saved, Step
from headstart.runs.run import RunFolder
from headstart.studies.verify import first_difference, verify_resume

SIZES = ["--change", "width=32", "--change", "layers=2", "--change", "heads=2", "--change", "feed_forward=48"]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def pretraining(world: Path, *more: str) -> list[str]:
    common = ["pretrain", "--store", str(world / "store"), "--model", "small", *SIZES, "--window", "32"]
    return [*common, "--batch-size", "8", "--epochs", "2", "--save-every", "4", "--device", "cpu", *more]


def test_killed_at_random_steps_it_ends_the_same(world: Path, tmp_path: Path) -> None:
    """Mid-epoch and mid-accumulation, with dropout, an average of the weights and a mask rate that falls: losses and
    weights bit for bit."""
    arguments = pretraining(world, "--objective", "masked", "--accumulate", "3", "--average", "0.9")
    arguments += ["--mask-rate", "0.4", "--mask-rate-end", "0.1"]
    verdict = verify_resume(arguments, tmp_path, kills=3, seed=1)
    assert verdict.identical, verdict.difference
    assert len(verdict.kills) == 3
    assert verdict.steps > 20
    assert sum(isinstance(event, Saved) for event in RunFolder(tmp_path / "broken").events()) >= 10


def test_a_damaged_checkpoint_is_passed_over_and_the_end_is_the_same(world: Path, tmp_path: Path) -> None:
    arguments = pretraining(world, "--objective", "causal", "--keep", "3")
    run(arguments, tmp_path / "straight")
    process = start(arguments, tmp_path / "broken")
    wait_for_steps(tmp_path / "broken", 14, process)
    process.kill()
    process.communicate()
    newest = max((tmp_path / "broken" / "checkpoints").glob("step-*"))
    tensors = newest / "state.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-100])
    assert f"{newest.name} is damaged and was passed over" in run(arguments, tmp_path / "broken")
    assert first_difference(tmp_path / "straight", tmp_path / "broken") is None


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_control_c_saves_and_exits_with_130(world: Path, tmp_path: Path, asked: signal.Signals) -> None:
    arguments = pretraining(world, "--objective", "causal", "--save-every", "1000")
    run(arguments, tmp_path / "straight")
    process = start(arguments, tmp_path / "broken")
    wait_for_steps(tmp_path / "broken", 6, process)
    process.send_signal(asked)
    process.communicate()
    assert process.returncode == 130
    saved = [e.step for e in RunFolder(tmp_path / "broken").events() if isinstance(e, Saved)]
    steps = [e.step for e in RunFolder(tmp_path / "broken").events() if isinstance(e, Step)]
    assert saved == [steps[-1]]  # between the rhythm of --save-every
    assert "going on from step" in run(arguments, tmp_path / "broken")
    # the event of the extra save is the one thing that a straight run does not have
    assert first_difference(tmp_path / "straight", tmp_path / "broken") is None


def test_two_runs_that_differ_are_told_apart(world: Path, tmp_path: Path) -> None:
    run(pretraining(world, "--objective", "causal", "--seed", "0"), tmp_path / "a")
    run(pretraining(world, "--objective", "causal", "--seed", "1"), tmp_path / "b")
    difference = first_difference(tmp_path / "a", tmp_path / "b")
    assert difference is not None
    assert difference.startswith("step 1: loss")


def start(arguments: list[str], out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headstart", *arguments, "--out", str(out), "--resume"]
    return subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=os.environ.copy()
    )


def run(arguments: list[str], out: Path) -> str:
    process = start(arguments, out)
    _, error = process.communicate()
    assert process.returncode == 0, error
    return error


def wait_for_steps(out: Path, steps: int, process: subprocess.Popen[str]) -> None:
    while process.poll() is None:
        if (out / "events.jsonl").is_file():
            found = [event for event in RunFolder(out).events() if isinstance(event, Step)]
            if len(found) >= steps:
                return
        time.sleep(0.01)
    raise AssertionError("the run ended before it could be stopped")
