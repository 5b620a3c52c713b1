from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow
import pyarrow.parquet
import pytest
import torch

from headstart.checkpoints.folder import Checkpoint, load, save
from headstart.config import MaskedConfig, read_toml
from headstart.errors import ConfigError, DataError, HeadstartError, MissingExtra, OutputError, TrainingError
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.runs.events import Evaluated, Event, Step
from headstart.runs.sweep import Sweep, Trial
from headstart.studies import search as searching
from headstart.studies import trials as trying
from headstart.studies.axes import Axis, read_axes
from headstart.studies.settings import FinetuneSettings, SweepSettings
from headstart.studies.sweep import sweep
from headstart.studies.trials import TrialRunner, read_outcome
from headstart.tokenizers.load import read_tokenizer
from headstart.tokenizers.tokenizer import Tokenizer

SIZES = {"width": 32, "layers": 1, "heads": 2, "feed_forward": 48, "window": 32}
KINDS = {"lr": float, "epochs": int, "init": str, "patience": int | None, "balanced": bool, "data": None}


@pytest.fixture(scope="module")
def base(world: Path, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(99)
    folder = tmp_path_factory.mktemp("base") / "model"
    config = preset("small", vocabulary=tokenizer.size, **SIZES)
    save(Checkpoint(Model.build(config, MaskedConfig()), tokenizer=tokenizer), folder)
    return folder


def settings(world: Path, base: Path, **changes: Any) -> SweepSettings:
    given = {
        name: str(world / f"{split}.txt") for name, split in (("data", "train"), ("valid", "valid"), ("test", "test"))
    }
    return SweepSettings(**{**given, "init": str(base), "epochs": 1, "lr": 2e-3, **changes})


def asked(**changes: Any) -> SweepSettings:
    """Settings that are looked at and never run."""
    return SweepSettings(**{"data": "d", "init": "i", **changes})


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[FinetuneSettings]:
    """Runs without training, for what happens around them: the scores are made up from the settings.

    Valid likes a learning rate near 0.01, test one near 1; at 100 the loss is no number.
    """
    done: list[FinetuneSettings] = []

    def pretend(one: FinetuneSettings, folder: Path, **options: Any) -> None:
        done.append(one)
        if one.lr == 100:
            raise TrainingError("the loss became nan at step 2")
        valid, test = (1 / (1 + abs(one.lr - best)) for best in (0.01, 1.0))
        if options["on_event"]:
            for epoch in range(1, one.epochs + 1):
                options["on_event"](Evaluated(epoch, 15 * epoch, {"accuracy": valid}, True))
        result = {"valid": {"accuracy": valid, "loss": 1.0}, "test": {"accuracy": test, "loss": 1.0}}
        (folder / "model").mkdir()
        (folder / "result.json").write_text(json.dumps(result))
        (folder / "manifest.json").write_text(json.dumps({"seconds": 3.0, "peak_memory": {"resident": 7}}))
        (folder / "checkpoints").mkdir(exist_ok=True)

    monkeypatch.setattr(trying, "finetune", pretend)
    return done


def trials(found: dict[str, Any]) -> tuple[Trial, ...]:
    return Sweep.from_json(found).trials


# --- what is varied ---------------------------------------------------------------------------------------------------


def test_values_are_read_as_the_setting_takes_them() -> None:
    texts = ["lr=1,1e-3, 1.0", "epochs=3", "init=2024,../b", "patience=1..4", "balanced=true,false"]
    axes, problems = read_axes(texts, KINDS, "search")
    assert not problems
    assert axes == (
        Axis("lr", (1.0, 1e-3)),
        Axis("epochs", (3,)),
        Axis("init", ("2024", "../b")),
        Axis("patience", (1, 4), is_range=True),
        Axis("balanced", (True, False)),
    )
    assert [type(value) for axis in axes[:2] for value in axis.values] == [float, float, int]


@pytest.mark.parametrize(
    ("text", "logarithmic"),
    [("1e-6..1e-3", True), ("0.0..0.5", False), ("0.1..0.9", False), ("1..10", False), ("1..10.5", True)],
)
def test_a_range_over_more_than_a_factor_of_ten_is_drawn_from_evenly_in_its_logarithm(
    text: str, logarithmic: bool
) -> None:
    (axis,), _ = read_axes([f"lr={text}"], KINDS, "search")
    assert axis.logarithmic == logarithmic


def test_a_range_of_whole_numbers_is_not(tmp_path: Path) -> None:
    (axis,), _ = read_axes(["epochs=1..100"], KINDS, "search")
    assert not axis.logarithmic


@pytest.mark.parametrize(
    ("option", "text", "words"),
    [
        ("grid", "lr", "'lr' is no choice of values: write it as lr=1e-5,1e-4"),
        ("grid", "lr=", "is no choice of values"),
        ("grid", "lr=1,,2", "is no choice of values"),
        ("grid", "=1", "is no choice of values"),
        ("grid", "epoch=1", "unknown setting 'epoch': did you mean 'epochs'?"),
        ("grid", "data=a,b", "data is the same for all runs"),
        ("grid", "lr=1e-5..1e-3", "write it as lr=1e-5,1e-3, or draw from it with --search lr=1e-5..1e-3"),
        ("search", "lr=1e-3..1e-5", "the first end of a range must be below the second"),
        ("search", "lr=1..1", "the first end of a range must be below the second"),
        ("search", "lr=1..inf", "both must be finite"),
        ("search", "lr=low..high", "lr=low..high is no range of numbers"),
        ("search", "balanced=false..true", "write the values of balanced one by one"),
    ],
)
def test_what_is_no_axis(option: str, text: str, words: str) -> None:
    axes, problems = read_axes([text], KINDS, option)
    assert not axes
    assert len(problems) == 1
    assert words in problems[0]


def test_a_name_given_twice() -> None:
    _, problems = read_axes(["lr=1", "lr=2"], KINDS, "grid")
    assert problems == ["grid lr=2: lr is given twice: write all its values in one --grid"]


def test_every_mistake_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        SweepSettings(epochs=0, grid=("lrr=1", "data=a"), search=("lr=2..1",))
    said = str(caught.value)
    assert "7 mistakes" in said
    for words in ("epochs is 0", "--data", "--init", "one of the two", "did you mean 'lr'", "grid data=a", "lr=2..1"):
        assert words in said
    with pytest.raises(ConfigError, match="name a grid, as --grid lr=1e-5,1e-4, or a search, as --search"):
        asked()
    with pytest.raises(ConfigError, match="prune is for a search"):
        asked(grid=("lr=1",), prune=True)
    with pytest.raises(ConfigError, match="storage is for a search"):
        asked(grid=("lr=1",), storage="sqlite:///x")


def test_a_grid_is_the_product_each_once() -> None:
    found = asked(grid=("lr=1e-5,1e-4,1e-5", "batch_size=8,12", "epochs=10,15")).combinations()
    assert [(one.lr, one.batch_size, one.epochs) for one in found] == [
        (lr, size, epochs) for lr in (1e-5, 1e-4) for size in (8, 12) for epochs in (10, 15)
    ]


def test_values_that_a_run_refuses_are_told_for_all_combinations_before_any() -> None:
    with pytest.raises(ConfigError) as caught:
        asked(grid=("lr=0,1e-3,-1", "mode=full,freeze", "epochs=2.5,3")).combinations()
    assert set(caught.value.problems) == {
        "lr is 0.0, and must be above 0",
        "lr is -1.0, and must be above 0",
        "mode is 'freeze': did you mean 'frozen'?",
        "epochs is 2.5, and must be of type int",
    }
    with pytest.raises(ConfigError, match=r"dropout is 1\.0, and must be below 1"):
        asked(search=("dropout=0.0..1.0",)).combinations()


def test_a_swept_mode_has_the_settings_of_its_table() -> None:
    given = asked(grid=("mode=full,frozen",), lr=1e-5, frozen=("lr=0.01", "epochs=30"), scratch=("lr=5",))
    assert [(one.mode, one.lr, one.epochs) for one in given.combinations()] == [
        ("full", 1e-5, 10),
        ("frozen", 0.01, 30),
    ]
    swept = asked(grid=("mode=full,frozen", "lr=1,2"), frozen=("lr=0.01",))
    assert [one.lr for one in swept.combinations()] == [1.0, 2.0, 1.0, 2.0]
    assert [one.lr for one in asked(grid=("epochs=1",), mode="frozen", frozen=("lr=0.5",)).combinations()] == [0.5]
    with pytest.raises(ConfigError, match="unknown setting 'lrr'"):
        asked(grid=("mode=full,frozen",), frozen=("lrr=0.01",)).combinations()


# --- a grid -----------------------------------------------------------------------------------------------------------


def test_a_grid_to_its_end(world: Path, base: Path, tmp_path: Path) -> None:
    """Real runs; one of them fails."""
    given = settings(world, base, grid=("lr=1e-3,1e20", "mode=full,frozen"), full=("dropout=0.2",))
    heard: list[Event] = []
    said: list[str] = []
    result = sweep(given, tmp_path / "s", on_event=heard.append, log=said.append)
    assert json.loads((tmp_path / "s" / "sweep.json").read_text()) == result
    found = Sweep.from_json(result)
    assert found.to_json() == result
    assert found.swept == ("lr", "mode", "dropout")
    assert [(t.settings["lr"], t.settings["mode"], t.settings["dropout"]) for t in found.trials] == [
        (1e-3, "full", 0.2),
        (1e-3, "frozen", 0.1),
        (1e20, "full", 0.2),
        (1e20, "frozen", 0.1),
    ]
    for trial in found.trials[:2]:
        folder = tmp_path / "s" / trial.run
        kept = json.loads((folder / "result.json").read_text())
        manifest = json.loads((folder / "manifest.json").read_text())
        assert (trial.valid, trial.test) == (kept["valid"], kept["test"])
        assert trial.seconds == manifest["seconds"]
        assert trial.memory == manifest["peak_memory"].get("gpu", manifest["peak_memory"]["resident"])
        assert (folder / "model").is_dir() == trial.best
    failed = found.trials[2]
    assert failed.error is not None
    assert "the loss became" in failed.error
    assert (failed.valid, failed.seconds, failed.pruned) == (None, None, None)
    assert found.best is not None
    assert load(tmp_path / "s" / found.best.run / "model").class_names == ("neg", "pos")
    assert any(isinstance(event, Step) for event in heard)
    assert "trial 1 of 4: lr 0.001, mode full, dropout 0.2" in said
    assert any(line.startswith("trial 3 of 4 failed: the loss became") for line in said)
    assert read_toml(tmp_path / "s" / "study.toml")["study"] == "sweep"


def test_the_best_is_chosen_on_valid_and_test_has_no_part_in_it(
    world: Path, base: Path, tmp_path: Path, trained: list[FinetuneSettings]
) -> None:
    found = trials(sweep(settings(world, base, grid=("lr=1,0.02,5,100",)), tmp_path / "s"))
    assert [trial.best for trial in found] == [False, True, False, False]
    assert found[0].test is not None
    assert found[0].test["accuracy"] == 1.0
    assert found[3].error == "the loss became nan at step 2"
    assert [p.parent.name for p in (tmp_path / "s" / "runs").glob("*/model")] == [Path(found[1].run).name]


def test_a_base_is_read_once_for_all_trials(world: Path, base: Path, tmp_path: Path) -> None:
    """And once before them, to check it."""
    with mock.patch("headstart.tokenizers.tokenizer.read_tokenizer", wraps=read_tokenizer) as read:
        record = sweep(settings(world, base, steps=1, grid=("lr=0.01,0.02,0.03",)), tmp_path / "sweep")
    assert len(record["trials"]) == 3
    assert read.call_count == 2


def test_of_equal_accuracies_the_lower_loss_is_best() -> None:
    scores = [(0.8, 0.5), (0.9, 0.7), (0.9, 0.6), (0.9, 0.8)]
    found = [Trial("r", {}, valid={"accuracy": accuracy, "loss": loss}) for accuracy, loss in scores]
    assert max([*found, Trial("r", {}, error="no")], key=lambda trial: trial.score) is found[2]


def test_how_sure_it_is_that_the_best_is_the_best(tmp_path: Path) -> None:
    """By the texts that only one of the two got right: 3 against 1 is chance, 30 against 0 is not."""
    wrong: dict[str, set[int]] = {"best": {7}, "close": {3, 4, 5}, "worse": {7, *range(30, 60)}, "elsewhere": {1}}
    for name, its in wrong.items():
        (tmp_path / name).mkdir()
        said = ["neg" if k in its else "pos" for k in range(60)]
        columns = {"split": ["valid"] * 60 + ["test"], "label": ["pos"] * 61, "predicted": [*said, "neg"]}
        if name != "elsewhere":
            pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / name / "predictions.parquet")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "predictions.parquet").write_bytes(b"PAR1")
    study = TrialRunner(asked(grid=("lr=1,2",)), tmp_path, {}, None, lambda text: None)
    rows = [Trial(name, {}, valid={"accuracy": 1 - len(its) / 60, "loss": 1.0}) for name, its in wrong.items()]
    rows[0] = replace(rows[0], valid={"accuracy": 1 - 1 / 60, "loss": 0.5})
    rows += [Trial("damaged", {}, valid={"accuracy": 0.1, "loss": 1.0}), Trial("failed", {}, error="no")]
    study.write_record(rows)
    found = Sweep.from_json(json.loads((tmp_path / "sweep.json").read_text()))
    assert found.best is not None and found.best.run == "best"
    chances = [trial.chance for trial in found.trials]
    # Both tails of a fair coin, 4 and 30 times thrown, three times as likely as there are three pairs of trials.
    assert chances == [None, 1.0, pytest.approx(3 * 2 / 2**30), None, None, None]
    assert found.significance == (
        "On the 60 texts of valid 1 of the 2 other trials is significantly worse than the best."
    )
    worse = replace(found, trials=tuple(trial for trial in found.trials if trial.run != "close"))
    assert worse.significance == "On the 60 texts of valid the other trial is significantly worse than the best."
    assert replace(found, trials=(found.best,)).significance is None
    study.write_record([rows[1], replace(rows[3], valid={"accuracy": 1.0, "loss": 0.1})])  # now the best lies elsewhere
    assert study.record.texts is None and study.record.significance is None


