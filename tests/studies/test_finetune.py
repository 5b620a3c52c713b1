from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from headstart.checkpoints.folder import Checkpoint, load, save
from headstart.errors import ConfigError, DataError, HeadstartError, ModelError, OutputError, TrainingError
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.reading.examples import read_examples
from headstart.runs.run import RunFolder
from headstart.studies import finetune as finetuning
from headstart.studies.classifier import build_classifier, load_data
from headstart.studies.finetune import finetune
from headstart.studies.settings import FinetuneSettings
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.training.inference import classify, frozen_features
from headstart.training.objectives import Classification, FrozenClassification
from headstart.use.classifier import TextClassifier
from tests.studies.example_data import reviews


def settings(world: Path, base: Path, **changes: Any) -> FinetuneSettings:
    given = {
        name: str(world / f"{split}.txt") for name, split in (("data", "train"), ("valid", "valid"), ("test", "test"))
    }
    return FinetuneSettings(**{**given, "init": str(base), "epochs": 3, "lr": 2e-3, **changes})


@pytest.mark.parametrize("mode", ["full", "frozen", "scratch"])
def test_a_run_leaves_a_whole_folder(world: Path, base: Path, tmp_path: Path, mode: str) -> None:
    result = finetune(settings(world, base, mode=mode), tmp_path / "run")
    assert {p.name for p in (tmp_path / "run").iterdir()} == {
        "run.toml",
        "events.jsonl",
        "model",
        "predictions.parquet",
        "result.json",
        "manifest.json",
    }
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    assert result["valid"].keys() == result["test"].keys() == {"accuracy", "macro_f1", "loss"}
    assert result["weights"] == ("fresh" if mode == "scratch" else f"from {base}")
    kinds = [type(event).__name__.lower() for event in RunFolder(tmp_path / "run").events()]
    assert kinds.count("step") == 3 * 15
    assert kinds.count("evaluated") == 3
    assert kinds[-1] == "finished"
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["data"].keys() == {"train", "valid", "test"}
    assert manifest["peak_memory"]["resident"] > 0
    trainable = 2 * 32 + 2 if mode == "frozen" else manifest["parameters"]["total"]
    assert manifest["parameters"]["trainable"] == trainable


def test_predictions_are_those_of_the_saved_model(world: Path, base: Path, tmp_path: Path) -> None:
    result = finetune(settings(world, base), tmp_path / "run")
    table = pq.read_table(tmp_path / "run" / "predictions.parquet").to_pylist()
    rows = [row for row in table if row["split"] == "test"]
    assert len(rows) == 60
    assert np.mean([row["label"] == row["predicted"] for row in rows]) == pytest.approx(result["test"]["accuracy"])
    for row in rows:
        assert row["probability:neg"] + row["probability:pos"] == pytest.approx(1.0)
    assert rows[3]["line"] == 4
    test = read_examples(str(world / "test.txt"))
    assert len(test.rows) == 60
    assert TextClassifier.load(tmp_path / "run").evaluate(test) == pytest.approx(result["test"], abs=1e-5)
    assert load(tmp_path / "run" / "model").class_names == ("neg", "pos")


def test_valid_is_not_predicted_again_where_the_last_weights_are_kept(
    world: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def counted(model: Any, rows: Any, *arguments: Any, **options: Any) -> Any:
        counts.append(len(rows.labels))
        return classify(model, rows, *arguments, **options)

    monkeypatch.setattr(finetuning, "classify", counted)
    result = finetune(settings(world, base, epochs=1), tmp_path / "run")
    rows = result["rows"]
    assert sorted(counts) == sorted([rows["valid"], rows["test"]])
    monkeypatch.undo()
    valid = read_examples(str(world / "valid.txt"))
    assert TextClassifier.load(tmp_path / "run").evaluate(valid) == pytest.approx(result["valid"], abs=1e-5)


def test_it_learns_the_opinion_words(world: Path, base: Path, tmp_path: Path) -> None:
    result = finetune(settings(world, base, epochs=8, lr=5e-3), tmp_path / "run")
    assert result["test"]["accuracy"] >= 0.9


def test_frozen_features_kept_are_the_numbers_computed_each_time(world: Path, base: Path, tokenizer: Tokenizer) -> None:
    """Keeping the features of a frozen backbone changes the speed and nothing else."""
    from headstart.batches.examples import ExampleBatches
    from headstart.runs.events import Step
    from headstart.training.loop import Loop

    given = settings(world, base, mode="frozen", lr=1e-2, dropout=0.2)
    data = load_data(given, tokenizer, 32)
    precision = torch.float32
    curves, outcomes = [], []
    for kept in (True, False):
        model = build_classifier(load(base).model, given, 2)
        features = frozen_features(model, data.encoded["train"], precision) if kept else None
        objective = FrozenClassification(features=features) if kept else Classification()
        loop = Loop(model, objective, ExampleBatches(data.encoded["train"], 0, 8), given, None, "accuracy", precision)
        curves.append([event.loss for event in loop.run() if isinstance(event, Step)])
        outcomes.append(classify(model, data.encoded["test"], precision))
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-5)
    np.testing.assert_allclose(outcomes[0], outcomes[1], atol=1e-5)


