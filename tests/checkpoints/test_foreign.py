"""Folders of other tools whose files say something odd: an error in words, never a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from headstart.checkpoints.exchange import open_model, read_transformers, write_transformers
from headstart.checkpoints.folder import Checkpoint
from headstart.checkpoints.lab import write_lab
from headstart.config import ClassifierConfig, NextTokenConfig
from headstart.errors import CheckpointError, HeadstartError
from headstart.model.model import Model
from headstart.model.presets import preset, usual_head

SMALL = {"vocabulary": 30, "width": 16, "layers": 2, "heads": 2, "feed_forward": 24, "window": 16}
INDEX = "model.safetensors.index.json"


def foreign(folder: Path, name: str = "bert-tiny", kind: str = "classifier") -> Path:
    config = preset(name, **SMALL)
    write_transformers(Checkpoint(Model.build(config, usual_head(config, kind, 3)), ("a", "b", "c")), folder)
    return folder


def change(folder: Path, **changes: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def rewrite(folder: Path, edit: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Path:
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(edit(tensors), folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": ["bert"]}, r"model_type is \['bert'\]"),
        ({"model_type": {}}, r"model_type is \{\}"),
        ({"architectures": 5}, "architectures is 5, expected a list"),
        ({"architectures": [["BertModel"]]}, r"class \['BertModel'\] is not known"),
        ({"hidden_act": ["gelu"]}, r"activation \['gelu'\] is not one of"),
        ({"hidden_size": "wide"}, "hidden_size is 'wide', expected a whole number"),
        ({"max_position_embeddings": None}, "no setting max_position_embeddings"),
        ({"num_hidden_layers": 1_000_000}, "layers is 1000000, and must be at most 1,000"),
        ({"max_position_embeddings": 10**9}, "window is 1000000000, and must be at most 1,048,576"),
        ({"layer_norm_eps": float("nan")}, "norm_epsilon is nan"),
        ({"layer_norm_eps": float("inf")}, "norm_epsilon is inf, and must be a finite number"),
        ({"id2label": {"zero": "a", "one": "b", "two": "c"}}, "expected a label for each of the numbers 0 to 2"),
        ({"id2label": {"0": "a", "1": "b"}}, "expected a label for each of the numbers 0 to 2"),
        ({"id2label": {"0": "a", "1": "b", "2": "c", "3": "d"}}, "expected a label for each of the numbers 0 to 2"),
        ({"id2label": ["a", "b", "c"]}, r"id2label is \['a', 'b', 'c'\], expected"),
        ({"id2label": {"0": "a", "1": "b", "2": "a"}}, "the label 'a' stands for two classes"),
        ({"id2label": {"0": "a", "1": "b", "2": 3}}, "the label 3 is no text"),
    ],
    ids=str,
)
def test_a_config_of_odd_values(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(HeadstartError, match=words):
        read_transformers(change(foreign(tmp_path / "bert"), **changes))


@pytest.mark.parametrize("name", ["roberta-base", "mpnet-base", "gpt2"])
@pytest.mark.parametrize("value", ["16", None, [], 16.5])
def test_sizes_that_others_are_worked_out_from(tmp_path: Path, name: str, value: Any) -> None:
    folder = foreign(tmp_path / "theirs", name)
    sizes = {"max_position_embeddings", "n_positions", "n_embd", "hidden_size"}
    for size in sizes & json.loads((folder / "config.json").read_text()).keys():
        with pytest.raises(CheckpointError, match=size):
            read_transformers(change(foreign(tmp_path / size, name), **{size: value}))


def test_padding_ids_that_are_no_numbers(tmp_path: Path) -> None:
    with pytest.raises(HeadstartError, match="pad_token_id is 'one', expected a whole number"):
        read_transformers(change(foreign(tmp_path / "theirs", "roberta-base"), pad_token_id="one"))


@pytest.mark.parametrize("weight_map", [None, [], {}, "model.safetensors", 5])
def test_an_index_without_a_map(tmp_path: Path, weight_map: Any) -> None:
    folder = foreign(tmp_path / "bert")
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=r"weight_map is .*, expected the file of each tensor"):
        read_transformers(folder)


@pytest.mark.parametrize("file", ["../part.safetensors", "/etc/hostname", "sub/part.safetensors", "..", "", 3, None])
def test_an_index_that_names_a_file_elsewhere(tmp_path: Path, file: Any) -> None:
    folder = foreign(tmp_path / "bert")
    (folder / "model.safetensors").rename(tmp_path / "part.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"bert.pooler.dense.bias": file}}))
    with pytest.raises(CheckpointError, match=r"expected a \.safetensors file in the same folder"):
        read_transformers(folder)


def test_an_index_of_several_files_is_read(tmp_path: Path) -> None:
    folder = foreign(tmp_path / "bert")
    whole = read_transformers(folder).model.state_dict()
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    parts = {"a.safetensors": names[:9], "b.safetensors": names[9:]}
    for file, chosen in parts.items():
        save_file({name: tensors[name] for name in chosen}, folder / file)
    weight_map = {name: file for file, chosen in parts.items() for name in chosen}
    (folder / "model.safetensors").unlink()
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    read = read_transformers(folder).model.state_dict()
    assert all(read[name].equal(tensor) for name, tensor in whole.items())


@pytest.mark.parametrize("shape", [(), (16,), (16, 16, 2), (0,)], ids=str)
@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("bert-tiny", "bert.encoder.layer.0.attention.self.query.weight"),
        ("bert-tiny", "bert.encoder.layer.0.attention.self.key.bias"),
        ("bert-tiny", "classifier.weight"),
        ("gpt2", "transformer.h.0.attn.c_attn.weight"),
        ("gpt2", "score.weight"),
    ],
)
def test_a_tensor_of_another_rank(tmp_path: Path, name: str, tensor: str, shape: tuple[int, ...]) -> None:
    folder = foreign(tmp_path / "theirs", name)
    assert tensor in load_file(folder / "model.safetensors")
    if shape == (16,) and tensor.endswith("key.bias"):
        shape = (16, 1)
    with pytest.raises(HeadstartError, match="shape"):
        read_transformers(rewrite(folder, lambda tensors: {**tensors, tensor: torch.zeros(shape)}))


# The lab's file


def lab_file(path: Path, edit: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Path:
    write_lab(Model.build(preset("lab", **SMALL), NextTokenConfig()), path)
    tensors = torch.load(path, weights_only=True)["model_state_dict"]
    torch.save({"model_state_dict": edit(tensors)}, path)
    return path


@pytest.mark.parametrize("shape", [(), (30,), (1, 16)], ids=str)
def test_a_lab_head_of_another_rank(tmp_path: Path, shape: tuple[int, ...]) -> None:
    head = "classifier.decoder.weight"
    with pytest.raises(HeadstartError, match=r"shape|classes is 1"):
        open_model(lab_file(tmp_path / "lab.pt", lambda tensors: {**tensors, head: torch.zeros(shape)}))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(1, 1).expand(10_000_000, 60_000),  # a few bytes that stand for 2.4 TB
        torch.zeros(30, 16).to_sparse(),
        torch.empty(30, 16, device="meta"),
    ],
    ids=["expanded", "sparse", "meta"],
)
def test_a_lab_tensor_that_is_not_in_the_file(tmp_path: Path, tensor: Tensor) -> None:
    with pytest.raises(CheckpointError, match="holds no state dict"):
        open_model(lab_file(tmp_path / "lab.pt", lambda tensors: {**tensors, "base.encoder.weight": tensor}))


# What is written


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers_are_not_written(tmp_path: Path, value: float) -> None:
    bert = Model.build(preset("bert-tiny", **SMALL))
    lab = Model.build(preset("lab", **SMALL), ClassifierConfig(classes=2, pool="last"))
    for model in (bert, lab):
        with torch.no_grad():
            model.backbone.embeddings.tokens.weight[3, 4] = value
    with pytest.raises(HeadstartError, match=r"1 of the 480 weights in 'backbone\.embeddings\.tokens\.weight' are inf"):
        write_transformers(Checkpoint(bert), tmp_path / "bert")
    with pytest.raises(HeadstartError, match="nothing was written"):
        write_lab(lab, tmp_path / "lab.pt")
    assert not list(tmp_path.iterdir())
