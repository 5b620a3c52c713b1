"""What a tokenizer.json shows of words: whether texts can be encoded word by word, and what makes that faster.

A rule holds only where every step of the tokenizer is one that is known to leave it alone; in doubt it does not.
"""

from __future__ import annotations

import re
from typing import Any

from headstart.tokenizers.special_tokens import steps

# Steps that look at one character or one word at a time.
_LOCAL_STEPS = {
    "normalizers": {"NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "StripAccents", "BertNormalizer", "Precompiled"},
    "pretokenizers": {"ByteLevel", "Digits", "Punctuation", "Split", "UnicodeScripts"},  # after the first
    "models": {"BPE", "Unigram", "WordPiece", "WordLevel"},
}
# What SentencePiece does with spaces, as normalizers: none at both ends, one at a time between, each written as "▁".
_WRITE_SPACE = ("Replace", {"String": " "}, "▁")
# The leading space is dropped and a "▁" is put in its place: harmless together, and only so.
_EDGE_STEPS = [("Replace", {"Regex": r"\A +"}, ""), ("Prepend", None, "▁")]
_SPACE_STEPS = [
    *_EDGE_STEPS,
    _WRITE_SPACE,
    ("Replace", {"Regex": " {2,}"}, " "),
    ("Replace", {"Regex": " {2,}"}, "▁"),
    ("Replace", {"Regex": r"[▁\ufffd\r\n]"}, " "),
    ("Replace", {"Regex": r"▁+\z"}, ""),
]
_SPLIT_AT_SPACE = {"type": "Split", "pattern": {"String": "▁"}, "behavior": "MergedWithNext", "invert": False}

LETTERS = r"[A-Za-zÀ-ÖØ-öø-ɏΑ-ΡΣ-ϵϷ-ҁҊ-ӿ]"  # which every table of Unicode has as letters
_PUNCTUATION = ',.;:!?)"'  # what most often stands right after a word
# A normalizer may write a letter as several characters; whatever is no other punctuation mark or digit may be the last.
_MARK_BEHIND_LETTER = re.compile(rf"[^!-@\[-`{{-~▁«»‘’“”…–—]([{re.escape(_PUNCTUATION)}])")


def splits_at_spaces(description: dict[str, Any]) -> bool:
    """Whether a tokenizer.json describes a tokenizer that encodes the words of a text one by one.

    Every step must be one of those known to look at one word, or one character, at a time.
    """
    model = description["model"]
    normalizers = steps(description["normalizer"], "normalizers")
    # What is done to the beginning of a text would be done to every word.
    edges = [_signature(step) for step in normalizers if _signature(step) in _EDGE_STEPS]
    return (
        not description.get("truncation")
        and not description.get("padding")
        and not any(token["rstrip"] or re.search(r"[\s▁]", token["content"]) for token in description["added_tokens"])
        and edges in ([], _EDGE_STEPS)
        and all(map(_is_local, normalizers))
        and _splits_words(steps(description["pre_tokenizer"], "pretokenizers"), normalizers)
        and model["type"] in _LOCAL_STEPS["models"]
        and not model.get("dropout")
    )


def _signature(step: dict[str, Any]) -> tuple[str, Any, Any]:
    return step["type"], step.get("pattern"), step.get("content", step.get("prepend"))


def _is_local(normalizer: dict[str, Any]) -> bool:
    """Whether " cat" by itself becomes what it becomes after "the"."""
    kind, pattern, content = signature = _signature(normalizer)
    if kind == "Strip":  # words begin with a space, and end in none
        return not normalizer["strip_left"]
    if kind == "Replace" and "String" in pattern and not any(map(str.isspace, pattern["String"] + content)):
        return True
    return kind in _LOCAL_STEPS["normalizers"] or signature in _SPACE_STEPS


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


def vocabulary(description: dict[str, Any]) -> dict[str, int]:
    """The pieces of the model and their ids, without those of added tokens."""
    pieces = description["model"]["vocab"]
    return pieces if isinstance(pieces, dict) else {piece: number for number, (piece, _) in enumerate(pieces)}


def _writes_words_as_pieces(description: dict[str, Any]) -> bool:
    """Whether the pieces of a word, put together, are the word: none has a prefix or a suffix of its own."""
    model = description["model"]
    affixes = ("continuing_subword_prefix", "end_of_word_suffix")
    return model["type"] in {"BPE", "Unigram"} and not any(map(model.get, affixes))


def first_tokens(description: dict[str, Any]) -> set[int]:
    """The ids that can be the first of a word with the space before it; no such word has none. Empty: not known.

    A space is written as "▁" or, by byte-level tokenizers, as "Ġ". Where that is a piece, it is never unknown, so that
    the first piece of a word begins with it. Or a word begins with an added token.
    """
    first = steps(description["pre_tokenizer"], "pretokenizers")[0]["type"]
    mark = {"ByteLevel": "Ġ", "Metaspace": "▁", "Split": "▁"}.get(first)
    pieces = vocabulary(description)
    if mark not in pieces or not _writes_words_as_pieces(description):
        return set()
    added = {token["id"] for token in description["added_tokens"]}
    return added | {number for piece, number in pieces.items() if piece.startswith(mark)}


def closing_punctuation(description: dict[str, Any]) -> dict[str, int]:
    """The punctuation marks that are one token of their own right after one of `LETTERS`, and its id.

        encode(" cat,") == encode(" cat") + [id of ","]

    BERT's and byte-level tokenizers split there. With others it is so where no piece has the mark behind a letter:
    then every way to write "cat," as pieces is one to write "cat", and the mark.
    """
    normalizers = steps(description["normalizer"], "normalizers")
    first, *rest = steps(description["pre_tokenizer"], "pretokenizers")
    added = [token["content"] for token in description["added_tokens"]]
    pieces = vocabulary(description)
    marks = set(_PUNCTUATION).intersection(pieces).difference("".join(added))
    for step in normalizers:
        if step["type"] == "Replace" and _signature(step) not in _SPACE_STEPS:
            marks -= set(step["pattern"]["String"] + step["content"])
    kinds = first["type"], description["model"]["type"]
    if kinds not in {("BertPreTokenizer", "WordPiece"), ("ByteLevel", "BPE")}:
        marks -= {mark for piece in pieces for mark in _MARK_BEHIND_LETTER.findall(piece)}
        if not _writes_words_as_pieces(description) or any(step["type"] == "BertNormalizer" for step in normalizers):
            return {}
    if (
        any(content[-1:].isalpha() for content in added)  # a mark behind it would be the beginning of a text
        or any(step["type"] in {"Split", "ByteLevel"} for step in rest)
        or any(step["type"] == "Precompiled" for step in normalizers)  # it may turn a letter into anything
    ):
        return {}
    return {mark: pieces[mark] for mark in sorted(marks)}
