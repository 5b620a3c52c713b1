"""The notebooks are run from the first cell to the last: at a tiny size here, and as they stand by the slow tests."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
NAMES = ("lab", "minbert")
TINY = {"VOCABULARY": 400, "WINDOW": 32, "STEPS": 2, "EPOCHS": 1, "LABELS": 8, "SEEDS": 2}


def cells(name: str) -> list[dict[str, Any]]:
    return list(json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"])


def execute(name: str, sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], int]:
    """Run the cells of a notebook here, with other sizes: the variables at its end, and the number of its figures."""
    matplotlib.use("agg")
    shown: list[int] = []

    def show() -> None:
        shown.extend(plt.get_fignums())
        plt.close("all")

    monkeypatch.setattr(plt, "show", show)
    found: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells(name):
        if cell["cell_type"] == "code":
            code = "".join(cell["source"])
            for size, number in sizes.items():
                code = re.sub(rf"^{size} = \d+", f"{size} = {number}", code, flags=re.MULTILINE)
            exec(compile(code, f"{name}.ipynb, {cell['id']}", "exec"), found)
    return found, len(shown)


def test_the_lab_runs_to_its_figure(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, figures = execute("lab", TINY, monkeypatch)
    assert figures == 2
    assert found["base"].result.steps == 2
    assert {mode: len(trained) for mode, trained in found["classifiers"].items()} == {"scratch": 2, "full": 2}
    assert len(found["curves"]) == 2


def test_minbert_runs_to_its_figure_and_its_predictions(
    tiny: Path, base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(base, "debat-fr")
    found, figures = execute("minbert", TINY, monkeypatch)
    assert figures == 1
    assert set(found["classifiers"]) == {"frozen", "full"}
    valid = (tiny / "debat" / "valid.csv").read_text(encoding="utf-8")
    label, text = capsys.readouterr().out.splitlines()[-1].removeprefix("valid-predictions.txt | ").split(" ||| ")
    assert label in ("climat", "école")
    assert text in valid


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_committed_without_output(name: str) -> None:
    code = [cell for cell in cells(name) if cell["cell_type"] == "code"]
    assert len(code) > 5
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_as_it_stands(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    execute(name, {}, monkeypatch)
