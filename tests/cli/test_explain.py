from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from headstart.checkpoints.folder import save
from headstart.use.classifier import TextClassifier
from headstart.use.explain import explain
from tests.use.example_classifiers import reviewer

from .command_line import run

TEXT = "the witty story of a page"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classifiers: `small` is bidirectional, `lab` causal."""
    folder = tmp_path_factory.mktemp("home")
    for name in ("small", "lab"):
        save(reviewer(name), folder / name / "model")
    return folder


def test_words_numbers_and_how_far_to_believe_them(home: Path) -> None:
    result = run("explain", str(home / "small"), TEXT)
    assert (result.exit_code, result.stderr) == (0, "")
    blocks = [block.splitlines() for block in result.stdout.split("\n\n")]
    assert blocks[0] == [TEXT]
    assert blocks[1][0].split() == ["label", "probability"] and blocks[1][1].split()[0] == "pos"
    assert blocks[2][0].split()[:2] == ["word", "weight"]
    expected = explain(TextClassifier.load(home / "small"), TEXT)
    ranked = sorted(expected.words, key=lambda word: -abs(word.weight))
    assert [line.split()[:2] for line in blocks[2][1:]] == [[w.text, f"{w.weight:+.3f}"] for w in ranked]
    both = [f"{ranked[0].alone:+.2f}", f"{ranked[0].left_out:+.2f}"]
    assert blocks[2][1].split()[0] == "witty" and blocks[2][1].split()[2:] == ["for", "+" * 16, *both]
    notes = blocks[3]
    assert [line.split()[0] for line in notes] == ["The", "Faithfulness"]  # a line each, however long
    assert notes[0].startswith("The weights sum to") and max(map(len, notes)) > 140


def test_the_words_are_coloured_by_side_and_strength(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    screen = Console(file=out, force_terminal=True, color_system="truecolor", width=100)
    monkeypatch.setattr("headstart.cli.explain.console", lambda: screen)
    assert run("explain", str(home / "small"), "witty page and dull word", "--label", "pos").exit_code == 0
    line = out.getvalue().splitlines()[0]
    assert "\x1b[37;48;2;8;81;156mwitty\x1b[0m" in line or "\x1b[37;48;2;166;54;3mdull\x1b[0m" in line  # the deepest
    assert line.count("\x1b[37;48") + line.count("\x1b[30;48") >= 2


def test_as_json(home: Path) -> None:
    result = run("explain", str(home / "lab"), TEXT, "--json", "--label", "neg")
    found = json.loads(result.stdout)
    assert found == explain(TextClassifier.load(home / "lab"), TEXT, label="neg").to_json()
    pair = json.loads(run("explain", str(home / "lab"), "witty", "--second", "dull", "--json").stdout)
    assert [(word["text"], word["second"]) for word in pair["words"]] == [("witty", False), ("dull", True)]


def test_one_head_in_shades(home: Path) -> None:
    causal = run("explain", str(home / "lab"), "a page", "--layer", "1", "--head", "2").stdout
    lines = causal[causal.index("Layer 1, head 2") :].splitlines()
    rows = [line[18:] for line in lines[2:6]]
    assert [line.split()[0] for line in lines[2:6]] == ["<start>", "a", "page", "<end>"]
    assert [len(row.rstrip("· ") + "x") > 0 and len(row) for row in rows] == [2, 4, 6, 8]  # nothing above the diagonal
    assert rows[0] == "██"  # the first token can look at itself alone
    both = run("explain", str(home / "small"), "a page", "--attention").stdout
    lines = both[both.index("Layer 2, head 1") :].splitlines()
    assert [len(line[18:]) for line in lines[2:6]] == [8, 8, 8, 8]
    assert "Layer" not in run("explain", str(home / "small"), "a page").stdout


def test_a_grid_that_is_too_wide_is_cut(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    terminal = Console(file=out, width=40, color_system=None, force_terminal=True)
    monkeypatch.setattr("headstart.cli.explain.console", lambda: terminal)
    run("explain", str(home / "small"), "page " * 20, "--attention")
    assert "the first 11 of 22 tokens" in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= 40


def test_a_page(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "why.html"
    result = run("explain", str(home / "small"), TEXT, "--html", str(out))
    assert result.exit_code == 0 and result.stdout.endswith(f"\npage: {out}\n") and "Layer" not in result.stdout
    page = out.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and page.count("<figure") == 4


def test_texts_that_are_hard_to_print(home: Path) -> None:
    for text in ("", "[bold]a[/bold] page", "a\x1b[31m\x07 page\r", "👩‍💻 e\u0301"):
        result = run("explain", str(home / "small"), text, "--attention")
        assert (result.exit_code, result.stderr) == (0, "") and "\x1b" not in result.stdout
    assert "[bold]a[/bold] page" in run("explain", str(home / "small"), "[bold]a[/bold] page").stdout
    assert "10 tokens at its end were not read" in run("explain", str(home / "small"), "page " * 40).stdout


def test_what_cannot_be_done_is_said(home: Path, tmp_path: Path) -> None:
    for arguments, message in (
        (("--layer", "3"), "layer is 3, and this model has 2: choose from 1 to 2"),
        (("--head", "0"), "head is 0, and this model has 2"),
        (("--label", "poss"), "label is 'poss': did you mean 'pos'?"),
        (("--html", str(tmp_path)), "is a folder, and a file was meant"),
    ):
        result = run("explain", str(home / "small"), TEXT, *arguments)
        assert result.exit_code == 2 and message in result.stderr and result.stdout == ""
    assert run("explain", str(tmp_path / "nowhere"), TEXT).exit_code == 2
