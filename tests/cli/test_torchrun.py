"""Commands in several processes, really started by torchrun: the same files, and errors that end all of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
ALONE = {**os.environ, "OMP_NUM_THREADS": "1", "HEADSTART_TIMEOUT": "60"}


def run(command: list[str], folder: Path, timeout: float = 180) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, env=ALONE, capture_output=True, text=True, timeout=timeout)


def headstart(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "headstart", *map(str, arguments)]


def together(*arguments: object, options: tuple[str, ...] = ()) -> list[str]:
    return [*TORCHRUN, *options, "-m", "headstart", *map(str, arguments)]


def by_rank(line: str) -> list[str]:
    """A shell line that each process runs, knowing its rank."""
    return [*TORCHRUN, "--no-python", "bash", "-c", line.replace("headstart", f"{sys.executable} -m headstart")]


def losses(folder: Path) -> list[float]:
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    return [event["loss"] for event in events if event["event"] == "step"]


def settings(world: Path, base: Path, **more: Any) -> list[str]:
    given: dict[str, Any] = {
        "data": world / "train.txt",
        "valid": world / "valid.txt",
        "test": world / "test.txt",
        "init": base,
    }
    given |= {"epochs": 2, "lr": 5e-3, **more}
    return [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def test_predictions_are_the_same_file(trained: Path, world: Path, tmp_path: Path) -> None:
    for command, out in ((headstart, "one.csv"), (together, "two.csv")):
        done = run(command("predict", trained, world / "test.txt", "--out", out), tmp_path)
        assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
    assert done.stderr.count("60 texts in") == 1  # one of them speaks


def test_a_scheduler_s_variable_alone_starts_no_team(trained: Path, world: Path, tmp_path: Path) -> None:
    command = headstart("predict", trained, world / "test.txt", "--out", "one.csv")
    done = subprocess.run(
        command, cwd=tmp_path, env={**ALONE, "WORLD_SIZE": "2"}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_settings_that_differ_are_told_before_anything_is_written(world: Path, base: Path, tmp_path: Path) -> None:
    line = f"headstart finetune {' '.join(settings(world, base))} --weight-decay 0.0$RANK --out run"
    began = time.monotonic()
    done = run(by_rank(line), tmp_path)
    assert done.returncode != 0
    assert "headstart: torchrun: rank 1 has other settings than rank 0" in done.stderr
    assert not (tmp_path / "run").exists()
    assert time.monotonic() - began < 60


@pytest.mark.slow
@pytest.mark.parametrize("split", [False, True])
def test_finetune_gives_what_one_process_gives(world: Path, base: Path, tmp_path: Path, split: bool) -> None:
    asked = settings(world, base)
    assert run(headstart("finetune", *asked, "--accumulate", 2, "--out", "one"), tmp_path).returncode == 0
    more = ["--shard", "--recompute"] if split else []
    done = run(together("finetune", *asked, *more, "--out", "two"), tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    one, two = (json.loads((tmp_path / name / "result.json").read_text(encoding="utf-8")) for name in ("one", "two"))
    assert two["test"] == pytest.approx(one["test"], rel=1e-4)
    done = run(headstart("evaluate", "two", world / "test.txt", "--json"), tmp_path)  # a plain folder, as ever
    assert json.loads(done.stdout)["accuracy"] == pytest.approx(one["test"]["accuracy"])


@pytest.mark.slow
def test_pretrain_in_two_processes(world: Path, tmp_path: Path) -> None:
    asked = [
        "--store",
        str(world / "store"),
        "--model",
        "small",
        "--objective",
        "masked",
        "--steps",
        "12",
        "--window",
        "32",
    ]
    asked += [
        part for change in ("width=32", "layers=2", "heads=2", "feed_forward=64") for part in ("--change", change)
    ]
    assert run(headstart("pretrain", *asked, "--accumulate", 2, "--out", "one"), tmp_path).returncode == 0
    done = run(together("pretrain", *asked, "--out", "two"), tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)


@pytest.mark.slow
def test_a_process_that_is_killed_is_started_again_and_the_run_goes_on(world: Path, base: Path, tmp_path: Path) -> None:
    asked = settings(world, base, epochs=12, save_every=10)
    assert run(together("finetune", *asked, "--out", "whole"), tmp_path).returncode == 0
    command = together("finetune", *asked, "--out", "killed", options=("--max-restarts=3",))
    with subprocess.Popen(command, cwd=tmp_path, env=ALONE, stderr=subprocess.PIPE, text=True) as process:
        try:
            until = time.monotonic() + 60
            while not list((tmp_path / "killed").glob("checkpoints/step-*2[0-9]")):
                assert time.monotonic() < until and process.poll() is None
                time.sleep(0.05)
            os.kill(_children(process.pid)[-1], signal.SIGKILL)
            _, said = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 0, said[-2000:]
    assert "going on from step" in said
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")


@pytest.mark.slow
def test_one_that_fails_ends_all_with_its_own_error(world: Path, base: Path, tmp_path: Path) -> None:
    (tmp_path / "odd.txt").write_text("", encoding="utf-8")
    data = "DATA=" + str(world / "train.txt") + "; [ $RANK = 1 ] && DATA=odd.txt; "
    rest = " ".join(settings(world, base)[2:])
    began = time.monotonic()
    done = run(by_rank(f"{data} headstart finetune --data $DATA {rest} --out run"), tmp_path)
    assert done.returncode != 0
    assert "headstart (rank 1): odd.txt" in done.stderr
    assert time.monotonic() - began < 60


@pytest.mark.slow
def test_hosts_with_other_data_under_the_same_name(world: Path, base: Path, tmp_path: Path) -> None:
    lines = (world / "train.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    for host, kept in ((0, lines), (1, lines[:-1])):
        (tmp_path / f"host{host}").mkdir()
        (tmp_path / f"host{host}" / "train.txt").write_text("".join(kept), encoding="utf-8")
    rest = " ".join(settings(world, base)[2:])
    done = run(by_rank(f"cd host$RANK && headstart finetune --data train.txt {rest} --out ../run"), tmp_path)
    assert done.returncode != 0
    assert "rank 1 has other data than rank 0" in done.stderr
    assert not (tmp_path / "run").exists()


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return [int(each) for each in found]
