"""The headstart model folder: `config.json`, `model.safetensors`, and `tokenizer.json` where there is a tokenizer.

    config.json         {"format": "headstart", "version": 1, "model": {…}, "head": {…} | null, "labels": […],
                         "temperature": 1.0}
    model.safetensors   one tensor for each parameter, named as in `Model.state_dict()`

Loading is strict: exactly the tensors that the config calls for, each with its shape, and no value that is inf or nan;
as many labels as the head has classes, each once. Saving is as strict about the values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from headstart import files
from headstart.bases import find
from headstart.checkpoints.keymap import check_keys
from headstart.config import ClassifierConfig, ModelConfig, read_head
from headstart.errors import CheckpointError, DataError, ModelError, NotFinite, is_out_of_memory, shown
from headstart.model.model import Model
from headstart.tokenizers.tokenizer import Tokenizer

FORMAT, VERSION = "headstart", 1
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
TEMPERATURES = (0.001, 1000.0)  # beyond these, probabilities are all 0 and 1, or all alike


@dataclass(frozen=True)
class Checkpoint:
    """A model with what is needed to use it: class names, tokenizer, and the temperature of its probabilities."""

    model: Model
    class_names: tuple[str, ...] = ()
    tokenizer: Tokenizer | None = None
    temperature: float = 1.0  # logits are divided by it, which calibrates the probabilities


def save(checkpoint: Checkpoint, folder: str | Path, *, dtype: torch.dtype = torch.float32) -> None:
    """Write a model folder, whole or not at all."""
    with files.new_folder(folder) as unfinished:
        write_files(checkpoint, unfinished, dtype=dtype)


def write_files(checkpoint: Checkpoint, folder: Path, *, dtype: torch.dtype = torch.float32) -> None:
    """Write the files of a model folder into an existing folder."""
    model = checkpoint.model
    tensors = {name: t.detach().to("cpu", dtype).contiguous() for name, t in model.state_dict().items()}
    check_weights(tensors, "nothing was saved")
    description = {
        "format": FORMAT,
        "version": VERSION,
        "model": model.config.to_mapping(),
        "head": None if model.head_config is None else model.head_config.to_mapping(),
        "labels": list(checkpoint.class_names),
        "temperature": checkpoint.temperature,
    }
    files.write_json(folder / CONFIG, description)
    write_safetensors(folder / WEIGHTS, tensors)
    if checkpoint.tokenizer is not None:
        checkpoint.tokenizer.save(folder)


def load(folder: str | Path, *, tokenizer: bool = True) -> Checkpoint:
    """Read a model folder back; weights kept in half precision come back as float32; its tokenizer if asked."""
    folder = model_folder(find(folder))
    config_path = folder / CONFIG
    description = read_json(config_path)
    if description.get("format") != FORMAT:
        raise CheckpointError(
            f"{config_path} is not of a headstart model: for one of another kind, use `headstart import` first"
        )
    if description.get("version") != VERSION:
        raise CheckpointError(
            f"{config_path} has version {description.get('version')!r}, and this headstart reads version {VERSION}"
        )
    for key, kind in (("model", dict), ("head", dict | None), ("labels", list)):
        if key not in description:
            raise CheckpointError(f"{config_path}: there is no {key!r}, which every model folder describes")
        if not isinstance(description[key], kind):
            raise CheckpointError(f"{config_path}: {key!r} is {shown(description[key])}, which is no {key} description")
    temperature = read_temperature(description.get("temperature", 1.0), str(config_path))
    config = ModelConfig.from_mapping(description["model"], str(config_path))
    head = None if description["head"] is None else read_head(description["head"], str(config_path))
    classes = head.classes if isinstance(head, ClassifierConfig) else len(description["labels"])
    class_names = read_class_names(description["labels"], classes, str(config_path))
    model = load_weights(Model.empty(config, head), read_safetensors(folder / WEIGHTS), str(folder / WEIGHTS))
    own = Tokenizer.load(folder) if tokenizer and (folder / TOKENIZER).exists() else None
    return Checkpoint(model, class_names, own, temperature)


def read_class_names(labels: Any, classes: int, where: str) -> tuple[str, ...]:
    """The names of a classifier's classes, in their order: one for each class and no two alike, or none at all."""
    if not isinstance(labels, list):
        raise CheckpointError(f"{where}: the labels are {shown(labels)}, expected a list of strings")
    for label in labels:
        if not isinstance(label, str) or any("\ud800" <= character <= "\udfff" for character in label):
            raise CheckpointError(f"{where}: the label {shown(label)} is no text: write it as a string")
    if labels and len(labels) != classes:
        raise CheckpointError(f"{where}: there are {len(labels)} labels for {classes} classes: name each class once")
    twice = [label for label, times in Counter(labels).items() if times > 1]
    if twice:
        raise CheckpointError(f"{where}: the label {shown(twice[0])} stands for two classes: give each its own name")
    return tuple(labels)


