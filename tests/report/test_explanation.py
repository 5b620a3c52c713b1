from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headstart.reading.examples import Text
from headstart.report.explanation import SHADES, SHOWN_TOKENS, notes, paths, render, shades, text_spans
from headstart.use.classifier import TextClassifier
from headstart.use.explain import explain
from headstart.use.explanation import AttentionMaps, Completeness, Explanation, Faithfulness, Word
from tests.use.example_classifiers import reviewer


def made(text: Text = "so <b>dull</b> & vague", **changes: Any) -> Explanation:
    words = (Word("dull", 6, 10, weight=2.0), Word("vague", 17, 22, weight=-0.5), Word("so", 0, 2, weight=0.02))
    found = Explanation(
        text=text,
        label="neg",
        probabilities={"pos": 0.25, "neg": 0.75},
        words=tuple(sorted(words, key=lambda word: word.start)),
        completeness=Completeness(1.62, -0.5, 1.02),
        faithfulness=Faithfulness(top=0.2, random=0.6, random_std=0.1),
        truncated=0,
        attention=AttentionMaps(
            ("<start>", "dull"), np.array([[[[1, 0], [0.25, 0.75]]]], dtype=np.float32), causal=True
        ),
    )
    return replace(found, **changes)


def cells_of(drawn: str) -> set[tuple[int, int]]:
    """The (row, column) cells that a path covers, by a reader of its own."""
    x = y = 0
    found = set()
    for command, first, second in re.findall(r"([Mmh])(-?\d+)(?: (-?\d+))?", drawn):
        if command == "M":
            x, y = int(first), int(second)
        elif command == "m":
            x, y = x + int(first), y + int(second)
        else:
            found |= {(y, column) for column in range(x, x + int(first))}
            x += int(first)
    return found


def test_every_cell_of_a_map_is_drawn_once_in_its_shade() -> None:
    weights = np.random.default_rng(0).dirichlet(np.full(9, 0.3), 9).astype(np.float32)
    weights[2] = np.eye(9)[8]
    drawn = {shade: cells_of(path) for shade, path in paths(weights)}
    for i, j in np.ndindex(9, 9):
        shade = 1 + min(SHADES - 1, int(np.sqrt(weights[i, j]) * SHADES))
        faint = weights[i, j] < 1 / SHADES**2 / 4
        assert [s for s, cells in drawn.items() if (i, j) in cells] == ([] if faint else [shade])
    assert shades(np.array([0.0, 1.0, 0.25]), 4).tolist() == [0, 3, 2]


def test_nothing_of_the_text_is_lost_or_taken_for_html() -> None:
    explanation = made()
    assert "".join(each.text for each in text_spans(explanation, 0)) == explanation.text
    page = render(explanation)
    assert "<b>" not in page and "&lt;b&gt;" in page and "&amp; <span" in page
    assert "<script" not in page and "http" not in page
    assert page == render(explanation)
    assert "\x1b" not in render(made("a\x1b[31m dull\0 vague...", words=(Word("dull", 7, 11, weight=1.0),)))


def test_the_words_have_their_side_strength_and_number() -> None:
    page = render(made())
    assert '<span class="word" style="--s: 1.0" tabindex="0">dull<span class="tip" aria-hidden="true">+2.00' in page
    assert '<span class="word against" style="--s: 0.25" tabindex="0">vague<span' in page and "\u22120.50" in page
    assert '<span class="word slight" style="--s: 0.01">so<span' in page
    assert page.index(">neg</th>") < page.index(">pos</th>") and "75.0 %" in page
    assert page.index('dir="auto">dull</th>') < page.index('dir="auto">vague</th>') < page.index('dir="auto">so</th>')


def test_the_square_mask_of_a_causal_model_is_drawn() -> None:
    page = render(made())
    assert 'd="M0 -.5H1V0.5H2V1.5H0z"' in page and "hatched triangle" in page
    whole = render(made(attention=replace(made().attention, causal=False)))  # type: ignore[type-var]
    assert 'd="M0 -.5H2V1.5H0z"' in whole and "hatched triangle" not in whole
    assert "Layer 1, head 1: at its darkest, “&lt;start&gt;” takes 1.00 from “&lt;start&gt;”" in page


