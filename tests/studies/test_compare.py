"""A whole comparison in seconds: made-up reviews, a tiny model, two seeds."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from headstart.batches.examples import EncodedExamples
from headstart.checkpoints.folder import load, save
from headstart.errors import ConfigError, DataError, HeadstartError, NotFinite, OutputError, TrainingError
from headstart.runs.comparison import Comparison, Cost
from headstart.runs.events import Evaluated, Step
from headstart.runs.run import RunFolder
from headstart.studies import study as module
from headstart.studies.baselines import baseline
from headstart.studies.classifier import open_base
from headstart.studies.compare import compare, open_study, run_study
from headstart.studies.finetune import finetune
from headstart.studies.locks import run_lock
from headstart.studies.settings import CompareSettings, FinetuneSettings
from headstart.tokenizers.load import read_tokenizer
from tests.studies.example_data import write_reviews


def settings(world: Path, base: Path, **changes: Any) -> CompareSettings:
    given: dict[str, Any] = {
        "data": str(world / "train.txt"),
        "valid": str(world / "valid.txt"),
        "test": str(world / "test.txt"),
        "init": (str(base),),
        "seeds": 2,
        "epochs": 2,
        "batch_size": 8,
        "lr": 2e-3,
        "tune": "none",
        "frozen_head": "trained",
    }
    return CompareSettings(**{**given, **changes})


@pytest.fixture(scope="module")
def done(world: Path, base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Comparison]:
    """A finished study with budgets, to look at."""
    folder = tmp_path_factory.mktemp("study") / "s"
    return folder, compare(settings(world, base, labels="20,all", least_steps=9), folder)


def test_every_arm_every_budget_every_seed(done: tuple[Path, Comparison]) -> None:
    folder, found = done
    assert [arm.name for arm in found.arms] == ["majority", "tfidf", "scratch", "frozen", "full"]
    assert {(arm.name, arm.budget): len(arm.runs) for arm in found.curves} == {
        ("majority", 20): 2, ("majority", 120): 1, ("tfidf", 20): 2, ("tfidf", 120): 1,
        ("scratch", 20): 2, ("scratch", 120): 2, ("frozen", 20): 2, ("frozen", 120): 2,
        ("full", 20): 2, ("full", 120): 2,
    }  # fmt: skip
    assert found.reference == "scratch"
    assert found.verdict
    assert Comparison.from_json(json.loads((folder / "comparison.json").read_text())) == found
    assert {each.budget for each in found.worth} == {20, 120}


def test_the_scores_are_those_of_the_runs(done: tuple[Path, Comparison]) -> None:
    folder, found = done
    for arm in found.curves:
        tests = []
        for run in arm.runs:
            result = json.loads((folder / run.path / "result.json").read_text())
            assert run.test["accuracy"] == pytest.approx(result["test"]["accuracy"])
            assert run.test["macro_f1"] == pytest.approx(result["test"]["macro_f1"])
            assert run.valid["accuracy"] == pytest.approx(result["valid"]["accuracy"])
            assert result["rows"]["train"] == arm.budget
            tests.append(result["test"]["accuracy"])
        assert arm.scores["accuracy"].value == pytest.approx(np.mean(tests))
    difference = found.difference("full", "scratch")
    assert difference is not None
    expected = found.arm("full").scores["accuracy"].value - found.arm("scratch").scores["accuracy"].value
    assert difference.scores["accuracy"].value == pytest.approx(expected)


def test_arms_of_a_seed_see_the_same_texts_and_the_same_budget(done: tuple[Path, Comparison]) -> None:
    folder, found = done
    data: dict[tuple[int, int], set[str]] = {}
    steps: dict[int, set[int]] = {}
    for arm in found.curves:
        for run in arm.runs:
            if arm.mode == "baseline":
                continue
            manifest = json.loads((folder / run.path / "manifest.json").read_text())
            data.setdefault((arm.budget, run.seed), set()).add(manifest["data"]["train"])
            folder_of_run = RunFolder(folder / run.path)
            events = folder_of_run.events()
            steps.setdefault(arm.budget, set()).add(sum(isinstance(event, Step) for event in events))
            assert sum(isinstance(event, Evaluated) for event in events) == folder_of_run.settings()["epochs"]
    assert all(len(prints) == 1 for prints in data.values())
    assert data[20, 0] != data[20, 1]  # another seed draws other texts
    assert data[120, 0] == data[120, 1]
    assert steps == {20: {9}, 120: {30}}  # 3 steps an epoch: three epochs reach the least steps


def test_few_labels_are_as_many_steps_as_all(world: Path, base: Path, tmp_path: Path) -> None:
    """Epochs are chosen for all labels: 20 labels would be 3 steps an epoch where 120 are 15."""

    def planned(**changes: Any) -> dict[int, tuple[int, int | None]]:
        """Epochs, and steps between evaluations, of full by label budget."""
        given = settings(world, base, arms="full", labels="20,60,all", seeds=1, **changes)
        runs = open_study(given, tmp_path / str(len(list(tmp_path.iterdir())))).runs
        own = {run.budget: run.settings for run in runs if run.arm.name == "full"}
        return {budget: (values["epochs"], values.get("evaluate_every")) for budget, values in own.items()}

    # 2 epochs of all labels are 30 steps; valid is scored twice, as with all labels.
    assert planned() == {20: (10, 15), 60: (4, 16), 120: (2, None)}
    # 40 epochs are 600 steps, of which 300 are enough.
    assert planned(epochs=40) == {20: (100, 8), 60: (40, None), 120: (40, None)}
    assert planned(evaluate_every=7) == {20: (10, 7), 60: (4, 7), 120: (2, 7)}
    as_given = {20: (2, None), 60: (2, None), 120: (2, None)}
    assert planned(least_steps=0) == as_given
    assert planned(tokens=64) == planned(steps=12) == as_given  # steps do not follow from epochs


def test_a_study_that_was_begun_without_least_steps_goes_on_without(world: Path, base: Path, tmp_path: Path) -> None:
    given = settings(world, base, labels="20,all", least_steps=0)
    before = {run.folder for run in open_study(given, tmp_path / "s").runs}
    after = {run.folder for run in open_study(replace(given, least_steps=None), tmp_path / "s").runs}
    assert after == before


def test_models_are_kept_of_the_first_seed_with_every_budget(done: tuple[Path, Comparison]) -> None:
    folder, _ = done
    kept = {path.parent.name.rsplit("-", 1)[0] for path in folder.glob("runs/*/model")}
    assert kept == {f"{arm}-{labels}-seed0" for arm in ("scratch", "frozen", "full") for labels in (20, 120)}
    assert {path.parent.name.rsplit("-", 1)[0] for path in folder.glob("runs/*/linear.safetensors")} == {
        "tfidf-20-seed0",
        "tfidf-120",
    }
    load(next(folder.glob("runs/full-120-seed0-*")) / "model")


def test_what_is_done_is_not_done_again(
    world: Path, base: Path, done: tuple[Path, Comparison], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, found = done
    trained: list[Any] = []

    def noted(settings: Any, out: Path, **more: Any) -> Any:
        trained.append(out)
        return finetune(settings, out, **more)

    monkeypatch.setattr(module, "finetune", noted)
    asked = settings(world, base, labels="20,all", least_steps=9)
    assert compare(asked, folder) == found
    assert trained == []
    more = compare(replace(asked, seeds=3, arms="full,scratch", labels=None), folder)
    assert [path.name.rsplit("-", 1)[0] for path in trained] == ["full-120-seed2", "scratch-120-seed2"]
    assert len(more.arm("full").runs) == 3
    trained.clear()
    compare(replace(asked, seeds=1, arms="full", labels=None, lr=1e-3), folder)
    assert len(trained) == 1  # another rate is another run


def test_a_base_that_changed_is_another_base(world: Path, base: Path, tmp_path: Path) -> None:
    moved = tmp_path / "b"
    save(load(base), moved)
    asked = settings(world, moved, arms="full", seeds=1)
    before = {run.folder for run in open_study(asked, tmp_path / "s").runs}
    checkpoint = load(base)
    with torch.no_grad():
        next(checkpoint.model.parameters()).add_(1.0)
    shutil.rmtree(moved)
    save(checkpoint, moved)
    after = {run.folder for run in open_study(asked, tmp_path / "s").runs}
    assert len(before - after) == 1  # the arm; the baselines stay


def test_several_bases_and_presets(world: Path, base: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    save(load(base), other)

    def names(**changes: Any) -> list[str]:
        study = open_study(settings(world, base, seeds=1, **changes), tmp_path / "s")
        return [run.arm.name for run in study.runs if run.arm.mode != "baseline"]

    both = (f"one={base}", str(other))
    # One architecture: one arm from scratch.
    assert names(init=both) == ["scratch", "frozen:one", "frozen:other", "full:one", "full:other"]
    assert names(init=both, arms="full,scratch:other") == ["full:one", "full:other", "scratch"]
    preset = {"tokenizer": str(world / "tokenizer")}
    assert names(init=("lab",), arms="scratch", **preset) == ["scratch"]
    assert names(init=("lab", str(other)), arms="scratch:lab,frozen", **preset) == ["scratch", "frozen"]
    assert names(init=("lab", str(other)), **preset) == ["scratch:lab", "scratch:other", "frozen", "full"]


def test_settings_of_one_mode(world: Path, base: Path, tmp_path: Path) -> None:
    study = open_study(settings(world, base, frozen=("lr=0.05",), seeds=1), tmp_path / "s")
    rates = {run.arm.name: run.settings["lr"] for run in study.runs if run.arm.mode != "baseline"}
    assert rates == {"scratch": 2e-3, "frozen": 0.05, "full": 2e-3}


def test_answers_together_with_the_linear_model(world: Path, base: Path, tmp_path: Path) -> None:
    given = settings(world, base, arms="scratch,full", labels="20,all", ensemble=True)
    found = compare(given, tmp_path / "study")
    assert [arm.name for arm in found.arms] == ["majority", "tfidf", "scratch", "full", "full+tfidf"]
    both, full = found.arm("full+tfidf"), found.arm("full")
    assert (both.mode, [run.seed for run in both.runs]) == ("ensemble", [0, 1])
    assert {arm.budget for arm in found.curves if arm.name == "full+tfidf"} == {20, 120}
    for one, alone in zip(both.runs, full.runs, strict=True):
        result = json.loads((tmp_path / "study" / one.path / "result.json").read_text())
        assert 0 <= result["share"] <= 1
        assert result["valid"]["accuracy"] == pytest.approx(one.valid["accuracy"])
        before = json.loads((tmp_path / "study" / alone.path / "result.json").read_text())
        assert result["valid"]["loss"] <= before["valid"]["loss"] + 1e-9
    assert found.difference("full+tfidf", "tfidf") is not None
    assert any("full+tfidf" in sentence for sentence in found.verdict)
    assert compare(given, tmp_path / "study") == found
    assert Comparison.from_json(found.to_json()) == found


def test_a_base_is_read_once_and_texts_encoded_once_and_no_run_changes_them(
    world: Path, base: Path, tmp_path: Path
) -> None:
    """Six runs of three arms; each gives what it gives by itself."""
    with (
        mock.patch("headstart.tokenizers.tokenizer.read_tokenizer", wraps=read_tokenizer) as read,
        mock.patch.object(EncodedExamples, "of", wraps=EncodedExamples.of) as encoded,
    ):
        study = open_study(settings(world, base, epochs=1), tmp_path / "study")
        run_study(study)
    assert read.call_count == 1
    assert encoded.call_count == 3  # train, valid and test
    trained = [run for run in study.runs if run.by_steps]
    assert [run.title for run in trained[-3:]] == [
        f"{mode}, 120 labels, seed 1" for mode in ("scratch", "frozen", "full")
    ]
    for run in trained[-3:]:
        alone = finetune(FinetuneSettings.from_mapping(run.settings, run.title), tmp_path / run.folder.name)
        assert RunFolder(run.folder).result_json()["test"] == alone["test"]


def test_of_a_base_and_another_tokenizer_one_is_read(world: Path, base: Path) -> None:
    with mock.patch("headstart.tokenizers.tokenizer.read_tokenizer", wraps=read_tokenizer) as read:
        assert open_base(str(base), str(world / "tokenizer"), "full").tokenizer is not None
    assert [call.args[0] for call in read.call_args_list] == [world / "tokenizer"]


def without_times(comparison: Comparison) -> Comparison:
    """But for what depends on the clock: costs, and the words about them."""
    arms, curves = (
        tuple(replace(arm, cost=Cost(), tuning=None) for arm in each) for each in (comparison.arms, comparison.curves)
    )
    return replace(comparison, arms=arms, curves=curves, verdict=())


def test_processes_side_by_side_give_the_same(world: Path, base: Path, tmp_path: Path) -> None:
    asked = settings(world, base, arms="scratch,frozen", epochs=1)
    alone = compare(asked, tmp_path / "one")
    study = open_study(replace(asked, jobs=2), tmp_path / "two")
    run_study(study)
    assert without_times(study.conclude()) == without_times(alone)
    # Each run was begun once: its events tell of one training.
    for run in study.runs:
        if run.arm.mode != "baseline":
            assert [e.step for e in RunFolder(run.folder).events() if isinstance(e, Step)] == list(range(1, 16))
    # And where all is done, nobody is started.
    with mock.patch.object(multiprocessing, "get_context", side_effect=AssertionError):
        run_study(study)


def test_networks_do_not_wait_for_the_linear_model(
    world: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another process has TF-IDF, this one does all the others; only then is there nothing to do but wait."""
    study = open_study(settings(world, base, arms="frozen", epochs=1, seeds=1), tmp_path / "s")
    monkeypatch.setattr(time, "sleep", mock.Mock(side_effect=KeyboardInterrupt))
    linear = next(run for run in study.runs if run.arm.name == "tfidf")
    with run_lock(linear.folder) as ours, pytest.raises(KeyboardInterrupt):
        assert ours
        study.work()
    assert [run.arm.name for run in study.runs if not run.done] == ["tfidf"]


