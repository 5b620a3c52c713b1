"""docs/results.md: from a study folder to a file, and from files to the page."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from headstart.runs.comparison import Comparison
from headstart.studies.compare import compare
from headstart.studies.finetune import finetune
from headstart.studies.settings import CompareSettings, FinetuneSettings, SweepSettings
from headstart.studies.sweep import sweep

DOCS = Path(__file__).parents[2] / "docs"
TOOLS = DOCS.parent / "tools"


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """tools/results.py with a page of its own."""
    monkeypatch.syspath_prepend(TOOLS)
    spec = importlib.util.spec_from_file_location("results_of_docs", TOOLS / "results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    for name, path in (("RESULTS", "results"), ("IMAGES", "images"), ("PAGE", "results.md"), ("README", "README.md")):
        monkeypatch.setattr(module, name, tmp_path / path)
    return module


def data(world: Path) -> dict[str, Any]:
    files = {
        name: str(world / f"{split}.txt") for name, split in (("data", "train"), ("valid", "valid"), ("test", "test"))
    }
    return {**files, "epochs": 2, "lr": 2e-3}


def test_a_comparison(results: ModuleType, world: Path, base: Path, tmp_path: Path) -> None:
    settings = CompareSettings(
        **data(world), init=(str(base),), seeds=2, arms="scratch,full", labels="20,all", ensemble=True
    )
    found = compare(settings, tmp_path / "study")
    about = ["--name", "reviews", "--title", "Made-up reviews", "--command", "recipes/made-up.sh DATA OUT"]
    results.main(["add", str(tmp_path / "study"), *about, "--reported", "full=0.9 elsewhere", "--looks", "3"])
    row = json.loads((tmp_path / "results" / "reviews.json").read_text())
    assert {each["arm"]: each["test"]["value"] for each in row["rows"]} == {
        arm.name: pytest.approx(arm.scores["accuracy"].value, abs=1e-6) for arm in found.arms
    }
    assert row["verdict"] == list(found.verdict)
    assert {each["arm"]: each["runs"] for each in row["rows"]} == {
        arm.name: [round(run.test["accuracy"], 4) for run in arm.runs] for arm in found.arms
    }
    assert (row["budgets"], row["runs"], row["epochs"].keys()) == ([20, 120], 18, {"scratch", "full"})
    (tmp_path / "results.md").write_text("# Page\n\n<!-- result reviews -->\nold\n<!-- end -->\n\nText that stays.\n")
    page = results.page()
    full = found.arm("full").scores["accuracy"]
    [line] = [line for line in page.splitlines() if line.startswith("| full | ") and line.endswith("elsewhere |")]
    assert f"| {full.value:.3f} ({full.low:.3f} to {full.high:.3f}) | 0.9 elsewhere |" in line
    assert "commonest class" not in page
    assert "`recipes/made-up.sh DATA OUT` · seeds 0, 1 · " in page
    assert " · looks at test: at least 3 · [by epoch](images/reviews.svg)\n" in page
    assert "Text that stays." in page
    assert "old" not in page.split("Text")[0].splitlines()
    (tmp_path / "results.md").write_text(page)
    assert results.page() == page
    (tmp_path / "README.md").write_text("Nothing of the overview")
    figure = results.files()["images/reviews.svg"]
    assert ElementTree.fromstring(figure).tag == "{http://www.w3.org/2000/svg}svg"
    assert {"scratch", "full"} <= {each.text for each in ElementTree.fromstring(figure).iter() if each.text}


def test_the_overview(results: ModuleType, tmp_path: Path) -> None:
    """A line for each arm that asked for one; differences whichever way round they are found; in the README, a part."""
    score = {"value": 0.8, "low": 0.75, "high": 0.85}
    rows = [{"arm": "full", "test": score}, {"arm": "tfidf", "test": {**score, "value": 0.7}}, {"arm": "frozen"}]
    difference = {"arm": "tfidf", "reference": "full", "value": -0.1, "low": -0.12, "high": 0.03}
    about = {"hardware": "a machine", "date": "2026-11-15", "rows": rows, "differences": [difference]}
    results.write(tmp_path / "results" / "one.json", {**about, "overview": {"full": "our model"}, "looks": 7})
    results.write(tmp_path / "results" / "two.json", {**about, "overview": {"full": "another"}})
    results.write(tmp_path / "results" / "three.json", about)
    places = "".join(f"<!-- result {name} -->\n<!-- end -->\n" for name in ("two", "one", "three"))
    (tmp_path / "results.md").write_text(f"<!-- overview -->\nold\n<!-- end -->\n\n{places}")
    (tmp_path / "README.md").write_text("Before\n<!-- overview one -->\n<!-- end -->\nAfter\n")
    head, _, first, second, *rest = results.page().splitlines()[1:]
    assert head == "|  | from scratch | TF-IDF | pretrained | − scratch, points | − TF-IDF, points | looks at test |"
    assert first.startswith("| another | ")  # in the order of the page
    line = "| our model |  | 0.700 (0.750 to 0.850) | 0.800 (0.750 to 0.850) |  | +10.0 (−3.0 to +12.0) |"
    assert second == f"{line} at least 7 |"
    assert rest[0] == "<!-- end -->"
    (tmp_path / "README.md").write_text(results.readme())
    before, opening, _, _, only, closing, after = results.readme().splitlines()
    assert (before, opening, only, closing, after) == ("Before", "<!-- overview one -->", line, "<!-- end -->", "After")


def test_bases_are_compared_with_each_other(results: ModuleType, objectives: Path) -> None:
    found = Comparison.from_json(json.loads((objectives / "comparison.json").read_text()))
    row = results.from_folder(objectives)
    pairs = [(each["arm"], each["reference"]) for each in row["differences"]]
    full = ["full:causal", "full:masked", "full:both"]
    held = [set(pair) for pair in (*combinations(full, 2), *product(full, ["scratch", "tfidf"]), ("scratch", "tfidf"))]
    assert sorted(map(sorted, pairs)) == sorted(map(sorted, held))
    assert pairs[: len(found.differences)] == [(each.arm, each.reference) for each in found.differences]
    value = {each["arm"]: each["test"]["value"] for each in row["rows"]}
    for each in row["differences"]:
        assert each["value"] == pytest.approx(value[each["arm"]] - value[each["reference"]], abs=2e-4)
        assert each["low"] <= each["value"] <= each["high"]
    for each in results._further_differences(objectives, replace(found, differences=())):
        known = found.difference(each["arm"], each["reference"])
        if known is not None:
            assert each["value"] == results._rounded(known.scores["accuracy"])["value"]


def test_a_sweep_and_a_run(results: ModuleType, world: Path, base: Path, tmp_path: Path) -> None:
    sweep(SweepSettings(**data(world), init=str(base), grid=("lr=1e-3,1e-2", "dropout=0.0,0.1")), tmp_path / "sweep")
    finetune(FinetuneSettings(**data(world), init=str(base), mode="frozen"), tmp_path / "run")
    table, run = results.from_folder(tmp_path / "sweep"), results.from_folder(tmp_path / "run")
    assert [row["settings"]["dropout"] for row in table["rows"]] == ["0", "0.1", "0", "0.1"]
    assert sum(row["best"] for row in table["rows"]) == 1
    best = next(row for row in table["rows"] if row["best"])
    line = results._section("table", table).splitlines()[1]
    valid = [row["valid"] for row in table["rows"]]
    assert line.startswith(f"4 trials: valid {min(valid):.3f} to {max(valid):.3f}, test ")
    settings = ", ".join(f"{name} {value}" for name, value in best["settings"].items())
    assert line.endswith(f". Best on valid: {settings}: valid {best['valid']:.3f}, test {best['test']:.3f}.")
    assert len(table["verdict"]) == 1 and "of the 3 other trials" in table["verdict"][0]
    assert run["rows"][0]["arm"] == "frozen"
    assert run["rows"][0]["seeds"] == [0]


def test_every_file_has_its_section(results: ModuleType, tmp_path: Path) -> None:
    results.write(tmp_path / "results" / "one.json", {"rows": [], "hardware": "a machine", "date": "2026-11-15"})
    (tmp_path / "results.md").write_text("<!-- result two -->\n<!-- end -->\n")
    with pytest.raises(SystemExit, match=r"one\.json has no section on the page; the page has a section for two"):
        results.page()


def test_a_difference_that_the_correction_takes_back_is_marked(results: ModuleType) -> None:
    def difference(arm: str, low: float, holm: float) -> dict[str, Any]:
        return {"arm": arm, "reference": "scratch", "value": 0.02, "low": low, "high": 0.04, "holm": holm}

    study = {"differences": [difference("full", 0.01, 0.01), difference("frozen", 0.001, 0.08)]}
    line = results._differences(study)
    assert "full − scratch +2.0 (+1.0 to +4.0); frozen − scratch +2.0 (+0.1 to +4.0) *." in line
    assert line.endswith("(*: not significant after Holm's correction.)")
    assert "*" not in results._differences({"differences": [difference("frozen", -0.01, 0.2)]})


def test_scores_without_leaked_rows_are_shown_where_many_leaked(results: ModuleType) -> None:
    rows = [{"arm": "full", "test": 0.8, "leak_free": 0.79}]
    assert "| full | 0.800 | 0.790 |" in results._table({"rows": rows, "leaked_rows": 20, "test_rows": 2000})
    assert "0.790" not in results._table({"rows": rows, "leaked_rows": 2, "test_rows": 2000})


def test_every_result_says_how_often_its_test_set_was_scored() -> None:
    files = sorted((DOCS / "results").glob("*.json"))
    assert len(files) > 10
    assert [path.stem for path in files if not json.loads(path.read_text(encoding="utf-8")).get("looks")] == []