def test_a_page_of_72_maps_is_below_2_megabytes() -> None:
    draw = np.random.default_rng(0)
    tokens = tuple(f"token{n}" for n in range(60))
    for spread in (0.1, 1.0, 10.0):
        weights = draw.dirichlet(np.full(60, spread), (6, 12, 60)).astype(np.float32)
        page = render(made(attention=AttentionMaps(tokens, weights, causal=False)))
        assert page.count("<figure") == 72 and len(page.encode()) < 2_000_000


def test_long_maps_are_cut_and_say_so() -> None:
    length = SHOWN_TOKENS + 6
    weights = np.full((1, 1, length, length), 1 / length, dtype=np.float32)
    page = render(made(attention=AttentionMaps(("x",) * length, weights, causal=False)))
    assert f"The first {SHOWN_TOKENS} tokens are drawn; 6 more are not." in page
    assert f'viewBox="0 -.5 {SHOWN_TOKENS} {SHOWN_TOKENS}"' in page


def test_what_is_said_before_the_weights_are_believed() -> None:
    sums, faithful = notes(made())
    assert sums == (
        "The weights sum to +1.62; the logit of neg goes from -0.50 without words to +1.02. The other -0.10 comes of "
        "words together: they may need each other, or repeat each other."
    )
    assert faithful.startswith("Faithfulness +0.40: with the top words deleted neg has probability 0.20 on average, ")
    assert "another label may tell more" in notes(made(completeness=Completeness(0.5, 4.0, 4.5)))[1]
    assert "1,200 tokens at its end were not read" in notes(made(truncated=1200))[0]
    assert notes(made("", words=())) == ["There is no word in the text to explain by."]
    alone = made("dull", words=(Word("dull", 0, 4, weight=1.0),), faithfulness=None)
    assert notes(alone)[1:] == ["One word has no order, so there is no faithfulness score."]
    assert len(notes(made(faithfulness=None))) == 1


# --- in a browser ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    texts: dict[str, Text] = {
        "small": "the witty story of a dull page " * 5 + "unbelievably" * 12,
        "lab": ("of the witty story\nin vague", "a page"),
    }
    written = {}
    for name, text in texts.items():
        written[name] = folder / f"{name}.html"
        found = explain(TextClassifier(reviewer(name), "cpu"), text, attention=True, orders=2)
        written[name].write_text(render(found), encoding="utf-8")
    return written


CONTRAST = """selector => {
  const parse = colour => colour.match(/[\\d.]+/g).map(Number);
  const luminance = rgb => { const [r, g, b] = rgb.map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const paper = parse(getComputedStyle(document.body).backgroundColor);
  const canvas = document.createElement('canvas').getContext('2d');
  return Math.min(...[...document.querySelectorAll(selector)].map(e => {
    const style = getComputedStyle(e);
    canvas.fillStyle = `rgb(${paper.join(',')})`; canvas.fillRect(0, 0, 1, 1);
    canvas.fillStyle = style.backgroundColor; canvas.fillRect(0, 0, 1, 1);
    const ground = luminance([...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3));
    const ink = luminance(parse(style.color).slice(0, 3));
    return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
  }));
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["small", "lab"])
def test_the_page_in_a_browser(browser: Any, pages: dict[str, Path], name: str, width: int, scheme: str) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(pages[name].as_uri())
    assert complaints == [] and requests == [pages[name].as_uri()]
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(CONTRAST, ".word") >= 4.5 and page.evaluate(CONTRAST, "p, td, th, a, summary") >= 4.5
    word = page.locator(".text .word[tabindex]").first
    tip = word.locator(".tip")
    assert not tip.is_visible()
    word.focus()
    assert tip.is_visible() and re.fullmatch("[+\u2212]\\d+\\.\\d\\d", tip.inner_text())
    page.locator("h1").hover()
    assert page.locator(".map").count() == 4
    page.locator('#l1h2 a[href="#l1h2"]').click()  # one map large, with its tokens
    names = page.locator("#l1h2 .names")
    assert names.is_visible() and not page.locator("#l1h1 .names").is_visible()
    size = page.evaluate("""() => { const svg = document.querySelector('#l1h2 svg');
      return svg.getBoundingClientRect().width / svg.viewBox.baseVal.width
        * parseFloat(getComputedStyle(document.querySelector('#names text')).fontSize); }""")
    assert size >= 9.5
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.close()
