"""Special tokens: their names, their roles, and where they stand around one text and around a pair.

    one text   <start> a <end>
    a pair     <start> a <separator> b <end>

These are ours; every family of tokenizers has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import processors

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

# A template in ids: for each slot a token's id, or "A" or "B" for a text, and its segment.
Layout = tuple[tuple[int | str, int], ...]


def find_layouts(processor: dict[str, Any] | None, ids: Mapping[str, int]) -> tuple[Layout, Layout | None]:
    """The layouts of one text and of a pair: the post-processor's, or those of the family its special tokens show."""
    own = _post_processor_layouts(processor)
    if own is not None:
        return own
    templates = _templates(ids)
    if templates is None:
        return (("A", 0),), None
    return _layout(templates[0], ids), _layout(templates[1], ids)


def add_post_processor(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Give a tokenizer the post-processor of its family, so that its tokenizer.json is complete for other libraries."""
    ids = tokenizer.get_vocab()
    templates = _templates(ids)
    if templates is not None:
        single, pair = templates
        special_tokens = [(name, ids[name]) for name in sorted(_special_tokens(pair))]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=special_tokens
        )
    return tokenizer


def _templates(ids: Mapping[str, int]) -> tuple[str, str] | None:
    """The templates of the family that a vocabulary belongs to, by the special tokens it has."""
    return next((templates for templates in TEMPLATES if _special_tokens(templates[1]) <= ids.keys()), None)


def _special_tokens(template: str) -> set[str]:
    return {name for name, _ in _slots(template) if not name.startswith("$")}


def _slots(template: str) -> list[tuple[str, int]]:
    """
    >>> _slots("[CLS] $A $B:1")
    [('[CLS]', 0), ('$A', 0), ('$B', 1)]
    """
    parts = (part.partition(":") for part in template.split())
    return [(name, int(segment or 0)) for name, _, segment in parts]


def _layout(template: str, ids: Mapping[str, int]) -> Layout:
    """
    >>> _layout("[CLS] $A $B:1", {"[CLS]": 101})
    ((101, 0), ('A', 0), ('B', 1))
    """
    return tuple((name[1:] if name.startswith("$") else ids[name], segment) for name, segment in _slots(template))


def _post_processor_layouts(processor: dict[str, Any] | None) -> tuple[Layout, Layout] | None:
    """The layouts of a tokenizer.json's "post_processor"."""
    kind = processor["type"] if processor else None
    if processor is None or kind == "ByteLevel":
        return None
    if kind == "Sequence":
        return next(filter(None, map(_post_processor_layouts, processor["processors"])), None)
    if kind in ("BertProcessing", "RobertaProcessing"):
        ids = {"cls": processor["cls"][1], "sep": processor["sep"][1]}
        pair = "cls $A sep $B:1 sep:1" if kind == "BertProcessing" else "cls $A sep sep $B sep"
        return _layout("cls $A sep", ids), _layout(pair, ids)
    return _template_layout(processor, "single"), _template_layout(processor, "pair")


def _template_layout(processor: dict[str, Any], name: str) -> Layout:
    layout: list[tuple[int | str, int]] = []
    for slot in processor[name]:
        [(kind, part)] = slot.items()
        if kind == "Sequence":
            layout.append((part["id"], part["type_id"]))
        elif part["id"] in processor["special_tokens"]:
            layout += [(number, part["type_id"]) for number in processor["special_tokens"][part["id"]]["ids"]]
        else:
            raise ValueError(f'found the token {part["id"]!r} in "post_processor", and no id for it')
    return tuple(layout)