def test_frozen_leaves_the_backbone_as_it_was(world: Path, base: Path, tmp_path: Path) -> None:
    finetune(settings(world, base, mode="frozen"), tmp_path / "run")
    before, after = load(base).model.state_dict(), load(tmp_path / "run" / "model").model.state_dict()
    assert all(before[name].equal(after[name]) for name in before if name.startswith("backbone."))


def test_bf16_for_a_frozen_backbone_is_not_used_and_said_so(world: Path, base: Path, tmp_path: Path) -> None:
    said: list[str] = []
    given = settings(world, base, mode="frozen", epochs=1, precision="bf16")
    finetune(given, tmp_path / "run", log=said.append)
    assert "a frozen backbone runs once, in float32: bf16 is not used" in said
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["precision"] == "float32"


def test_scratch_shares_the_architecture_and_no_weight(world: Path, base: Path) -> None:
    pretrained = load(base).model
    model = build_classifier(pretrained, settings(world, base, mode="scratch"), 2)
    assert model.config == pretrained.config
    mine, theirs = model.state_dict(), pretrained.state_dict()
    assert not any(mine[n].equal(theirs[n]) for n in mine if n.endswith("weight") and "norm" not in n and n in theirs)


def test_the_same_seed_is_the_same_run_and_another_is_not(world: Path, base: Path, tmp_path: Path) -> None:
    files = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        finetune(settings(world, base, seed=seed, epochs=1), tmp_path / name)
        files.append((tmp_path / name / "model" / "model.safetensors").read_bytes())
    assert files[0] == files[1] != files[2]


def test_token_dropout_changes_training_and_not_a_frozen_backbone(world: Path, base: Path, tmp_path: Path) -> None:
    found = {}
    for mode in ("full", "frozen"):
        for share in (0.0, 0.3):
            out = tmp_path / f"{mode} {share}"
            finetune(settings(world, base, mode=mode, token_dropout=share, epochs=1), out)
            found[mode, share] = (out / "model" / "model.safetensors").read_bytes()
    assert found["full", 0.0] != found["full", 0.3]
    assert found["frozen", 0.0] == found["frozen", 0.3]


def test_settings_reach_the_head(world: Path, base: Path) -> None:
    model = build_classifier(
        load(base).model,
        settings(world, base, pool="first", read="all", pooler="tanh", dropout=0.4, backbone_dropout=0.2),
        3,
    )
    assert model.head_config is not None
    assert model.head_config.to_mapping() == {
        "classes": 3,
        "read": "all",
        "pool": "first",
        "pooler": "tanh",
        "bias": True,
        "dropout": 0.4,
        "kind": "classifier",
    }
    assert model.config.dropout == model.config.attention_dropout == 0.2
    before = load(base).model.state_dict()
    assert all(value.equal(before[n]) for n, value in model.state_dict().items() if n.startswith("backbone."))


def test_prediction_files_as_the_assignment_wants_them(world: Path, base: Path, tmp_path: Path) -> None:
    finetune(settings(world, base, prediction_files=True, epochs=1), tmp_path / "run")
    lines = (tmp_path / "run" / "test-predictions.txt").read_text().splitlines()
    texts = [line.split(" ||| ", 1)[1] for line in (world / "test.txt").read_text().splitlines()]
    assert [line.split(" ||| ", 1)[1] for line in lines] == texts
    assert {line.split(" ||| ", 1)[0] for line in lines} <= {"pos", "neg"}


