"""An attack on tokenizers: files of every kind damaged at random, then loaded and used.

Each must be refused, or give ids within its own size that it can decode.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from pathlib import Path

from attack.cases import Outcome, WrongAnswer, judge, run_cases
from attack.mutations import mutate_bytes, mutate_json, mutate_lines
from headstart.tokenizers.tokenizer import Tokenizer

TEXTS = ("a witty book, page by page", "", "é" * 50, "\x00\ud7ff 日本 😀", "<mask> [MASK] <pad>")


def run(cases: int, seed: int) -> list[Outcome]:
    return run_cases("tokenizer", cases, seed)


def prepare(folder: Path) -> None:
    """One tokenizer of each kind, and a vocabulary as lines."""
    corpus = [f"a {word} book with a dull page and a witty line {n}" for n in range(40) for word in ("good", "bad")]
    for kind, size in (("wordpiece", 120), ("bpe", 320), ("unigram", 320)):
        Tokenizer.train(corpus, kind=kind, size=size).save(folder / kind)
    vocabulary = json.loads((folder / "wordpiece" / "tokenizer.json").read_text())["model"]["vocab"]
    renamed = {"<unknown>": "[UNK]", "<start>": "[CLS]", "<separator>": "[SEP]", "<pad>": "[PAD]", "<mask>": "[MASK]"}
    (folder / "lines").mkdir()
    pieces = [renamed.get(piece, piece) for piece in sorted(vocabulary, key=lambda piece: int(vocabulary[piece]))]
    (folder / "lines" / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))


def attack(folder: Path, number: int, draw: random.Random) -> Outcome:
    source = folder / draw.choice(("wordpiece", "bpe", "unigram", "lines"))
    with tempfile.TemporaryDirectory() as name:
        damaged = Path(name) / source.name
        shutil.copytree(source, damaged)
        (path,) = damaged.iterdir()
        mutations = (mutate_lines,) if path.suffix == ".txt" else (mutate_json, mutate_json, mutate_json, mutate_bytes)
        mutation = draw.choice(mutations)
        path.write_bytes(mutation(draw, path.read_bytes()))
        return judge(f"case {number}: {mutation.__name__} of {source.name}", lambda: _use(damaged))


def _use(folder: Path) -> str:
    tokenizer = Tokenizer.load(folder)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        if not all(0 <= token < tokenizer.size for token in ids):
            raise WrongAnswer(f"{ids} of {text!r}, in a vocabulary of {tokenizer.size}")
        tokenizer.decode(ids)
        tokenizer.pieces(ids)
    return "used"
