"""Encoder: a tokenizer for whole corpora, which encodes a word once and remembers it.

    encoder = Encoder(Path("store"), "uint16")      # the folder of a tokenizer, and the type of the ids
    encoder.encode(["the cat sat", "the cat"])      # a list of bytes: each text's ids

Whether words can be encoded one by one is read from the tokenizer's own description; in doubt they are not.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headstart.tokenizers.tokenizer import Tokenizer

REMEMBERED = 1 << 17  # words in one generation of an encoder's memory, about 25 MB with their ids

# A text is cut before a lone space that follows a letter, digit or usual punctuation mark: nothing that normalising
# turns into something that ends in a space, which might join the one after it, or into nothing.
_CUT = re.compile(r"(?= \S)(?<=[\w!-/:-@\[-`{-~«»‘’“”…–—])")
_NEAR_SIGHTED = {
    "normalizers": {"NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "StripAccents", "BertNormalizer", "Precompiled"},
    "pretokenizers": {"ByteLevel", "Digits", "Punctuation", "Split", "UnicodeScripts"},  # after the first
    "models": {"BPE", "Unigram", "WordPiece", "WordLevel"},
}
# SentencePiece's way with spaces, as normalizers: dropped at both ends, one at a time between, each written as "▁".
_LEADING = ("Replace", {"Regex": r"\A +"}, "")
_MARKED = ("Replace", {"String": " "}, "▁")
_SPACES = (
    _MARKED,
    ("Replace", {"Regex": " {2,}"}, " "),
    ("Replace", {"Regex": " {2,}"}, "▁"),
    ("Replace", {"Regex": r"[▁\ufffd\r\n]"}, " "),
    ("Replace", {"Regex": r"▁+\z"}, ""),
)
_AT_MARKS = {"type": "Split", "pattern": {"String": "▁"}, "behavior": "MergedWithNext", "invert": False}


class Encoder:
    """A tokenizer that remembers words, which in running text is several times faster, and exact.

    Most tokenizers cut a text at spaces before anything else, so that words are encoded one by one:

        encode("the cat sat") == encode("the") + encode(" cat") + encode(" sat")

    and a corpus of a billion words has few different ones. Where the tokenizer's own description does not show that
    this holds (`cuts_at_spaces`), texts are encoded whole.
    """

    def __init__(self, folder: Path, dtype: str) -> None:
        self._tokenizer = Tokenizer.load(folder)
        self._letter = {"uint8": "B", "uint16": "H", "uint32": "I"}[dtype]
        self._by_words = cuts_at_spaces(json.loads((folder / "tokenizer.json").read_bytes()))
        self._words = _Words(lambda word: self._pack(self._tokenizer.encode(word)))

    def encode(self, texts: Sequence[str]) -> list[bytes]:
        """Each text's ids, as the bytes that a store holds."""
        if not self._by_words:
            return [self._pack(ids) for ids in self._tokenizer.encode_batch(texts)]
        recall = self._words.__getitem__
        encoded = [b"".join(map(recall, _CUT.split(text))) for text in texts]
        if len(self._words) > REMEMBERED:
            self._words.age()
        return encoded

    def _pack(self, ids: Sequence[int]) -> bytes:
        return struct.pack(f"<{len(ids)}{self._letter}", *ids)


class _Words(dict[str, bytes]):
    """Words and their ids, found out when they are first asked for, in two generations: those used since the last
    `age`, and those used between that and the one before."""

    def __init__(self, encode: Callable[[str], bytes]) -> None:
        self._encode = encode
        self._older: dict[str, bytes] = {}

    def __missing__(self, word: str) -> bytes:
        ids = self._older.get(word)
        if ids is None:
            ids = self._encode(word)
        if len(word) <= 64:  # a longer one is no word, and will not come again
            self[word] = ids
        return ids

    def age(self) -> None:
        self._older = dict(self)
        self.clear()


def cuts_at_spaces(description: dict[str, Any]) -> bool:
    """Whether a tokenizer.json describes one that encodes the words of a text one by one.

    Every part is on a list of those known to look at one word, or one character, at a time; an unknown part says no.
    """
    model = description["model"]
    normalizers = _steps(description["normalizer"], "normalizers")
    return (
        not description.get("truncation")
        and not description.get("padding")
        and not any(map(_reaches_over_spaces, description["added_tokens"]))
        and _keeps_words_apart(normalizers)
        and _splits_words(_steps(description["pre_tokenizer"], "pretokenizers"), normalizers)
        and model["type"] in _NEAR_SIGHTED["models"]
        and not model.get("dropout")
    )


def _steps(part: dict[str, Any] | None, inner: str) -> list[dict[str, Any]]:
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [step for each in part[inner] for step in _steps(each, inner)]
    return [part]


def _reaches_over_spaces(token: dict[str, Any]) -> bool:
    return bool(token["rstrip"]) or any(letter.isspace() or letter == "▁" for letter in token["content"])


def _keeps_words_apart(normalizers: list[dict[str, Any]]) -> bool:
    """Whether " cat" on its own becomes what it becomes behind "the"."""
    # What happens to a text's beginning happens to every word of it. Two steps undo each other: the leading space is
    # dropped, and a leading "▁" is put in its place. One without the other would not do.
    edges = [_signature(step) for step in normalizers if step["type"] == "Prepend" or _signature(step) == _LEADING]
    inner = [step for step in normalizers if _signature(step) not in edges]
    return edges in ([], [_LEADING, ("Prepend", None, "▁")]) and all(map(_is_local, inner))


def _signature(step: dict[str, Any]) -> tuple[str, Any, Any]:
    return step["type"], step.get("pattern"), step.get("content", step.get("prepend"))


def _is_local(normalizer: dict[str, Any]) -> bool:
    kind, pattern, content = _signature(normalizer)
    if kind == "Replace":
        plain = "String" in pattern and not any(map(str.isspace, pattern["String"] + content))
        return plain or (kind, pattern, content) in _SPACES
    if kind == "Strip":  # a piece ends in no space, but begins with one
        return not normalizer["strip_left"]
    return kind in _NEAR_SIGHTED["normalizers"]


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
        or (kind == "Split" and first == _AT_MARKS and _MARKED in map(_signature, normalizers))
    )
    return splits and all(step["type"] in _NEAR_SIGHTED["pretokenizers"] for step in rest)