def test_without_a_valid_file_a_tenth_is_kept_aside(world: Path, base: Path, tmp_path: Path) -> None:
    said: list[str] = []
    result = finetune(settings(world, base, valid=None, test=None, epochs=1), tmp_path / "run", log=said.append)
    assert result["test"] is None
    assert result["valid"] is not None
    assert any("kept aside to choose on" in line for line in said)


def test_pairs_of_texts(world: Path, base: Path, tmp_path: Path) -> None:
    lines = ["first,next,label"] + [f"the story {i},{'wise' if i % 2 else 'dull'} page,{i % 2}" for i in range(40)]
    (tmp_path / "pairs.csv").write_text("\n".join(lines) + "\n")
    given = settings(
        world,
        base,
        data=str(tmp_path / "pairs.csv"),
        valid=str(tmp_path / "pairs.csv"),
        test=None,
        text="first",
        second="next",
        label="label",
        epochs=8,
    )
    assert finetune(given, tmp_path / "run")["valid"]["accuracy"] == 1.0


def test_a_run_that_is_done_is_not_done_again(world: Path, base: Path, tmp_path: Path) -> None:
    given = settings(world, base, epochs=1)
    first = finetune(given, tmp_path / "run")
    before = (tmp_path / "run" / "manifest.json").read_text()
    with pytest.raises(OutputError, match="is done: add --resume"):
        finetune(given, tmp_path / "run")
    assert finetune(given, tmp_path / "run", resume=True) == first
    assert (tmp_path / "run" / "manifest.json").read_text() == before


def test_a_folder_with_another_run_or_something_else(world: Path, base: Path, tmp_path: Path) -> None:
    given = settings(world, base, epochs=1)
    finetune(given, tmp_path / "run")
    with pytest.raises(OutputError, match=r"holds another run \(it differs in lr\)"):
        finetune(replace(given, lr=1e-4), tmp_path / "run", resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="something that is no run"):
        finetune(given, tmp_path / "other", resume=True)
    with pytest.raises(OutputError, match="is a file"):
        finetune(given, tmp_path / "other" / "notes.txt")


