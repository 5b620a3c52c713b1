"""The page in a real browser: nothing asked for, nothing wrong, nothing cut off, by day, by night and on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headstart.report.page import render
from headstart.report.records import read

LEAST_TEXT = 9.5  # pixels
# Texts of one figure whose boxes share more than a sliver.
OVERLAPS = """() => [...document.querySelectorAll('svg')].flatMap(svg => {
  const all = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
  return all.flatMap(([a, p], i) => all.slice(i + 1).filter(([b, q]) =>
    Math.min(p.right, q.right) - Math.max(p.left, q.left) > 0.5 &&
    Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 3.5).map(([b, q]) => svg.ariaLabel + ': ' + a + ' | ' + b));
})"""
FIGURES = """() => [...document.querySelectorAll('svg')].map(svg => {
  const box = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll('text')];
  const boxes = texts.map(text => text.getBoundingClientRect());
  const unit = box.width / svg.viewBox.baseVal.width;
  return {name: svg.ariaLabel, left: box.left, right: box.right, width: box.width, height: box.height,
          shown: svg.checkVisibility(),
          from: Math.min(...boxes.map(b => b.left)), to: Math.max(...boxes.map(b => b.right)),
          text: unit * Math.min(...texts.map(text => parseFloat(getComputedStyle(text).fontSize)))};
})"""
# WCAG's contrast of an element's colour with the page's, for what is read.
CONTRAST = """() => {
  const luminance = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = luminance(getComputedStyle(document.body).backgroundColor);
  const against = colour => (Math.max(luminance(colour), paper) + 0.05) / (Math.min(luminance(colour), paper) + 0.05);
  const least = (selector, property) => Math.min(...[...document.querySelectorAll(selector)]
    .map(e => against(getComputedStyle(e)[property])));
  return {words: least('p, td, th, h1, h2, summary, figcaption, a', 'color'),
          labels: least('text:not(.over)', 'fill'), lines: least('.line, .interval, .leader', 'stroke')};
}"""


@pytest.fixture(scope="module")
def pages(books: Path, five: Path, tuned: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    loose = [books / "runs" / f"{arm}-400-0" for arm in ("full", "scratch")]
    studies = {"books": [books], "five": [five, books.parent / "base"], "loose": loose, "tuned": [tuned]}
    made = {}
    for name, paths in studies.items():
        made[name] = folder / f"{name}.html"
        made[name].write_text(render(read(paths)), encoding="utf-8")
    return made


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize(("name", "least"), [("books", 11), ("five", 11), ("loose", 11), ("tuned", 3)])
def test_a_page_in_the_browser(
    browser: Any, pages: dict[str, Path], name: str, least: int, width: int, scheme: str
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(pages[name].as_uri())
    assert complaints == []
    assert requests == [pages[name].as_uri()]
    figures = page.evaluate(FIGURES)
    assert len(figures) >= least
    for figure in figures:
        assert figure["shown"] and figure["width"] > 100 and figure["height"] > 40, figure
        assert figure["left"] >= 0 and figure["right"] <= width, figure
        assert figure["from"] >= 0 and figure["to"] <= width, figure
        assert figure["text"] >= LEAST_TEXT, figure
    assert page.evaluate(OVERLAPS) == []
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    contrast = page.evaluate(CONTRAST)
    assert contrast["words"] >= 4.5 and contrast["labels"] >= 4.5 and contrast["lines"] >= 2.9, contrast
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")
    page.close()


def test_paper_is_white_whatever_the_screen_is(browser: Any, pages: dict[str, Path]) -> None:
    page = browser.new_page(viewport={"width": 720, "height": 1000}, color_scheme="dark")
    page.goto(pages["books"].as_uri())
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("document.documentElement.scrollWidth") == 720
    assert page.evaluate(OVERLAPS) == []
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.close()


def test_the_rest_of_a_long_text_can_be_opened(browser: Any, pages: dict[str, Path]) -> None:
    page = browser.new_page()
    page.goto(pages["books"].as_uri())
    text = page.locator("details.text").first
    assert not text.locator("p").is_visible()
    text.locator("summary").click()
    assert text.locator("p").is_visible()
    page.close()
