"""Texts to fill a store with."""

from __future__ import annotations

import random
from pathlib import Path

KINDS = ("unigram", "bpe", "wordpiece")


def made_texts(count: int, seed: int = 0) -> list[str]:
    """Lines of invented words with the things that text has: accents, marks, numbers, runs of spaces, emoji."""
    chance = random.Random(seed)
    words = ["".join(chance.choices("eaionrtslducmpéèçœ'-", k=chance.randint(1, 9))) for _ in range(500)]
    odd = ["12,5", "…", "«", "»", "😀", "\t", "", "Ünï", "(a)", "<mask>", "漢字", "\u00a0", "x."]
    texts = []
    for number in range(count):
        length = chance.randint(1, 60)
        texts.append(f"{number} " + " ".join(chance.choices(words + odd * 5, k=length)))
    return texts


def write_corpus(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
