"""Teachers: what a student learns from them, which of them are refused, and that they are asked once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import pytest
import torch

from headstart.batches.batch import IGNORE_INDEX, Batch
from headstart.checkpoints.folder import load, save
from headstart.errors import ConfigError
from headstart.model.heads import ClassifierHead
from headstart.parallel import SINGLE
from headstart.report.page import write_report
from headstart.runs.comparison import Comparison
from headstart.runs.run import RunFolder
from headstart.runs.titles import folder_title
from headstart.serve.study_arms import read_arms
from headstart.studies import distillation as module
from headstart.studies.compare import compare, open_study
from headstart.studies.distillation import check_teachers, teach
from headstart.studies.finetune import finetune
from headstart.studies.locks import run_lock
from headstart.studies.outcomes import run_cost
from headstart.studies.settings import CompareSettings, FinetuneSettings, SweepSettings
from headstart.studies.splits import read_splits
from headstart.training import inference
from headstart.training.objectives import Classification, Distillation
from headstart.use.classifier import TextClassifier
from headstart.use.linear_classifier import LinearClassifier
from tests.studies.test_self_training import opinions, shouted, write

FEW, ALL = 3, 8  # words of each mood that the labelled texts of the student, and of the teacher, are made of


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The student's labels cover three words of each mood; valid, test and the unlabelled texts have all eight."""
    folder = tmp_path_factory.mktemp("place")
    write(folder / "train.txt", opinions(24, 1, FEW))
    write(folder / "valid.txt", opinions(40, 2))
    write(folder / "test.txt", opinions(100, 3))
    held_out = {text for _, text in [*opinions(40, 2), *opinions(100, 3)]}
    wide = [row for row in opinions(400, 9, ALL) if row[1] not in held_out]
    write(folder / "wide.txt", wide)
    write(folder / "more.txt", opinions(300, 4), labels=False)
    return folder


def settings(place: Path, base: Path, **changes: Any) -> FinetuneSettings:
    given: dict[str, Any] = {
        **{name: str(place / f"{name}.txt") for name in ("valid", "test")},
        "data": str(place / "train.txt"),
        "init": str(base),
        "epochs": 20,
        "lr": 5e-3,
        "device": "cpu",
    }
    return FinetuneSettings(**{**given, **changes})


