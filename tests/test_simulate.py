"""tools/simulate.py: every table has rows, and a place in docs/statistics.md."""

from __future__ import annotations

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
    head, regimes, row = simulate.TABLES[name]
    line, _ = row(next(regimes()), studies=4)
    assert line.count("|") == head.count("|")


def test_a_table_is_written_over_the_one_before(
    simulate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulate, "PAGE", tmp_path / "page.md")
    page = (
        "# Statistics\n<!-- simulated looks -->\n| old |\n<!-- end -->\nwords\n<!-- simulated worth -->\n<!-- end -->\n"
    )
    simulate.PAGE.write_text(page)
    simulate.write("looks", "| new |\n")
    assert simulate.PAGE.read_text() == page.replace("old", "new")


@pytest.mark.parametrize("name", TABLES)
def test_the_page_has_a_place_for_each(simulate: ModuleType, name: str) -> None:
    page = simulate.PAGE.read_text()
    table = page.partition(f"<!-- simulated {name} -->\n")[2].partition("<!-- end -->")[0]
    assert len(table.splitlines()) == 2 + len(list(simulate.TABLES[name][1]()))
    assert table.startswith(simulate.TABLES[name][0])
