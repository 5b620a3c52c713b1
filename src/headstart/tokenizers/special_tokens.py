"""Special tokens: their names, their roles, and where they stand around one text and around a pair.

    one text   <start> a <end>
    a pair     <start> a <separator> b <end>

These are ours; every family of tokenizers has its own.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import tokenizers
from tokenizers import Encoding, models, processors

# The names of each role in the families of tokenizers; a vocabulary uses the first that it has. `<s>` stands before
# `[CLS]` because MPNet's vocabulary contains BERT's and uses its own; of `[UNK]` and `<unk>` it uses BERT's.
NAMES = {
    "start": ("<start>", "<s>", "<sos>", "[CLS]", "[BOS]", "<bos>", "<cls>", "<|endoftext|>"),
    "end": ("<end>", "</s>", "<eos>", "[SEP]", "[EOS]", "<|endoftext|>"),
    "pad": ("<pad>", "[PAD]"),
    "unknown": ("<unknown>", "[UNK]", "<unk>", "<oov>"),
    "mask": ("<mask>", "[MASK]"),
    "separator": ("<separator>", "</s>", "<sep>", "<eos>", "[SEP]", "<|endoftext|>"),
}
SPECIALS = ("<pad>", "<unknown>", "<start>", "<end>", "<separator>", "<mask>")  # ours, ids 0 to 5

# Templates of one text and of a pair, as in `TemplateProcessing`, for tokenizers without a post-processor: the first
# whose tokens the vocabulary has. `$B:1` is the second text, in segment 1. GPT-2 adds nothing to a single text.
TEMPLATES = (
    ("<start> $A <end>", "<start> $A <separator> $B:1 <end>:1"),
    ("<s> $A </s>", "<s> $A </s> </s> $B </s>"),
    ("<sos> $A", "<sos> $A <eos> $B"),
    ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
    ("$A </s>", "$A </s> $B </s>"),
    ("$A", "$A <|endoftext|> $B"),
)

# What stands around one text, or two: for each slot a token's id, or "A" or "B" for a text, and its segment.
Layout = tuple[tuple[int | str, int], ...]


def find_layouts(tokenizer: tokenizers.Tokenizer, ids: Collection[int]) -> tuple[Layout, Layout | None]:
    """The layouts of one text and of a pair, seen from what the post-processor does to a text of one token.

    Every token in them must have one of the `ids` of the vocabulary.
    """
    processor = _post_processor(tokenizer)
    if processor is None:
        return (("A", 0),), None
    text = tokenizers.Tokenizer(models.WordLevel({"text": 0}, unk_token="text")).encode("text")
    layouts = _layout(processor.process(text)), _layout(processor.process(text, text))
    for part, _ in (*layouts[0], *layouts[1]):
        if isinstance(part, int) and part not in ids:
            raise ValueError(f'found the id {part} in "post_processor", and no token that has it')
    return layouts


def _layout(encoding: Encoding) -> Layout:
    tokens = zip(encoding.ids, encoding.type_ids, encoding.sequence_ids, strict=True)
    return tuple((token if text is None else "AB"[text], segment) for token, segment, text in tokens)


def add_post_processor(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Where it has none, give a tokenizer the post-processor of its family: tokenizer.json is complete for others."""
    processor = _post_processor(tokenizer)
    if processor is not None:
        tokenizer.post_processor = processor
    return tokenizer


def _post_processor(tokenizer: tokenizers.Tokenizer) -> processors.PostProcessor | None:
    """The tokenizer's own, if it adds special tokens; or that of the family which the vocabulary's tokens show."""
    own: processors.PostProcessor | None = tokenizer.post_processor
    if _adds_special_tokens(own):
        return own
    ids = tokenizer.get_vocab()
    for single, pair in TEMPLATES:
        names = sorted({slot.partition(":")[0] for slot in pair.split() if not slot.startswith("$")})
        if ids.keys() >= set(names):
            special_tokens = [(name, ids[name]) for name in names]
            return processors.TemplateProcessing(single=single, pair=pair, special_tokens=special_tokens)
    return None


def _adds_special_tokens(processor: processors.PostProcessor | None) -> bool:
    """Whether it is of a kind that does; one whose template has a token without an id is refused."""
    holder = tokenizers.Tokenizer(models.BPE())
    holder.post_processor = processor
    parts = steps(json.loads(holder.to_str())["post_processor"], "processors")
    for part in parts:
        slots = [*part.get("single", ()), *part.get("pair", ())]
        for name in (slot["SpecialToken"]["id"] for slot in slots if "SpecialToken" in slot):
            if name not in part["special_tokens"]:
                raise ValueError(f'found the token {name!r} in "post_processor", and no id for it')
    return any(part["type"] != "ByteLevel" for part in parts)


def steps(part: dict[str, Any] | None, inner: str) -> list[dict[str, Any]]:
    """The steps of a part of tokenizer.json, those of a "Sequence" one by one.

    >>> steps({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}, "normalizers")
    [{'type': 'NFC'}, {'type': 'Lowercase'}]
    """
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [step for member in part[inner] for step in steps(member, inner)]
    return [part]