@pytest.fixture(scope="module")
def teacher(place: Path, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier that learned all words, of texts that are neither in valid nor in test."""
    folder = tmp_path_factory.mktemp("teacher") / "wide"
    result = finetune(settings(place, base, data=str(place / "wide.txt"), epochs=5), folder)
    assert result["test"]["accuracy"] > 0.97
    return folder


# What it brings


@pytest.fixture(scope="module")
def student(place: Path, base: Path, teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("student") / "r"
    asked = settings(place, base, teacher=(str(teacher),), unlabelled=str(place / "more.txt"))
    finetune(asked, folder)
    return folder


def test_a_student_learns_what_no_label_of_its_own_says(place: Path, base: Path, student: Path, tmp_path: Path) -> None:
    without = finetune(settings(place, base), tmp_path / "without")
    result = RunFolder(student).result_json()
    assert without["test"]["accuracy"] < 0.85
    assert result["test"]["accuracy"] > 0.95
    assert result["rows"] == {"train": 24, "valid": 40, "test": 100}  # its labels, and not those of the teacher
    assert result["distillation"]["texts"] > 100
    assert result["epochs"] == module._student_epochs(20, 24, 24 + result["distillation"]["texts"], 4)
    manifest, alone = RunFolder(student).manifest(), RunFolder(tmp_path / "without").manifest()
    assert manifest.data.keys() == {"train", "valid", "test", "unlabelled"}
    assert manifest.data["train"] == alone.data["train"]
    assert not (student / "self-training").exists()
    assert folder_title(student) == f"Distilled into {base.parent.name}, 24 labels, seed 0"


def test_without_unlabelled_texts_the_training_texts_are_what_is_taught(
    place: Path, base: Path, teacher: Path, tmp_path: Path
) -> None:
    result = finetune(settings(place, base, teacher=(str(teacher),), epochs=2), tmp_path / "r")
    assert result["distillation"]["texts"] == 0
    assert RunFolder(tmp_path / "r").manifest().data.keys() == {"train", "valid", "test"}


def test_the_cost_of_a_student_has_the_training_of_its_teachers_in_it(
    place: Path, base: Path, teacher: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(teacher / "model", model)  # a model folder does not say how long it took
    finetune(settings(place, base, teacher=(str(teacher), str(model)), epochs=1), tmp_path / "r")
    student, taught = (RunFolder(folder).manifest().seconds for folder in (tmp_path / "r", teacher))
    assert student is not None and taught is not None
    assert run_cost(tmp_path / "r").seconds == pytest.approx(student + taught)


def lesson_of(
    place: Path, base: Path, folders: tuple[str, ...], cache: Path, log: Callable[[str], None] = lambda text: None
) -> module.Lesson:
    asked = settings(place, base, unlabelled=str(place / "more.txt"), teacher=folders)
    splits = read_splits(asked)
    more = replace(splits["valid"], rows=splits["valid"].rows[:7])
    names = splits["train"].class_names
    cpu = torch.device("cpu")
    return teach(asked, splits, more, names, cpu, torch.float32, SINGLE, cache, log)


def test_targets_are_the_calibrated_probabilities_and_for_labelled_texts_half_the_label(
    place: Path, base: Path, teacher: Path, tmp_path: Path
) -> None:
    lesson = lesson_of(place, base, (str(teacher),), tmp_path)
    classifier = TextClassifier.load(teacher)
    texts = [row.text for row in lesson.examples.rows]
    expected = classifier.probabilities(texts)
    names = classifier.class_names
    for row, (example, target) in enumerate(zip(lesson.examples.rows, lesson.targets, strict=True)):
        label = np.array([float(name == example.label) for name in names])
        wanted = (expected[row] + label) / 2 if row < 24 else expected[row]
        assert target == pytest.approx(wanted, abs=1e-6)
        assert row < 24 or example.label == names[expected[row].argmax()]
    assert len(lesson.examples.rows) == 31


def test_several_teachers_are_averaged_whatever_the_order_of_their_classes(
    place: Path, base: Path, teacher: Path, tmp_path: Path
) -> None:
    one = load(teacher / "model")
    assert isinstance(one.model.head, ClassifierHead)
    with torch.no_grad():
        for parameter in one.model.head.out.parameters():
            parameter.copy_(parameter.flip(0))
    save(replace(one, class_names=one.class_names[::-1]), tmp_path / "flipped")
    single, flipped, both = (
        lesson_of(place, base, folders, tmp_path / "cache").targets
        for folders in (
            (str(teacher),),
            (str(tmp_path / "flipped"),),
            (str(teacher), str(tmp_path / "flipped")),
        )
    )
    assert flipped == pytest.approx(single, abs=1e-6)
    assert both == pytest.approx(single, abs=1e-6)
    other = finetune(settings(place, base, epochs=1, lr=1e-4), tmp_path / "other")
    assert other
    second = lesson_of(place, base, (str(tmp_path / "other"),), tmp_path / "cache").targets
    mean = lesson_of(place, base, (str(teacher), str(tmp_path / "other")), tmp_path / "cache").targets
    assert not np.allclose(second, single, atol=0.05)
    assert mean == pytest.approx((single + second) / 2, abs=1e-6)


def test_a_line_every_few_seconds_says_how_far_a_teacher_is(
    place: Path, base: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(inference.TOKENS, "cpu", 64)  # several batches
    said: dict[float, list[str]] = {0.0: [], 60.0: []}
    for interval, lines in said.items():
        monkeypatch.setattr(module, "INTERVAL", interval)
        lesson_of(place, base, (str(teacher),), tmp_path / str(interval), lines.append)
    assert said[60.0] == [f"teacher {teacher}: answers to 31 texts"]
    first, *others = said[0.0]
    assert first == said[60.0][0]
    assert len(others) > 2
    assert others[-1] == f"teacher {teacher}: 31 of 31 texts"
    answered = [int(line.split(": ")[1].split()[0]) for line in others]
    assert answered == sorted(set(answered))


# The loss


class Fixed(torch.nn.Module):
    """A model that gives the logits it was made with."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(logits)

    def forward(self, *_: Any) -> torch.Tensor:
        return self.logits


def batch_of(labels: list[int], rows: list[int]) -> Batch:
    starts = torch.arange(len(labels) + 1, dtype=torch.int32)
    ids = torch.zeros(len(labels), dtype=torch.int64)
    return Batch(ids, starts, longest=1, labels=torch.tensor(labels), rows=torch.tensor(rows))


def test_the_folder_of_a_run_says_what_its_teachers_do(place: Path, base: Path, teacher: Path, tmp_path: Path) -> None:
    run, said = RunFolder(tmp_path / "r"), list[tuple[str, str | None]]()
    asked = settings(place, base, teacher=(str(teacher),), epochs=1)
    finetune(asked, run.path, log=lambda text: said.append((text, run.stage)))
    answers = f"teacher {teacher}: answers to 24 texts"
    assert (answers, answers) in said
    assert run.stage is None  # it is done


def test_the_loss_is_the_cross_entropy_with_the_row_s_own_target() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5], [0.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    targets = torch.tensor([[0.2, 0.3, 0.5], [0.0, 0.0, 1.0], [0.7, 0.2, 0.1]])
    batch = batch_of([0, 2, IGNORE_INDEX], [2, 1, 0])  # the last is padding
    found = Distillation(targets=targets).sums(Fixed(logits), batch)["loss"]  # type: ignore[arg-type]
    log_p = logits.double().log_softmax(-1)
    by_hand = -(targets[2].double() * log_p[0]).sum() - log_p[1, 2]
    assert found.item() == pytest.approx(by_hand.item(), abs=1e-6)


def test_a_teacher_without_a_doubt_is_a_label() -> None:
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    labels = [2, 0, 1, 1]
    batch = batch_of(labels, [0, 1, 2, 3])
    sure = Distillation(targets=torch.eye(3)[labels])
    model: Any = Fixed(logits)
    assert sure.counts(batch) == Classification().counts(batch)
    assert sure.sums(model, batch)["loss"].item() == pytest.approx(Classification().sums(model, batch)["loss"].item())


# Which teachers are refused


def test_a_teacher_that_learned_a_text_of_valid_or_test_is_refused(place: Path, base: Path, tmp_path: Path) -> None:
    for name, rows in (("valid", opinions(40, 2)), ("test", opinions(100, 3))):
        held_out = {text for _, text in (opinions(100, 3) if name == "valid" else opinions(40, 2))}
        spelt_otherwise = [
            row for row in shouted(rows) if row[1].strip(" !").lower().replace(",  ", " ") not in held_out
        ]
        seen = write(tmp_path / f"{name}.txt", [*opinions(24, 1, FEW), *spelt_otherwise])
        folder = tmp_path / f"saw-{name}"
        finetune(settings(place, base, data=str(seen), epochs=1), folder)
        asked = settings(place, base, teacher=(str(folder),))
        with pytest.raises(ConfigError, match=rf"learned from \d+ texts of {name}"):
            finetune(asked, tmp_path / "r")
        with pytest.raises(ConfigError, match=rf"learned from \d+ texts of {name}"):
            open_study(study(place, base, folder), tmp_path / "s")
        assert not (tmp_path / "r").exists() and not (tmp_path / "s").exists()


def test_a_refit_teacher_learned_from_its_own_valid(place: Path, base: Path, tmp_path: Path) -> None:
    finetune(settings(place, base, epochs=1, refit=True), tmp_path / "t")
    with pytest.raises(ConfigError, match="texts of valid"):
        finetune(settings(place, base, teacher=(str(tmp_path / "t"),)), tmp_path / "r")


def test_a_teacher_that_does_not_say_what_it_read_is_said(place: Path, base: Path, teacher: Path) -> None:
    said: list[str] = []
    splits = read_splits(settings(place, base))
    check_teachers([str(teacher)], splits, said.append)
    assert any("labelled texts that this run does not have" in line for line in said)
    said.clear()
    check_teachers([str(teacher / "model")], splits, said.append)
    assert len(said) == 1 and "cannot be told" in said[0]


def test_what_cannot_be_a_teacher(place: Path, base: Path, teacher: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="and a teacher classifies"):
        finetune(settings(place, base, teacher=(str(base),)), tmp_path / "r")
    other = tmp_path / "other.txt"
    other.write_text((place / "train.txt").read_text().replace("pos |||", "good |||"), encoding="utf-8")
    finetune(settings(place, base, data=str(other), valid=str(other), test=None, epochs=1), tmp_path / "other")
    with pytest.raises(ConfigError, match=r"answers with .*good.*, and the training texts have .*pos"):
        finetune(settings(place, base, teacher=(str(tmp_path / "other"),)), tmp_path / "r")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"mode": "frozen"}, "a teacher is for mode full"),
        ({"rounds": 2}, "rounds is for self-training"),
        ({"refit": True}, "leave refit or teacher out"),
        ({"balanced": True}, "leave balanced or teacher out"),
        ({"smoothing": 0.1}, "leave smoothing or teacher out"),
    ],
)
def test_settings_that_a_teacher_excludes(place: Path, base: Path, changes: dict[str, Any], problem: str) -> None:
    given = settings(place, base, teacher=("t",)).to_mapping()
    with pytest.raises(ConfigError, match=problem):
        FinetuneSettings.from_mapping({**given, **changes}, "test")


