"""The verb `tokens`: what it prints and where, and a real kill in the middle of it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headstart.cli import app
from headstart.errors import DataError, HeadstartError
from headstart.store.store import Store
from headstart.tokenizers.tokenizer import Tokenizer

run = CliRunner().invoke
HEADSTART = [sys.executable, "-m", "headstart"]


def made_lines(count: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    words = ["".join(chance.choices("eaionrtslducmp", k=chance.randint(1, 8))) for _ in range(2000)]
    return [" ".join(chance.choices(words, k=chance.randint(5, 60))) for _ in range(count)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    Tokenizer.train(made_lines(200, seed=0), kind="bpe", size=400).save(folder)
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{line}\n" for line in made_lines(50, seed=1)))
    return path


def arguments(corpus: Path, tokenizer: Path, *more: str) -> list[str]:
    out = str(corpus.parent / "store")
    return ["tokens", str(corpus), "--tokenizer", str(tokenizer), "--out", out, "--workers", "1", *more]


def test_the_last_lines_say_what_was_made(corpus: Path, tokenizer: Path) -> None:
    result = run(app, arguments(corpus, tokenizer, "--valid", "0.2"))
    assert result.exit_code == 0
    encoded = [Tokenizer.load(tokenizer).encode(line) for line in made_lines(50, seed=1)]
    ids = sum(map(len, encoded))
    size = sum(len(line) for line in made_lines(50, seed=1))
    said = dict(re.split(r"  +", line, maxsplit=1) for line in result.stdout.splitlines() if "  " in line)
    valid = len(Store.open(corpus.parent / "store").split("valid"))
    assert valid > 0
    assert said["documents"] == f"50 (train {50 - valid}, valid {valid})"
    assert said["tokens"] == f"{ids:,}"
    assert said["bytes"] == f"{size:,}"
    assert re.search(f"^tokens per byte +{ids / size:.4f}$", result.stdout, re.MULTILINE)
    assert said["ids"] == "uint16"
    assert said["size on disk"].endswith("KiB")
    assert float(said["documents/s"].replace(",", "")) > 0
    assert result.stderr == ""


def test_json_is_one_object_and_nothing_else(corpus: Path, tokenizer: Path) -> None:
    result = run(app, arguments(corpus, tokenizer, "--json"))
    said = json.loads(result.stdout)
    store = Store.open(corpus.parent / "store")
    assert said["documents"] == 50
    assert said["tokens"] == sum(len(store.split(name).ids) for name in ("train", "valid"))
    assert said["bytes"] == sum(int(store.split(name).bytes.sum()) for name in ("train", "valid"))
    assert said["tokens_per_byte"] == said["tokens"] / said["bytes"]
    assert said["tokenizer"] == Tokenizer.load(tokenizer).fingerprint
    assert said["size_on_disk"] == sum(path.stat().st_size for path in (corpus.parent / "store").iterdir())
    assert said["documents_per_second"] > 0
    assert said["left_out"] == {"count": 0, "first": []}


def test_a_second_time_there_is_nothing_to_do(corpus: Path, tokenizer: Path) -> None:
    first = run(app, arguments(corpus, tokenizer))
    second = run(app, arguments(corpus, tokenizer))
    assert second.exit_code == 0
    assert "already holds this store, whole and unchanged: nothing to do" in second.stderr
    assert second.stdout.splitlines() == [line for line in first.stdout.splitlines() if "documents/s" not in line]
    assert json.loads(run(app, arguments(corpus, tokenizer, "--json")).stdout)["documents_per_second"] is None


def test_what_is_left_out_is_listed(corpus: Path, tokenizer: Path) -> None:
    corpus.write_bytes(b"fine\n\xff\nfine too\n\xfe\n")
    refused = run(app, arguments(corpus, tokenizer))
    assert isinstance(refused.exception, DataError)
    assert "line 2" in str(refused.exception)
    result = run(app, arguments(corpus, tokenizer, "--skip-bad"))
    assert result.exit_code == 0
    assert "left out 2, these:" in result.stderr
    assert re.findall(r"corpus\.txt, line (\d)", result.stderr) == ["2", "4"]
    again = run(app, arguments(corpus, tokenizer, "--skip-bad", "--json"))
    assert json.loads(again.stdout)["left_out"]["count"] == 2


def test_a_column_and_blank_lines(tmp_path: Path, tokenizer: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("story,text\nhere it is,no\n")
    result = run(app, arguments(table, tokenizer, "--column", "story", "--valid", "0"))
    assert result.exit_code == 0
    store = Store.open(tmp_path / "store")
    assert Tokenizer.load(tokenizer).decode(store.split("train").ids) == "here it is"
    lines = tmp_path / "lines.txt"
    lines.write_text("one\ntwo\n\nthree\n")
    blocks = ["tokens", str(lines), "--tokenizer", str(tokenizer), "--out", str(tmp_path / "blocks")]
    assert json.loads(run(app, [*blocks, "--blank-lines", "--workers", "1", "--json"]).stdout)["documents"] == 2


@pytest.mark.parametrize(("more", "said"), [(("--valid", "2"), "expected 0 to 1"), (("--workers", "0"), "at least 1")])
def test_settings_out_of_range_end_with_2(corpus: Path, tokenizer: Path, more: tuple[str, str], said: str) -> None:
    ended = subprocess.run([*HEADSTART, *arguments(corpus, tokenizer), *more], capture_output=True, text=True)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


def test_a_corpus_that_is_not_there(tmp_path: Path, tokenizer: Path) -> None:
    result = run(app, arguments(tmp_path / "nothing.txt", tokenizer))
    assert isinstance(result.exception, HeadstartError)
    assert not (tmp_path / "store").exists()


def test_a_terminal_is_shown_how_far_it_is(corpus: Path, tokenizer: Path) -> None:
    ours, theirs = os.openpty()
    ended = subprocess.run([*HEADSTART, *arguments(corpus, tokenizer)], stdout=subprocess.PIPE, stderr=theirs)
    os.set_blocking(ours, False)
    shown = ""
    with contextlib.suppress(BlockingIOError):  # one reading gives a part of it
        while part := os.read(ours, 1 << 16):
            shown += part.decode()
    os.close(theirs)
    os.close(ours)
    assert ended.returncode == 0
    assert "50 documents" in shown
    assert re.search(r"[\d,]+ documents/s", shown)


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGINT])
def test_stopped_midway_the_command_that_it_names_finishes_the_store(
    tmp_path: Path, tokenizer: Path, blow: signal.Signals
) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(
        "".join(f"{line}\n" for line in made_lines(96_000, seed=2))
    )  # sixteen chunks: it is not done by the time it is stopped
    command = [*HEADSTART, "tokens", str(corpus), "--tokenizer", str(tokenizer), "--valid", "0.1", "--out"]
    store = tmp_path / "store"
    process = subprocess.Popen([*command, str(store), "--workers", "2"], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    progress = store / "progress.log"
    while not (progress.exists() and progress.read_bytes().count(b"\n") >= 1) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(blow)
    _, said = process.communicate()
    if blow == signal.SIGINT:
        assert process.returncode == 130
        assert "is half-written: the same command goes on from there" in said
        assert "Traceback" not in said

    with pytest.raises(DataError, match="half-written") as caught:
        Store.open(store)
    finish = shlex.split(str(caught.value).partition("finish it with: ")[2])
    finished = subprocess.run([*HEADSTART, *finish[1:]], capture_output=True, text=True, check=True)
    assert re.search(r"[\d,]+ documents were there from an earlier run", finished.stderr)
    subprocess.run([*command, str(tmp_path / "whole"), "--workers", "1"], check=True, capture_output=True)
    for path in (tmp_path / "whole").iterdir():
        assert (store / path.name).read_bytes() == path.read_bytes()
    assert sorted(path.name for path in store.iterdir()) == sorted(path.name for path in (tmp_path / "whole").iterdir())
