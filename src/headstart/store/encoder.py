"""The encoder of a corpus: a tokenizer with a cache of words.

    encoder = Encoder(Path("store"), "uint16")      # the folder of a tokenizer, and the type of the ids
    encoder.encode(["the cat sat", "the cat"])      # a list of bytes: each text's ids

Whether words can be encoded one by one is read from tokenizer.json; in doubt they are not.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headstart.tokenizers.special_tokens import steps
from headstart.tokenizers.tokenizer import Tokenizer

CACHE_SIZE = 1 << 17  # words in one generation of the cache, about 25 MB with their ids

# A text is split before a single space that follows a letter, digit or usual punctuation mark. Other characters are
# left out because normalisation may remove them, or turn them into something that ends in a space.
_WORD_BOUNDARY = re.compile(r"(?= \S)(?<=[\w!-/:-@\[-`{-~«»‘’“”…–—])")
# Steps that look at one character or one word at a time.
_LOCAL_STEPS = {
    "normalizers": {"NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "StripAccents", "BertNormalizer", "Precompiled"},
    "pretokenizers": {"ByteLevel", "Digits", "Punctuation", "Split", "UnicodeScripts"},  # after the first
    "models": {"BPE", "Unigram", "WordPiece", "WordLevel"},
}
# What SentencePiece does with spaces, as normalizers: none at both ends, one at a time between, each written as "▁".
_DROP_LEADING_SPACE = ("Replace", {"Regex": r"\A +"}, "")
_WRITE_SPACE = ("Replace", {"String": " "}, "▁")
_SPACE_STEPS = (
    _WRITE_SPACE,
    ("Replace", {"Regex": " {2,}"}, " "),
    ("Replace", {"Regex": " {2,}"}, "▁"),
    ("Replace", {"Regex": r"[▁\ufffd\r\n]"}, " "),
    ("Replace", {"Regex": r"▁+\z"}, ""),
)
_SPLIT_AT_SPACE = {"type": "Split", "pattern": {"String": "▁"}, "behavior": "MergedWithNext", "invert": False}


class Encoder:
    """A tokenizer that caches words: several times faster on running text, and exact.

    Most tokenizers split a text at spaces before anything else, so that words are encoded one by one:

        encode("the cat sat") == encode("the") + encode(" cat") + encode(" sat")

    and a corpus of a billion words has few different ones. Where tokenizer.json does not show that this holds
    (`splits_at_spaces`), texts are encoded as a whole.
    """

    def __init__(self, folder: Path, dtype: str) -> None:
        self._tokenizer = Tokenizer.load(folder)
        self._letter = {"uint8": "B", "uint16": "H", "uint32": "I"}[dtype]
        self._by_words = splits_at_spaces(json.loads((folder / "tokenizer.json").read_bytes()))
        self._words = _WordCache(lambda word: self._pack(self._tokenizer.encode(word)))

    def encode(self, texts: Sequence[str]) -> list[bytes]:
        """Each text's ids, as the bytes that a store holds."""
        if not self._by_words:
            return [self._pack(ids) for ids in self._tokenizer.encode_batch(texts)]
        lookup = self._words.__getitem__
        encoded = [b"".join(map(lookup, _WORD_BOUNDARY.split(text))) for text in texts]
        if len(self._words) > CACHE_SIZE:
            self._words.start_generation()
        return encoded

    def _pack(self, ids: Sequence[int]) -> bytes:
        return struct.pack(f"<{len(ids)}{self._letter}", *ids)


class _WordCache(dict[str, bytes]):
    """The ids of words, encoded when first needed. Words not used for a whole generation are dropped."""

    def __init__(self, encode: Callable[[str], bytes]) -> None:
        self._encode = encode
        self._older: dict[str, bytes] = {}

    def __missing__(self, word: str) -> bytes:
        ids = self._older.get(word)
        if ids is None:
            ids = self._encode(word)
        if len(word) <= 64:  # a longer one is no word, and unlikely to come again
            self[word] = ids
        return ids

    def start_generation(self) -> None:
        self._older = dict(self)
        self.clear()


def splits_at_spaces(description: dict[str, Any]) -> bool:
    """Whether a tokenizer.json describes a tokenizer that encodes the words of a text one by one.

    Every step must be one of those known to look at one word, or one character, at a time.
    """
    model = description["model"]
    normalizers = steps(description["normalizer"], "normalizers")
    return (
        not description.get("truncation")
        and not description.get("padding")
        and not any(map(_reaches_over_spaces, description["added_tokens"]))
        and _normalizes_words_separately(normalizers)
        and _splits_words(steps(description["pre_tokenizer"], "pretokenizers"), normalizers)
        and model["type"] in _LOCAL_STEPS["models"]
        and not model.get("dropout")
    )


def _reaches_over_spaces(token: dict[str, Any]) -> bool:
    return bool(token["rstrip"]) or any(letter.isspace() or letter == "▁" for letter in token["content"])


def _normalizes_words_separately(normalizers: list[dict[str, Any]]) -> bool:
    """Whether " cat" by itself becomes what it becomes after "the"."""
    # What is done to the beginning of a text would be done to every word. Only these two steps together are harmless:
    # the leading space is dropped, and a "▁" is put in its place.
    edges = [
        _signature(step) for step in normalizers if step["type"] == "Prepend" or _signature(step) == _DROP_LEADING_SPACE
    ]
    inner = [step for step in normalizers if _signature(step) not in edges]
    return edges in ([], [_DROP_LEADING_SPACE, ("Prepend", None, "▁")]) and all(map(_is_local, inner))


def _signature(step: dict[str, Any]) -> tuple[str, Any, Any]:
    return step["type"], step.get("pattern"), step.get("content", step.get("prepend"))


def _is_local(normalizer: dict[str, Any]) -> bool:
    kind, pattern, content = _signature(normalizer)
    if kind == "Replace":
        plain = "String" in pattern and not any(map(str.isspace, pattern["String"] + content))
        return plain or (kind, pattern, content) in _SPACE_STEPS
    if kind == "Strip":  # words begin with a space, and end in none
        return not normalizer["strip_left"]
    return kind in _LOCAL_STEPS["normalizers"]


def _splits_words(pre_tokenizers: list[dict[str, Any]], normalizers: list[dict[str, Any]]) -> bool:
    """Whether the first step splits at spaces; those after it see one word at a time."""
    if not pre_tokenizers:
        return False
    first, *rest = pre_tokenizers
    kind = first["type"]
    splits = (
        kind in {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
        or (kind == "ByteLevel" and first["use_regex"])
        or (kind == "Metaspace" and first["split"] and first["replacement"] == "▁")
        or (kind == "Split" and first == _SPLIT_AT_SPACE and _WRITE_SPACE in map(_signature, normalizers))
    )
    return splits and all(step["type"] in _LOCAL_STEPS["pretokenizers"] for step in rest)
