"""A little world for whole runs in seconds: made-up reviews, a corpus of the same words, a tokenizer, a store."""

from __future__ import annotations

import random
from pathlib import Path

from headstart.store.store import Store
from headstart.store.write import write_store
from headstart.tokenizers.tokenizer import Tokenizer

SUBJECTS = ["story", "novel", "essay", "poem", "tale", "diary", "letter", "saga", "play", "fable"]
GOOD = ["bright", "tender", "vivid", "witty", "wise", "moving", "elegant", "honest"]
BAD = ["dull", "clumsy", "shallow", "noisy", "tired", "bitter", "vague", "hollow"]
FILLER = ["the", "a", "of", "this", "and", "with", "in", "every", "page", "line", "chapter", "reader", "voice", "word"]


def sentence(draw: random.Random, opinion: list[str]) -> str:
    """A sentence about a book in which two words carry the opinion."""
    words = draw.choices(FILLER, k=draw.randint(4, 10))
    words.insert(draw.randrange(len(words)), draw.choice(SUBJECTS))
    for _ in range(2):
        words.insert(draw.randrange(len(words)), draw.choice(opinion))
    return " ".join(words)


def reviews(count: int, seed: int) -> list[tuple[str, str]]:
    draw = random.Random(seed)
    return [(label, sentence(draw, GOOD if label == "pos" else BAD)) for label in draw.choices(["pos", "neg"], k=count)]


def write_reviews(path: Path, count: int, seed: int) -> Path:
    path.write_text("".join(f"{label} ||| {text}\n" for label, text in reviews(count, seed)), encoding="utf-8")
    return path


def corpus(count: int, seed: int) -> list[str]:
    """Documents of one mood each: opinion words keep company, which is what pretraining can learn without labels."""
    draw = random.Random(seed)
    moods = draw.choices([GOOD, BAD], k=count)
    return [". ".join(sentence(draw, mood) for _ in range(draw.randint(2, 6))) for mood in moods]


def make_tokenizer() -> Tokenizer:
    return Tokenizer.train(corpus(300, 1), kind="wordpiece", size=160)


def make_store(folder: Path, tokenizer: Tokenizer, count: int = 300) -> Store:
    text = folder / "corpus.txt"
    text.write_text("\n".join(corpus(count, 2)) + "\n", encoding="utf-8")
    return write_store([text], tokenizer, folder / "store", valid=0.1, workers=1)
