from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from headstart.report.page import render
from headstart.report.records import read
from tests.report.made_up import Plan, make_pretraining, make_study


class Outline(HTMLParser):
    """The headings, the cells of all tables, the texts of all figures, and every tag and address."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[str, list[str]] = {"h1": [], "h2": [], "td": [], "th": [], "text": [], "caption": []}
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self._open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src", "action", "xlink:href")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag in self.found:
            self._open.append(tag)
            self.found[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open:
            self.found[self._open[-1]][-1] += data


def test_the_sections_in_their_order(books: Path) -> None:
    outline = Outline(render(read([books])))
    assert outline.found["h1"][0].startswith("Pretraining raised test accuracy")
    assert outline.found["h2"] == [
        "Accuracy by epoch",
        "Final accuracy",
        "Differences",
        "Label budgets",
        "Confusion",
        "The most confident mistakes",
        "Reliability",
        "Pretraining: base",
        "Parameters by block",
        "Time and memory",
        "What the doctor found in the data",
        "Settings",
        "To run it again",
    ]


def test_a_section_without_data_is_left_out(books: Path, five: Path, tmp_path: Path) -> None:
    bare = shutil.copytree(five, tmp_path / "bare")
    (bare / "data.json").unlink()
    for path in bare.glob("runs/*"):
        (path / "predictions.parquet").unlink()
        (path / "events.jsonl").unlink(missing_ok=True)
        shutil.rmtree(path / "model", ignore_errors=True)
        manifest = json.loads((path / "manifest.json").read_text())
        kept = {name: value for name, value in manifest.items() if name not in ("parameters", "seconds", "peak_memory")}
        (path / "manifest.json").write_text(json.dumps(kept))
    comparison = json.loads((bare / "comparison.json").read_text())
    (bare / "comparison.json").write_text(json.dumps(comparison | {"differences": []}))
    assert Outline(render(read([bare]))).found["h2"] == ["Final accuracy", "Settings", "To run it again"]


def test_the_same_records_are_the_same_bytes(books: Path, five: Path) -> None:
    assert render(read([books, five])) == render(read([books, five]))


def test_texts_and_labels_are_no_markup(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>"
    plan = Plan(classes=(evil, '"><img src=x onerror=alert(1)>'), text=f"{evil} \x00\x1b[31m & <b>", seeds=1, rows=60)
    study = make_study(tmp_path / "<i>study", plan, pretraining=make_pretraining(tmp_path / "<u>base"))
    page = render(read([study]))
    outline = Outline(page)
    assert not outline.tags & {"script", "img", "i", "u"}
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;" in page
    assert "\x00" not in page and "\x1b" not in page


def test_the_page_asks_for_nothing(books: Path) -> None:
    page = render(read([books]))
    outline = Outline(page)
    assert not outline.tags & {"script", "link", "img", "iframe", "object", "base"}
    assert all(address.startswith("#") for address in outline.addresses)
    assert not re.search(r"url\(|@import|https?://", page)
    names = re.findall(r'id="([^"]*)"', page)
    assert len(set(names)) == len(names) and {address[1:] for address in outline.addresses} <= set(names)


@pytest.mark.parametrize("name", ["books", "five"])
def test_every_number_in_a_figure_is_in_a_table(name: str, request: pytest.FixtureRequest) -> None:
    """But for the axes, and for shares of which the table has the counts."""
    page = render(read([request.getfixturevalue(name)]))
    cells = " ".join([*(found := Outline(page).found)["td"], *found["th"]])
    numbers = re.findall(r'class="label number">([^<%]*)</text>', page)
    shown = [number for number in numbers if number.strip()]
    assert len(shown) > 20
    assert [number for number in shown if number not in cells] == []


def test_arms_are_ranked_with_their_baselines(books: Path) -> None:
    page = render(read([books]))
    comparison = read([books]).studies[0].comparison
    ranked = sorted(comparison.arms, key=lambda arm: -arm.scores["accuracy"].value)
    table = re.search(r'id="final-accuracy-1".*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    assert table is not None
    assert re.findall(r'<th scope="row">(.*?)</th>', table[1]) == [arm.name for arm in ranked]
    best = ranked[0].scores["accuracy"]
    assert f'{best.value:.3f} <span class="aside">{best.low:.3f}–{best.high:.3f}</span>' in table[1]
    assert "1: one class only" in table[1]


def test_what_labels_are_worth_is_said_in_sentences(books: Path) -> None:
    page = render(read([books]))
    worth = read([books]).studies[0].comparison.worth
    assert any(each.value is not None for each in worth)
    for each in worth:
        begin = f"With {each.labels:,} labels, full does"
        if each.value is None:
            assert f"{begin} better than scratch with all 400." in page
        else:
            assert f"{begin} as well as scratch with about {each.value:,.0f} (95\xa0% interval" in page


def test_settings_that_differ_are_marked(books: Path) -> None:
    page = render(read([books]))
    assert re.search(r"● lr</th><td>0.0001</td><td>0.001</td><td>0.0001</td>", page)
    assert re.search(r'<th scope="row">batch_size</th><td>16</td>', page)
    assert "● batch_size" not in page


def test_the_command_to_run_it_again_can_be_typed(tmp_path: Path) -> None:
    study = make_study(tmp_path / "my study", Plan(seeds=1, rows=60, budgets=(400,), draws=20))
    page = render(read([study]))
    assert f"headstart compare &#39;{study}/study.toml&#39; --out &#39;{study}-again&#39;" in page
    assert "study = &#34;compare&#34;" in page  # the recipe itself


def test_many_classes_have_a_list_in_place_of_a_matrix(tmp_path: Path) -> None:
    labels = tuple(f"class {k}" for k in range(20))
    page = render(read([make_study(tmp_path / "many", Plan(classes=labels, seeds=1, budgets=(400,), draws=20))]))
    assert "With 20 classes: the commonest confusions." in page and 'aria-label="Confusion of' not in page


def test_a_pretraining_by_itself_has_a_page(books: Path, tmp_path: Path) -> None:
    page = render(read([make_pretraining(tmp_path / "masked", objective="masked")]))
    found = Outline(page).found
    assert found["h1"] == ["Pretraining: masked"]
    assert found["h2"] == ["Pretraining: masked", "Parameters by block"]
    assert "Loss by step" in page and "Bits per byte by step" not in page
    assert "Bits per byte by step" in render(read([books.parent / "base"]))


def test_the_least_there_can_be_has_a_page(tmp_path: Path) -> None:
    """One epoch, one seed: no line has two points, and no interval is wide."""
    plan = Plan(seeds=1, rows=60, budgets=(400,), epochs=1, draws=20, leaked=())
    outline = Outline(render(read([make_study(tmp_path / "small", plan)])))
    assert outline.found["h2"][:3] == ["Accuracy by epoch", "Final accuracy", "Differences"]


def test_a_large_study_stays_under_two_megabytes(tmp_path: Path) -> None:
    skills = (("scratch", 1.3), ("frozen", 1.2), ("full:causal", 1.6), ("full:masked", 1.7))
    budgets = (50, 100, 200, 400, 800, 1600)
    plan = Plan(skills=skills, seeds=5, rows=2000, budgets=budgets, draws=20, text="a text of many words " * 200)
    page = render(read([make_study(tmp_path / "large", plan, pretraining=make_pretraining(tmp_path / "base"))]))
    assert len(page.encode()) < 2_000_000
