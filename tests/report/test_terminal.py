"""What `headstart compare` shows of a comparison on a terminal."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from headstart.cli.compare import show
from headstart.runs.comparison import Comparison
from headstart.runs.study import StudyFolder


def shown_in(width: int, monkeypatch: pytest.MonkeyPatch, comparison: Comparison) -> str:
    """What is printed on a terminal of this width, with its escapes."""
    output = io.StringIO()
    screen = Console(
        file=output, width=width, force_terminal=True, highlight=False, markup=False, color_system="standard"
    )
    monkeypatch.setattr("headstart.cli.compare.console", lambda: screen)
    show(comparison)
    return output.getvalue()


def test_what_is_emphasised_is_bold_on_a_terminal(books: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = replace(StudyFolder(books).comparison(), notes=("Time was up.",))
    text = shown_in(120, monkeypatch, comparison)
    assert "\x1b[1mUse the fine-tuned model.\x1b[0m Trained on" in text and "**" not in text
    assert text.rstrip().endswith("Time was up.")
    plain = re.sub(r"\x1b\[\d*m", "", text)
    assert re.search(
        r"^test, 400 labels +runs +accuracy +train s +ms/text +MB +macro-F1 +calibration +leak-free$", plain, re.M
    )
    assert re.search(r"^full +8 +127 +learning rate 0.0003, epochs 6", plain, re.M)
    assert re.search(
        r"^full - tfidf +[+-]", plain, re.M
    )  # what the comparison is for, though not against the reference


def test_a_narrow_terminal_keeps_accuracy_and_costs(books: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = re.sub(r"\x1b\[\d*m", "", shown_in(80, monkeypatch, StudyFolder(books).comparison()))
    assert all(len(line.rstrip()) <= 80 for line in plain.splitlines())
    assert re.search(r"^test +runs +accuracy +train s +ms/text +MB +leak-free *$", plain, re.M)
    assert re.search(r"^frozen +3 +0\.\d{4} +0\.\d{3} to 0\.\d{3} +8\.2 +5 +2\.4 +0\.\d{4} *$", plain, re.M)
