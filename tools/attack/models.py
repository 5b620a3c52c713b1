"""An attack on model folders: files of small models damaged at random, then opened and used as every verb does.

Each case must end in an answer of finite numbers, or in an error of headstart in a few lines. What must not happen: any
other exception, a hang, a crash, memory without end.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from attack.cases import Outcome, judge, run_cases
from attack.mutations import Mutation, mutate_bytes, mutate_json, mutate_lines, mutate_safetensors, mutate_torch
from headstart.checkpoints.exchange import open_model, write_transformers
from headstart.checkpoints.folder import Checkpoint, save
from headstart.checkpoints.lab import write_lab
from headstart.config import ClassifierConfig, NextTokenConfig
from headstart.model.model import Model
from headstart.model.presets import preset, usual_head
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.use.classifier import TextClassifier
from headstart.use.explain import explain
from headstart.use.language_model import LanguageModel

SIZES = {"width": 16, "layers": 2, "heads": 2, "feed_forward": 24, "window": 24}
TEXTS = ["A tender, witty book.", "Dull from the first page to the last, and [MASK].", "", "é" * 40]
MUTATIONS: dict[str, tuple[Mutation, ...]] = {
    ".json": (mutate_json, mutate_json, mutate_json, mutate_bytes),
    ".safetensors": (mutate_safetensors,),
    ".pt": (mutate_torch,),
    ".bin": (mutate_torch,),
    ".txt": (mutate_lines,),
}
THEIRS = (
    ("bert-tiny", "classifier"),
    ("roberta-base", "classifier"),
    ("distilbert", "classifier"),
    ("mpnet-base", "masked"),
    ("gpt2", "next-token"),
)


def run(cases: int, seed: int) -> list[Outcome]:
    return run_cases("models", cases, seed)


def attack(folder: Path, number: int, draw: random.Random) -> Outcome:
    """Copy a model, damage one or two of its files, open and use it."""
    source = draw.choice(sorted(path for path in folder.iterdir() if path.is_dir()))
    with tempfile.TemporaryDirectory() as name:
        damaged = Path(name) / "model"
        shutil.copytree(source, damaged)
        files = sorted(path for path in damaged.iterdir() if path.suffix in MUTATIONS)
        changed = []
        for path in draw.sample(files, k=min(len(files), draw.choice((1, 1, 1, 2)))):
            mutation = draw.choice(MUTATIONS[path.suffix])
            path.write_bytes(mutation(draw, path.read_bytes()))
            changed.append(f"{mutation.__name__} of {path.name}")
        case = f"case {number}: {source.name}, {', '.join(changed)}"
        only = next(damaged.glob("*.pt"), damaged)  # the lab's model is a file
        return judge(case, lambda: use(only, Path(name)))


def use(model: Path, scratch: Path) -> str:
    """Open a model and let it answer, as `predict`, `explain`, `generate`, `fill`, `import` and `export` do."""
    checkpoint = open_model(model)
    save(checkpoint, scratch / "imported")
    head = checkpoint.model.head_config
    if checkpoint.tokenizer is None or head is None:
        return "opened"
    if isinstance(head, ClassifierConfig):
        classifier = TextClassifier(checkpoint, "cpu")
        for prediction in classifier.predict([*TEXTS, (TEXTS[0], TEXTS[1])]):
            assert list(prediction.probabilities) == list(classifier.class_names)
            assert math.isclose(sum(prediction.probabilities.values()), 1.0, abs_tol=1e-6)
            assert prediction.label in classifier.class_names
        explain(classifier, TEXTS[0], orders=1)
    else:
        language_model = LanguageModel(checkpoint)
        if head.kind == "next-token":
            language_model.generate(TEXTS[0], max_tokens=30, temperature=1.0)
        elif head.kind != "next-sentence":
            language_model.fill(TEXTS[1])
    if checkpoint.model.config.family not in ("headstart", "lab"):
        write_transformers(checkpoint, scratch / "exported")
    return "used"


def prepare(where: Path) -> None:
    """One small model of each kind: ours, and those of other tools."""
    torch.manual_seed(1)
    corpus = [f"a {word} book with a dull page and a witty line {n}" for n in range(40) for word in ("good", "bad")]
    wordpiece = Tokenizer.train(corpus, kind="wordpiece", size=120)
    byte_level = Tokenizer.train(corpus, kind="bpe", size=320)
    unigram = Tokenizer.train(corpus, kind="unigram", size=320)
    own = (("small", "classifier", unigram), ("lab", "next-token", byte_level), ("small", "masked", wordpiece))
    for name, kind, tokenizer in own:
        config = preset(name, vocabulary=tokenizer.size, **SIZES)
        model = Model.build(config, usual_head(config, kind))
        save(Checkpoint(model, ("neg", "pos") if kind == "classifier" else (), tokenizer, 1.5), where / f"ours-{kind}")
    for name, kind in THEIRS:
        config = preset(name, vocabulary=wordpiece.size, **SIZES)
        labels = ("a", "b", "c") if kind == "classifier" else ()
        write_transformers(
            Checkpoint(Model.build(config, usual_head(config, kind, 3)), labels, wordpiece), where / name
        )
    config = preset("gpt2", vocabulary=byte_level.size, **SIZES)
    write_transformers(Checkpoint(Model.build(config, NextTokenConfig()), (), byte_level), where / "gpt2-old")
    _with_merges(where / "gpt2-old")
    _shard(where / "bert-tiny", where / "bert-sharded")
    _old_form(where / "bert-tiny", where / "bert-old")
    (where / "lab-file").mkdir()
    write_lab(Model.build(preset("lab", vocabulary=60, **SIZES), NextTokenConfig()), where / "lab-file" / "lab.pt")


def _shard(source: Path, out: Path) -> None:
    """The same model with its weights in two files behind an index."""
    shutil.copytree(source, out)
    tensors = load_file(out / "model.safetensors")
    (out / "model.safetensors").unlink()
    weight_map = {name: f"part-{k % 2}.safetensors" for k, name in enumerate(sorted(tensors))}
    for file in set(weight_map.values()):
        save_file({name: tensor for name, tensor in tensors.items() if weight_map[name] == file}, out / file)
    (out / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def _old_form(source: Path, out: Path) -> None:
    """The same model as old versions of `transformers` wrote it: a torch file, and the vocabulary as lines."""
    shutil.copytree(source, out)
    torch.save(load_file(out / "model.safetensors"), out / "pytorch_model.bin")
    (out / "model.safetensors").unlink()
    vocabulary = json.loads((out / "tokenizer.json").read_text())["model"]["vocab"]
    (out / "tokenizer.json").unlink()
    renamed = {"<unknown>": "[UNK]", "<start>": "[CLS]", "<separator>": "[SEP]", "<pad>": "[PAD]", "<mask>": "[MASK]"}
    pieces = [renamed.get(piece, piece) for piece in sorted(vocabulary, key=lambda piece: int(vocabulary[piece]))]
    (out / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))


def _with_merges(folder: Path) -> None:
    """The tokenizer of a folder in GPT-2's form: the ids, and the merges as lines."""
    description = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(description["vocab"]))
    (folder / "merges.txt").write_text("".join(f"{' '.join(pair)}\n" for pair in description["merges"]))