def test_the_search_of_a_linear_model_has_a_share_of_the_time(world: Path, base: Path, tmp_path: Path) -> None:
    """Where time is short, it takes the best so far; where there is no limit, it goes on to its end."""
    study = open_study(settings(world, base, arms="frozen", epochs=1, seeds=1), tmp_path / "s")
    with mock.patch.object(module, "baseline", wraps=baseline) as fitted:
        replace(study, deadline=time.monotonic() + 400).work()
    ends = [call.kwargs["until"] - time.monotonic() for call in fitted.call_args_list]
    assert all(50 < seconds < 101 for seconds in ends)
    assert study._linear_deadline == math.inf


def test_a_killed_comparison_goes_on_where_it_was(world: Path, base: Path, tmp_path: Path) -> None:
    asked = settings(world, base, arms="full", seeds=3, save_every=2)
    script = (
        "import sys, json, torch; torch.set_num_threads(1)\n"
        "from headstart.studies.compare import compare; from headstart.studies.settings import CompareSettings\n"
        "compare(CompareSettings.from_mapping(json.loads(sys.argv[1]), 'x'), sys.argv[2])"
    )
    arguments = [sys.executable, "-c", script, json.dumps(asked.to_mapping()), str(tmp_path / "s")]
    process = subprocess.Popen(arguments)
    while not list((tmp_path / "s").glob("runs/full-*-seed1-*/events.jsonl")):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    first = next((tmp_path / "s").glob("runs/full-120-seed0-*/manifest.json"))
    stamp = first.stat().st_mtime_ns
    assert not (tmp_path / "s" / "comparison.json").exists()
    found = compare(asked, tmp_path / "s")
    assert first.stat().st_mtime_ns == stamp
    expected = compare(asked, tmp_path / "never stopped")
    assert [run.test for run in found.arm("full").runs] == [run.test for run in expected.arm("full").runs]


