"""Commands in several processes, really started by torchrun: the same files, and errors that end all of them."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from headstart.cli.torchrun import process_group
from headstart.errors import ConfigError, DataError
from headstart.store.plan import CHUNK
from headstart.store.store import Store
from headstart.store.write import write_store
from headstart.store.writer import Progress
from headstart.tokenizers.tokenizer import Tokenizer
from tests.cli.command_line import run as in_process

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
ALONE = {**os.environ, "OMP_NUM_THREADS": "1", "HEADSTART_TIMEOUT": "60"}


def run(command: list[str], folder: Path, timeout: float = 180) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, env=ALONE, capture_output=True, text=True, timeout=timeout)


def headstart(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "headstart", *map(str, arguments)]


def torchrun(*arguments: object, options: tuple[str, ...] = ()) -> list[str]:
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
    assert (
        in_process("predict", str(trained), str(world / "test.txt"), "--out", str(tmp_path / "one.csv")).exit_code == 0
    )
    done = run(torchrun("predict", trained, world / "test.txt", "--out", "two.csv"), tmp_path)
    assert done.returncode == 0, done.stderr[-8000:]
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
    assert done.stderr.count("60 texts in") == 1  # one of them speaks


def test_text_is_turned_into_one_token_store_in_the_default_folder(world: Path, tmp_path: Path) -> None:
    sizes = [part for size in ("width=32", "layers=1", "heads=2") for part in ("--change", size)]
    command = ["pretrain", world / "corpus.txt", "--vocabulary", "320", *sizes, "--steps", "2"]
    done = run(torchrun(*command), tmp_path)
    assert done.returncode == 0, done.stderr[-8000:]
    assert done.stderr.count("training a tokenizer of at most 320 tokens") == 1
    two = tmp_path / "runs" / "pretrain-corpus-tokens" / "store"
    assert (tmp_path / "runs" / "pretrain-corpus" / "model" / "model.safetensors").is_file()
    assert in_process(*map(str, command), "--out", str(tmp_path / "one")).exit_code == 0
    one = tmp_path / "one-tokens" / "store"
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in ("train.ids", "tokenizer.json"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five chunks of text: an odd number for two processes."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    line = "the good cat sat on the bad mat and the book was fine"
    count = 5 * CHUNK // len(line)
    path.write_text("".join(f"{line} {i}\n" for i in range(count // 2, count)) * 2, encoding="utf-8")
    return path


def tokens(corpus: Path, world: Path, out: str) -> list[str]:
    return ["tokens", str(corpus), "--tokenizer", str(world / "tokenizer"), "--valid", "0.1", "--out", out]


def store(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_tokens_are_the_same_store(corpus: Path, world: Path, tmp_path: Path) -> None:
    """However many write it, and where several end what one began."""
    alone = write_store([corpus], Tokenizer.load(world / "tokenizer"), tmp_path / "one", valid=0.1, workers=1)
    chunks = 0

    def stop(progress: Progress) -> None:
        nonlocal chunks
        chunks += 1
        if chunks == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_store(
            [corpus], Tokenizer.load(world / "tokenizer"), tmp_path / "two", valid=0.1, workers=1, on_progress=stop
        )
    done = run(torchrun(*tokens(corpus, world, "two")), tmp_path)
    assert done.returncode == 0, done.stderr[-8000:]
    assert store(tmp_path / "two") == store(alone.folder)
    assert done.stdout.count("size on disk") == 1  # one of them speaks
    kept = re.search(r"([\d,]+) documents were there from an earlier run", done.stderr)
    assert kept is not None and 0 < int(kept[1].replace(",", "")) < alone.counts["train"].documents
    done = run(torchrun(*tokens(corpus, world, "two")), tmp_path)
    assert done.returncode == 0 and "already holds this store" in done.stderr


@pytest.mark.slow
def test_tokens_of_other_texts_are_told_before_anything_is_written(corpus: Path, world: Path, tmp_path: Path) -> None:
    (tmp_path / "odd.txt").write_text("another text\n", encoding="utf-8")
    line = shlex.join(tokens(Path("CORPUS"), world, "two")).replace("CORPUS", "$CORPUS")
    done = run(by_rank(f"CORPUS={corpus}; [ $RANK = 1 ] && CORPUS=odd.txt; headstart {line}"), tmp_path)
    assert done.returncode != 0
    assert "headstart: torchrun: rank 1 has other corpus, tokenizer or options than rank 0" in done.stderr
    assert not (tmp_path / "two").exists()


@pytest.mark.slow
def test_one_that_fails_in_the_midst_ends_all_and_the_store_can_be_gone_on_with(
    corpus: Path, world: Path, tmp_path: Path
) -> None:
    (tmp_path / "failing.py").write_text(FAILING, encoding="utf-8")
    line = shlex.join(tokens(corpus, world, "two"))
    both = f"if [ $RANK = 1 ]; then {sys.executable} failing.py {line}; else headstart {line}; fi"
    done = run(by_rank(both), tmp_path)
    assert done.returncode != 0
    assert "headstart (rank 1): the disk is on fire" in done.stderr
    assert (tmp_path / "two" / "progress.log").read_text(encoding="utf-8").count("\n") == 2  # the first row
    with pytest.raises(DataError, match="a half-written token store"):
        Store.open(tmp_path / "two")
    assert run(torchrun(*tokens(corpus, world, "two")), tmp_path).returncode == 0
    Store.open(tmp_path / "two").verify()


FAILING = """
from headstart.cli import main
from headstart.errors import HeadstartError
from headstart.store.encoder import Encoder