def test_a_table_of_before_says_nothing_of_it() -> None:
    old = {"kind": "grid", "swept": ["lr"], "trials": [{"run": "r", "settings": {"lr": 1.0}, "best": True}]}
    assert Sweep.from_json(old).significance is None


def test_the_weights_of_all_are_kept_where_asked(
    world: Path, base: Path, tmp_path: Path, trained: list[FinetuneSettings]
) -> None:
    sweep(settings(world, base, grid=("lr=1,2",), keep_models=True), tmp_path / "s")
    assert len(list((tmp_path / "s" / "runs").glob("*/model"))) == 2


def test_what_is_done_is_not_done_again_and_what_failed_is_tried_again(
    world: Path, base: Path, tmp_path: Path, trained: list[FinetuneSettings]
) -> None:
    given = settings(world, base, grid=("lr=1,100",))
    first = sweep(given, tmp_path / "s")
    with pytest.raises(OutputError, match="was begun: add --resume"):
        sweep(given, tmp_path / "s")
    assert sweep(given, tmp_path / "s", resume=True) == first
    assert [one.lr for one in trained] == [1.0, 100.0, 100.0]


def test_a_process_that_died_as_it_began_a_run_is_no_obstacle(
    world: Path, base: Path, tmp_path: Path, trained: list[FinetuneSettings]
) -> None:
    given = settings(world, base, grid=("lr=1,2",))
    folder = tmp_path / "s" / trials(sweep(given, tmp_path / "s"))[1].run
    shutil.rmtree(folder)
    (folder / ".run.toml.unfinished-x").mkdir(parents=True)
    assert all(trial.valid for trial in trials(sweep(given, tmp_path / "s", resume=True)))
    assert [one.lr for one in trained] == [1, 2, 2]


