"""Models in from other tools and out to them: a `transformers` folder of a known family, or the lab's file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from headstart.checkpoints import folder as ours
from headstart.checkpoints.bert import BERT
from headstart.checkpoints.distilbert import DISTILBERT
from headstart.checkpoints.family import Family
from headstart.checkpoints.folder import CONFIG, WEIGHTS, Checkpoint, fill, read_json, read_safetensors
from headstart.checkpoints.gpt2 import GPT2
from headstart.checkpoints.keymap import rename_in, rename_out
from headstart.checkpoints.lab import read_lab, read_pickle
from headstart.checkpoints.mpnet import MPNET
from headstart.checkpoints.roberta import CAMEMBERT, ROBERTA
from headstart.config import ClassifierConfig, HeadConfig, read_head
from headstart.errors import CheckpointError, MissingExtra, TokenizerError, did_you_mean
from headstart.files import new_folder
from headstart.model.model import Model
from headstart.model.presets import CLASSIFIERS
from headstart.tokenizers.tokenizer import Tokenizer

FAMILIES: dict[str, Family] = {f.name: f for f in (BERT, ROBERTA, CAMEMBERT, DISTILBERT, MPNET, GPT2)}


def open_model(source: str | Path, *, heads: int = 2) -> Checkpoint:
    """A model from wherever it is: our folder, a run's, a `transformers` folder, the lab's `.pt`, or a hub name."""
    path = ours.model_of(Path(source))
    if path.is_dir():
        return ours.load(path) if ours.is_ours(path) else read_published(path)
    if path.is_file():
        return read_lab(path, heads=heads)
    return read_published(fetch(str(source)))


def read_published(folder: Path) -> Checkpoint:
    """A model from a folder as `save_pretrained` writes it."""
    where = folder / CONFIG
    theirs = read_json(where)
    kind = theirs.get("model_type")
    if kind not in FAMILIES:
        raise CheckpointError(f"{where}: model_type is {kind!r}: {did_you_mean(str(kind), FAMILIES)}")
    family = FAMILIES[kind]
    weights, tensors = _read_weights(folder)
    head_kind = family.head_kind(next(iter(theirs.get("architectures") or []), None), str(where))
    if (
        head_kind == "masked" and "cls.seq_relationship.weight" in tensors
    ):  # the first BERT files say less than they hold
        head_kind = "masked+next-sentence"
    if head_kind == "masked" and not _has_head(tensors, family, head_kind):
        head_kind = "none"  # sentence encoders keep the class they began as, and leave its head behind
    if theirs.get("tie_word_embeddings") is False and head_kind in ("masked", "masked+next-sentence", "next-token"):
        raise CheckpointError(
            f"{where}: tie_word_embeddings is false, and headstart reads published heads that are tied"
        )
    tensors = _tidy(tensors, family, head_kind)
    pooler = any(name.endswith("pooler.dense.weight") for name in tensors)
    config = family.read_settings(theirs, pooler=pooler, where=str(where))
    model = Model.empty(config, _read_head(theirs, tensors, family, head_kind, weights))
    tensors = rename_in(_without_copies(tensors, family, weights), family.tensor_sources(model), str(weights))
    labels = _read_labels(theirs) if head_kind == "classifier" else ()
    return Checkpoint(fill(model, tensors, str(weights)), labels, _read_tokenizer(folder))


def write_published(checkpoint: Checkpoint, out: str | Path) -> Family:
    """Write a folder that `AutoModel…from_pretrained` loads, and that `read_published` reads back bit for bit."""
    model = checkpoint.model
    family = FAMILIES.get(model.config.family)
    if family is None:
        raise CheckpointError(
            f"a model of family {model.config.family!r} has no form in `transformers`; those that have: "
            f"{', '.join(FAMILIES)}"
        )
    head = model.head_config
    if isinstance(head, ClassifierConfig):
        usual = CLASSIFIERS[model.config.family]
        if head != ClassifierConfig(classes=head.classes, dropout=head.dropout, **usual):
            raise CheckpointError(
                f"a {family.name} classifier in `transformers` has {usual}, and this one has "
                f"pool = {head.pool!r}, pooler = {head.pooler!r}, read = {head.read!r}, bias = {head.bias}"
            )
    tokenizer = checkpoint.tokenizer
    theirs = family.write_settings(model.config, pad=None if tokenizer is None else tokenizer.pad)
    table = family.tensor_sources(model)
    theirs |= {"architectures": [family.their_head(head)], "dtype": "float32"}
    if isinstance(head, ClassifierConfig):
        names = checkpoint.labels or tuple(f"LABEL_{i}" for i in range(head.classes))
        theirs |= {
            "id2label": {str(i): name for i, name in enumerate(names)},
            "label2id": {name: i for i, name in enumerate(names)},
            family.classifier_dropout: head.dropout,
        }
        if family is GPT2:  # theirs finds the last token by what is not padding
            theirs.setdefault("pad_token_id", model.config.vocabulary - 1)
    state = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    with new_folder(out) as unfinished:
        _write_json(unfinished / CONFIG, theirs)
        save_file(rename_out(state, table), unfinished / WEIGHTS, metadata={"format": "pt"})
        if tokenizer is not None:
            tokenizer.save(unfinished)
            _write_json(unfinished / "tokenizer_config.json", _tokenizer_settings(tokenizer, model.config.window))
    return family


def fetch(name: str) -> Path:
    """A folder from the Hugging Face hub, by its name there; only where a user gave such a name."""
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise CheckpointError(f"there is no file or folder {name}")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        purpose = f"there is no file or folder {name} here; fetching it from the hub"
        raise MissingExtra("huggingface_hub", "hub", purpose) from None
    wanted = ["*.json", "*.safetensors", "*.txt", "*.model"]
    try:
        return Path(snapshot_download(name, allow_patterns=wanted))
    except Exception as error:  # no network, no such name, no right to it: the hub's client has a class for each
        reason = str(error).strip().split("\n", 1)[0].removeprefix("Got: ")
        raise CheckpointError(f"there is no folder {name} here, and the hub did not give it: {reason}") from None


def _read_weights(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """The tensors, from one safetensors file, several behind an index, or a torch file, in this order."""
    index, old = folder / f"{WEIGHTS}.index.json", folder / "pytorch_model.bin"
    if (folder / WEIGHTS).is_file():
        return folder / WEIGHTS, read_safetensors(folder / WEIGHTS)
    if index.is_file():
        files = sorted(set(read_json(index).get("weight_map", {}).values()))
        return index, {name: t for file in files for name, t in read_safetensors(folder / file).items()}
    if old.is_file():
        return old, read_pickle(old)
    raise CheckpointError(f"{folder} holds no weights: expected {WEIGHTS}, {index.name} or {old.name}")


def _tidy(tensors: Mapping[str, Tensor], family: Family, kind: str) -> dict[str, Tensor]:
    """Old names made new, what is no parameter left out, and the prefix there or not there as the class has it."""
    tidy = {}
    for name, tensor in tensors.items():
        if name.endswith(family.dropped):
            continue
        tidy[name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")] = tensor
    prefixed = any(name.startswith(family.prefix) for name in tidy)
    if kind == "none" and prefixed:
        return {name.removeprefix(family.prefix): tensor for name, tensor in tidy.items()}
    if kind != "none" and not prefixed:
        roots = _head_roots(family, kind)
        return {n if n.split(".")[0] in roots else family.prefix + n: tensor for n, tensor in tidy.items()}
    return tidy


def _has_head(tensors: Mapping[str, Tensor], family: Family, kind: str) -> bool:
    return not _head_roots(family, kind).isdisjoint(name.split(".")[0] for name in tensors)


def _head_roots(family: Family, kind: str) -> set[str]:
    """What the names of the head's tensors begin with."""
    theirs = [t if isinstance(t, str) else getattr(t, "name", t) for t in family.heads.get(kind, {}).values()]
    return {str(name).split(".")[0] for name in theirs}


