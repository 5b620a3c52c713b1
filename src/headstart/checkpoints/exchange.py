"""Reading and writing models of other tools: a `transformers` folder of a known family, or the lab's file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from headstart import files
from headstart.bases import find, no_such_model
from headstart.checkpoints.bert import BERT
from headstart.checkpoints.distilbert import DISTILBERT
from headstart.checkpoints.family import Family
from headstart.checkpoints.folder import (
    CONFIG,
    FORMAT,
    WEIGHTS,
    Checkpoint,
    check_weights,
    load,
    load_weights,
    model_folder,
    read_class_names,
    read_json,
    read_safetensors,
    write_safetensors,
)
from headstart.checkpoints.gpt2 import GPT2
from headstart.checkpoints.keymap import rename_in, rename_out
from headstart.checkpoints.lab import read_lab, read_state_dict
from headstart.checkpoints.mpnet import MPNET
from headstart.checkpoints.roberta import CAMEMBERT, ROBERTA
from headstart.config import ClassifierConfig, HeadConfig, read_head
from headstart.errors import CheckpointError, MissingExtra, TokenizerError, did_you_mean, shown
from headstart.model.model import Model
from headstart.model.presets import CLASSIFIERS
from headstart.runs.run import LINEAR, RunFolder
from headstart.runs.study import StudyFolder
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.wording import reason

FAMILIES: dict[str, Family] = {f.name: f for f in (BERT, ROBERTA, CAMEMBERT, DISTILBERT, MPNET, GPT2)}


def open_model(source: str | Path, *, heads: int = 2, tokenizer: bool = True) -> Checkpoint:
    """A model from a model folder, a run folder, a `transformers` folder, the lab's `.pt`, or by its name.

    A name is that of a base that ships with headstart, or on the hub, where it is OWNER/NAME. Where another tokenizer
    will be used, that of a model folder need not be read: one of 50,000 pieces takes half a second.
    """
    path = model_folder(find(source))
    if path.is_dir() and not (path / CONFIG).exists() and (problem := _other_folder(path)):
        raise CheckpointError(problem)
    if path.is_dir() and read_json(path / CONFIG).get("format") == FORMAT:
        return load(path, tokenizer=tokenizer)
    if path.is_dir():
        return read_transformers(path)
    if path.is_file():
        return read_lab(path, heads=heads)
    return read_transformers(fetch(str(source)))


def _other_folder(path: Path) -> str | None:
    """What a folder of headstart without a model in it is, and what to name in its place."""
    if (path / LINEAR).is_file():
        return f"{path} holds a linear model, and a network was meant: `headstart predict` labels texts with it"
    if StudyFolder(path).begun:
        kept = sorted(run.parent.name for run in path.glob("runs/*/model"))
        such = f"such as {path / 'runs' / kept[0]}" if kept else "and keep its weights with --keep-models"
        return f"{path} is a study of many runs, and one model was meant: name one of its runs, {such}"
    if RunFolder(path).done:
        return f"{path} is a run whose weights were not kept: run the study again with --keep-models"
    return None


def read_transformers(folder: Path) -> Checkpoint:
    """A model from a folder as `save_pretrained` writes it."""
    where = folder / CONFIG
    theirs = read_json(where)
    kind = theirs.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise CheckpointError(f"{where}: model_type is {shown(kind)}: {did_you_mean(str(kind), FAMILIES)}")
    family = FAMILIES[kind]
    weights, tensors = _read_weights(folder)
    head_kind = _head_kind(theirs, tensors, family, str(where))
    tensors = _normalise_names(tensors, family, head_kind)
    pooler = any(name.endswith("pooler.dense.weight") for name in tensors)
    config = family.read_settings(theirs, pooler=pooler, where=str(where))
    head = _read_head(theirs, tensors, family, head_kind, weights)
    class_names = _read_class_names(theirs, head, str(where))
    model = Model.empty(config, head)
    tensors = rename_in(_without_tied_copies(tensors, family, weights), family.tensor_sources(model), str(weights))
    return Checkpoint(load_weights(model, tensors, str(weights)), class_names, _read_tokenizer(folder))


def write_transformers(checkpoint: Checkpoint, out: str | Path) -> Family:
    """Write a folder that `AutoModel…from_pretrained` loads, and that `read_transformers` reads back bit for bit."""
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    family = FAMILIES.get(model.config.family)
    if family is None:
        raise CheckpointError(
            f"a model of family {model.config.family!r} has no form in `transformers`; those that have: "
            f"{', '.join(FAMILIES)}"
        )
    head = model.head_config
    theirs = family.write_settings(model.config, pad=None if tokenizer is None else tokenizer.pad)
    theirs |= {"architectures": [family.architecture(head)], "dtype": "float32"}
    if isinstance(head, ClassifierConfig):
        theirs |= _classifier_settings(head, checkpoint.class_names, family)
        if family is GPT2:  # `transformers` finds the last token as the last that is not padding
            theirs.setdefault("pad_token_id", model.config.vocabulary - 1)
    state = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    check_weights(state, "nothing was written")
    with files.new_folder(out) as unfinished:
        files.write_json(unfinished / CONFIG, theirs)
        write_safetensors(unfinished / WEIGHTS, rename_out(state, family.tensor_sources(model)), format="pt")
        if tokenizer is not None:
            tokenizer.save(unfinished)
            settings = _tokenizer_settings(tokenizer, model.config.window)
            files.write_json(unfinished / "tokenizer_config.json", settings)
    return family


def _classifier_settings(head: ClassifierConfig, class_names: tuple[str, ...], family: Family) -> dict[str, Any]:
    """A classifier's part of config.json; an error where its head is not the family's own."""
    usual = CLASSIFIERS[family.name]
    if head != ClassifierConfig(classes=head.classes, dropout=head.dropout, **usual):
        raise CheckpointError(
            f"a {family.name} classifier in `transformers` has {usual}, and this one has "
            f"pool = {head.pool!r}, pooler = {head.pooler!r}, read = {head.read!r}, bias = {head.bias}"
        )
    names = class_names or tuple(f"LABEL_{i}" for i in range(head.classes))
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
        family.classifier_dropout: head.dropout,
    }


def fetch(name: str) -> Path:
    """A folder from the Hugging Face hub, by its name there, OWNER/NAME.

    Nothing else asks the network: neither a plain name, nor a path such as runs/mine where `runs` is a folder here.
    """
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name) or Path(name).parent.is_dir():
        raise no_such_model(name)
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        purpose = f"there is no file or folder {name} here; fetching it from the hub"
        raise MissingExtra("huggingface_hub", "hub", purpose) from None
    wanted = ["*.json", "*.safetensors", "*.txt", "*.model"]
    try:
        return Path(snapshot_download(name, allow_patterns=wanted))
    except Exception as error:  # no network, no such name, no right to it: the hub's client has a class for each
        problem = reason(error).removeprefix("Got: ")
        raise CheckpointError(f"there is no folder {name} here, and the hub did not give it: {problem}") from None


def _read_weights(folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """The tensors, from one safetensors file, several behind an index, or a torch file, in this order."""
    index, old = folder / f"{WEIGHTS}.index.json", folder / "pytorch_model.bin"
    if (folder / WEIGHTS).is_file():
        return folder / WEIGHTS, read_safetensors(folder / WEIGHTS)
    if index.is_file():
        return index, {name: t for file in _shards(index) for name, t in read_safetensors(file).items()}
    if old.is_file():
        return old, read_state_dict(old)
    raise CheckpointError(f"{folder} holds no weights: expected {WEIGHTS}, {index.name} or {old.name}")


def _shards(index: Path) -> list[Path]:
    """The files that an index names, all of them beside it."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map is {shown(weight_map)}, expected the file of each tensor")
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise CheckpointError(
                f"{index}: tensor {shown(name)} is in {shown(file)}, expected a .safetensors file in the same folder"
            )
    return [index.with_name(file) for file in sorted(set(weight_map.values()))]