def test_sweeps_and_label_budgets_have_no_teacher(place: Path, base: Path) -> None:
    given = settings(place, base, teacher=("t",)).to_mapping()
    with pytest.raises(ConfigError, match="teacher is for finetune and compare"):
        SweepSettings.from_mapping({**given, "grid": ["lr=1e-3,1e-2"]}, "sweep")
    with pytest.raises(ConfigError, match="knows more labels than those"):
        CompareSettings.from_mapping({**study(place, base, Path("t")).to_mapping(), "labels": "12,all"}, "compare")
    with pytest.raises(ConfigError, match="take the teacher tfidf"):
        CompareSettings.from_mapping(
            {**study(place, base, Path("t")).to_mapping(), "teacher": ["t", "tfidf"], "labels": "12,all"}, "compare"
        )


# Asked once


def test_a_killed_run_ends_as_if_it_never_was_and_asks_no_teacher_twice(
    place: Path, base: Path, teacher: Path, student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = settings(place, base, teacher=(str(teacher),), unlabelled=str(place / "more.txt"))

    def kill(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("headstart.studies.finetune.student_settings", kill)
        with pytest.raises(KeyboardInterrupt):
            finetune(asked, tmp_path / "r")
    monkeypatch.setattr(module, "_answers", kill)
    finetune(asked, tmp_path / "r", resume=True)
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in (tmp_path / "r", student)]
    assert weights[0] == weights[1]
    results = [json.loads((folder / "result.json").read_text()) for folder in (tmp_path / "r", student)]
    for result in results:
        result.pop("cost")
    assert results[0] == results[1]


def test_an_interruption_between_two_teachers_loses_no_answers(
    place: Path, base: Path, teacher: Path, student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a teacher more asks that one alone."""
    asked, cache, answer = list[str](), tmp_path / "cache", module._answers

    def counted(folder: str, *rest: Any) -> Any:
        asked.append(folder)
        if folder == str(student) and len(asked) == 2:
            raise KeyboardInterrupt
        return answer(folder, *rest)

    monkeypatch.setattr(module, "_answers", counted)
    both = (str(teacher), str(student))
    with pytest.raises(KeyboardInterrupt):
        lesson_of(place, base, both, cache)
    lesson_of(place, base, both, cache)
    assert asked == [str(teacher), str(student), str(student)]
    lesson_of(place, base, (str(student),), cache)
    assert len(asked) == 3


def test_runs_side_by_side_take_a_teacher_each(
    place: Path, base: Path, teacher: Path, student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here another process has the first teacher, until the second has answered."""
    cache, answer, asked = tmp_path / "cache", module._answers, list[str]()
    lesson_of(place, base, (str(teacher),), cache)
    (file,) = cache.glob("answers-*")
    kept, lock = file.read_bytes(), ExitStack()
    file.unlink()

    def counted(folder: str, *rest: Any) -> Any:
        asked.append(folder)
        found = answer(folder, *rest)
        file.write_bytes(kept)
        lock.close()
        return found

    monkeypatch.setattr(module, "_answers", counted)
    with lock:
        assert lock.enter_context(run_lock(file))
        lesson_of(place, base, (str(teacher), str(student)), cache)
    assert asked == [str(student)]


def test_a_run_says_that_it_waits_for_answers_which_another_process_computes(
    place: Path, base: Path, teacher: Path, tmp_path: Path
) -> None:
    cache, lock, said = tmp_path / "cache", ExitStack(), list[str]()
    lesson_of(place, base, (str(teacher),), cache)
    (file,) = cache.glob("answers-*")
    elsewhere = file.rename(tmp_path / "answers")

    def log(text: str) -> None:
        said.append(text)
        Timer(0.3, elsewhere.rename, (file,)).start()  # several tries later: it is said once

    with lock:
        assert lock.enter_context(run_lock(file))
        lesson_of(place, base, (str(teacher),), cache, log)
    assert said == ["waiting for the answers of 1 teacher, which other processes compute"]


# As an arm


def study(place: Path, base: Path, teacher: Path, /, **changes: Any) -> CompareSettings:
    given: dict[str, Any] = {
        **{name: str(place / f"{name}.txt") for name in ("valid", "test")},
        "data": str(place / "train.txt"),
        "teacher": (str(teacher),),
        "unlabelled": str(place / "more.txt"),
        "init": (str(base),),
        "arms": "scratch,full",
        "seeds": 2,
        "epochs": 4,
        "batch_size": 8,
        "lr": 5e-3,
        "tune": "none",
        "device": "cpu",
    }
    return CompareSettings(**{**given, **changes})


@pytest.fixture(scope="module")
def compared(
    place: Path, base: Path, teacher: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Comparison, list[str]]:
    folder, said = tmp_path_factory.mktemp("study") / "s", list[str]()
    return folder, compare(study(place, base, teacher), folder, log=said.append), said


def test_what_a_teacher_buys_is_told_beside_the_rest(compared: tuple[Path, Comparison, list[str]]) -> None:
    folder, found, said = compared
    assert [arm.name for arm in found.arms] == ["majority", "tfidf", "tfidf+self", "scratch", "full", "full+teacher"]
    difference = found.difference("full+teacher", "full")
    assert difference is not None and difference.primary
    assert difference.scores["accuracy"].value > 0
    assert any("he teacher" in paragraph and "with it" in paragraph for paragraph in found.verdict)
    assert len(list((folder / "teachers").glob("answers-*.safetensors"))) == 1
    assert sum("answers to" in line for line in said) <= 1  # two seeds, asked once
    for arm in found.curves:
        for run in arm.runs:
            recorded = RunFolder(folder / run.path).settings()
            assert ("teacher" in recorded) == (arm.name == "full+teacher")
            assert ("unlabelled" in recorded) == (arm.name in ("full+teacher", "tfidf+self"))


def test_the_report_and_the_service_know_the_arm(compared: tuple[Path, Comparison, list[str]], tmp_path: Path) -> None:
    folder, _, _ = compared
    write_report([folder], tmp_path / "page.html")
    assert "full+teacher" in (tmp_path / "page.html").read_text()
    titles = {arm.name: arm.title for arm in read_arms(folder).arms}
    assert titles["full+teacher"].startswith("Distilled into")


def test_the_arm_adds_its_own_runs_and_changes_no_other(place: Path, base: Path, teacher: Path, tmp_path: Path) -> None:
    def folders(**changes: Any) -> dict[str, str]:
        runs = open_study(study(place, base, teacher, **changes), tmp_path / "s").runs
        return {f"{run.arm.name} {run.seed}": run.folder.name for run in runs}

    alone = folders(teacher=None, unlabelled=None)
    both = folders()
    assert both.keys() - alone.keys() == {"full+teacher 0", "full+teacher 1", "tfidf+self None"}
    assert alone.items() <= both.items()
    checkpoint = load(teacher / "model")
    save(replace(checkpoint, temperature=checkpoint.temperature * 2), tmp_path / "other")
    after = folders(teacher=(str(tmp_path / "other"),))
    assert {name for name in after if after[name] != both[name]} == {"full+teacher 0", "full+teacher 1"}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"arms": "scratch"}, "--teacher is for the arm full"),
        ({"arms": "full+teacher", "teacher": None, "unlabelled": None}, "name its run folder with --teacher"),
        ({"arms": "full+self"}, "is its own teacher"),
    ],
)
def test_arms_that_cannot_be(
    place: Path, base: Path, teacher: Path, tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        open_study(study(place, base, teacher, **changes), tmp_path / "s")


def test_a_linear_model_can_teach(
    place: Path, base: Path, compared: tuple[Path, Comparison, list[str]], tmp_path: Path
) -> None:
    folder, _, _ = compared
    linear = next((folder / "runs").glob("tfidf-*"))
    splits = read_splits(settings(place, base))
    said: list[str] = []
    check_teachers([str(linear)], splits, said.append)
    assert not said  # its labels are the student's own
    lesson = lesson_of(place, base, (str(linear),), tmp_path)
    predictions = LinearClassifier.load(linear).predict([row.text for row in lesson.examples.rows[24:]])
    for target, prediction in zip(lesson.targets[24:], predictions, strict=True):
        assert target == pytest.approx([prediction.probabilities[name] for name in splits["train"].class_names])


# The teacher `tfidf`


def test_the_teacher_tfidf_is_the_linear_model_of_the_same_labels(
    place: Path, base: Path, compared: tuple[Path, Comparison, list[str]], tmp_path: Path, monkeypatch: Any
) -> None:
    linear = next((compared[0] / "runs").glob("tfidf-*"))
    said: list[str] = []
    lesson = lesson_of(place, base, ("tfidf",), tmp_path / "cache", said.append)
    assert lesson.targets == pytest.approx(lesson_of(place, base, (str(linear),), tmp_path / "other").targets)
    assert said == ["teacher tfidf: a linear model is fitted to 24 texts", "teacher tfidf: answers to 31 texts"]
    (about,) = lesson.teachers
    assert about["folder"] == "tfidf" and about["seconds"] > 0

    def again(*_: Any, **__: Any) -> None:
        raise AssertionError("it is fitted already")

    monkeypatch.setattr(module, "baseline", again)
    assert np.array_equal(lesson_of(place, base, ("tfidf",), tmp_path / "cache").targets, lesson.targets)


def test_a_folder_named_tfidf_is_named_by_its_path(
    place: Path, base: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear = lesson_of(place, base, ("tfidf",), tmp_path / "cache").targets
    network = lesson_of(place, base, (str(teacher),), tmp_path / "cache").targets
    shutil.copytree(teacher / "model", tmp_path / "tfidf")
    monkeypatch.chdir(tmp_path)
    assert np.array_equal(lesson_of(place, base, ("tfidf",), tmp_path / "cache").targets, linear)
    assert np.array_equal(lesson_of(place, base, ("./tfidf",), tmp_path / "cache").targets, network)
    assert not np.allclose(linear, network, atol=0.05)


def test_with_label_budgets_the_teacher_tfidf_knows_the_budget_and_no_more(
    place: Path, base: Path, tmp_path: Path
) -> None:
    asked = study(place, base, Path("t"), teacher=("tfidf",), labels="12,all", arms="full", epochs=1)
    found = compare(asked, tmp_path / "s")
    assert {curve.budget for curve in found.curves if curve.name == "full+teacher"} == {12, 24}
    fitted = [RunFolder(path) for path in (tmp_path / "s" / "teachers").glob("tfidf-*")]
    assert sorted(run.result_json()["rows"]["train"] for run in fitted) == [12, 12, 24]  # two seeds draw twelve each
    assert sorted(run.settings().get("labels", 24) for run in fitted) == [12, 12, 24]
    assert any("12 labels" in paragraph and "teacher" in paragraph for paragraph in found.verdict)