@pytest.mark.parametrize("kind", [TrainingError, NotFinite])
def test_a_run_that_diverges_is_told_and_ends_in_no_verdict(
    world: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[HeadstartError]
) -> None:

    def sometimes(settings: Any, out: Path, **more: Any) -> Any:
        if settings.seed == 1:
            raise kind("the loss was nan 10 times in a row")
        return finetune(settings, out, **more)

    monkeypatch.setattr(module, "finetune", sometimes)
    asked = settings(world, base, arms="full", epochs=1)
    with pytest.raises(TrainingError, match=r"1 of 4 runs failed.*full, 120 labels, seed 1: the loss was nan"):
        compare(asked, tmp_path / "s")
    monkeypatch.undo()
    assert len(compare(asked, tmp_path / "s").arm("full").runs) == 2
    assert not list((tmp_path / "s").glob("runs/.failed/*"))


def test_runs_that_learned_nothing_are_counted_and_kept(world: Path, base: Path, tmp_path: Path) -> None:
    found = compare(settings(world, base, arms="frozen,full", frozen=("lr=1e-9",)), tmp_path / "s")
    odd = [run.degenerate for run in found.arm("frozen").runs]
    assert set(odd) <= {"one class only", "no better than majority", None}
    assert any(odd)
    assert len(odd) == 2
    assert any("frozen" in sentence and "run" in sentence for sentence in found.verdict)


