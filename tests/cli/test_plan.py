"""`headstart plan` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from headstart.runs.study import StudyFolder
from tests.cli.command_line import run
from tests.studies.test_looks import comparison, study


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    path = tmp_path / "reviews.csv"
    rows = [f"{'good' if i % 2 else 'bad'} book number {i},{'yes' if i % 2 else 'no'}" for i in range(400)]
    path.write_text("\n".join(["review,liked", *rows]))
    return path


def test_a_file(reviews: Path) -> None:
    result = run("plan", str(reviews))
    assert result.exit_code == 0, result.stderr
    assert "guessed: text column 'review', label column 'liked'" in result.stderr
    assert "rows of the training file are kept aside as the test" in result.stderr
    assert "pretrained - scratch" in result.stdout and "pretrained - linear" in result.stdout
    assert "accuracy 0.8" in result.stdout


def test_json_has_every_number(reviews: Path) -> None:
    rows = len(reviews.read_text().splitlines()) - 1
    plan = json.loads(
        run("plan", str(reviews), "--test", str(reviews), "--seeds", "4", "--matters", "5", "--json").stdout
    )
    assert (plan["rows"], plan["seeds"], plan["matters"]) == (rows, 4, 0.05)
    assert [*plan["questions"][0]["detectable"]] == ["3", "4", "5", "8"]


def test_a_study(tmp_path: Path) -> None:
    """Its own test rows and variances."""
    pilot = comparison(study(np.random.default_rng(0), [0.8, 0.78, 0.8], 300, 0.01), 5)
    StudyFolder(tmp_path).write_settings({"study": "compare"})
    StudyFolder(tmp_path).write_comparison(pilot)
    result = run("plan", str(tmp_path))
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("300 test rows")
    assert "full - scratch" in result.stdout and "full - tfidf" in result.stdout
    assert f"measured in {tmp_path}" in result.stdout


def test_a_study_that_is_not_done(tmp_path: Path) -> None:
    StudyFolder(tmp_path).write_settings({"study": "compare"})
    result = run("plan", str(tmp_path))
    assert result.exit_code == 2
    assert "the comparison is not done" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--seeds", "many"], "seeds is 'many'"), (["--matters", "0"], "matters is 0"), (["--test-share", "0"], "--test")],
)
def test_mistakes(reviews: Path, arguments: list[str], words: str) -> None:
    result = run("plan", str(reviews), *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