def test_a_grid_may_grow_and_keeps_what_it_had(
    world: Path, base: Path, tmp_path: Path, trained: list[FinetuneSettings]
) -> None:
    sweep(settings(world, base, grid=("lr=1,0.01",)), tmp_path / "s")
    more = settings(world, base, grid=("lr=1,2", "warmup=0.1,0.2"))
    found = trials(sweep(more, tmp_path / "s", resume=True))
    assert [(one.lr, one.warmup) for one in trained] == [(1, 0.1), (0.01, 0.1), (1, 0.2), (2, 0.1), (2, 0.2)]
    assert [(t.settings["lr"], t.settings["warmup"], t.best) for t in found] == [
        (1, 0.1, False),
        (1, 0.2, False),
        (2, 0.1, False),
        (2, 0.2, False),
        (0.01, 0.1, True),
    ]
    assert read_toml(tmp_path / "s" / "study.toml")["grid"] == ["lr=1,2", "warmup=0.1,0.2"]


def test_a_base_that_was_trained_anew_is_another(
    world: Path, base: Path, tmp_path: Path, trained: list[FinetuneSettings]
) -> None:
    own = shutil.copytree(base, tmp_path / "base")
    given = settings(world, own, grid=("lr=1",))
    sweep(given, tmp_path / "s")
    torch.manual_seed(1)
    before = load(own)
    shutil.rmtree(own)
    save(replace(before, model=Model.build(before.model.config, MaskedConfig())), own)
    assert len(trials(sweep(given, tmp_path / "s", resume=True))) == 1
    assert len(trained) == 2