def test_bad_input_is_said_before_anything_is_written(
    world: Path, base: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    (tmp_path / "odd.txt").write_text("pos ||| a wise tale\nmixed ||| a tale\n")
    (tmp_path / "one.txt").write_text("pos ||| a wise tale\npos ||| a tale\n")
    bare = tmp_path / "bare"
    save(Checkpoint(load(base).model), bare)
    larger = Tokenizer.train(["every word here is a new one"] * 3, kind="bpe", size=400)
    larger.save(tmp_path / "larger")
    learned = tmp_path / "learned"
    sizes = {"vocabulary": tokenizer.size, "window": 32, "width": 32, "layers": 1, "heads": 2, "feed_forward": 48}
    save(Checkpoint(Model.build(preset("bert-tiny", **sizes)), tokenizer=tokenizer), learned)
    cases: list[tuple[dict[str, Any], type[HeadstartError], str]] = [
        ({"valid": str(tmp_path / "odd.txt")}, DataError, "line 2: label 'mixed' is not one of neg, pos"),
        ({"data": str(tmp_path / "one.txt")}, DataError, "all rows have the label 'pos'"),
        ({"init": str(learned), "window": 33}, ModelError, "33 tokens is longer than the 32 positions"),
        ({"window": 10_000_000}, ConfigError, "window is 10000000, and must be at most 1,048,576"),
        ({"init": "lab"}, ConfigError, "'lab' is a preset without weights"),
        ({"init": "lab", "mode": "scratch"}, ConfigError, "without a tokenizer"),
        ({"init": str(bare)}, ConfigError, "has no tokenizer of its own"),
        ({"init": str(tmp_path / "nowhere")}, HeadstartError, "there is no file or folder"),
        ({"tokenizer": str(tmp_path / "larger")}, ModelError, "they do not belong together"),
        ({"data": str(tmp_path / "missing.csv")}, DataError, "missing.csv"),
    ]
    if not torch.cuda.is_available():
        cases.append(({"device": "cuda"}, ConfigError, "this machine has none"))
    for changes, error, words in cases:
        with pytest.raises(error, match=words.replace("(", r"\(")):
            finetune(settings(world, base, **changes), tmp_path / "run")
        assert not (tmp_path / "run").exists(), changes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lr": 0.0}, "lr is 0.0, and must be above 0"),
        ({"lr": -1.0}, "lr is -1.0, and must be above 0"),
        ({"epochs": 0}, "epochs is 0"),
        ({"dropout": 1.0}, "dropout is 1.0, and must be below 1"),
        ({"mode": "freeze"}, "did you mean 'frozen'"),
        ({"device": "gpu"}, "choose auto, cpu, cuda"),
        ({"data": ""}, "name the file to train on"),
        ({"layer_decay": 1.5}, "at most 1"),
    ],
)
def test_settings_out_of_range(world: Path, base: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        settings(world, base, **changes)


def test_refit_trains_on_valid_too_and_says_of_valid_what_was_known_before(
    world: Path, base: Path, tmp_path: Path
) -> None:
    given: dict[str, Any] = {
        name: str(world / f"{file}.txt") for name, file in (("data", "train"), ("valid", "valid"), ("test", "test"))
    }
    settings = FinetuneSettings(**given, init=str(base), epochs=3, lr=2e-3)
    plain = finetune(settings, tmp_path / "plain")
    refit = finetune(replace(settings, refit=True), tmp_path / "refit")
    assert refit["valid"] == pytest.approx(plain["valid"], rel=1e-12)  # by way of the probabilities in its file
    assert refit["temperature"] == plain["temperature"]
    assert refit["rows"] == plain["rows"]
    rows = plain["rows"]["train"] + plain["rows"]["valid"]
    assert refit["steps"] == math.ceil(plain["best"]["epoch"]) * math.ceil(rows / settings.batch_size)
    assert finetune(replace(settings, refit=True), tmp_path / "refit", resume=True) == refit


@pytest.mark.parametrize("mode", ["full", "frozen"])
def test_weights_that_one_step_makes_infinite_are_not_kept(world: Path, base: Path, tmp_path: Path, mode: str) -> None:
    """The loss of the only step is a number, and what it leaves is none."""
    given = settings(world, base, mode=mode, steps=1, lr=1e300, warmup=0.0, save_every=1)
    with pytest.raises(TrainingError, match=r"the weights became (inf|nan) by step 1 \(lr is 1e\+300\): lower lr"):
        finetune(given, tmp_path / "run")
    assert not (tmp_path / "run" / "model").exists()
    assert not list(tmp_path.glob("run/checkpoints/*"))


@pytest.mark.parametrize("mode", ["full", "frozen"])
def test_a_window_longer_than_the_base_was_trained_with(world: Path, base: Path, tmp_path: Path, mode: str) -> None:
    """Texts whose opinion stands behind the 32nd token, beyond the window of the base."""
    for name, count, seed in (("train", 160, 1), ("valid", 60, 2)):
        lines = [f"{label} ||| {'the page of ' * 12}{text}\n" for label, text in reviews(count, seed)]
        (tmp_path / f"{name}.txt").write_text("".join(lines))
    changes = {"data": str(tmp_path / "train.txt"), "valid": str(tmp_path / "valid.txt"), "test": None, "mode": mode}
    probe = {} if mode == "full" else {"frozen_head": "probe", "pool": "mean"}
    asked = settings(world, base, **changes, **probe, epochs=8, lr=5e-3)
    cut = finetune(asked, tmp_path / "cut")
    whole = finetune(replace(asked, window=64), tmp_path / "whole")
    assert cut["valid"]["accuracy"] < 0.7
    assert whole["valid"]["accuracy"] > 0.85
    classifier = TextClassifier.load(tmp_path / "whole" / "model")
    assert classifier.window == 64
    scores = classifier.evaluate(read_examples(tmp_path / "valid.txt"))
    assert scores["accuracy"] == pytest.approx(whole["valid"]["accuracy"])
