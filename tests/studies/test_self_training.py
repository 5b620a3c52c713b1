"""Unlabelled texts: what they bring where words keep company, what they may not hold, and what a kill loses."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headstart.checkpoints.folder import Checkpoint, load, save
from headstart.config import NextTokenConfig
from headstart.errors import ConfigError, DataError
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.reading.examples import Example
from headstart.reading.split import content_hash
from headstart.report.page import write_report
from headstart.runs.comparison import Comparison
from headstart.runs.run import RunFolder
from headstart.runs.titles import folder_title
from headstart.serve.study_arms import read_arms
from headstart.studies import self_training as module
from headstart.studies.compare import compare, open_study
from headstart.studies.corpus import write_texts
from headstart.studies.finetune import finetune
from headstart.studies.outcomes import compare_runs
from headstart.studies.self_training import rows_to_repeat
from headstart.studies.settings import UNLABELLED, CompareSettings, FinetuneSettings
from headstart.studies.splits import read_splits
from headstart.studies.unlabelled import sure_answers, unlabelled_texts
from headstart.tokenizers.tokenizer import Tokenizer
from tests.conftest import SIZES
from tests.studies.example_data import BAD, GOOD


def opinions(count: int, seed: int, words: int = 8) -> list[tuple[str, str]]:
    """Two words of one mood in each text; the labelled ones know few of them, the others keep these company."""
    draw = random.Random(seed)
    rows = []
    for k in range(count):
        text = [draw.choice(["the", "a", "of", "this"]), *draw.sample((GOOD, BAD)[k % 2][:words], 2)]
        draw.shuffle(text)
        rows.append((("pos", "neg")[k % 2], " ".join(text)))
    return rows


def write(path: Path, texts: list[tuple[str, str]], *, labels: bool = True) -> Path:
    lines = [f"{label} ||| {text}" if labels else text for label, text in texts]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def shouted(texts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(label, f"  {text.upper().replace(' ', ',  ')}!") for label, text in texts]


TRAIN = opinions(24, 1, 3)
HELD_OUT = [*opinions(40, 2), *opinions(100, 3)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labelled texts with three words of each mood; valid, test and unlabelled texts with all eight."""
    folder = tmp_path_factory.mktemp("place")
    write(folder / "train.txt", TRAIN)
    write(folder / "valid.txt", opinions(40, 2))
    write(folder / "test.txt", opinions(100, 3))
    write(folder / "more.txt", opinions(400, 4), labels=False)
    return folder


def settings(place: Path, base: Path, **changes: Any) -> FinetuneSettings:
    given: dict[str, Any] = {
        **{name: str(place / f"{name}.txt") for name in ("valid", "test")},
        "data": str(place / "train.txt"),
        "unlabelled": str(place / "more.txt"),
        "init": str(base),
        "epochs": 20,
        "lr": 5e-3,
        "confidence": 0.7,
        "adapt_steps": 0,
        "device": "cpu",
    }
    return FinetuneSettings(**{**given, **changes})


def labelled_alone(asked: FinetuneSettings) -> FinetuneSettings:
    nothing: dict[str, Any] = dict.fromkeys(UNLABELLED)
    return replace(asked, **nothing)


# What it brings


def test_words_that_no_label_covers_are_learned_from_the_company_they_keep(
    place: Path, base: Path, tmp_path: Path
) -> None:
    asked = settings(place, base)
    without = finetune(labelled_alone(asked), tmp_path / "without")
    result = finetune(asked, tmp_path / "with")
    assert without["test"]["accuracy"] < 0.85
    assert result["test"]["accuracy"] > 0.95
    first, *students = result["self_training"]["rounds"]
    assert first["accuracy"] == without["valid"]["accuracy"]  # the teacher is the ordinary run
    assert [each["number"] for each in students] == list(range(1, len(students) + 1))
    best = students[result["self_training"]["best"] - 1]
    assert best["accuracy"] == result["valid"]["accuracy"] == max(each["accuracy"] for each in students)
    assert result["rows"] == {"train": 24, "valid": 40, "test": 100}  # labels, and not those that it gave itself
    folder = RunFolder(tmp_path / "with")
    assert not (folder.path / "self-training").exists()
    assert folder.events()
    manifest, alone = folder.manifest(), RunFolder(tmp_path / "without").manifest()
    assert manifest.data.keys() == {"train", "valid", "test", "unlabelled"}
    assert manifest.data["train"] == alone.data["train"]
    assert manifest.tokens is not None and alone.tokens is not None and manifest.tokens > alone.tokens
    assert folder_title(folder.path) == "Self-trained from base, 24 labels, seed 0".replace("base", base.parent.name)
    names = {arm.name for arm in compare_runs([tmp_path / "with", tmp_path / "without"]).arms}
    assert names == {"full", "full+self"}