def test_a_folder_of_another_study(world: Path, base: Path, tmp_path: Path, trained: list[FinetuneSettings]) -> None:
    own = shutil.copytree(world, tmp_path / "world")
    given = settings(own, base, grid=("lr=1",))
    sweep(given, tmp_path / "s")
    for changes, words in (
        ({"epochs": 2, "batch_size": 3}, r"holds another study \(it differs in batch_size, epochs\)"),
        ({"grid": (), "search": ("lr=1,2",)}, r"it differs in search"),
    ):
        with pytest.raises(OutputError, match=words):
            sweep(replace(given, **changes), tmp_path / "s", resume=True)
    lines = (own / "test.txt").read_text().splitlines(keepends=True)
    (own / "test.txt").write_text("".join(lines[:-1]))
    with pytest.raises(OutputError, match=r"holds a sweep on other texts \(test differs\)"):
        sweep(given, tmp_path / "s", resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="something that is no study"):
        sweep(given, tmp_path / "other", resume=True)
    with pytest.raises(OutputError, match="is a file"):
        sweep(given, tmp_path / "other" / "notes.txt")
    assert len(trained) == 1


def test_bad_input_is_said_before_anything_is_trained_or_written(
    world: Path, base: Path, tokenizer: Tokenizer, tmp_path: Path, trained: list[FinetuneSettings]
) -> None:
    learned = tmp_path / "learned"
    config = preset("bert-tiny", vocabulary=tokenizer.size, **SIZES)
    save(Checkpoint(Model.build(config), tokenizer=tokenizer), learned)
    (tmp_path / "odd.txt").write_text("pos ||| a wise tale\nmixed ||| a tale\n")
    (tmp_path / "one.txt").write_text("pos ||| a wise tale\npos ||| a tale\n")
    cases: list[tuple[dict[str, Any], type[HeadstartError], list[str]]] = [
        ({"grid": ("labels=1,500,50",)}, ConfigError, ["2 mistakes", "1 label is fewer than the 2", "500 labels"]),
        ({"search": ("labels=50..500",)}, ConfigError, ["500 labels are asked for, and train has 120"]),
        (
            {"grid": (f"init=lab,{tmp_path}/nowhere",)},
            ConfigError,
            ["2 mistakes", "'lab' is a preset", "there is no file or folder"],
        ),
        (
            {"init": str(learned), "grid": ("window=16,33",)},
            HeadstartError,
            ["33 tokens is longer than the 32 positions"],
        ),
        ({"grid": ("pooler=none,backbone",)}, HeadstartError, ["pooler"]),
        ({"grid": ("lr=1",), "valid": str(tmp_path / "odd.txt")}, DataError, ["label 'mixed'"]),
        ({"grid": ("lr=1",), "data": str(tmp_path / "one.txt")}, DataError, ["all rows have the label 'pos'"]),
        ({"grid": ("lr=1",), "data": str(tmp_path / "missing.csv")}, DataError, ["missing.csv"]),
        ({"grid": ("lr=1,0",)}, ConfigError, ["lr is 0.0, and must be above 0"]),
    ]
    for changes, error, words in cases:
        with pytest.raises(error) as caught:
            sweep(settings(world, base, **changes), tmp_path / "s")
        for each in words:
            assert each in str(caught.value), changes
        assert not (tmp_path / "s").exists(), changes
    assert not trained


