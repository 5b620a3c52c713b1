"""Forms: the special tokens, what each means, and where they stand around one text and around a pair.

    one text   <start> a <end>
    a pair     <start> a <separator> b <end>

These are ours; every family of tokenizers has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import processors

# The names of each meaning in the tokenizers there are, the first that a vocabulary has. Ours come first and are the
# words themselves: a reader of tokenizer.json needs no table, and `<s>`, which HTML has too, is not one of them.
# `<s>` stands before `[CLS]` because MPNet's vocabulary has BERT's inside it and uses its own; `[UNK]` before `<unk>`
# for the same reason, the other way about.
NAMES = {
    "start": ("<start>", "<s>", "<sos>", "[CLS]", "[BOS]", "<bos>", "<cls>", "<|endoftext|>"),
    "end": ("<end>", "</s>", "<eos>", "[SEP]", "[EOS]", "<|endoftext|>"),
    "pad": ("<pad>", "[PAD]"),
    "unknown": ("<unknown>", "[UNK]", "<unk>", "<oov>"),
    "mask": ("<mask>", "[MASK]"),
    "separator": ("<separator>", "</s>", "<sep>", "<eos>", "[SEP]", "<|endoftext|>"),
}
SPECIALS = ("<pad>", "<unknown>", "<start>", "<end>", "<separator>", "<mask>")  # ours, ids 0 to 5

# How one text and a pair are laid out, for tokenizers that do not say so themselves: the first whose tokens are all
# there. `$B:1` puts the second text into segment 1. GPT-2 adds nothing to a text, the lab no `<eos>` after it.
FORMS = (
    ("<start> $A <end>", "<start> $A <separator> $B:1 <end>:1"),
    ("<s> $A </s>", "<s> $A </s> </s> $B </s>"),
    ("<sos> $A", "<sos> $A <eos> $B"),
    ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
    ("$A </s>", "$A </s> $B </s>"),
    ("$A", "$A <|endoftext|> $B"),
)

# A form in ids: each place holds a token's id, or "A" or "B" for a text, and its segment.
Layout = tuple[tuple[int | str, int], ...]


def find_layouts(processor: dict[str, Any] | None, ids: Mapping[str, int]) -> tuple[Layout, Layout | None]:
    """The forms of one text and of a pair: the tokenizer's own, or those of the family its tokens are from."""
    own = _own_layouts(processor)
    if own is not None:
        return own
    forms = _forms(ids)
    if forms is None:
        return (("A", 0),), None
    return _layout(forms[0], ids), _layout(forms[1], ids)


def state_forms(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Write the forms of its family into a tokenizer, so that its tokenizer.json says them to everyone."""
    ids = tokenizer.get_vocab()
    forms = _forms(ids)
    if forms is not None:
        names = {name for name, _ in _slots(" ".join(forms)) if not name.startswith("$")}
        tokenizer.post_processor = processors.TemplateProcessing(
            single=forms[0], pair=forms[1], special_tokens=[(name, ids[name]) for name in sorted(names)]
        )
    return tokenizer


def _forms(ids: Mapping[str, int]) -> tuple[str, str] | None:
    """The forms of the family that a vocabulary belongs to, by the special tokens it has."""
    for forms in FORMS:
        if all(name in ids for name, _ in _slots(" ".join(forms)) if not name.startswith("$")):
            return forms
    return None


def _slots(form: str) -> list[tuple[str, int]]:
    """
    >>> _slots("[CLS] $A $B:1")
    [('[CLS]', 0), ('$A', 0), ('$B', 1)]
    """
    parts = (part.partition(":") for part in form.split())
    return [(name, int(segment or 0)) for name, _, segment in parts]


def _layout(form: str, ids: Mapping[str, int]) -> Layout:
    """
    >>> _layout("[CLS] $A $B:1", {"[CLS]": 101})
    ((101, 0), ('A', 0), ('B', 1))
    """
    return tuple((name[1:] if name.startswith("$") else ids[name], segment) for name, segment in _slots(form))


def _own_layouts(processor: dict[str, Any] | None) -> tuple[Layout, Layout] | None:
    """The forms that a tokenizer.json states itself, under "post_processor"."""
    kind = processor["type"] if processor else None
    if processor is None or kind == "ByteLevel":
        return None
    if kind == "Sequence":
        return next(filter(None, map(_own_layouts, processor["processors"])), None)
    if kind in ("BertProcessing", "RobertaProcessing"):
        ids = {"cls": processor["cls"][1], "sep": processor["sep"][1]}
        pair = "cls $A sep $B:1 sep:1" if kind == "BertProcessing" else "cls $A sep sep $B sep"
        return _layout("cls $A sep", ids), _layout(pair, ids)
    return _template(processor, "single"), _template(processor, "pair")


def _template(processor: dict[str, Any], name: str) -> Layout:
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