def _without_copies(tensors: Mapping[str, Tensor], family: Family, where: Path) -> dict[str, Tensor]:
    """Leave out tensors that only repeat another; one that says so and differs is an error."""
    kept = dict(tensors)
    for name, original in family.copies.items():
        if name in kept and original in kept:
            if not kept[name].equal(kept[original]):
                raise CheckpointError(f"{where}: {name} should repeat {original} (the weights are tied), and differs")
            del kept[name]
    return kept


def _read_head(
    theirs: Mapping[str, Any], tensors: Mapping[str, Tensor], family: Family, kind: str, where: Path
) -> HeadConfig | None:
    if kind == "none":
        return None
    if kind != "classifier":
        return read_head({"kind": kind}, str(where))
    name = f"{family.heads[kind]['out']}.weight"
    if name not in tensors:
        raise CheckpointError(f"{where}: missing tensor {name}, the last layer of the classifier")
    dropout = theirs.get(family.classifier_dropout)
    settings = {"kind": kind, "classes": tensors[name].shape[0], **CLASSIFIERS[family.name]}
    return read_head(settings if dropout is None else {**settings, "dropout": dropout}, str(where))


def _read_labels(theirs: Mapping[str, Any]) -> tuple[str, ...]:
    names = theirs.get("id2label") or {}
    return tuple(str(names[key]) for key in sorted(names, key=int))


def _read_tokenizer(folder: Path) -> Tokenizer | None:
    try:
        return Tokenizer.load(folder)
    except TokenizerError:
        if any((folder / name).exists() for name in ("tokenizer.json", "vocab.txt", "vocab.json")):
            raise
        return None


def _tokenizer_settings(tokenizer: Tokenizer, window: int) -> dict[str, Any]:
    """What `AutoTokenizer` wants to know beside `tokenizer.json`."""
    roles = {
        "bos_token": tokenizer.start,
        "cls_token": tokenizer.start,
        "eos_token": tokenizer.end,
        "sep_token": tokenizer.separator,
        "pad_token": tokenizer.pad,
        "unk_token": tokenizer.unknown,
        "mask_token": tokenizer.mask,
    }
    named = {role: tokenizer.pieces([token])[0] for role, token in roles.items() if token is not None}
    return {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": window, **named}


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
