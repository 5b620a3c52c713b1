"""`headstart tokenizer train` and `show`, as they are typed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headstart.cli import app
from headstart.tokenizers.tokenizer import Tokenizer

LINES = ["la mer est belle et la mer est haute", "le ciel est haut et la terre est basse"] * 50


def run(*words: str | int | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headstart", "tokenizer", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(("kind", "size"), [("unigram", 290), ("bpe", 280), ("wordpiece", 50)])
def test_train_writes_what_training_gives(kind: str, size: int, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = CliRunner().invoke(
        app, ["tokenizer", "train", str(corpus), "--kind", kind, "--size", str(size), "--out", str(out)]
    )
    assert result.exit_code == 0, result.output
    wanted = Tokenizer.train(LINES, kind=kind, size=size)
    assert wanted.size == size
    assert Tokenizer.load(out).fingerprint == wanted.fingerprint
    assert result.stdout == f"{out / 'tokenizer.json'}: {kind}, {size} tokens, fingerprint {wanted.fingerprint[:12]}\n"


def test_train_without_a_kind_is_unigram(corpus: Path, tmp_path: Path) -> None:
    arguments = ["tokenizer", "train", str(corpus), "--size", "290", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert ": unigram, 290 tokens" in result.stdout
    assert Tokenizer.load(tmp_path / "out").fingerprint == Tokenizer.train(LINES, size=290).fingerprint


def test_train_reads_a_column_and_lower_cases(tmp_path: Path) -> None:
    rows = [{"title": "x", "note": line.upper()} for line in LINES]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    result = run(
        "train", tmp_path / "rows.jsonl", "--column", "note", "--lower", "--kind", "bpe", "--size", 280,
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    tokenizer = Tokenizer.load(tmp_path / "out")
    assert tokenizer.encode("LA MER") == tokenizer.encode("la mer")
    assert (
        tokenizer.fingerprint
        == Tokenizer.train([line.upper() for line in LINES], kind="bpe", size=280, lower=True).fingerprint
    )


def test_train_says_when_the_corpus_gives_less(corpus: Path, tmp_path: Path) -> None:
    result = run("train", corpus, "--kind", "bpe", "--size", 5000, "--out", tmp_path / "out")
    size = Tokenizer.load(tmp_path / "out").size
    assert size < 5000
    assert result.stderr == f"the corpus gives no more than {size} tokens; 5,000 were asked for\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--kind", "unigam", "--size", "300"], "did you mean 'unigram'?"),
        (["--kind", "bpe", "--size", "100"], "size 100 is too small"),
        (["--kind", "bpe", "--size", "300", "--column", "body"], ""),
    ],
)
def test_train_refuses_in_words(words: list[str], told: str, corpus: Path, tmp_path: Path) -> None:
    result = run("train", corpus if told else tmp_path / "no.csv", *words, "--out", tmp_path / "out")
    assert result.returncode == 2
    assert told in result.stderr and result.stderr.startswith("headstart: ")
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


def test_train_keeps_a_tokenizer_that_is_there(corpus: Path, tmp_path: Path) -> None:
    Tokenizer.train(LINES, kind="bpe", size=270).save(tmp_path / "out")
    before = (tmp_path / "out" / "tokenizer.json").read_bytes()
    result = run("train", corpus, "--kind", "bpe", "--size", 280, "--out", tmp_path / "out")
    assert result.returncode == 2 and "is there already" in result.stderr
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == before


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nbook\n##s\n[MASK]\n", encoding="utf-8")
    return tmp_path


def test_show_prints_pieces_and_ids(bert: Path) -> None:
    result = CliRunner().invoke(app, ["tokenizer", "show", str(bert), "Books [MASK] ж"])
    assert result.exit_code == 0, result.output
    *rows, told = result.stdout.splitlines()
    assert [row.split() for row in rows] == [
        ["piece", "id"],
        ["book", "4"],
        ["##s", "5"],
        ["[MASK]", "6"],
        ["[UNK]", "1"],
    ]
    assert told == "4 tokens of a vocabulary of 7, 1 unknown"


def test_show_of_nothing(bert: Path) -> None:
    result = CliRunner().invoke(app, ["tokenizer", "show", str(bert), ""])
    assert result.stdout == "0 tokens of a vocabulary of 7, 0 unknown\n"


def test_show_json_is_one_object(bert: Path) -> None:
    result = run("show", bert, "books ж", "--json")
    assert result.returncode == 0 and result.stderr == ""
    assert json.loads(result.stdout) == {
        "text": "books ж",
        "pieces": ["book", "##s", "[UNK]"],
        "ids": [4, 5, 1],
        "unknown": 1,
        "size": 7,
    }


def test_show_without_a_tokenizer(tmp_path: Path) -> None:
    result = run("show", tmp_path, "text")
    assert result.returncode == 2
    assert result.stderr.startswith(f"headstart: {tmp_path}: found no tokenizer here (nothing). Expected one of: ")


def test_what_cannot_be_read_is_left_out_where_asked(tmp_path: Path) -> None:
    good = [json.dumps({"text": f"some words about number {k}"}) for k in range(200)]
    (tmp_path / "corpus.jsonl").write_text("\n".join([*good[:100], '{"text": "cut in h', *good[100:]]) + "\n")
    arguments = ["train", str(tmp_path / "corpus.jsonl"), "--kind", "bpe", "--size", "300", "--out"]
    refused = run(*arguments, str(tmp_path / "a"))
    assert refused.returncode == 2
    assert "line 101" in refused.stderr
    assert not (tmp_path / "a").exists()
    taken = run(*arguments, str(tmp_path / "b"), "--skip-bad")
    assert taken.returncode == 0
    assert "left out 1, these:" in taken.stderr
    assert "line 101" in taken.stderr
