"""The verb `doctor`: what it prints, where, and what it leaves on the disk."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from headstart.cli.doctor import _print_report
from headstart.doctor.examine import examine
from headstart.reading.examples import read_examples
from headstart.tokenizers.tokenizer import Tokenizer

from .command_line import run

TRAIN = [
    ("A fine walk through an old town", "good"),
    ("The plot went nowhere for us", "bad"),
    ("Nobody laughed in the whole row", "bad"),
    ("Seen twice and loved both times", "good"),
    ("the PLOT went nowhere for us!", "bad"),
]
TEST = [("Seen twice, and loved both times", "good"), ("I would rather have slept in", "bad")]


def write(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows))
    return path


@pytest.fixture
def splits(tmp_path: Path) -> list[str]:
    """The arguments for a train and a test file with one leak and one duplicate."""
    return [
        str(write(tmp_path / "train.jsonl", TRAIN)),
        "--test",
        str(write(tmp_path / "test.jsonl", TEST)),
    ]


def test_findings_are_printed_and_are_no_failure(splits: list[str]) -> None:
    result = run("doctor", *splits)
    assert result.exit_code == 0
    assert re.search(r"train +5 +'bad' 60.0%, 'good' 40.0% +6 / 7 / 7", result.stdout)
    assert "error    1 of 2 test rows is also in train (1 row there)" in result.stdout
    assert "test.jsonl:1  'good' Seen twice, and loved both times" in result.stdout
    assert "and train.jsonl:4  'good' Seen twice and loved both times" in result.stdout
    assert "warning  1 of 7 rows (train 1) repeats an earlier row of the same split" in result.stdout
    assert "1 error, 1 warning" in result.stdout
    assert "not examined: rows longer than the model's window" in result.stdout
    assert "guessed: text column 'text', label column 'label'" in result.stderr


def test_a_sound_set_is_told_so(tmp_path: Path) -> None:
    result = run("doctor", str(write(tmp_path / "train.jsonl", TRAIN[:4])))
    assert result.exit_code == 0
    assert "nothing found wrong" in result.stdout


def test_piped_output_is_plain(splits: list[str]) -> None:
    printed = run("doctor", *splits).stdout
    assert "\x1b" not in printed
    assert all(line == line.rstrip() and len(line) <= 140 for line in printed.split("\n"))


@pytest.mark.parametrize("width", [50, 80, 140])
def test_a_terminal_gets_colours_and_lines_that_fit(tmp_path: Path, width: int) -> None:
    train = read_examples(write(tmp_path / "train.jsonl", [*TRAIN, ("长" * 200, "good"), ("word " * 90, "bad")]))
    report = examine(train, test=read_examples(write(tmp_path / "test.jsonl", [*TEST, ("长" * 200, "good")])))
    screen = io.StringIO()
    _print_report(report, Console(file=screen, width=width, force_terminal=True, color_system="standard"))
    assert "\x1b[1;31merror" in screen.getvalue()
    lines = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue()).split("\n")
    assert max(map(cell_len, lines)) <= width
    assert any(line.startswith("error") for line in lines)
    assert any(line.rstrip().endswith("…") for line in lines)  # what does not fit ends in an ellipsis


def test_a_text_cannot_give_orders_to_the_terminal(tmp_path: Path) -> None:
    rows = [("\x1b[2J [red]x[/red] [/]", "[bold]l"), ("\x1b[2J [red]x[/red] [/]", "[bold]l")]
    result = run("doctor", str(write(tmp_path / "train.jsonl", [*TRAIN, *rows])))
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert r"\x1b[2J [red]x[/red] [/]" in result.stdout
    assert "'[bold]l' 28.6%" in result.stdout


def test_json_is_all_that_is_printed(splits: list[str], tmp_path: Path) -> None:
    result = run("doctor", *splits, "--json", "--clean", str(tmp_path / "clean"))
    report = json.loads(result.stdout)
    assert [(finding["kind"], finding["count"]) for finding in report["findings"]] == [("leak", 1), ("duplicate", 1)]
    assert report["removed"] == {"train": {"leak": 1, "duplicate": 1}, "test": {}}
    assert "removed" not in json.loads(run("doctor", *splits, "--json").stdout)


def test_clean_writes_the_splits_without_the_leaks(splits: list[str], tmp_path: Path) -> None:
    out = tmp_path / "clean"
    result = run("doctor", *splits, "--clean", str(out))
    assert re.search(r"train\.jsonl +3 rows, 2 removed \(leak 1, duplicate 1\)", result.stdout)
    assert re.search(r"test\.jsonl +2 rows, 0 removed", result.stdout)
    assert [row.text for row in read_examples(out / "train.jsonl").rows] == [text for text, _ in TRAIN[:3]]
    again = run("doctor", str(out / "train.jsonl"), "--test", str(out / "test.jsonl"))
    assert "nothing found wrong" in again.stdout


def test_clean_refuses_a_folder_with_content_before_reading_anything(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious.txt").write_text("mine")
    result = run("doctor", "no-such-file.csv", "--clean", str(tmp_path / "full"))
    assert result.exit_code == 2
    assert "nothing is ever overwritten" in result.stderr
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["precious.txt"]


def test_bad_rows_stop_it_or_are_listed(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", TRAIN)
    path.write_text(path.read_text() + '{"text": "cut in ha\n')
    assert run("doctor", str(path)).exit_code == 2
    result = run("doctor", str(path), "--skip-bad")
    assert result.exit_code == 0
    assert "left out 1, these:" in result.stderr
    assert "train.jsonl, line 6" in result.stderr
    assert "--skip-bad" not in result.stderr  # no advice to do what was done


def test_columns_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text(
        "id,premise_text,claim,verdict\n1,it rains a lot,it is wet today,yes\n2,it rains a lot,it is dry,no\n"
    )
    columns = ["--text", "premise_text", "--second", "claim", "--label", "verdict"]
    result = run("doctor", str(path), *columns)
    assert result.exit_code == 0
    assert "'no' 50.0%, 'yes' 50.0%" in result.stdout
    assert "nothing found wrong" in result.stdout  # one premise with two claims is no conflict


def test_pairs_that_are_cleaned_are_read_back_as_pairs(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("sentence1,sentence2,label\nit rains a lot,it is wet today,yes\nit rains a lot,it is dry,no\n")
    run("doctor", str(path), "--clean", str(tmp_path / "clean"))
    back = read_examples(tmp_path / "clean" / "train.jsonl")
    assert [row.second for row in back.rows] == ["it is wet today", "it is dry"]


def test_many_labels_are_told_in_short(tmp_path: Path) -> None:
    rows = [(f"row{k} is about {k}", f"label {k // 2 if k < 20 else 0}") for k in range(22)]
    result = run("doctor", str(write(tmp_path / "train.jsonl", rows)))
    assert "10 labels, from 9.1% to 18.2% of the rows" in result.stdout


def test_rows_are_named_with_their_folder_where_the_files_lie_apart(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    train, test = write(tmp_path / "one" / "rows.jsonl", TRAIN), write(tmp_path / "two" / "rows.jsonl", TEST)
    result = run("doctor", str(train), "--test", str(test))
    assert "two/rows.jsonl:1" in result.stdout
    assert "one/rows.jsonl:4" in result.stdout
    assert str(tmp_path) in result.stdout.replace("\n", "")


def test_the_window_is_at_least_one_token(splits: list[str]) -> None:
    assert run("doctor", *splits, "--window", "0").exit_code == 2


def test_a_missing_file_is_one_line_and_exit_code_2() -> None:
    result = run("doctor", "no-such-file.csv")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("headstart: no-such-file.csv")
    assert result.stderr.count("\n") == 1


def test_the_help_needs_nothing_heavy() -> None:
    script = "import sys, headstart.cli; sys.exit(bool({'numpy', 'pyarrow', 'scipy', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_tokenizer_adds_what_is_cut_and_unknown(tmp_path: Path) -> None:
    Tokenizer.train([text for text, _ in TRAIN * 20], kind="bpe", size=300).save(tmp_path / "tokenizer")
    path = write(tmp_path / "train.jsonl", TRAIN[:4])
    arguments = ["doctor", str(path), "--tokenizer", str(tmp_path / "tokenizer"), "--window", "4"]
    result = run(*arguments)
    assert "4 of 4 train rows are longer than the window of 4 tokens" in result.stdout
    assert "tokens" in result.stdout.split("\n")[0]
    assert "unknown tokens: give" not in result.stdout
