"""`import headstart as hs`: each verb from its data to something that can be used."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import headstart as hs
from headstart.errors import CheckpointError, ConfigError, OutputError
from headstart.runs.comparison import Comparison
from headstart.use.language_model import LanguageModel
from tests.studies.example_data import corpus, write_reviews

SIZES = ["width=32", "layers=1", "heads=2", "feed_forward=32"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with reviews.txt, corpus.txt and base/."""
    write_reviews(tmp_path / "reviews.txt", 160, 1)
    (tmp_path / "corpus.txt").write_text("\n".join(corpus(60, 2)) + "\n", encoding="utf-8")
    (tmp_path / "base").symlink_to(base)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_importing_it_is_light() -> None:
    script = (
        "import sys, headstart as hs\n"
        "names = sorted(name for name in dir(hs) if not name.startswith('_'))\n"
        "print(sorted({'torch', 'numpy', 'sklearn', 'pyarrow', 'typer', 'rich'} & sys.modules.keys()), *names)"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=root)
    loaded, *names = done.stdout.split()
    assert loaded == "[]"
    assert {"pretrain", "finetune", "compare", "load", "HeadstartClassifier", "TextClassifier"} <= set(names)


def test_names_that_are_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'pretrian'"):
        _ = hs.pretrian
    assert hs.Classifier is hs.TextClassifier


@pytest.mark.parametrize("kind", ["file", "path", "texts", "files", "store"])
def test_pretrain(kind: str) -> None:
    settings: dict[str, Any] = {"vocabulary": 320, "change": SIZES, "steps": 2}
    if kind == "store":
        hs.pretrain("corpus.txt", **settings, out="first")
    data = {
        "file": "corpus.txt",
        "path": Path("corpus.txt"),
        "texts": corpus(60, 2),
        "files": [Path("corpus.txt")],
        "store": "first-tokens/store",
    }
    made = hs.pretrain(data[kind], **settings)  # type: ignore[arg-type]
    assert isinstance(made, LanguageModel)
    assert made.result is not None and made.result.steps == 2
    [run] = [path for path in Path("runs").iterdir() if (path / "run.toml").is_file()]
    assert run.name.startswith("pretrain-")
    assert hs.load(run).generate("the", max_tokens=3) == made.generate("the", max_tokens=3)  # type: ignore[union-attr]


def test_a_masked_model_fills_gaps() -> None:
    made = hs.pretrain("corpus.txt", objective="masked", vocabulary=320, change=SIZES, steps=2, out="masked")
    assert len(made.fill("a [MASK] story", top=3)[0].candidates) == 3


def test_finetune_gives_a_classifier_with_its_scores(capsys: pytest.CaptureFixture[str]) -> None:
    reviews = hs.finetune("reviews.txt", init=Path("base"), epochs=6, lr=5e-3)
    assert isinstance(reviews, hs.TextClassifier)
    assert capsys.readouterr() == ("", "")  # this is no terminal
    assert reviews.result is not None
    assert reviews.result.valid == json.loads(Path("runs/finetune-reviews/result.json").read_text())["valid"]
    [prediction] = reviews.predict(["a witty and wise story, bright and tender"])
    assert prediction.label == "pos"
    events = Path("runs/finetune-reviews/events.jsonl")
    before = events.stat().st_mtime_ns
    again = hs.finetune("reviews.txt", init="base", epochs=6, lr=5e-3)  # is done, and nothing is trained
    assert (again.result, events.stat().st_mtime_ns) == (reviews.result, before)
    loaded = hs.load("runs/finetune-reviews")
    assert isinstance(loaded, hs.TextClassifier)
    assert loaded.result == reviews.result


def test_progress_is_shown_where_it_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    hs.finetune("reviews.txt", init="base", steps=1, progress=True)
    shown = capsys.readouterr().out
    assert "run folder: runs/finetune-reviews" in shown
    assert "valid: accuracy" in shown


def test_a_recipe_and_keyword_arguments_over_it() -> None:
    Path("short.toml").write_text('data = "nowhere.txt"\ninit = "base"\nsteps = 9\nseed = 3\n')
    classifier = hs.finetune("reviews.txt", recipe="short.toml", steps=1)
    assert classifier.result is not None and classifier.result.steps == 1
    assert "seed = 3" in Path("runs/finetune-reviews/run.toml").read_text()


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attributes: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_compare_prints_its_verdict_and_shows_itself_in_a_notebook() -> None:
    found = hs.compare("reviews.txt", init="base", seeds=2, steps=2, full={"lr": 1e-3})
    assert isinstance(found, Comparison)
    for sentence in found.verdict:
        assert sentence.replace("**", "") in str(found)
    page = Page()
    page.feed(found._repr_html_())
    assert page.tags.count("tr") == 1 + len(found.arms)
    assert set(page.tags) == {"table", "thead", "tbody", "tr", "th", "td", "p", "strong"}  # nothing that loads or runs
    assert found.verdict[0].replace("**", "") in page.text
    assert Path("runs/compare-reviews/report.html").is_file()
    assert hs.compare("reviews.txt", init="base", seeds=2, steps=2, full={"lr": 1e-3}) == found


def test_names_in_a_notebook_are_escaped(folder: Path) -> None:
    (folder / "a<script>").symlink_to(folder / "base")
    found = hs.compare("reviews.txt", init=["a<script>", "base"], arms="frozen", seeds=1, steps=1)
    assert "<script>" not in found._repr_html_()
    assert "a&lt;script&gt;" in found._repr_html_()


def test_compare_without_a_base() -> None:
    found = hs.compare("reviews.txt", seeds=1, steps=1, window=16)
    assert {arm.name for arm in found.arms} == {"scratch", "tfidf", "majority"}
    tokenizer = Path("runs/compare-reviews/tokenizer/tokenizer.json")
    before = tokenizer.stat().st_mtime_ns
    assert hs.compare("reviews.txt", seeds=1, steps=1, window=16) == found
    assert tokenizer.stat().st_mtime_ns == before


def test_all_mistakes_at_once_with_the_nearest_right_name() -> None:
    with pytest.raises(ConfigError) as caught:
        hs.finetune("reviews.txt", inti="base", epochs=0)
    assert len(caught.value.problems) == 3
    assert "did you mean 'init'" in str(caught.value)
    assert "epochs is 0, and must be at least 1" in str(caught.value)
    with pytest.raises(ConfigError, match="no text to train on"):
        hs.pretrain([])
    with pytest.raises(CheckpointError, match="there is no folder nowhere"):
        hs.load("nowhere")
    assert not Path("runs").exists()


def test_another_run_in_a_named_folder_is_left_alone() -> None:
    hs.finetune("reviews.txt", init="base", steps=1, out="mine")
    with pytest.raises(OutputError, match="holds another run"):
        hs.finetune("reviews.txt", init="base", steps=2, out="mine")
