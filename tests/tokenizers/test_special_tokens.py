"""Special tokens by any name, and the layouts of every kind of post-processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from headstart.tokenizers.special_tokens import SPECIALS
from headstart.tokenizers.tokenizer import Tokenizer
from tests.tokenizers.example_tokenizers import (
    KINDS,
    bert_folder,
    save_to,
    trained,
    write_gpt2,
)
from tokenizers import processors


def test_special_tokens_have_one_meaning(tmp_path: Path) -> None:
    bert = Tokenizer.load(bert_folder())
    assert (bert.start, bert.end, bert.pad, bert.unknown, bert.mask, bert.separator) == (101, 102, 0, 100, 103, 102)
    ids, _ = write_gpt2(tmp_path, "<|endoftext|>")
    gpt2, end = Tokenizer.load(tmp_path), ids["<|endoftext|>"]
    assert (gpt2.start, gpt2.end, gpt2.pad, gpt2.unknown, gpt2.mask, gpt2.separator) == (
        end,
        end,
        None,
        None,
        None,
        end,
    )
    for kind in KINDS:
        own = trained(kind)
        assert (own.pad, own.unknown, own.start, own.end, own.separator, own.mask) == (0, 1, 2, 3, 4, 5)
        assert own.pieces(range(6)) == list(SPECIALS)
        assert own.encode("<mask>") == [5]


def test_mpnet_uses_its_own_tokens_and_not_those_of_bert_inside_it(tmp_path: Path) -> None:
    from transformers import MPNetTokenizer

    bert = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "book", "##s"]
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *bert, "<mask>"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    ours = Tokenizer.load(tmp_path)
    theirs = MPNetTokenizer(vocab={piece: number for number, piece in enumerate(pieces)})
    assert (ours.start, ours.end, ours.pad, ours.unknown, ours.mask) == (0, 2, 1, pieces.index("[UNK]"), 12)
    for text in ("the books", "a <mask>", "[SEP]"):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)
    assert ours.wrap(ours.encode("the"), ours.encode("book"))[0] == theirs.encode("the", "book")


def test_layouts_are_read_from_every_kind_of_post_processor(tmp_path: Path) -> None:
    ids, _ = write_gpt2(tmp_path / "files", "<s>", "</s>")
    raw = tokenizers.Tokenizer.from_str((save_to(tmp_path / "a", Tokenizer.load(tmp_path / "files"))).read_text())
    start, end = ids["<s>"], ids["</s>"]
    template = processors.TemplateProcessing(single="$A </s>", pair="$B:1 </s> $A", special_tokens=[("</s>", end)])
    expected: list[tuple[Any, list[int], tuple[list[int], list[int]]]] = [
        (
            processors.BertProcessing(("</s>", end), ("<s>", start)),
            [start, 7, end],
            ([start, 7, end, 8, end], [0, 0, 0, 1, 1]),
        ),
        (
            processors.RobertaProcessing(("</s>", end), ("<s>", start)),
            [start, 7, end],
            ([start, 7, end, end, 8, end], [0] * 6),
        ),
        (processors.Sequence([processors.ByteLevel(), template]), [7, end], ([8, end, 7], [1, 0, 0])),
        (processors.ByteLevel(), [start, 7, end], ([start, 7, end, end, 8, end], [0] * 6)),  # says nothing
    ]
    for processor, single, pair in expected:
        raw.post_processor = processor
        (tmp_path / "b.json").write_text(raw.to_str())
        loaded = Tokenizer.load(tmp_path / "b.json")
        assert loaded.wrap([7])[0] == single
        assert loaded.wrap([7], [8]) == pair
