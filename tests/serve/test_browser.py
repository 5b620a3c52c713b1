"""The page in a real browser: typing, many texts, keyboard alone, wide and narrow, by day and by night."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headstart.serve.limits import Limits
from headstart.serve.models import ServedClassifier, ServedLanguageModel
from headstart.serve.study import ServedStudy, open_study
from headstart.use.classifier import TextClassifier
from tests.serve.example_models import in_a_thread

# WCAG's contrast of every text that is shown with what lies behind it.
CONTRAST = """() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const paint = colours => {
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
      .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  };
  return Math.min(...[...document.querySelectorAll('body *')].filter(e => e.checkVisibility() && !e.disabled &&
      [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())).map(e => {
    const layers = [];
    for (let at = e; at; at = at.parentElement) layers.unshift(getComputedStyle(at).backgroundColor);
    const behind = paint(layers), words = paint([...layers, getComputedStyle(e).color]);
    return (Math.max(behind, words) + 0.05) / (Math.min(behind, words) + 0.05);
  }));
}"""


@pytest.fixture(scope="module")
def url(served: ServedClassifier, topics: ServedClassifier, writer: ServedLanguageModel) -> Iterator[str]:
    with in_a_thread([served, topics, writer], Limits(texts=8)) as (_, url):
        yield url


class Watched:
    """A page whose complaints and requests are kept."""

    def __init__(self, browser: Any, url: str, width: int = 1280, scheme: str = "light") -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        self.url = url
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.set_default_timeout(20_000)
        self.page.goto(url)
        self.page.wait_for_selector("#one:not([hidden]), #study:not([hidden]), #lock:not([hidden])")

    def end(self) -> None:
        """Nothing was complained of, and nobody else was asked."""
        assert self.complaints == []
        own = (self.url, f"blob:{self.url}")
        assert [request for request in self.requests if not request.startswith(own)] == []
        self.page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_typing(browser: Any, url: str, offline: TextClassifier, width: int, scheme: str) -> None:
    watched = Watched(browser, url, width, scheme)
    page = watched.page
    text = "a witty tale 🙂 of the dull page"
    page.locator("#text").press_sequentially(text)
    page.wait_for_selector("#why:not(.stale):not([hidden]) mark")
    page.wait_for_selector("#answer:not(.stale)")
    (expected,) = offline.predict([text])
    assert page.inner_text("#label") == expected.label
    assert page.inner_text("#said") == f"{expected.label}, {100 * max(expected.probabilities.values()):.1f} %"
    page.wait_for_timeout(300)  # until the bars have moved
    for number, share in enumerate(expected.probabilities.values()):
        item = page.locator("#bars li").nth(number)
        assert item.locator(".share").inner_text() == f"{100 * share:.1f} %"
        bar, track = (item.locator(name).bounding_box()["width"] for name in (".bar", ".track"))
        assert bar / track == pytest.approx(share, abs=0.02)
    assert page.inner_text("#words") == text  # whole, with each word in its place
    colours = {}
    for word in ("witty", "dull"):
        mark = page.locator("#words mark", has_text=word)
        colours[word] = (mark.get_attribute("class"), mark.evaluate("e => getComputedStyle(e).backgroundColor"))
    assert {kind for kind, _ in colours.values()} == {"for", "against"}
    assert len({colour for _, colour in colours.values()}) == 2
    assert page.evaluate(CONTRAST) >= 4.5
    assert page.evaluate("document.documentElement.scrollWidth") == width
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")
    page.fill("#text", "")
    assert page.inner_text("#label") == "–" and page.is_hidden("#why")
    watched.end()


def test_fast_typing_asks_seldom_and_shows_the_last(browser: Any, url: str) -> None:
    watched = Watched(browser, url)
    page = watched.page
    page.locator("#text").press_sequentially("dull dull dull dull dull dull witty witty", delay=5)
    page.fill("#text", "a witty tale")
    page.wait_for_selector("#why:not(.stale):not([hidden]) mark")
    assert page.inner_text("#words") == "a witty tale" and page.inner_text("#label") == "pos"
    assert sum(request.endswith("/predict") for request in watched.requests) <= 10  # of 42 changes
    watched.end()


def test_an_answer_that_comes_too_late_is_dropped(browser: Any, url: str) -> None:
    watched = Watched(browser, url)
    page = watched.page
    held: list[Any] = []

    def hold(route: Any) -> None:
        if "dull" in (route.request.post_data or ""):
            held.append(route)
        else:
            route.continue_()

    page.route("**/predict", hold)
    page.fill("#text", "a dull tale")
    while not held:
        page.wait_for_timeout(20)
    page.fill("#text", "a witty tale")
    page.wait_for_selector("#why:not(.stale):not([hidden]) mark")
    late = {"model": "reviews", "predictions": [{"label": "late", "probabilities": {"neg": 1, "pos": 0}}]}
    held[0].fulfill(json=late)
    page.wait_for_timeout(50)
    assert page.inner_text("#label") == "pos"
    watched.end()


def test_examples_pairs_and_another_model(browser: Any, url: str, offline: TextClassifier) -> None:
    watched = Watched(browser, url)
    page = watched.page
    page.click("#examples button >> nth=1")
    page.wait_for_selector("#answer:not(.stale)")
    assert page.input_value("#text") == "a dull tale" and page.inner_text("#label") == "neg"
    page.click("#pair summary")
    page.fill("#second", "the witty and tender reader")
    page.wait_for_selector("#words-second:not([hidden]) mark")
    (expected,) = offline.predict([("a dull tale", "the witty and tender reader")])
    assert page.inner_text("#said").startswith(f"{expected.label}, ")
    page.select_option("#model", "topics")
    page.wait_for_selector("#answer:not(.stale)")
    assert page.locator("#bars .name").all_inner_texts() == ["art", "law", "sea"]
    assert page.inner_text("h1") == "topics"
    watched.end()


@pytest.mark.parametrize("width", [390, 1280])
def test_a_file_in_and_a_csv_out(
    browser: Any, url: str, offline: TextClassifier, texts: list[str], tmp_path: Path, width: int
) -> None:
    given = [{"id": str(n), "text": text} for n, text in enumerate(texts)]
    given[3]["text"] = 'a "witty", tender\ntale'
    given[4]["text"] = ""
    with (tmp_path / "given.csv").open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, ["id", "text"])
        writer.writeheader()
        writer.writerows(given)
    watched = Watched(browser, url, width)
    page = watched.page
    page.set_input_files("#file", tmp_path / "given.csv")
    page.wait_for_selector("#column-line:not([hidden])")
    assert page.inner_text("#file-name") == "given.csv: 40 texts"
    assert page.locator("#column option:checked").inner_text() == "text"
    page.click("#classify")
    page.wait_for_selector("#download:not([hidden])")
    with page.expect_download() as download:
        page.click("#download")
    assert download.value.suggested_filename == "predictions.csv"
    with Path(download.value.path()).open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    expected = offline.predict([row["text"] for row in given])
    for row, before, right in zip(found, given, expected, strict=True):
        assert list(row) == ["id", "text", "predicted", "probability:neg", "probability:pos"]
        assert {"id": row["id"], "text": row["text"]} == before
        assert row["predicted"] == right.label
        assert float(row["probability:pos"]) == pytest.approx(right.probabilities["pos"], abs=1e-6)
    assert page.locator("#rows tbody tr").count() == 40
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(CONTRAST) >= 4.5
    watched.end()


def test_cells_that_a_spreadsheet_would_run(browser: Any, url: str, tmp_path: Path) -> None:
    given = ["=1+1", "+1+1", "-1+cmd|' /C calc'!A0", "@SUM(A1)", "\t=1+1", "a = b", "-3", "+4.5e-3", "'=1"]
    (tmp_path / "given.csv").write_text("".join(f'"{cell}","a tale"\n' for cell in ["=id", *given]))
    watched = Watched(browser, url)
    page = watched.page
    page.set_input_files("#file", tmp_path / "given.csv")
    page.wait_for_selector("#column-line:not([hidden])")
    page.click("#classify")
    page.wait_for_selector("#download:not([hidden])")
    with page.expect_download() as download:
        page.click("#download")
    with Path(download.value.path()).open(newline="", encoding="utf-8") as file:
        found = [row[0] for row in csv.reader(file)]
    assert found == ["'=id", *(f"'{cell}" for cell in given[:5]), *given[5:]]
    watched.end()


def test_a_dropped_file_and_pasted_lines(browser: Any, url: str) -> None:
    watched = Watched(browser, url)
    page = watched.page
    transfer = page.evaluate_handle(
        "() => { const t = new DataTransfer(); t.items.add(new File(['witty\\ndull\\n\\ndull'], 'a.txt')); return t; }"
    )
    page.dispatch_event("#drop", "drop", {"dataTransfer": transfer})
    page.locator("#file-name", has_text="a.txt: 3 texts").wait_for()
    page.click("#classify")
    page.wait_for_selector("#download:not([hidden])")
    assert page.inner_text("#many-said") == "3 texts: 2 neg, 1 pos."
    page.fill("#lines", "a witty tale\n<b>dull</b>")
    page.click("#classify")
    page.locator("#many-said", has_text="2 texts:").wait_for()  # and not "Classifying 2 texts."
    assert page.locator("#rows td:last-child").all_inner_texts() == ["a witty tale", "<b>dull</b>"]
    watched.end()


def test_by_keyboard_alone(browser: Any, url: str) -> None:
    """From the top to the download, in the order in which it is read, and one can see where one is."""
    watched = Watched(browser, url)
    page = watched.page
    order = []
    for _ in range(40):
        page.keyboard.press("Tab")
        name = page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()")
        order.append(name)
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", name
        if name == "text":
            page.keyboard.type("a witty tale")
        if name == "a dull tale":
            page.keyboard.press("Enter")
            page.wait_for_selector("#answer:not(.stale)")
            assert page.inner_text("#label") == "neg"
        if name == "lines":
            page.keyboard.type("a witty tale")
            page.keyboard.press("Enter")
            page.keyboard.type("a dull tale")
        if name == "classify":
            page.keyboard.press("Enter")
            page.wait_for_selector("#download:not([hidden])")
        if name == "download":
            with page.expect_download():
                page.keyboard.press("Enter")
            break
    expected = ["model", "text", "A second text, for a model that reads pairs", "a witty tale", "a dull tale"]
    assert order == [*expected, "lines", "pick", "classify", "download"]
    with page.expect_file_chooser():
        page.focus("#pick")
        page.keyboard.press("Enter")
    watched.end()


def test_everything_has_a_name(browser: Any, url: str) -> None:
    """What a screen reader says of each thing that can be used."""
    watched = Watched(browser, url)
    unnamed = """() => [...document.querySelectorAll('input, select, textarea, button')].filter(e =>
      !(e.labels?.length || e.ariaLabel || e.textContent.trim())).map(e => e.outerHTML)"""
    assert watched.page.evaluate(unnamed) == []
    assert watched.page.locator("[role=status], [role=alert]").count() >= 4
    assert watched.page.evaluate("document.documentElement.lang") == "en"
    watched.end()


@pytest.mark.parametrize("width", [390, 1280])
def test_a_text_continued(browser: Any, url: str, width: int) -> None:
    watched = Watched(browser, url, width)
    page = watched.page
    page.select_option("#model", "writer")
    assert page.is_hidden("#one") and page.is_hidden("#many")
    page.fill("#prompt", "the tender")
    page.fill("#length", "5")
    page.focus("#prompt")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#written .given")
    written = page.inner_text("#written")
    assert written.startswith("the tender") and len(written) > len("the tender …")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    watched.end()


def test_what_goes_wrong_is_said(browser: Any, url: str) -> None:
    watched = Watched(browser, url)
    page = watched.page
    page.fill("#text", "a" * 20_001)
    page.locator("#trouble", has_text="20,001 characters").wait_for()
    page.fill("#text", "a witty tale")
    page.wait_for_selector("#answer:not(.stale)")
    assert page.inner_text("#trouble") == ""
    page.click("#classify")
    assert "no text yet" in page.inner_text("#many-said")
    page.set_input_files("#file", {"name": "a.csv", "mimeType": "text/csv", "buffer": b"text\n\xff\xfe"})
    page.locator("#trouble", has_text="a.csv is not UTF-8 text.").wait_for()
    watched.complaints.clear()  # the browser's own line about the 422
    watched.end()


def test_a_token(browser: Any, served: ServedClassifier) -> None:
    with in_a_thread([served], Limits(), token="open sesame") as (_, url):
        watched = Watched(browser, url)
        page = watched.page
        page.fill("#token", "wrong")
        page.keyboard.press("Enter")
        page.locator("#trouble", has_text="not the token").wait_for()
        page.fill("#token", "open sesame")
        page.keyboard.press("Enter")
        page.wait_for_selector("#one:not([hidden])")
        page.fill("#text", "a witty tale")
        page.wait_for_selector("#answer:not(.stale)")
        assert page.inner_text("#label") == "pos" and page.is_hidden("#lock")
        watched.complaints.clear()  # the browser's own lines about the 401s
        watched.end()


DONE = "#arms:not(:has(.stale)):not(:has(.stale-words)):has(mark)"  # every arm has answered


@pytest.fixture(scope="module")
def compared(study: Path) -> Iterator[tuple[ServedStudy, str]]:
    served = open_study("books", study, "cpu", 1 << 30)
    with in_a_thread([served], Limits()) as (_, url):
        yield served, url


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_every_arm_of_a_comparison(browser: Any, compared: tuple[ServedStudy, str], width: int, scheme: str) -> None:
    served, url = compared
    watched = Watched(browser, url, width, scheme)
    page = watched.page
    assert page.inner_text("h1") == served.study.title.replace(" %", "\u00a0%")
    text = "a witty and tender tale 🙂 of the dull page"
    page.locator("#study-text").press_sequentially(text)
    page.wait_for_selector(DONE)
    *_, expected = served.compare(served.select(120, None), text, words=True)
    cards = page.locator("#arms > li")
    assert cards.count() == 4
    for number, arm in enumerate(expected["arms"]):  # in the order of the report
        card = cards.nth(number)
        assert card.locator("h3").inner_text() == arm["title"]
        assert card.locator(".score").inner_text().startswith(f"{100 * arm['accuracy']['value']:.1f} % on test")
        assert card.locator(".label-line strong").inner_text() == arm["label"]
        assert card.locator(".share").first.inner_text() == f"{100 * max(arm['probabilities'].values()):.1f} %"
        assert card.locator(".words").inner_text() == text
        shown = dict(card.locator("mark").evaluate_all("marks => marks.map(m => [m.textContent, m.className])"))
        for word in arm["words"]:
            assert shown[word["text"]] == ("against" if word["weight"] < 0 else "for")
    if width == 1280:  # side by side
        assert len({box["y"] for card in cards.all() if (box := card.bounding_box())}) == 1
    assert page.evaluate(CONTRAST) >= 4.5
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.fill("#study-text", "")
    assert set(page.locator("#arms .label-line").all_inner_texts()) == {"–"} and page.locator("#arms mark").count() == 0
    watched.end()


def test_another_budget_and_a_text_on_which_arms_disagree(browser: Any, compared: tuple[ServedStudy, str]) -> None:
    served, url = compared
    watched = Watched(browser, url)
    page = watched.page
    page.check("#budgets input[value='40']")
    example = served.examples[40][0]
    page.click("#disagreeing button >> nth=0")
    page.wait_for_selector(DONE)
    assert page.input_value("#study-text") == example.text
    assert page.inner_text("#true-label") == f"Its label: {example.label}"
    labels = page.locator("#arms .label-line strong").all_inner_texts()
    assert len(set(labels)) > 1
    marks = page.locator("#arms .label-line span").all_inner_texts()
    assert marks == ["right" if label == example.label else "wrong" for label in labels]
    assert "40 labels, seed 0" in page.inner_text("#which-runs")
    page.locator("#study-text").press("End")
    page.locator("#study-text").type("!")
    page.wait_for_selector(DONE)
    assert page.inner_text("#true-label") == "" and page.locator("#arms .label-line span").count() == 0
    watched.end()


def test_a_comparison_that_refuses_or_lacks_an_arm(browser: Any, study: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(study, tmp_path / "books"))
    (copied / "comparison.json").unlink()
    for run in copied.glob("runs/scratch-*"):
        shutil.rmtree(run)
    for weights in copied.glob("runs/full-120-seed0-*/model/model.safetensors"):
        weights.write_bytes(b"")
    with in_a_thread([open_study("books", copied, "cpu", 1 << 30)], Limits(characters=50)) as (_, url):
        watched = Watched(browser, url)
        page = watched.page
        assert page.inner_text("h1") == "books: a comparison that is not finished"
        missing = page.inner_text("#missing")
        assert "scratch with 40 labels (not trained yet)" in missing
        page.fill("#study-text", "a witty tale")
        page.wait_for_selector(DONE.replace(":not(:has(.stale-words))", ""))
        page.wait_for_selector("#arms > li[data-arm=full] .trouble")
        assert page.locator("#arms > li[data-arm=tfidf] .label-line strong").inner_text() in ("neg", "pos")
        page.fill("#study-text", "a" * 51)
        page.wait_for_selector("#trouble:has-text('51 characters, and 50 are read')")
        assert page.locator("#arms .stale").count() == 0
        watched.complaints = [text for text in watched.complaints if "422" not in text]  # which the browser logs
        watched.end()


@pytest.mark.parametrize("width", [390, 1280])
def test_the_docs(browser: Any, url: str, width: int) -> None:
    watched = Watched(browser, url, width)
    page = watched.page
    page.click("footer a >> nth=0")
    page.wait_for_selector(".endpoint")
    assert page.locator("h2 code").all_inner_texts() == [
        "POST /predict", "POST /explain", "POST /continue", "GET /health", "GET /info", "GET /metrics",
    ]  # fmt: skip
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(CONTRAST) >= 4.5
    watched.end()