def _head_kind(theirs: Mapping[str, Any], tensors: Mapping[str, Tensor], family: Family, where: str) -> str:
    """The kind of head by its class, corrected where the file holds more or less than its class says."""
    architectures = theirs.get("architectures") or []
    if not isinstance(architectures, list):
        raise CheckpointError(f"{where}: architectures is {shown(architectures)}, expected a list of class names")
    architecture = next(iter(architectures), family.architectures["none"])
    kind = next((kind for kind, name in family.architectures.items() if name == architecture), None)
    if kind is None:
        known = f"known for {family.name}: {', '.join(family.architectures.values())}"
        raise CheckpointError(f"{where}: a model of class {shown(architecture)} is not known; {known}")
    if kind == "masked" and "cls.seq_relationship.weight" in tensors:  # the first BERT files name the smaller class
        kind = "masked+next-sentence"
    if kind == "masked" and _head_roots(family, kind).isdisjoint(name.split(".")[0] for name in tensors):
        kind = "none"  # sentence encoders keep the class they were trained from, without its head
    if theirs.get("tie_word_embeddings") is False and kind in ("masked", "masked+next-sentence", "next-token"):
        raise CheckpointError(
            f"{where}: tie_word_embeddings is false, and headstart reads published heads that are tied"
        )
    return kind


def _normalise_names(tensors: Mapping[str, Tensor], family: Family, kind: str) -> dict[str, Tensor]:
    """Old names made new, buffers left out, and the family's prefix added or removed to match the class."""
    renamed = {
        name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias"): tensor
        for name, tensor in tensors.items()
        if not name.endswith(family.dropped)
    }
    prefixed = any(name.startswith(family.prefix) for name in renamed)
    if kind == "none" and prefixed:
        return {name.removeprefix(family.prefix): tensor for name, tensor in renamed.items()}
    if kind != "none" and not prefixed:
        roots = _head_roots(family, kind)
        return {n if n.split(".")[0] in roots else family.prefix + n: tensor for n, tensor in renamed.items()}
    return renamed


def _head_roots(family: Family, kind: str) -> set[str]:
    """The first parts of the names of the head's tensors."""
    return {str(theirs).split(".")[0] for theirs in family.heads.get(kind, {}).values()}


def _without_tied_copies(tensors: Mapping[str, Tensor], family: Family, where: Path) -> dict[str, Tensor]:
    """Leave out tensors that are tied to another; an error where the two differ."""
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
    if tensors[name].dim() != 2:
        raise CheckpointError(f"{where}: {name} has shape {tuple(tensors[name].shape)}, expected (classes, width)")
    dropout = theirs.get(family.classifier_dropout)
    settings = {"kind": kind, "classes": tensors[name].shape[0], **CLASSIFIERS[family.name]}
    return read_head(settings if dropout is None else {**settings, "dropout": dropout}, str(where))


def _read_class_names(theirs: Mapping[str, Any], head: HeadConfig | None, where: str) -> tuple[str, ...]:
    """The labels of `id2label`, which must number the head's classes from 0 on."""
    names = theirs.get("id2label") or {}
    if not isinstance(head, ClassifierConfig) or not names:
        return ()
    keys = [str(number) for number in range(head.classes)]
    if not isinstance(names, dict) or names.keys() != set(keys):
        raise CheckpointError(
            f"{where}: id2label is {shown(names)}, expected a label for each of the numbers 0 to {head.classes - 1}"
        )
    return read_class_names([names[key] for key in keys], head.classes, where)


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
