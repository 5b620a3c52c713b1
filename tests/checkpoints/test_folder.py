"""Our own folder: what is written comes back, and what is damaged is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from headstart.checkpoints.folder import (
    Checkpoint,
    check_tokenizer,
    load,
    read_safetensors,
    save,
    write_safetensors,
)
from headstart.config import HEADS, HeadConfig
from headstart.errors import (
    CheckpointError,
    ConfigError,
    HeadstartError,
    ModelError,
    NotFinite,
    OutputError,
    TokenizerError,
)
from headstart.model.layout import Flat
from headstart.model.model import Model
from headstart.model.presets import PRESETS, preset, usual_head
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.use.classifier import TextClassifier

SMALL = {"vocabulary": 40, "width": 16, "layers": 2, "heads": 2, "feed_forward": 24, "window": 16}


def every_model() -> list[tuple[str, HeadConfig | None]]:
    """Each preset (made small) with each head that it can honestly have."""
    cases: list[tuple[str, HeadConfig | None]] = []
    for name in PRESETS:
        config = preset(name, **SMALL)
        cases.append((name, None))
        for kind in HEADS:
            head = usual_head(config, kind, 3)
            try:
                Model.empty(config, head)
            except HeadstartError:
                continue
            cases.append((name, head))
    return cases


@pytest.mark.parametrize(("name", "head"), every_model(), ids=lambda case: getattr(case, "kind", str(case)))
def test_what_is_saved_comes_back(name: str, head: HeadConfig | None, tmp_path: Path) -> None:
    model = Model.build(preset(name, **SMALL), head)
    save(Checkpoint(model, class_names=("non", "oui", "peut-être")), tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.model.config == model.config
    assert loaded.model.head_config == head
    assert loaded.class_names == ("non", "oui", "peut-être")
    assert not loaded.model.training
    state, found = model.state_dict(), loaded.model.state_dict()
    assert state.keys() == found.keys()
    assert all(state[key].equal(found[key]) for key in state)
    assert all(p.requires_grad for p in loaded.model.parameters())


def test_loading_leaves_the_random_numbers_alone(tmp_path: Path) -> None:
    save(Checkpoint(Model.build(preset("lab", **SMALL), usual_head(PRESETS["lab"], "classifier"))), tmp_path / "m")
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    load(tmp_path / "m")
    assert torch.rand(3).equal(expected)


def test_half_precision_comes_back_as_float32(tmp_path: Path) -> None:
    model = Model.build(preset("bert-tiny", **SMALL))
    save(Checkpoint(model), tmp_path / "m", dtype=torch.bfloat16)
    loaded = load(tmp_path / "m").model
    for name, tensor in model.state_dict().items():
        assert loaded.state_dict()[name].equal(tensor.bfloat16().float())


def test_saving_over_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("")
    checkpoint = Checkpoint(Model.build(preset("bert-tiny", **SMALL)))
    with pytest.raises(OutputError, match="not empty"):
        save(checkpoint, tmp_path / "full")
    with pytest.raises(OutputError, match="is a file"):
        save(checkpoint, tmp_path / "file")
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["thesis.txt"]
    assert {p.name for p in tmp_path.iterdir()} == {"full", "file"}


def test_a_save_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headstart.checkpoints.folder.save_file", full_disk)
    with pytest.raises(OutputError, match="No space left on device"):
        save(Checkpoint(Model.build(preset("bert-tiny", **SMALL))), tmp_path / "m")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(Checkpoint(Model.build(preset("bert-tiny", **SMALL))), tmp_path / "m")
    return tmp_path / "m"


def change_config(folder: Path, **changes: Any) -> None:
    found = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**found, **changes}))


def test_a_file_cut_short(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    for length in (0, 4, 100, len(whole) - 1):
        (folder / "model.safetensors").write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read as safetensors"):
            load(folder)


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (RuntimeError("unable to open file <x> in read-only mode: Too many open files (24)"), CheckpointError),
        (RuntimeError("unable to mmap 9 bytes from file <x>: Cannot allocate memory (12)"), RuntimeError),
    ],
    ids=["few descriptors", "little memory"],
)
def test_weights_that_torch_cannot_open(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, seen: type[Exception]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("headstart.checkpoints.folder.safe_open", fail)
    with pytest.raises(seen, match=r"Too many open files|allocate memory"):
        load(folder)


def test_a_file_that_is_not_what_its_name_says(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"PK\x03\x04 a zip archive, say" * 20)
    with pytest.raises(CheckpointError, match="cannot be read as safetensors"):
        load(folder)


def test_no_weights_no_config_no_folder(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no file .*model\.safetensors"):
        load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"no file .*config\.json"):
        load(folder)
    with pytest.raises(CheckpointError, match=r"no file .*config\.json"):
        load(tmp_path / "nowhere")


def test_tensors_missing_unexpected_misshapen_or_of_another_type(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = {name: tensor.clone() for name, tensor in load_file(path).items()}
    name = "backbone.layers.1.feed_forward.down.bias"
    without = {key: tensor for key, tensor in whole.items() if key != name}
    save_file(without, path)
    with pytest.raises(CheckpointError, match=f"missing tensors 1: {name}"):
        load(folder)
    save_file({**whole, "head.extra": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match=r"unexpected tensors 1: head\.extra"):
        load(folder)
    save_file({**whole, name: torch.zeros(17)}, path)
    with pytest.raises(CheckpointError, match=r"down.bias' has shape \(17,\), expected \(16,\)"):
        load(folder)
    save_file({**whole, name: torch.zeros(16, dtype=torch.int64)}, path)
    with pytest.raises(CheckpointError, match=r"of type torch\.int64"):
        load(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', "null", "\x00", "[" * 100_000])
def test_a_config_that_is_none(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load(folder)


def test_a_config_of_another_version_or_with_mistakes(folder: Path) -> None:
    change_config(folder, version=99)
    with pytest.raises(CheckpointError, match="version 99"):
        load(folder)
    change_config(folder, version=1, head={"kind": "classifer"})
    with pytest.raises(HeadstartError, match="did you mean 'classifier'"):
        load(folder)
    change_config(folder, head=None, model={**preset("bert-tiny", **SMALL).to_mapping(), "widht": 3, "layers": -1})
    with pytest.raises(HeadstartError) as caught:
        load(folder)
    assert "did you mean 'width'" in str(caught.value)
    assert "layers is -1" in str(caught.value)
    change_config(folder, model=3)
    with pytest.raises(CheckpointError, match="'model' is 3"):
        load(folder)


# Values that would make every answer up


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers_are_neither_saved_nor_loaded(tmp_path: Path, value: float) -> None:
    model = Model.build(preset("bert-tiny", **SMALL))
    save(Checkpoint(model), tmp_path / "m")
    path, name = tmp_path / "m" / "model.safetensors", "backbone.layers.1.feed_forward.down.bias"
    tensors = {key: tensor.clone() for key, tensor in load_file(path).items()}
    tensors[name][5] = value
    save_file(tensors, path)
    with pytest.raises(NotFinite, match=rf"model\.safetensors: 1 of the 16 weights in '{name}' are inf or nan"):
        load(tmp_path / "m")
    model.get_parameter(name).data[5] = value
    with pytest.raises(NotFinite, match="nothing was saved: 1 of the 16 weights"):
        save(Checkpoint(model), tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_weights_too_large_for_half_precision_are_not_saved_in_it(tmp_path: Path) -> None:
    model = Model.build(preset("bert-tiny", **SMALL))
    model.backbone.embeddings.tokens.weight.data[0, 0] = 1e6  # float16 ends at 65,504
    with pytest.raises(NotFinite, match="nothing was saved"):
        save(Checkpoint(model), tmp_path / "m", dtype=torch.float16)
    save(Checkpoint(model), tmp_path / "m")


def test_large_weights_are_numbers(tmp_path: Path) -> None:
    """Their sum is more than float32 holds, and each of them is not."""
    model = Model.build(preset("bert-tiny", **SMALL))
    model.backbone.embeddings.tokens.weight.data.fill_(3e38)
    save(Checkpoint(model), tmp_path / "m")
    assert load(tmp_path / "m").model.backbone.embeddings.tokens.weight.max() == torch.tensor(3e38)


@pytest.mark.parametrize("temperature", ["1e-320", "NaN", "Infinity", "0", "-1", "1e9", "true", "null", "[1]"])
def test_a_temperature_that_no_probability_survives(folder: Path, temperature: str) -> None:
    config = (folder / "config.json").read_text().replace('"temperature": 1.0', f'"temperature": {temperature}')
    (folder / "config.json").write_text(config)
    with pytest.raises(CheckpointError, match=r"'temperature' is .*, expected a number from 0\.001 to 1000"):
        load(folder)


# Labels and the head


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["pos"], "there are 1 labels for 2 classes"),
        (["neg", "pos", "so"], "there are 3 labels for 2 classes"),
        (["pos", "pos"], "the label 'pos' stands for two classes"),
        (["neg", 1], "the label 1 is no text"),
        (["neg", "\ud800"], r"the label '\\ud800' is no text"),
        (["neg", ["pos"]], r"the label \['pos'\] is no text"),
    ],
)
def test_labels_that_the_head_does_not_have(tmp_path: Path, labels: list[Any], words: str) -> None:
    config = preset("bert-tiny", **SMALL)
    save(Checkpoint(Model.build(config, usual_head(config, "classifier", 2)), ("neg", "pos")), tmp_path / "m")
    change_config(tmp_path / "m", labels=labels)
    with pytest.raises(CheckpointError, match=words):
        load(tmp_path / "m")


@pytest.mark.parametrize("key", ["model", "head", "labels"])
def test_a_config_that_leaves_something_out(folder: Path, key: str) -> None:
    found = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({name: value for name, value in found.items() if name != key}))
    with pytest.raises(CheckpointError, match=f"there is no '{key}'"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layers": 1_000_000}, "layers is 1000000, and must be at most 1,000"),
        ({"window": 10**9}, "window is 1000000000, and must be at most 1,048,576"),
        ({"window": 1_000_000, "positions": "relative", "direction": "bidirectional"}, "1,000,000 × 1,000,000 numbers"),
        ({"vocabulary": 10**18}, "vocabulary is 1000000000000000000, and must be at most 10,000,000"),
        ({"norm_epsilon": float("inf")}, "norm_epsilon is inf, and must be a finite number"),
    ],
    ids=str,
)
def test_sizes_without_end(folder: Path, changes: dict[str, Any], words: str) -> None:
    change_config(folder, model={**preset("bert-tiny", **SMALL).to_mapping(), **changes})
    with pytest.raises(ConfigError, match=words):
        load(folder)


# The tokenizer and the model


def with_template(path: Path, **changes: Any) -> Tokenizer:
    """A small tokenizer whose separator has another id or segment in the template of a pair."""
    Tokenizer.train(["a good book", "a bad book"], kind="wordpiece", size=40).save(path)
    description = json.loads((path / "tokenizer.json").read_text())
    processor = description["post_processor"]
    processor["pair"][-1]["SpecialToken"]["type_id"] = changes.get("segment", 1)
    if "id" in changes:
        processor["special_tokens"]["<separator>"]["ids"] = [changes["id"]]
    (path / "tokenizer.json").write_text(json.dumps(description))
    return Tokenizer.load(path)


def test_a_template_with_an_id_that_no_token_has(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    with pytest.raises(TokenizerError, match='found the id 4000 in "post_processor", and no token that has it'):
        with_template(tmp_path / "t", id=4000)


def test_a_template_that_makes_the_library_panic(tmp_path: Path) -> None:
    """A panic of Rust code is no Exception, and was let through."""
    (tmp_path / "t").mkdir()
    with_template(tmp_path / "t")
    description = json.loads((tmp_path / "t" / "tokenizer.json").read_text())
    description["post_processor"]["single"] = [{"Sequence": {"id": "B", "type_id": 0}}]
    (tmp_path / "t" / "tokenizer.json").write_text(json.dumps(description))
    with pytest.raises(TokenizerError, match=r"index out of bounds.*expected a complete tokenizer"):
        Tokenizer.load(tmp_path / "t")


def test_a_vocabulary_with_an_id_without_end(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(["a good book", "a bad book"], kind="wordpiece", size=40)
    (tmp_path / "t").mkdir()
    tokenizer.save(tmp_path / "t")
    text = (tmp_path / "t" / "tokenizer.json").read_text()
    description = json.loads(text)
    description["model"]["vocab"]["book"] = 4_000_000_000  # a list of as many places would take 32 GB
    (tmp_path / "t" / "tokenizer.json").write_text(json.dumps(description))
    with pytest.raises(TokenizerError, match="found the id 4,000,000,000 in the vocabulary; expected ids below"):
        Tokenizer.load(tmp_path / "t")


def test_a_tokenizer_with_more_segments_or_tokens_than_the_model(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    tokenizer = with_template(tmp_path / "t", segment=2)
    config = preset("bert-tiny", **{**SMALL, "vocabulary": tokenizer.size})
    with pytest.raises(ModelError, match="the tokenizer has 3 segments and the model knows 2: they do not belong"):
        check_tokenizer(config, tokenizer)
    check_tokenizer(replace(config, segments=3), tokenizer)
    check_tokenizer(replace(config, segments=1), tokenizer)
    with pytest.raises(ModelError, match=f"has {tokenizer.size} tokens and the model knows {tokenizer.size - 1}"):
        check_tokenizer(replace(config, segments=3, vocabulary=tokenizer.size - 1), tokenizer)
    model = Model.build(replace(config, segments=3, vocabulary=tokenizer.size - 1), usual_head(config, "classifier"))
    with pytest.raises(ModelError, match="use the tokenizer that the model was trained with"):
        TextClassifier(Checkpoint(model, (), tokenizer), "cpu")


def test_one_segment_is_that_of_every_token_of_a_pair() -> None:
    """As in RoBERTa, whatever its tokenizer numbers them."""
    config = preset("roberta-base", **SMALL)
    model = Model.build(config).eval()
    ids, layout = torch.tensor([3, 4, 5, 6]), Flat.from_lengths([4])
    assert model(ids, layout, torch.tensor([0, 0, 1, 1])).equal(model(ids, layout))


def test_weights_can_be_read_by_whoever_can_read_the_folder(tmp_path: Path) -> None:
    """The library writes for its owner alone."""
    write_safetensors(tmp_path / "model.safetensors", {"a": torch.zeros(2)})
    (tmp_path / "beside").touch()
    modes = {path.name: path.stat().st_mode for path in tmp_path.iterdir()}
    assert modes["model.safetensors"] == modes["beside"]
    assert read_safetensors(tmp_path / "model.safetensors")["a"].tolist() == [0, 0]
