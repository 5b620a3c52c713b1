"""Small made-up data and models that every command can be run on in a second or two."""

from __future__ import annotations

import random
from pathlib import Path

import torch

from headstart.checkpoints.exchange import write_transformers
from headstart.checkpoints.folder import Checkpoint, save
from headstart.config import MaskedConfig, NextTokenConfig
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.studies.finetune import finetune
from headstart.studies.settings import CompareSettings, FinetuneSettings
from headstart.tokenizers.tokenizer import Tokenizer

GOOD = ("bright", "tender", "vivid", "witty")
BAD = ("dull", "clumsy", "vague", "hollow")
FILLER = ("the", "a", "of", "this", "and", "page", "line", "word")
SIZES = {"width": 16, "layers": 1, "heads": 2, "feed_forward": 24, "window": 16}


def make_world(folder: Path) -> None:
    """train.txt, valid.txt, test.txt, texts.csv, corpus.txt, tokenizer/, base/, causal/, hf/ and run/."""
    draw = random.Random(1)
    for name, count in (("train", 60), ("valid", 30), ("test", 30)):
        rows = [
            (label, _sentence(draw, GOOD if label == "pos" else BAD)) for label in draw.choices(("pos", "neg"), k=count)
        ]
        (folder / f"{name}.txt").write_text("".join(f"{label} ||| {text}\n" for label, text in rows))
    texts = [_sentence(draw, draw.choice((GOOD, BAD))) for _ in range(400)]
    (folder / "corpus.txt").write_text("".join(f"{text}\n" for text in texts))
    (folder / "texts.csv").write_text("id,text\n" + "".join(f"{n},{text}\n" for n, text in enumerate(texts)))
    tokenizer = Tokenizer.train(texts, kind="wordpiece", size=100)
    tokenizer.save(folder / "tokenizer")
    torch.manual_seed(1)
    save(Checkpoint(_model("small", tokenizer, MaskedConfig()), tokenizer=tokenizer), folder / "base")
    save(Checkpoint(_model("lab", tokenizer, NextTokenConfig()), tokenizer=tokenizer), folder / "causal")
    write_transformers(Checkpoint(_model("bert-tiny", tokenizer, MaskedConfig()), tokenizer=tokenizer), folder / "hf")
    finetune(finetune_settings(folder), folder / "run")


def finetune_settings(folder: Path) -> FinetuneSettings:
    data, valid, init = (str(folder / name) for name in ("train.txt", "valid.txt", "base"))
    return FinetuneSettings(data=data, valid=valid, init=init, epochs=2, save_every=3, lr=1e-3, device="cpu")


def compare_settings(folder: Path) -> CompareSettings:
    data, valid, test, init = (str(folder / name) for name in ("train.txt", "valid.txt", "test.txt", "base"))
    return CompareSettings(
        data=data, valid=valid, test=test, init=(init,), labels="30,all", seeds=1, epochs=1, tune="none", jobs=1
    )


def _model(name: str, tokenizer: Tokenizer, head: MaskedConfig | NextTokenConfig) -> Model:
    return Model.build(preset(name, vocabulary=tokenizer.size, **SIZES), head)


def _sentence(draw: random.Random, opinion: tuple[str, ...]) -> str:
    return " ".join([*draw.choices(FILLER, k=draw.randint(3, 7)), *draw.choices(opinion, k=2)])