def test_leaked_rows_are_left_out_beside(world: Path, base: Path, tmp_path: Path) -> None:
    train = (world / "train.txt").read_text().splitlines()
    test = (world / "test.txt").read_text().splitlines()
    (tmp_path / "test.txt").write_text("\n".join([*test, *train[:15]]) + "\n")
    found = compare(settings(world, base, arms="full", test=str(tmp_path / "test.txt")), tmp_path / "s")
    assert (found.rows, found.leaked) == (75, 15)
    clean = compare(settings(world, base, arms="full"), tmp_path / "clean")
    leak_free = found.arm("full").leak_free
    assert leak_free is not None
    assert leak_free["accuracy"].value == pytest.approx(clean.arm("full").scores["accuracy"].value)
    assert clean.arm("full").leak_free is None


def test_without_a_test_file_a_share_is_kept_aside(world: Path, base: Path, tmp_path: Path) -> None:
    study = open_study(settings(world, base, test=None, valid=None), tmp_path / "s")
    about = json.loads((tmp_path / "s" / "data.json").read_text())
    assert sum(about["rows"].values()) == 120
    assert about["rows"]["test"] == len(study.splits["test"].rows) >= 20
    assert about["doctor"]["splits"][0]["rows"] == about["rows"]["train"]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"data": "one.txt"}, DataError, "all rows have the label 'pos'"),
        ({"test": "three.txt"}, DataError, "a test set of 3 rows tells nothing"),
        ({"test": "train.txt"}, DataError, "120 of 120 test rows are also in train or valid"),
        ({"test": "odd.txt"}, DataError, "label 'mixed' is not one of neg, pos"),
        ({"labels": "1,all"}, ConfigError, "1 label is fewer than the 2 classes"),
        ({"labels": "50,5000"}, ConfigError, "5,000 labels are asked for, and train has 120"),
        ({"labels": "many"}, ConfigError, "'many' is no number of labels"),
        ({"arms": "fully"}, ConfigError, "did you mean 'full'"),
        ({"arms": "full:nobody"}, ConfigError, "no base is named 'nobody'"),
        ({"init": ("lab",), "tokenizer": "tokenizer", "arms": "full"}, ConfigError, "'full' needs a model folder"),
        ({"reference": "tdidf"}, ConfigError, "did you mean 'tfidf'"),
        ({"frozen": ("lrr=1",)}, ConfigError, "did you mean 'lr'"),
        ({"frozen": ("epochs=50",)}, ConfigError, "epochs is the same for every arm"),
        ({"pooler": "backbone"}, HeadstartError, "pooler"),
        ({"init": ("nowhere",)}, HeadstartError, "nowhere"),
        ({"init": ("a=base", "a=base")}, ConfigError, "two bases are named 'a'"),
        ({"window": 10_000_000}, ConfigError, "window is 10000000, and must be at most 1,048,576"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(
    world: Path, base: Path, tmp_path: Path, changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    (tmp_path / "one.txt").write_text("pos ||| fine\n" * 30)
    write_reviews(tmp_path / "three.txt", 3, 1)
    (tmp_path / "odd.txt").write_text("mixed ||| so so\n" * 30)
    places = {"one.txt": tmp_path, "three.txt": tmp_path, "odd.txt": tmp_path, "tokenizer": world, "train.txt": world}
    changes = {
        name: str(places[value] / value) if isinstance(value, str) and value in places else value
        for name, value in changes.items()
    }
    if changes.get("init") == ("a=base", "a=base"):
        changes["init"] = (f"a={base}", f"a={base}")
    with pytest.raises(error, match=words):
        compare(settings(world, base, **changes), tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_a_study_of_other_data_and_a_folder_of_something_else_are_refused(
    world: Path, base: Path, done: tuple[Path, Comparison], tmp_path: Path
) -> None:
    folder, _ = done
    other = write_reviews(tmp_path / "other.txt", 60, 77)
    with pytest.raises(OutputError, match=r"holds a study of other data \(test differ"):
        compare(settings(world, base, test=str(other)), folder)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    with pytest.raises(OutputError, match="no comparison"):
        compare(settings(world, base), tmp_path / "full")
    with pytest.raises(OutputError, match="is a file"):
        compare(settings(world, base), other)
