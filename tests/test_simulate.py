"""tools/simulate.py: every table has rows, a file in docs/results, and its ranges in docs/statistics.md."""

from __future__ import annotations

import csv
import doctest
import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
TABLES = ("coverage", "looks", "equivalence", "worth")


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("simulate")


@pytest.mark.parametrize("name", TABLES)
def test_a_row_has_the_columns_of_its_table(simulate: ModuleType, name: str) -> None:
    table = simulate.TABLES[name]
    cells, _ = table.row(next(table.regimes()), studies=4)
    assert len(cells) == len(table.given) + len(table.measured)


def test_a_table_is_written_and_the_page_has_its_ranges(
    simulate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulate, "FILES", tmp_path)
    monkeypatch.setattr(simulate, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(simulate, "TABLES", {"equivalence": simulate.TABLES["equivalence"]})
    head = [*simulate.REGIME, "apart by 4 points", "equal"]
    rows = [
        ["latent", "3, 3, 1", "400", "1, 1, 0", "0.8", "9.5", "46.9"],
        ["latent", "3, 3, 1", "2,000", "1, 1, 0", "0.8", "2.5", "80.2"],
        ["beta", "5, 5, 1", "400", "1, 1, 0", "0.8", "10.2", "3.2"],
    ]
    simulate.write("equivalence", [head, *rows])
    simulate.PAGE.write_text("# Page\n<!-- simulated equivalence -->\nold\n<!-- end -->\nwords\n")
    assert simulate.page().splitlines() == [
        "# Page",
        "<!-- simulated equivalence -->",
        "| items | apart by 4 points | equal |",
        "| --- | --- | --- |",
        "| 400 | 9.5 to 10.2 | 3.2 to 46.9 |",
        "| 2,000 | 2.5 to 2.5 | 80.2 to 80.2 |",
        "<!-- end -->",
        "words",
    ]
    simulate.PAGE.write_text("# Page\n")
    with pytest.raises(SystemExit, match="no place for the table equivalence"):
        simulate.page()


@pytest.mark.parametrize("name", TABLES)
def test_the_file_has_a_row_for_each_regime(simulate: ModuleType, name: str) -> None:
    table = simulate.TABLES[name]
    with simulate.path(name).open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    assert head == [*table.given, *table.measured]
    assert [row[: len(table.given)] for row in rows] == [regime.cells for regime in table.regimes()]


def test_the_page_is_made_of_the_files(simulate: ModuleType) -> None:
    assert simulate.page() == simulate.PAGE.read_text(encoding="utf-8"), "run `make docs`"


def test_examples(simulate: ModuleType) -> None:
    outcome = doctest.testmod(simulate)
    assert outcome.attempted > 0 and outcome.failed == 0
