"""The lab's `.pt`: the state dict of an `nn.Embedding`, an `nn.TransformerEncoder` and a linear head.

    base.encoder.weight                                    (vocabulary, width)
    base.pos_encoder.pe                                    (5000, 1, width), the sinusoids, no parameter
    base.transformer_encoder.layers.0.self_attn.in_proj_weight, …
    classifier.decoder.weight, .bias                       the head: next token, or classes

A file may hold the base alone, without the prefix, and may wrap the dict as {"model_state_dict": …}. It does not say
how many heads attention has; the lab has 2.
"""

from __future__ import annotations

import io
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headstart.checkpoints.folder import Checkpoint, check_weights, load_weights
from headstart.checkpoints.keymap import rename_in, rename_out, sources
from headstart.config import ClassifierConfig, HeadConfig, read_head
from headstart.errors import CheckpointError, ConfigError
from headstart.files import new_file
from headstart.model.model import Model
from headstart.model.positions import sinusoidal
from headstart.model.presets import preset
from headstart.wording import reason

ROWS = 5000  # of the lab's table of sinusoids
TABLE = {
    "backbone.embeddings.tokens": "base.encoder",
    "backbone.layers.{i}.attention.qkv.weight": "base.transformer_encoder.layers.{i}.self_attn.in_proj_weight",
    "backbone.layers.{i}.attention.qkv.bias": "base.transformer_encoder.layers.{i}.self_attn.in_proj_bias",
    "backbone.layers.{i}.attention.out": "base.transformer_encoder.layers.{i}.self_attn.out_proj",
    "backbone.layers.{i}.attention_norm": "base.transformer_encoder.layers.{i}.norm1",
    "backbone.layers.{i}.feed_forward.up": "base.transformer_encoder.layers.{i}.linear1",
    "backbone.layers.{i}.feed_forward.down": "base.transformer_encoder.layers.{i}.linear2",
    "backbone.layers.{i}.feed_forward_norm": "base.transformer_encoder.layers.{i}.norm2",
    "head.weight": "classifier.decoder.weight",
    "head.bias": "classifier.decoder.bias",
    "head.out": "classifier.decoder",
}
POSITIONS = "base.pos_encoder.pe"


def read_lab(path: Path, *, heads: int = 2) -> Checkpoint:
    """A model from the lab's file; sizes are read off the tensors."""
    tensors = read_state_dict(path)
    if not any(name.startswith("base.") for name in tensors):
        tensors = {f"base.{name}": tensor for name, tensor in tensors.items()}
    embedding = tensors.get("base.encoder.weight")
    first = tensors.get("base.transformer_encoder.layers.0.linear1.weight")
    if embedding is None or first is None or embedding.dim() != 2 or first.dim() != 2:
        raise CheckpointError(
            f"{path} holds no `encoder.weight` and `transformer_encoder.layers.0…`: not the lab's model"
        )
    layers = len({name.split(".")[3] for name in tensors if name.startswith("base.transformer_encoder.layers.")})
    (vocabulary, width), feed_forward = embedding.shape, first.shape[0]
    try:
        config = preset(
            "lab", vocabulary=vocabulary, width=width, layers=layers, heads=heads, feed_forward=feed_forward
        )
    except ConfigError as error:
        raise CheckpointError(f"{path}: {'; '.join(error.problems)}") from None
    sinusoids = tensors.pop(POSITIONS, None)
    if sinusoids is not None and not _is_sinusoidal(sinusoids, width):
        raise CheckpointError(f"{path}: `pos_encoder.pe` is not the table of sinusoids that the lab's model adds")
    head: HeadConfig | None = None
    if (weight := tensors.get("classifier.decoder.weight")) is not None:
        if weight.dim() != 2:
            raise CheckpointError(f"{path}: `decoder.weight` has shape {tuple(weight.shape)}, expected (rows, width)")
        rows = weight.shape[0]
        classifier = {"kind": "classifier", "classes": rows, "pool": "last"}
        head = read_head({"kind": "next-token"} if rows == vocabulary else classifier, str(path))
    model = Model.empty(config, head)
    ours = rename_in(tensors, sources(model.state_dict(), TABLE), str(path))
    return Checkpoint(load_weights(model, ours, str(path)))


def write_lab(model: Model, path: str | Path) -> None:
    """Write a state dict that the lab's own classes load: the inverse of `read_lab`."""
    sizes = ("vocabulary", "width", "layers", "heads", "feed_forward", "window")
    if model.config != preset("lab", **{size: getattr(model.config, size) for size in sizes}):
        raise CheckpointError(
            "only a model of the lab's kind (see `headstart params lab`) has a form in the lab's file"
        )
    head = model.head_config
    if isinstance(head, ClassifierConfig) and head != ClassifierConfig(head.classes, pool="last", dropout=head.dropout):
        raise CheckpointError("the lab's classifier is one linear layer on the last token, and this one is not")
    state = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    check_weights(state, "nothing was written")
    theirs = rename_out(state, sources(state, TABLE))
    theirs[POSITIONS] = sinusoidal(ROWS, model.config.width)[:, None, :]
    content = io.BytesIO()
    torch.save({"model_state_dict": theirs}, content)
    with new_file(path) as unfinished:
        unfinished.write_bytes(content.getvalue())  # torch's own writer does not say that a disk is full


def _is_sinusoidal(table: Tensor, width: int) -> bool:
    if table.numel() % width:
        return False
    rows = table.reshape(-1, width)
    return torch.allclose(rows.float(), sinusoidal(rows.shape[0], width), atol=1e-4)


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """The state dict in a torch file, read with `weights_only`: nothing in the file is ever run."""
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}")
    try:
        with warnings.catch_warnings():  # a strange pickle is refused below
            warnings.simplefilter("ignore")
            content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a file that is damaged or of another kind
        if isinstance(error, pickle.UnpicklingError):
            problem = "holds more than tensors and was not opened, since it could run code"
        else:
            problem = "cannot be read as a torch file, is it truncated?"
        raise CheckpointError(f"{path} {problem} ({reason(error)})") from None
    if isinstance(content, dict) and isinstance(content.get("model_state_dict"), dict):
        content = content["model_state_dict"]
    if not isinstance(content, dict) or not all(isinstance(k, str) and _is_plain(v) for k, v in content.items()):
        raise CheckpointError(f"{path} holds no state dict: expected tensors by name")
    return content


def _is_plain(value: Any) -> bool:
    """Whether it is a dense tensor with each of its values in memory: one value repeated can stand for terabytes."""
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.device.type != "cpu":
        return False
    return not value.is_quantized and value.nbytes <= value.untyped_storage().nbytes()