class Spy:
    """What the stages of a self-training were given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stop_before: str = "") -> None:
        self.rounds: list[tuple[FinetuneSettings, list[Example], Checkpoint]] = []
        self.texts: list[str] = []
        self.stop_before = stop_before
        monkeypatch.setattr(module, "finetune", self.train)
        monkeypatch.setattr(module, "write_texts", self.write)

    def train(self, asked: FinetuneSettings, out: Path, **more: Any) -> dict[str, Any]:
        if out.name == self.stop_before:
            raise KeyboardInterrupt
        assert more["splits"].keys() == {"train", "valid"}
        if not RunFolder(out).done:
            self.rounds.append((asked, list(more["splits"]["train"].rows), more["base"]))
        return finetune(asked, out, **more)

    def write(self, texts: Any, folder: Path) -> Path:
        self.texts = list(texts)
        return write_texts(self.texts, folder)


@dataclass
class Spied:
    rounds: list[tuple[FinetuneSettings, list[Example], Checkpoint]]
    texts: list[str]
    said: list[str]
    stages: list[str | None]  # what the folder of the run said meanwhile
    result: dict[str, Any]


@pytest.fixture(scope="module")
def spied(place: Path, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Spied:
    """A run whose unlabelled file holds the texts of train, valid and test too, spelt otherwise."""
    folder, said, stages = tmp_path_factory.mktemp("spied"), list[str](), list[str | None]()
    mixed = write(folder / "mixed.txt", [*shouted([*TRAIN, *HELD_OUT]), *opinions(400, 4)], labels=False)
    with pytest.MonkeyPatch.context() as monkeypatch:
        spy = Spy(monkeypatch)
        asked = settings(place, base, unlabelled=str(mixed), adapt_steps=3, epochs=4)
        run = RunFolder(folder / "r")

        def log(text: str) -> None:
            said.append(text)
            stages.append(run.stage)

        result = finetune(asked, run.path, log=log)
    assert len(spy.rounds) > 1
    return Spied(spy.rounds, spy.texts, said, stages, result)


def test_the_folder_of_a_run_says_what_it_does(spied: Spied) -> None:
    begun = next(k for k, stage in enumerate(spied.stages) if stage is not None)
    assert len(spied.said) - begun >= 4  # the pretraining, two rounds, and which one is kept
    assert spied.stages[begun:] == spied.said[begun:]


def test_students_start_from_the_base_that_read_the_texts(spied: Spied, base: Path) -> None:
    assert spied.result["self_training"]["adapt_steps"] == 3
    first, *others = [checkpoint.model.state_dict() for _, _, checkpoint in spied.rounds]
    before = load(base).model.state_dict()
    name = next(name for name in first if name.startswith("backbone.layers"))
    assert not torch.equal(first[name], before[name])  # it was pretrained further
    assert all(torch.equal(each[name], first[name]) for each in others)  # and no student starts from its teacher
    assert spied.texts[-24:] == [text for _, text in TRAIN]  # what it read: the unlabelled texts, then these


def test_students_see_part_of_the_tokens(spied: Spied) -> None:
    assert [asked.token_dropout for asked, _, _ in spied.rounds] == [0.0, *[0.1] * (len(spied.rounds) - 1)]


def test_a_causal_base_goes_on_as_a_causal_one(place: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = preset("small", vocabulary=tokenizer.size, direction="causal", **SIZES)
    save(Checkpoint(Model.build(config, NextTokenConfig()), tokenizer=tokenizer), tmp_path / "b")
    result = finetune(settings(place, tmp_path / "b", adapt_steps=2, epochs=1, rounds=1), tmp_path / "r")
    assert result["self_training"]["rounds"]


# Which answers become labels


def test_a_class_gets_no_more_than_its_share_of_the_labels() -> None:
    draw = np.random.default_rng(0)
    top = draw.uniform(0.6, 0.999, 400)
    first = draw.random(400) < 0.95  # nearly all answers are of one class
    rest = (1 - top) / 2
    answers = np.log(np.stack([np.where(first, top, rest), np.where(first, rest, top), rest], axis=1))
    labels = np.array([0] * 30 + [1] * 20 + [2] * 10)
    rows, classes = sure_answers(answers, labels, 0.8)
    sure = np.flatnonzero(top >= 0.8)
    counts = np.bincount(classes, minlength=3)
    assert counts[0] == np.ceil(len(sure) * 30 / 60)
    assert counts[1] == (~first[sure]).sum()  # fewer than its share: all of them
    assert counts[2] == 0
    assert (np.diff(rows) > 0).all()
    kept, dropped = set(rows[classes == 0]), set(sure[first[sure]]) - set(rows)
    assert min(top[list(kept)]) >= max(top[list(dropped)])  # the surest are kept


def test_a_student_sees_each_class_as_often_as_the_labels_have_it(spied: Spied) -> None:
    labels = np.repeat([0, 1, 2], [10, 20, 5])
    added = np.repeat([0, 2], [30, 1])
    repeated = rows_to_repeat(labels, added)
    seen = np.bincount(np.concatenate([labels, added, labels[repeated]]))
    assert seen.tolist() == [40, 80, 20]
    assert np.bincount(repeated[labels[repeated] == 1]).max() == 3  # no row more often than need be
    for _, rows, _ in spied.rounds[1:]:
        assert sum(row.label == "pos" for row in rows) == len(rows) / 2


def test_a_model_that_is_sure_of_nothing_has_no_student(place: Path, base: Path, tmp_path: Path) -> None:
    said: list[str] = []
    asked = settings(place, base, confidence=0.999999, epochs=1)
    result = finetune(asked, tmp_path / "r", log=said.append)
    assert [each["number"] for each in result["self_training"]["rounds"]] == [0]
    assert "round 1: the model is sure of none of its answers" in said
    only_adapted = finetune(settings(place, base, rounds=0, adapt_steps=1, epochs=1), tmp_path / "r0")
    assert len(only_adapted["self_training"]["rounds"]) == 1


# What it may not learn from


def test_texts_of_valid_and_test_are_left_out_whatever_their_spelling(spied: Spied) -> None:
    forbidden, known = ({content_hash(text) for _, text in texts} for texts in (HELD_OUT, TRAIN))
    labelled = [row.text for _, rows, _ in spied.rounds[1:] for row in rows[24:] if row.path.endswith("mixed.txt")]
    assert labelled
    assert not forbidden & {content_hash(text) for text in [*labelled, *spied.texts[:-24]]}
    rest = ({content_hash(text) for _, text in opinions(400, 4)} | known) - forbidden
    assert len(spied.texts) - 24 == len(rest)
    line = next(line for line in spied.said if line.startswith("unlabelled: "))
    assert f"{len(rest):,} texts;" in line
    assert f"{len(forbidden):,} that hold a text of valid or test are left out" in line


def test_a_text_to_train_on_keeps_its_own_label(spied: Spied) -> None:
    for _, rows, _ in spied.rounds:
        assert [(row.label, row.text) for row in rows[:24]] == TRAIN
        assert not {content_hash(text) for _, text in TRAIN} & {
            content_hash(row.text) for row in rows[24:] if row.path.endswith("mixed.txt")
        }


@pytest.mark.parametrize("name", ["valid", "test"])
def test_the_held_out_file_itself_is_refused_by_its_content(place: Path, base: Path, tmp_path: Path, name: str) -> None:
    texts = shouted(opinions(40, 2) if name == "valid" else opinions(100, 3))
    random.Random(0).shuffle(texts)
    copy = tmp_path / "fresh.csv"
    copy.write_text("text\n" + "\n".join(f'"{text}"' for _, text in texts) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=f"texts are in {name}, from which no model may learn"):
        finetune(settings(place, base, unlabelled=str(copy)), tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_labels_of_an_unlabelled_file_are_said_and_not_read(place: Path, base: Path, tmp_path: Path) -> None:
    rows = opinions(40, 7)
    plain = write(tmp_path / "plain.txt", rows, labels=False)
    lines = write(tmp_path / "lines.txt", rows)
    table = tmp_path / "table.csv"
    table.write_text("text,topic\n" + "\n".join(f"{text},{label}" for label, text in rows) + "\n", encoding="utf-8")
    (tmp_path / "folder" / "pos").mkdir(parents=True)
    (tmp_path / "folder" / "pos" / "1.txt").write_text("vivid and wise\n", encoding="utf-8")
    read = {}
    for path, note in (
        (plain, None),
        (lines, "the labels left aside"),
        (table, "table.csv has labels of its own (column 'topic'): they are left aside"),
        (tmp_path / "folder", "read as a folder for each label, the labels left aside"),
    ):
        said: list[str] = []
        asked = settings(place, base, unlabelled=str(path))
        found = unlabelled_texts(asked, read_splits(asked), said.append)
        assert all(row.label is None for row in found.rows)
        assert note is None or any(note in line for line in said), (path, said)
        read[path.name] = [row.text for row in found.rows]
    assert read["plain.txt"] == read["lines.txt"] == read["table.csv"]
    assert read["folder"] == ["vivid and wise"]


def test_what_cannot_be_read_or_meant(place: Path, base: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    for content in ("", "\n \n"):
        empty.write_text(content, encoding="utf-8")
        with pytest.raises(DataError, match="holds no text"):
            finetune(settings(place, base, unlabelled=str(empty)), tmp_path / "r")
    with pytest.raises(DataError, match="no such file"):
        finetune(settings(place, base, unlabelled=str(tmp_path / "none.txt")), tmp_path / "r")
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("text,second,label\n" + "a b,c d,yes\ne f,g h,no\n" * 12, encoding="utf-8")
    asked = settings(place, base, data=str(pairs), valid=str(pairs), test=str(pairs))
    with pytest.raises(DataError, match="those to train on are pairs"):
        finetune(asked, tmp_path / "r")
    for wrong, problem in (
        ({"mode": "frozen"}, "mode is 'frozen', and unlabelled texts are for mode full"),
        ({"refit": True}, "leave refit or unlabelled out"),
        ({"unlabelled": None}, "confidence is for unlabelled texts"),
        ({"confidence": 1.0}, "confidence"),
    ):
        with pytest.raises(ConfigError, match=problem):
            FinetuneSettings.from_mapping({**settings(place, base).to_mapping(), **wrong}, "test")


# Resuming


def outcome(folder: Path) -> tuple[bytes, Mapping[str, Any]]:
    result = json.loads((folder / "result.json").read_text())
    result.pop("cost")  # what it took
    return (folder / "model" / "model.safetensors").read_bytes(), result


def test_killed_before_every_stage_it_ends_as_if_it_never_was(
    place: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = settings(place, base, adapt_steps=2, epochs=4, rounds=2)
    finetune(asked, tmp_path / "straight")
    spy = Spy(monkeypatch)
    for number in range(3):
        spy.stop_before = f"round-{number}"
        with pytest.raises(KeyboardInterrupt):
            finetune(asked, tmp_path / "r", resume=True)
        assert len(spy.rounds) == number  # those before it, and none of them twice
        assert bool(spy.texts) == (number == 0)  # the base was pretrained once
        spy.texts = []
    spy.stop_before = ""
    finetune(asked, tmp_path / "r", resume=True)
    assert len(spy.rounds) == 3
    assert outcome(tmp_path / "r") == outcome(tmp_path / "straight")


def test_an_unlabelled_file_that_changed_begins_anew(
    place: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = write(tmp_path / "texts.txt", opinions(300, 5), labels=False)
    asked = settings(place, base, unlabelled=str(texts), epochs=2, rounds=1)
    spy = Spy(monkeypatch, stop_before="round-1")
    with pytest.raises(KeyboardInterrupt):
        finetune(asked, tmp_path / "r")
    write(texts, opinions(300, 6), labels=False)
    spy.stop_before = ""
    finetune(asked, tmp_path / "r", resume=True)
    assert [asked.token_dropout for asked, _, _ in spy.rounds] == [0.0, 0.0, 0.1]  # the teacher once more


# As an arm


def study(place: Path, base: Path, **changes: Any) -> CompareSettings:
    given: dict[str, Any] = {
        **{name: str(place / f"{name}.txt") for name in ("valid", "test")},
        "data": str(place / "train.txt"),
        "unlabelled": str(place / "more.txt"),
        "init": (str(base),),
        "arms": "scratch,full",
        "seeds": 1,
        "epochs": 3,
        "batch_size": 8,
        "lr": 5e-3,
        "tune": "none",
        "confidence": 0.7,
        "adapt_steps": 0,
        "rounds": 1,
        "device": "cpu",
    }
    return CompareSettings(**{**given, **changes})


@pytest.fixture(scope="module")
def compared(place: Path, base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Comparison]:
    folder = tmp_path_factory.mktemp("study") / "s"
    return folder, compare(study(place, base, labels="12,all"), folder)


def test_what_self_training_buys_is_told_beside_the_rest(compared: tuple[Path, Comparison]) -> None:
    folder, found = compared
    assert [arm.name for arm in found.arms] == ["majority", "tfidf", "tfidf+self", "scratch", "full", "full+self"]
    difference = found.difference("full+self", "full")
    assert difference is not None and difference.primary
    gain = found.arm("full+self").scores["accuracy"].value - found.arm("full").scores["accuracy"].value
    assert difference.scores["accuracy"].value == pytest.approx(gain)
    assert ("full+self", "full", 12) in {(each.arm, each.reference, each.budget) for each in found.curve_differences}
    told = [paragraph for paragraph in found.verdict if "elf-training on the unlabelled texts" in paragraph]
    assert any("with it" in paragraph for paragraph in told)
    assert any("With 12 labels self-training on the unlabelled texts" in paragraph for paragraph in told)
    linear = found.difference("full+self", "tfidf+self")
    assert linear is not None and linear.primary
    assert any("the linear model that had the same texts" in paragraph for paragraph in found.verdict)
    assert any("With 12 labels the self-trained model" in paragraph for paragraph in found.verdict)
    first = found.difference("full", "scratch")
    assert first is not None and first.primary  # what pretraining brought is asked of the arm without
    costs = [found.arm(name).cost.seconds for name in ("full+self", "full")]
    assert costs[0] is not None and costs[1] is not None and costs[0] > costs[1]
    for arm in found.curves:
        for run in arm.runs:
            settings = RunFolder(folder / run.path).settings()
            assert ("unlabelled" in settings) == (arm.name in ("full+self", "tfidf+self"))
            assert settings.get("labels", 24) == arm.budget


def test_the_report_and_the_service_know_the_arm(compared: tuple[Path, Comparison], tmp_path: Path) -> None:
    folder, _ = compared
    write_report([folder], tmp_path / "page.html")
    assert "full+self" in (tmp_path / "page.html").read_text()
    for so_far in (False, True):
        if so_far:  # a study that was not finished is read by its runs
            (folder / "comparison.json").rename(tmp_path / "comparison.json")
        arms = {(arm.name, arm.budget): arm for arm in read_arms(folder).arms}
        assert arms["full+self", 24].title.startswith("Self-trained from")
        assert arms["tfidf+self", 24].title == "Self-trained linear model (TF-IDF)"
        assert arms["full", 24].title.startswith("Fine-tuned from")
    (tmp_path / "comparison.json").rename(folder / "comparison.json")


def test_the_arm_adds_its_own_runs_and_changes_no_other(place: Path, base: Path, tmp_path: Path) -> None:
    def folders(**changes: Any) -> dict[str, str]:
        runs = open_study(study(place, base, **changes), tmp_path / "s").runs
        return {f"{run.arm.name} {run.seed}": run.folder.name for run in runs}

    alone = folders(**dict.fromkeys(UNLABELLED))
    both = folders()
    assert both.keys() - alone.keys() == {"full+self 0", "tfidf+self None"}
    assert alone.items() <= both.items()
    texts = write(tmp_path / "more.txt", opinions(300, 5), labels=False)
    before = folders(unlabelled=str(texts))
    write(texts, opinions(300, 6), labels=False)
    after = folders(unlabelled=str(texts))
    assert {name for name in after if after[name] != before[name]} == {"full+self 0", "tfidf+self None"}


def test_a_run_without_unlabelled_texts_is_recorded_as_it_always_was(place: Path, base: Path) -> None:
    recorded = labelled_alone(settings(place, base)).to_mapping()
    assert not set(UNLABELLED) & recorded.keys()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"arms": "scratch"}, "--unlabelled is for the arm full"),
        ({"arms": "full+self", **dict.fromkeys(UNLABELLED)}, "name a file of them with --unlabelled"),
        ({"full": ("rounds=5",)}, "rounds is the same for every arm"),
    ],
)
def test_arms_that_cannot_be(place: Path, base: Path, tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        open_study(study(place, base, **changes), tmp_path / "s")


def test_self_training_has_the_settings_that_were_found_without_it(place: Path, base: Path, tmp_path: Path) -> None:
    opened = open_study(study(place, base, arms="full+self"), tmp_path / "s")
    assert not opened.searches  # nothing is tuned here
    chosen: Callable[..., Any] = opened.plan
    for run in chosen(1, {"full": {"lr": 0.0123}}):
        if run.arm.name in ("full", "full+self"):
            assert run.settings["lr"] == 0.0123
    assert {run.arm.name for run in opened.runs} >= {"full", "full+self"}
    tuned = open_study(study(place, base, tune="brief", lr=1e-4, epochs=10), tmp_path / "t")
    assert {search.arm.name for search in tuned.searches} == {"scratch", "full"}
