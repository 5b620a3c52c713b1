from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.example_folders import Plan, make_study, make_sweep

from .command_line import run


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_study(tmp_path_factory.mktemp("report") / "study", Plan(seeds=1, rows=60, budgets=(400,), samples=20))


def test_a_page_is_written_and_named(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "page.html"
    result = run("report", str(study), "--out", str(out))
    assert (result.exit_code, result.stdout) == (0, f"page: {out}\n")
    first = out.read_bytes()
    assert first.startswith(b"<!doctype html>") and b"<h1>Use the" in first
    assert run("report", str(study), "--out", str(out)).exit_code == 0
    assert out.read_bytes() == first  # in place of the one before, and the same


def test_a_sweep_and_a_study_share_a_page(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    result = run("report", str(make_sweep(tmp_path / "sweep", {"lr": [1e-5, 1e-4]})), str(study), "--out", str(out))
    assert result.exit_code == 0, result.stderr
    assert b"<h1>Use the" in out.read_bytes() and b"Best on valid is trial 2 of 2" in out.read_bytes()


def test_what_cannot_be_read_leaves_no_page(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    result = run("report", str(study), str(tmp_path / "nowhere"), "--out", str(out))
    assert result.exit_code == 2 and "nowhere: no such folder" in result.stderr
    assert not out.exists()


def test_a_folder_in_the_way_is_named(study: Path, tmp_path: Path) -> None:
    result = run("report", str(study), "--out", str(tmp_path))
    assert result.exit_code == 2 and "is a folder, and a file was meant" in result.stderr