encode, seen = Encoder.encode_chunk, []

def fails(worker, texts):
    seen.append(texts)
    if len(seen) == 2:
        raise HeadstartError("the disk is on fire")
    return encode(worker, texts)

Encoder.encode_chunk = fails
main()
"""


def test_a_scheduler_s_variable_alone_starts_no_team(
    trained: Path, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = in_process("predict", str(trained), str(world / "test.txt"), "--out", str(tmp_path / "one.csv"))
    assert done.exit_code == 0, done.stderr[-8000:]


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        *(
            ({"HEADSTART_TIMEOUT": given}, f"HEADSTART_TIMEOUT: '{given}' is no time")
            for given in ("a", "-1", "nan", "inf")
        ),
        ({"WORLD_SIZE": "two"}, "torchrun: the variable WORLD_SIZE is 'two', and must be a whole number"),
        ({"MASTER_PORT": ""}, "torchrun: the variable MASTER_PORT is '', and must be a whole number"),
    ],
)
def test_odd_variables_are_told(monkeypatch: pytest.MonkeyPatch, odd: dict[str, str], message: str) -> None:
    given = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", **odd}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message), process_group():
        pass


def test_settings_that_differ_are_told_before_anything_is_written(world: Path, base: Path, tmp_path: Path) -> None:
    line = f"headstart finetune {' '.join(settings(world, base))} --weight-decay 0.0$RANK --out run"
    began = time.monotonic()
    done = run(by_rank(line), tmp_path)
    assert done.returncode != 0
    assert "headstart: torchrun: rank 1 has other settings than rank 0" in done.stderr
    assert not (tmp_path / "run").exists()
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("rank", [0, 1])
def test_a_meeting_to_which_nobody_comes(tmp_path: Path, rank: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    environment = {**ALONE, **place, "HEADSTART_TIMEOUT": "1", "WORLD_SIZE": "2", "RANK": str(rank)}
    done = subprocess.run(
        headstart("evaluate", "model", "data.csv"), cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"did not all meet at 127.0.0.1:{place['MASTER_PORT']} within 1 s" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("split", [False, True])
def test_finetune_gives_what_one_process_gives(world: Path, base: Path, tmp_path: Path, split: bool) -> None:
    asked = settings(world, base)
    assert run(headstart("finetune", *asked, "--accumulate", 2, "--out", "one"), tmp_path).returncode == 0
    more = ["--shard", "--recompute"] if split else []
    done = run(torchrun("finetune", *asked, *more, "--out", "two"), tmp_path)
    assert done.returncode == 0, done.stderr[-8000:]
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    one, two = (json.loads((tmp_path / name / "result.json").read_text(encoding="utf-8")) for name in ("one", "two"))
    assert two["test"] == pytest.approx(one["test"], rel=1e-4)
    done = run(headstart("evaluate", "two", world / "test.txt", "--json"), tmp_path)  # a plain folder, as ever
    assert json.loads(done.stdout)["accuracy"] == pytest.approx(one["test"]["accuracy"])


@pytest.mark.slow
@pytest.mark.parametrize("linear", [False, True])
def test_a_teacher_is_asked_by_all_processes_together(
    world: Path, base: Path, trained: Path, tmp_path: Path, linear: bool
) -> None:
    asked = settings(world, base, teacher="tfidf" if linear else trained, unlabelled=world / "corpus.txt", epochs=1)
    assert run(headstart("finetune", *asked, "--accumulate", 2, "--out", "one"), tmp_path).returncode == 0
    done = run(torchrun("finetune", *asked, "--out", "two"), tmp_path)
    assert done.returncode == 0, done.stderr[-8000:]
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    one, two = (json.loads((tmp_path / name / "result.json").read_text(encoding="utf-8")) for name in ("one", "two"))
    for result in (one, two):  # of the linear model, which each command fits
        assert result["distillation"]["teachers"][0].pop("seconds") > 0
    assert two["distillation"] == one["distillation"]
    assert two["test"] == pytest.approx(one["test"], rel=1e-4)


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
    done = run(torchrun("pretrain", *asked, "--out", "two"), tmp_path)
    assert done.returncode == 0, done.stderr[-8000:]
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)


@pytest.mark.slow
def test_a_process_that_is_killed_is_started_again_and_the_run_goes_on(world: Path, base: Path, tmp_path: Path) -> None:
    asked = settings(world, base, epochs=12, save_every=10)
    assert run(torchrun("finetune", *asked, "--out", "whole"), tmp_path).returncode == 0
    command = torchrun("finetune", *asked, "--out", "killed", options=("--max-restarts=3",))
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
@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_processes_that_are_asked_to_stop_save_and_can_go_on(
    world: Path, base: Path, tmp_path: Path, asked: signal.Signals
) -> None:
    rest = settings(world, base, epochs=12, save_every=10**6)
    whole = run(torchrun("finetune", *rest, "--out", "whole"), tmp_path)
    assert whole.returncode == 0, whole.stderr[-2000:]
    command = torchrun("finetune", *rest, "--out", "run", "--resume")
    with subprocess.Popen(command, cwd=tmp_path, env=ALONE, stderr=subprocess.DEVNULL, start_new_session=True) as team:
        try:
            until = time.monotonic() + 60
            while not (tmp_path / "run" / "events.jsonl").is_file() or len(losses(tmp_path / "run")) < 10:
                assert time.monotonic() < until and team.poll() is None
                time.sleep(0.05)
            os.killpg(team.pid, asked)  # as a terminal or a scheduler does it
            assert team.wait(60) != 0
        finally:
            team.kill()
    assert len(list((tmp_path / "run").glob("checkpoints/step-*"))) == 1
    assert len(losses(tmp_path / "run")) < 12 * 15
    again = run(command, tmp_path)
    assert again.returncode == 0, again.stderr[-2000:]
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


@pytest.mark.slow
def test_a_run_folder_that_is_being_written_is_left_alone(world: Path, base: Path, tmp_path: Path) -> None:
    """A second team, and a second command, end with one line; the first never hears of them."""
    asked = ["finetune", *settings(world, base, epochs=12, save_every=10), "--out", "run"]
    with subprocess.Popen(torchrun(*asked), cwd=tmp_path, env=ALONE, stderr=subprocess.PIPE, text=True) as first:
        try:
            until = time.monotonic() + 60
            while not list((tmp_path / "run").glob("checkpoints/step-*")):
                assert time.monotonic() < until and first.poll() is None
                time.sleep(0.05)
            for child in _children(first.pid):
                os.kill(child, signal.SIGSTOP)  # so that it does not end too soon
            alone = run(headstart(*asked, "--resume"), tmp_path)
            team = run(torchrun(*asked, "--resume"), tmp_path)
            for child in _children(first.pid):
                os.kill(child, signal.SIGCONT)
            _, said = first.communicate(timeout=120)
        finally:
            first.kill()
    writing = r"headstart: process \d+ on \S+ is writing the run in run: wait for its end, or name another folder"
    assert alone.returncode == 2
    assert re.fullmatch(writing + "\n", alone.stderr)
    assert team.returncode != 0
    assert re.search(writing, team.stderr)
    assert first.returncode == 0, said[-2000:]
    assert len(losses(tmp_path / "run")) == 12 * 15


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