def read_temperature(value: Any, where: str) -> float:
    """The temperature of a classifier's probabilities."""
    low, high = TEMPERATURES
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise CheckpointError(f"{where}: 'temperature' is {shown(value)}, expected a number from {low} to {high:g}")
    return value


def model_folder(folder: Path) -> Path:
    """The folder itself, or the `model` folder inside a run folder."""
    inside = folder / "model"
    return inside if not (folder / CONFIG).exists() and (inside / CONFIG).is_file() else folder


def check_tokenizer(config: ModelConfig, tokenizer: Tokenizer) -> None:
    """Raise where a tokenizer gives tokens or segments that the model has no vector for."""
    if tokenizer.size > config.vocabulary:
        raise ModelError(
            f"the tokenizer has {tokenizer.size:,} tokens and the model knows {config.vocabulary:,}: they do not "
            "belong together; use the tokenizer that the model was trained with"
        )
    if 1 < config.segments < tokenizer.segments:  # a single one is that of every token
        raise ModelError(
            f"the tokenizer has {tokenizer.segments} segments and the model knows {config.segments}: they do not "
            "belong together; use the tokenizer that the model was trained with"
        )


def load_weights(model: Model, tensors: Mapping[str, Tensor], where: str) -> Model:
    """Give an empty model its weights, in float32 and evaluation mode; names, shapes and types are checked."""
    expected = model.state_dict()
    check_keys(where, missing=expected.keys() - tensors.keys(), unexpected=tensors.keys() - expected.keys())
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise CheckpointError(
                f"{where}: tensor {name!r} has shape {tuple(tensor.shape)}, expected {tuple(expected[name].shape)}"
            )
        if tensor.dtype not in FLOATS:
            raise CheckpointError(f"{where}: tensor {name!r} is of type {tensor.dtype}, expected floating point")
    # Always a copy: safetensors maps the file into memory, and the file may change or vanish.
    weights = {name: tensor.to(torch.float32, copy=True) for name, tensor in tensors.items()}
    check_weights(weights, where)
    model.load_state_dict(weights, assign=True)
    return model.eval()


def check_weights(tensors: Mapping[str, Tensor], where: str) -> None:
    """Raise where a value is inf or nan: such a model would answer all the same, and every answer would be made up."""
    for name, tensor in tensors.items():
        # A sum is several times as fast as looking at each value; a finite sum has finite terms alone.
        if not tensor.sum().isfinite() and not tensor.isfinite().all():
            count = int((~tensor.isfinite()).sum())
            raise NotFinite(
                f"{where}: {count:,} of the {tensor.numel():,} weights in {name!r} are inf or nan; the model is "
                "damaged, or its training diverged: train it again with a lower lr, or take another copy"
            )


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file."""
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}: a model folder holds its weights there")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:  # torch opens it, with a RuntimeError
        if is_out_of_memory(error):
            raise
        raise CheckpointError(f"{path} cannot be read as safetensors, is it cut short? ({error})") from None


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], **about: str) -> None:
    """Tensors by name, and what the file says of itself. The library lets nobody else read what it writes."""
    path.touch()
    usual = path.stat().st_mode
    save_file(dict(tensors), path, metadata=about or None)
    path.chmod(usual)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object in a model folder."""
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}: a model folder has one")
    try:
        return files.read_json(path)
    except DataError as error:
        raise CheckpointError(str(error)) from None
