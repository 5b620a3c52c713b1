"""A base of one's own: what of the pile is read, which size is chosen, and what a kill loses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from headstart.checkpoints.exchange import open_model
from headstart.errors import ConfigError, DataError, OutputError
from headstart.reading.examples import Examples
from headstart.runs.events import Step
from headstart.runs.pile import TOKENS, YOURS, read_pile
from headstart.runs.run import RunFolder
from headstart.store.store import Store
from headstart.studies import base_size
from headstart.studies.base_size import PASSES, SIZES, TOKENS_A_WEIGHT, WINDOW, Size, choose_size
from headstart.studies.compare import compare, open_study
from headstart.studies.held_out import HeldOutTexts
from headstart.studies.pile import make_base
from headstart.studies.recipes import default_folder
from headstart.studies.settings import CompareSettings, PretrainSettings
from headstart.studies.splits import read_splits
from tests.studies.example_data import corpus, reviews, write_reviews

TINY = (Size(64, 1, 64),)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_size, "SIZES", TINY)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labelled files, and a pile that holds all their texts."""
    folder = tmp_path_factory.mktemp("place")
    lines = corpus(100, 9)
    for seed, (name, count) in enumerate((("train", 40), ("valid", 30), ("test", 30))):
        write_reviews(folder / f"{name}.txt", count, seed)
        lines += [text.upper() + "!" for _, text in reviews(count, seed)]
    (folder / "pile.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def made(place: Path) -> Path:
    """A study folder with its base, to look at."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(base_size, "SIZES", TINY)
        make_base(settings(place), splits(place), place / "s", 1.0, quiet)
    return place / "s"


def settings(place: Path, **changes: Any) -> CompareSettings:
    given: dict[str, Any] = {
        "data": str(place / "train.txt"),
        "valid": str(place / "valid.txt"),
        "test": str(place / "test.txt"),
        "pile": (str(place / "pile.txt"),),
        "device": "cpu",
    }
    return CompareSettings(**{**given, **changes})


def splits(place: Path) -> dict[str, Examples]:
    return read_splits(settings(place))


def quiet(text: str) -> None:
    pass


def test_texts_of_valid_and_test_are_left_out_and_those_of_train_stay(place: Path, made: Path) -> None:
    read = [json.loads(line)["text"] for line in (made / TOKENS / "text.jsonl").read_text().splitlines()]
    for name, part in splits(place).items():
        for row in part.rows:
            assert (row.text.upper() + "!" in read) == (name == "train")
    written = read_pile(made)
    assert written is not None
    assert (written.documents, written.left_out) == (140, 60)
    assert written.bytes == sum(len(text.encode()) for text in read)
    assert written.files == {"pile.txt": (place / "pile.txt").stat().st_size}
    assert written.done


def test_what_counts_as_holding_a_text() -> None:
    long = "the seven brown foxes of the old mill never came home again"
    held_out = HeldOutTexts([long, "So dull.", "C'est l'été !"])
    assert held_out.are_in(f"Yesterday I wrote: {long.title()}... and that was it")
    assert held_out.are_in("a line\nso DULL\nanother line")
    assert held_out.are_in("neg ||| So dull!")
    assert held_out.are_in("c’est l’été")
    assert not held_out.are_in("the film was so dull that I left")  # two words stand anywhere
    assert not held_out.are_in(long.removesuffix(" again"))
    assert not held_out.are_in("")


def test_a_base_that_is_made_stays_as_it_is(place: Path, made: Path) -> None:
    assert open_model(made / YOURS).tokenizer is not None
    files = {path: path.stat().st_mtime_ns for path in made.rglob("*") if path.is_file()}
    files.pop(made / ".locks" / YOURS)
    lines: list[str] = []
    assert make_base(settings(place), splits(place), made, 500.0, lines.append) == made / YOURS
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert lines == []


def test_another_pile_wants_another_folder(place: Path, made: Path) -> None:
    (place / "other.txt").write_text("\n".join(corpus(50, 3)))
    other = settings(place, pile=(str(place / "other.txt"),))
    with pytest.raises(OutputError, match="holds the base of another pile"):
        make_base(other, splits(place), made, 1.0, quiet)
    other_test = {**splits(place), "test": splits(place)["train"]}  # whose texts the base has read
    with pytest.raises(OutputError, match="holds the base of another pile"):
        make_base(settings(place), other_test, made, 1.0, quiet)


def test_its_arms_stand_beside_those_of_another_base(place: Path, base: Path, tmp_path: Path) -> None:
    study = open_study(settings(place, minutes=0.02, seeds=1, tune="none", init=(f"theirs={base}",)), tmp_path / "s")
    arms = {run.arm.name for run in study.runs}
    assert arms == {
        "majority", "tfidf", "scratch:theirs", "frozen:theirs", "full:theirs",
        "scratch:yours", "frozen:yours", "full:yours",
    }  # fmt: skip
    again = open_study(study.settings, tmp_path / "s")  # as a worker opens it, by the settings of the study
    assert [run.folder for run in again.runs] == [run.folder for run in study.runs]


def test_mistakes_are_told_before_the_pile_is_read(place: Path, base: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no base is named 'your'"):
        open_study(settings(place, arms="full:your"), tmp_path / "s")
    with pytest.raises(ConfigError, match="a base is named 'yours'"):
        open_study(settings(place, init=(f"yours={base}",)), tmp_path / "s")
    with pytest.raises(DataError, match="no such file"):
        open_study(settings(place, pile=("nowhere.txt",)), tmp_path / "s")
    assert not (tmp_path / "s").exists()


# Size


@pytest.fixture
def store(made: Path) -> Store:
    return Store.open(made / TOKENS / "store")


def chosen(
    store: Store, monkeypatch: pytest.MonkeyPatch, speed: float, tokens: int, seconds: float
) -> PretrainSettings:
    """The choice for a text of so many tokens, on a device of so many tokens and weights a second."""

    def measure(settings: PretrainSettings, store: Store) -> float:
        weights = next(size.weights for size in SIZES if size.change == settings.change)
        return speed / weights

    monkeypatch.setattr(base_size, "SIZES", SIZES)
    monkeypatch.setattr(base_size, "measure_speed", measure)
    monkeypatch.setitem(store.counts, "train", replace(store.counts["train"], tokens=tokens))
    return choose_size(PretrainSettings(store=str(store.folder)), store, seconds)


def test_a_faster_device_more_time_and_more_text_give_a_larger_model(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = 1e11, 1e13
    width = {
        (speed, tokens, seconds): int(chosen(store, monkeypatch, speed, tokens, seconds).change[0].split("=")[1])
        for speed in (slow, fast) for tokens in (100_000, 20_000_000) for seconds in (60.0, 600.0)
    }  # fmt: skip
    assert width[slow, 100_000, 60.0] == width[fast, 100_000, 600.0] == 128  # the text is short, whatever the device
    assert 128 < width[slow, 20_000_000, 600.0] < width[fast, 20_000_000, 600.0]
    assert width[slow, 20_000_000, 60.0] < width[slow, 20_000_000, 600.0]


@pytest.mark.parametrize(("speed", "tokens", "seconds"), [(1e11, 5_000_000, 300.0), (1e13, 20_000_000, 180.0)])
def test_the_length_keeps_to_time_passes_and_tokens_a_weight(
    store: Store, monkeypatch: pytest.MonkeyPatch, speed: float, tokens: int, seconds: float
) -> None:
    settings = chosen(store, monkeypatch, speed, tokens, seconds)
    assert settings.steps is not None
    size = next(size for size in SIZES if size.change == settings.change)
    read = settings.steps * settings.batch_size * WINDOW
    assert read <= 1.01 * PASSES * tokens
    assert read * size.weights / speed <= 1.01 * seconds
    assert read >= 0.99 * TOKENS_A_WEIGHT * size.weights
    larger = SIZES[SIZES.index(size) + 1]
    assert min(speed / larger.weights * seconds, PASSES * tokens) < TOKENS_A_WEIGHT * larger.weights
    assert settings.steps >= 1000 or settings.batch_size == 8


# A kill

PROGRAM = """
import sys
from pathlib import Path
from headstart.studies import base_size
from headstart.studies.base_size import Size
from headstart.studies.pile import make_base
from headstart.studies.settings import CompareSettings
from headstart.studies.splits import read_splits
base_size.SIZES = (Size(64, 1, 64),)
base_size.PASSES = 100
base_size.SAVE_SECONDS = 0.3
place, out = sys.argv[1:]
files = {name: f"{place}/{file}.txt" for name, file in (("data", "train"), ("valid", "valid"), ("test", "test"))}
settings = CompareSettings(**files, pile=(f"{place}/pile.txt",), device="cpu")
make_base(settings, read_splits(settings), Path(out), 20.0, lambda text: print(text, flush=True))
"""


def start(place: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(place), str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def kill_when(process: subprocess.Popen[str], reached: Any) -> None:
    while not reached():
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.005)
    process.kill()
    process.communicate()


def test_killed_at_every_stage_it_does_nothing_twice(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    kill_when(start(place, folder), (folder / TOKENS / "tokenizer" / "tokenizer.json").is_file)
    text = (folder / TOKENS / "text.jsonl").stat().st_mtime_ns
    tokenizer = (folder / TOKENS / "tokenizer" / "tokenizer.json").stat().st_mtime_ns
    run = RunFolder(folder / YOURS)
    kill_when(start(place, folder), lambda: len(list(run.checkpoints.glob("step-*"))) > 0 and len(run.events()) > 20)
    decision = read_pile(folder)
    assert decision is not None
    assert not decision.done
    store = (folder / TOKENS / "store" / "store.json").stat().st_mtime_ns
    last = start(place, folder)
    output, _ = last.communicate()
    assert last.returncode == 0
    assert "going on from step" in output
    assert "training a tokenizer" not in output
    assert "encoding" not in output
    done = read_pile(folder)
    assert done is not None
    assert done.steps is not None
    assert done.pretraining == decision.pretraining
    assert done.steps == decision.pretraining["steps"]
    assert done.pretraining["window_start"] == 32
    steps = [event.step for event in run.events() if isinstance(event, Step)]
    assert steps == list(range(1, done.steps + 1))
    assert (folder / TOKENS / "text.jsonl").stat().st_mtime_ns == text
    assert (folder / TOKENS / "tokenizer" / "tokenizer.json").stat().st_mtime_ns == tokenizer
    assert (folder / TOKENS / "store" / "store.json").stat().st_mtime_ns == store
    assert open_model(folder / YOURS).tokenizer is not None


def test_a_comparison_that_was_killed_there_is_found_again(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = default_folder(settings(place))
    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr("headstart.studies.pile.make_base", Mock(side_effect=KeyboardInterrupt))
        open_study(settings(place), folder)
    assert default_folder(settings(place)) == folder  # and not the next one that is free
    assert open_study(settings(place, minutes=0.02), folder).settings.init == (f"yours={folder / YOURS}",)


def test_what_the_base_took_stands_beside_its_arms(place: Path, tmp_path: Path) -> None:
    study = settings(place, seeds=1, epochs=1, tune="none", arms="scratch,full", ensemble=True)
    comparison = compare(study, tmp_path / "s")
    taken = read_pile(tmp_path / "s")
    assert taken is not None
    costs = {arm.name: arm.cost.pretraining for arm in comparison.arms}
    assert costs.pop("full") == costs.pop("full+tfidf") == taken.seconds
    assert set(costs.values()) == {None}
    assert any("Making the base yours from the pile of text took" in paragraph for paragraph in comparison.verdict)