def test_too_little_memory_is_an_entry_and_a_bug_is_not(
    world: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: dict[float, Exception] = {
        1.0: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore"),
        2.0: RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        3.0: MemoryError(),
    }

    def fail(one: FinetuneSettings, *arguments: Any, **options: Any) -> None:
        raise raised.get(one.lr, RuntimeError("shapes do not match"))

    monkeypatch.setattr(trying, "finetune", fail)
    found = trials(sweep(settings(world, base, grid=("lr=1,2,3",)), tmp_path / "s"))
    assert found[0].error == "out of memory: CUDA out of memory. Tried to allocate 2 GiB"
    assert found[1].error is not None
    assert "can't allocate memory" in found[1].error
    assert found[2].error == "out of memory: MemoryError"
    assert Sweep("grid", (), found).best is None
    with pytest.raises(RuntimeError, match="shapes do not match"):
        sweep(settings(world, base, grid=("lr=4",)), tmp_path / "t")


def test_a_full_disk_stops_the_sweep(world: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise OutputError("no space left on device")

    monkeypatch.setattr(trying, "finetune", fail)
    with pytest.raises(OutputError, match="no space left"):
        sweep(settings(world, base, grid=("lr=1,2",)), tmp_path / "s")


class Interrupt:
    """A listener that presses Ctrl-C at a step."""

    def __init__(self, step: int) -> None:
        self.left = step

    def __call__(self, event: Event) -> None:
        if isinstance(event, Step):
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt


KEPT = ("run", "settings", "valid", "test", "error", "pruned", "best")


def kept(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What does not depend on how fast the machine is."""
    return [{name: trial[name] for name in KEPT} for trial in found["trials"]]


@pytest.mark.parametrize(
    "what",
    [{"grid": ("lr=1e-3,5e-3",)}, {"search": ("lr=1e-4..1e-2",), "trials": 3}],
    ids=["grid", "search"],
)
def test_a_sweep_that_was_stopped_goes_on_to_the_same_table(
    world: Path, base: Path, tmp_path: Path, what: dict[str, Any]
) -> None:
    given = settings(world, base, epochs=2, save_every=15, mode="frozen", **what)
    whole = sweep(given, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        sweep(given, tmp_path / "s", on_event=Interrupt(30 + 20))  # in the second epoch of the second run
    begun = json.loads((tmp_path / "s" / "sweep.json").read_text())["trials"]
    assert sum(trial["valid"] is not None for trial in begun) == 1
    said: list[str] = []
    assert kept(sweep(given, tmp_path / "s", resume=True, log=said.append)) == kept(whole)
    assert "going on from step 15 of 30" in said
    assert not any(line.startswith("trial 1 ") for line in said)


# --- a search ---------------------------------------------------------------------------------------------------------


def test_a_search_draws_from_what_it_was_given_and_is_the_same_with_the_same_seed(
    world: Path, base: Path, tmp_path: Path, trained: list[FinetuneSettings]
) -> None:
    axes = ("lr=1e-6..1e-1", "dropout=0.0..0.5", "epochs=2..4", "batch_size=8,16,32")
    given = settings(world, base, search=axes, trials=12)  # more than the ten that are drawn at random
    found = sweep(given, tmp_path / "s")
    assert [len(trials(found)), found["kind"], found["swept"]] == [
        12,
        "search",
        ["lr", "dropout", "epochs", "batch_size"],
    ]
    assert all(1e-6 <= one.lr <= 1e-1 and 0 <= one.dropout <= 0.5 for one in trained)
    assert {one.epochs for one in trained} == {2, 3, 4}
    assert {one.batch_size for one in trained} == {8, 16, 32}
    assert sum(one.lr < 1e-3 for one in trained) >= 3  # evenly, there would be one in a hundred
    assert kept(sweep(given, tmp_path / "again")) == kept(found)
    other = sweep(replace(given, seed=1, trials=1), tmp_path / "other")
    assert other["trials"][0]["settings"]["lr"] != found["trials"][0]["settings"]["lr"]


def test_more_trials_are_new_ones(world: Path, base: Path, tmp_path: Path, trained: list[FinetuneSettings]) -> None:
    given = settings(world, base, search=("lr=1e-4..1e-1",), trials=3)
    first = sweep(given, tmp_path / "s")
    assert sweep(given, tmp_path / "s", resume=True) == first
    more = sweep(replace(given, trials=5), tmp_path / "s", resume=True)
    assert more["trials"][0]["run"] == first["trials"][0]["run"]
    assert len({one.lr for one in trained}) == len(trained) == len(more["trials"]) == 5
    assert kept(more) == kept(sweep(replace(given, trials=5), tmp_path / "whole"))


def test_values_drawn_twice_are_run_once(
    world: Path, base: Path, tmp_path: Path, trained: list[FinetuneSettings]
) -> None:
    found = trials(sweep(settings(world, base, search=("lr=0.5,1,100",), trials=12), tmp_path / "s"))
    assert len(found) == 12
    assert len(trained) == 3
    assert {trial.error for trial in found if trial.settings["lr"] == 100} == {"the loss became nan at step 2"}
    assert sum(trial.best for trial in found) == 1
    best = next(trial for trial in found if trial.best)
    assert best.settings["lr"] == 0.5
    assert (tmp_path / "s" / best.run / "model").is_dir()


def test_a_pruned_trial_says_so(
    world: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[FinetuneSettings]
) -> None:
    import optuna

    reported: list[tuple[int, int]] = []

    class SecondTrialAtItsThirdEpoch(optuna.pruners.BasePruner):
        def __init__(self, **options: Any) -> None:
            pass

        def prune(self, study: Any, trial: Any) -> bool:
            reported.append((trial.number, trial.last_step))
            return (trial.number, trial.last_step) == (1, 3)

    monkeypatch.setattr(optuna.pruners, "MedianPruner", SecondTrialAtItsThirdEpoch)
    given = settings(world, base, search=("lr=1e-4..1e-1",), trials=3, epochs=4, prune=True)
    said: list[str] = []
    heard: list[Event] = []
    found = trials(sweep(given, tmp_path / "s", log=said.append, on_event=heard.append))
    assert [trial.pruned for trial in found] == [None, 3, None]
    assert reported == [(trial, epoch) for trial in range(3) for epoch in (1, 2, 3, 4) if (trial, epoch) != (1, 4)]
    assert found[1].valid is None
    assert read_outcome(tmp_path / "s" / found[1].run) == {"pruned": 3}
    assert not (tmp_path / "s" / found[1].run / "checkpoints").exists()
    assert "trial 2 of 3 was pruned at epoch 3" in said
    assert len(heard) == 4 + 3 + 4


def test_evaluations_within_an_epoch_are_reported_once_an_epoch() -> None:
    reports: list[tuple[int, float]] = []

    class Known:
        def report(self, value: float, step: int) -> None:
            reports.append((step, value))

        def should_prune(self) -> bool:
            return False

    class Study:
        settings = asked(search=("lr=1,2",), prune=True)
        on_event = None

    on_event = searching._event_handler(Study(), Known(), lambda: None)  # type: ignore[arg-type]
    for epoch in (0.4, 0.8, 1.2, 1.6, 2.0, 2.4):
        on_event(Evaluated(epoch, 0, {"accuracy": epoch}, True))
    assert reports == [(1, 1.2), (2, 2.0)]


def test_pruning_leaves_the_first_trials_alone(
    world: Path, base: Path, tmp_path: Path, trained: list[FinetuneSettings]
) -> None:
    """Optuna's median rule: none of the first five; afterwards, from the second epoch, what is below the median."""
    given = settings(world, base, search=("lr=0.01..5.0",), trials=14, epochs=3, prune=True)
    found = trials(sweep(given, tmp_path / "s"))
    assert all(trial.pruned is None for trial in found[:5])
    pruned = [trial for trial in found if trial.pruned is not None]
    assert pruned
    assert {trial.pruned for trial in pruned} == {2}
    done = sorted(trial.settings["lr"] for trial in found if trial.valid)
    assert all(trial.settings["lr"] > done[0] for trial in pruned)


def test_a_last_trial_that_another_machine_took_is_not_run(
    world: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[FinetuneSettings]
) -> None:
    import optuna

    original = searching._run_trial
    outcome = {"valid": {"accuracy": 0.5, "loss": 1.0}, "test": None, "seconds": 1.0, "memory": 1}

    def late(study: Any, known: optuna.Study, *rest: Any) -> None:
        if len(known.trials) == 1:
            distributions: dict[str, Any] = {"lr": optuna.distributions.FloatDistribution(1e-4, 1e-1, log=True)}
            known.add_trial(
                optuna.create_trial(
                    value=0.5, params={"lr": 0.09}, distributions=distributions, user_attrs={"outcome": outcome}
                )
            )
        original(study, known, *rest)

    monkeypatch.setattr(searching, "_run_trial", late)
    found = trials(sweep(settings(world, base, search=("lr=1e-4..1e-1",), trials=2), tmp_path / "s"))
    assert len(trained) == 1
    assert [trial.settings["lr"] for trial in found] == [trained[0].lr, 0.09]


def test_a_trial_whose_process_dies_each_time_is_given_up(
    world: Path, base: Path, tmp_path: Path, trained: list[FinetuneSettings]
) -> None:
    import optuna

    given = settings(world, base, search=("lr=1e-4..1e-1",), trials=1)
    study = TrialRunner(given, tmp_path, {}, None, print)
    known = optuna.create_study()
    states = [optuna.trial.TrialState.WAITING] * 2
    for attempt in range(3):
        trial = known.ask()
        assert trial.suggest_float("lr", 1e-4, 1e-1) == known.trials[0].params["lr"]
        assert len(searching._counted(known.trials)) == 1
        known.tell(trial, state=optuna.trial.TrialState.FAIL)
        searching._requeue_stale(known, known.trials[-1])
        assert [t.state for t in known.trials[attempt + 1 :]] == states[attempt : attempt + 1]
    (row,) = searching._table(study, known)
    assert row.error == "the process that ran it died, 3 times"


def test_without_optuna_a_search_is_one_line_and_a_grid_runs(
    world: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[FinetuneSettings]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtra, match=r"a search needs optuna: pip install 'headstart\[sweep\]'"):
        sweep(settings(world, base, search=("lr=1,2",)), tmp_path / "s")
    assert not (tmp_path / "s").exists()
    sweep(settings(world, base, grid=("lr=1,2",)), tmp_path / "s")
    assert len(trained) == 2


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("study.db", "study.db cannot be opened: Could not parse"),
        ("nodb://me:secret@host/x", "nodb://me@host/x cannot be opened: "),
        ("sqlite:////nowhere/at/all.db", "unable to open database file"),
    ],
)
def test_a_storage_that_is_none(
    world: Path, base: Path, tmp_path: Path, trained: list[FinetuneSettings], url: str, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        sweep(settings(world, base, search=("lr=1,2",), storage=url), tmp_path / "s")
    assert words in str(caught.value)
    assert "secret" not in str(caught.value) + (tmp_path / "s" / "study.toml").read_text()
    assert not trained


def test_a_storage_that_goes_away(
    world: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[FinetuneSettings]
) -> None:
    import optuna

    def gone(*arguments: Any) -> None:
        raise optuna.exceptions.StorageInternalError("an exception") from OSError("connection refused")

    with monkeypatch.context() as patch:
        patch.setattr(optuna.Trial, "set_user_attr", gone)
        with pytest.raises(OutputError, match=r"cannot be used any more \(connection refused\).*--resume"):
            sweep(settings(world, base, search=("lr=1,2",), trials=1), tmp_path / "s")
    found = trials(sweep(settings(world, base, search=("lr=1,2",), trials=1), tmp_path / "s", resume=True))
    assert len(found) == len(trained) == 1  # the run was done, and is not done again


def test_two_folders_share_a_search_through_one_storage(
    world: Path, base: Path, tmp_path: Path, trained: list[FinetuneSettings]
) -> None:
    """As two machines do, each with runs of its own."""
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    given = settings(world, base, search=("lr=1e-4..1e-1",), trials=2, storage=url)
    first = sweep(given, tmp_path / "a")
    both = sweep(replace(given, trials=4), tmp_path / "b")
    assert len(trained) == 4
    assert [trial["run"] for trial in both["trials"][:2]] == [trial["run"] for trial in first["trials"]]
    assert [len(list((tmp_path / name / "runs").glob("full-*"))) for name in "ab"] == [2, 2]


# --- several processes ------------------------------------------------------------------------------------------------

WORKER = """
import json, sys
import torch
from headstart.studies import storage, sweep
from headstart.studies.settings import SweepSettings

torch.set_num_threads(1)
storage.HEARTBEAT_INTERVAL, storage.GRACE_PERIOD = 1, 3
settings = SweepSettings.from_mapping(json.loads(sys.argv[1]), "test")
sweep.sweep(settings, sys.argv[2], resume=True, log=lambda text: print(text, flush=True))
"""


def work(given: SweepSettings, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKER, json.dumps(given.to_mapping()), str(out)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    "what",
    [
        pytest.param({"grid": ("lr=1e-3,2e-3,3e-3,4e-3", "seed=0,1")}, id="grid", marks=pytest.mark.slow),
        pytest.param({"search": ("lr=1e-4..1e-2",), "trials": 8}, id="search"),
    ],
)
def test_two_processes_share_a_sweep_and_one_of_them_is_killed(
    world: Path, base: Path, tmp_path: Path, what: dict[str, Any]
) -> None:
    given = settings(world, base, epochs=6, **what)
    workers = [work(given, tmp_path / "s") for _ in range(2)]
    try:
        assert workers[0].stdout is not None
        lines: list[str] = []
        while sum(": lr" in line for line in lines) < 2:  # in the midst of its second trial
            line = workers[0].stdout.readline()
            assert line, workers[0].communicate()[1]
            lines.append(line)
        workers[0].send_signal(signal.SIGKILL)
        out, errors = workers[1].communicate(timeout=120)
        assert workers[1].returncode == 0, errors
        assert errors == ""
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    found = Sweep.from_json(json.loads((tmp_path / "s" / "sweep.json").read_text())).trials
    assert len(found) == 8
    assert all(trial.valid for trial in found)
    begun = [line.split()[1] for line in [*lines, *out.splitlines()] if ": lr" in line]
    killed = lines[-1].split()[1]
    assert begun.count(killed) in (1, 2)  # once, if it was killed as it had just finished
    begun.remove(killed)
    assert sorted(begun + [killed] * (killed not in begun)) == sorted(str(number) for number in range(1, 9))
