"""Our own model folder: `config.json`, `model.safetensors`, and `tokenizer.json` where there is a tokenizer.

    config.json         {"format": "headstart", "version": 1, "model": {…}, "head": {…} | null, "labels": […],
                         "temperature": 1.0}
    model.safetensors   one tensor a parameter, under the names that `Model.state_dict()` gives them

Loading is strict: every tensor that the config calls for, with its shape, and no other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from headstart.checkpoints.keymap import complain
from headstart.config import ModelConfig, read_head
from headstart.errors import CheckpointError
from headstart.files import new_folder
from headstart.model.model import Model
from headstart.tokenizers.tokenizer import Tokenizer

FORMAT, VERSION = "headstart", 1
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Checkpoint:
    """A model with what is needed to use it: the names of its classes, its tokenizer, how sure it may be."""

    model: Model
    labels: tuple[str, ...] = ()
    tokenizer: Tokenizer | None = None
    temperature: float = 1.0  # logits divided by it give probabilities that can be taken at their word


def save(checkpoint: Checkpoint, folder: str | Path, *, dtype: torch.dtype = torch.float32) -> None:
    """Write a model folder, whole or not at all."""
    with new_folder(folder) as unfinished:
        write(checkpoint, unfinished, dtype=dtype)


def write(checkpoint: Checkpoint, folder: Path, *, dtype: torch.dtype = torch.float32) -> None:
    """Write the files of a model folder into a folder that the caller will make whole."""
    model = checkpoint.model
    description = {
        "format": FORMAT,
        "version": VERSION,
        "model": model.config.to_mapping(),
        "head": None if model.head_config is None else model.head_config.to_mapping(),
        "labels": list(checkpoint.labels),
        "temperature": checkpoint.temperature,
    }
    (folder / CONFIG).write_text(json.dumps(description, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    tensors = {name: t.detach().to("cpu", dtype).contiguous() for name, t in model.state_dict().items()}
    save_file(tensors, folder / WEIGHTS)
    if checkpoint.tokenizer is not None:
        checkpoint.tokenizer.save(folder)


def load(folder: str | Path) -> Checkpoint:
    """Read a model folder back; weights kept in half precision come back as float32."""
    folder = model_of(Path(folder))
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
        if not isinstance(description.get(key), kind):
            raise CheckpointError(f"{config_path}: {key!r} is {description.get(key)!r}, which is no {key} description")
    temperature = description.get("temperature", 1.0)
    if not isinstance(temperature, int | float) or not 0 < temperature < math.inf:
        raise CheckpointError(f"{config_path}: 'temperature' is {temperature!r}, expected a number above 0")
    config = ModelConfig.from_mapping(description["model"], str(config_path))
    head = None if description["head"] is None else read_head(description["head"], str(config_path))
    model = fill(Model.empty(config, head), read_safetensors(folder / WEIGHTS), str(folder / WEIGHTS))
    tokenizer = Tokenizer.load(folder) if (folder / TOKENIZER).exists() else None
    return Checkpoint(model, tuple(map(str, description["labels"])), tokenizer, temperature)


def model_of(folder: Path) -> Path:
    """A run folder stands for the model in it."""
    inside = folder / "model"
    return inside if not (folder / CONFIG).exists() and (inside / CONFIG).is_file() else folder


def is_ours(folder: Path) -> bool:
    """Whether the folder says that it is a headstart model."""
    return (folder / CONFIG).is_file() and read_json(folder / CONFIG).get("format") == FORMAT


def fill(model: Model, tensors: Mapping[str, Tensor], where: str) -> Model:
    """Give a hollow model its weights, in evaluation mode; names, shapes and types must be right."""
    expected = model.state_dict()
    complain(where, missing=expected.keys() - tensors.keys(), unexpected=tensors.keys() - expected.keys())
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise CheckpointError(
                f"{where}: tensor {name!r} has shape {tuple(tensor.shape)}, expected {tuple(expected[name].shape)}"
            )
        if tensor.dtype not in FLOATS:
            raise CheckpointError(f"{where}: tensor {name!r} is of type {tensor.dtype}, expected floating point")
    # A copy where nothing is converted: the file must be free to change or vanish once it is read.
    weights = {name: tensor.to(torch.float32, copy=True) for name, tensor in tensors.items()}
    model.load_state_dict(weights, assign=True)
    return model.eval()


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file."""
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}: a model folder holds its weights there")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as safetensors, is it cut short? ({error})") from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"there is no file {path}: a model folder has one") from None
    except NotADirectoryError:
        raise CheckpointError(f"{path.parent} is a file, and a model folder was meant") from None
    except (ValueError, RecursionError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds a {type(found).__name__}, expected a JSON object")
    return found
