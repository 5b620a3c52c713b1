"""Tokenizers: saved and loaded, wrapped as in `transformers`, words and bad input."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenizers
from headstart.errors import ConfigError, OutputError, TokenizerError
from headstart.tokenizers import tokenizer as module
from headstart.tokenizers.special_tokens import SPECIALS
from headstart.tokenizers.tokenizer import Tokenizer
from tests.tokenizers.example_tokenizers import (
    KINDS,
    bert_folder,
    sentences,
    strings,
    trained,
    word_starts,
    write_gpt2,
)
from tokenizers import models

os.environ["HF_HUB_OFFLINE"] = "1"


# One file from then on


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_it_gives_equal_ids(kind: str, tmp_path: Path) -> None:
    tokenizer = trained(kind)
    tokenizer.save(tmp_path / "deep" / "folder")
    loaded = Tokenizer.load(tmp_path / "deep" / "folder")
    texts = strings(5, 500, *SPECIALS)
    assert loaded.encode_batch(texts) == tokenizer.encode_batch(texts)
    assert loaded.fingerprint == tokenizer.fingerprint
    written = tmp_path / "deep" / "folder" / "tokenizer.json"
    assert hashlib.sha256(written.read_bytes()).hexdigest() == tokenizer.fingerprint
    assert [path.name for path in written.parent.iterdir()] == ["tokenizer.json"]


def test_a_run_folder_has_the_tokenizer_of_its_model(tmp_path: Path) -> None:
    tokenizer = trained("wordpiece")
    tokenizer.save(tmp_path / "model")
    (tmp_path / "run.toml").write_text("")
    assert Tokenizer.load(tmp_path).fingerprint == tokenizer.fingerprint


def test_scores_of_many_digits_survive_being_saved(tmp_path: Path) -> None:
    draw = random.Random(0)
    pieces = [("<unk>", 0.0), *((chr(0x4E00 + n), -20 * draw.random()) for n in range(5000))]
    (tmp_path / "tokenizer.json").write_text(tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0)).to_str())
    first = Tokenizer.load(tmp_path)
    first.save(tmp_path)
    assert Tokenizer.load(tmp_path).fingerprint == first.fingerprint
    for size in range(290, 390, 10):
        own = Tokenizer.train(sentences()[:50], kind="unigram", size=size)
        own.save(tmp_path)
        assert Tokenizer.load(tmp_path).fingerprint == own.fingerprint


def test_equal_tokenizers_have_equal_fingerprints_and_others_have_not(tmp_path: Path) -> None:
    from_json, from_vocabulary = Tokenizer.load(bert_folder()), Tokenizer.load(bert_folder() / "vocab.txt")
    assert from_json.fingerprint == from_vocabulary.fingerprint
    assert len({trained(kind).fingerprint for kind in KINDS} | {from_json.fingerprint}) == 4


def test_a_failed_save_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained("bpe").save(tmp_path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        trained("unigram").save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]
    assert Tokenizer.load(tmp_path).fingerprint == trained("bpe").fingerprint
    with pytest.raises(OutputError, match="cannot write"):
        trained("bpe").save(tmp_path / "tokenizer.json")


# Special tokens and forms


def all_cuts(ours: Tokenizer, theirs: Any, specials: int) -> Iterator[tuple[tuple[list[int], list[int]], Any]]:
    """Texts and pairs of many lengths in windows of many sizes: as wrapped here, and by `transformers`.

    Beside the special tokens there is room for an even number: versions of the library give an odd token to one text
    or to the other.
    """
    for first in ("", "the", "the book " * 3, "the book " * 5):
        for second in (None, "the", "book the " * 4):
            for window in (None, *(specials + room for room in (2, 4, 6, 8, 36))):
                wrapped = ours.wrap(ours.encode(first), None if second is None else ours.encode(second), window=window)
                options = {"truncation": "longest_first", "max_length": window} if window else {}
                yield wrapped, theirs(first, second, **options)


def test_bert_is_wrapped_as_in_transformers() -> None:
    from transformers import BertTokenizer

    ours, theirs = Tokenizer.load(bert_folder()), BertTokenizer(vocab=str(bert_folder() / "vocab.txt"))
    for (ids, segments), wanted in all_cuts(ours, theirs, 3):
        assert ids == wanted["input_ids"]
        assert segments == wanted["token_type_ids"]


def test_roberta_is_wrapped_as_in_transformers(tmp_path: Path) -> None:
    from transformers import RobertaTokenizer

    ids, merges = write_gpt2(tmp_path, "<s>", "<pad>", "</s>", "<unk>", "<mask>")
    ours, theirs = Tokenizer.load(tmp_path), RobertaTokenizer(vocab=ids, merges=merges)
    for (wrapped, segments), wanted in all_cuts(ours, theirs, 4):
        assert wrapped == wanted["input_ids"]
        assert segments == [0] * len(wrapped)


def test_an_empty_second_text_is_still_a_second_text() -> None:
    bert = Tokenizer.load(bert_folder())
    assert bert.wrap([7], []) == ([101, 7, 102, 102], [0, 0, 0, 1])


def test_gpt2_and_our_own_are_wrapped_as_the_docstring_says(tmp_path: Path) -> None:
    ids, _ = write_gpt2(tmp_path, "<|endoftext|>")
    gpt2, end = Tokenizer.load(tmp_path), ids["<|endoftext|>"]
    assert gpt2.wrap([7, 8]) == ([7, 8], [0, 0])
    assert gpt2.wrap([7, 8], [9]) == ([7, 8, end, 9], [0] * 4)
    assert gpt2.wrap([7, 8, 9], window=2) == ([7, 8], [0, 0])
    for kind in KINDS:
        assert trained(kind).wrap([7, 8]) == ([2, 7, 8, 3], [0] * 4)
        assert trained(kind).wrap([7, 8], [9]) == ([2, 7, 8, 4, 9, 3], [0, 0, 0, 0, 1, 1])


def test_without_special_tokens_one_text_can_be_wrapped_and_a_pair_cannot(tmp_path: Path) -> None:
    write_gpt2(tmp_path)
    plain = Tokenizer.load(tmp_path)
    assert plain.wrap([7, 8]) == ([7, 8], [0, 0])
    with pytest.raises(TokenizerError, match="no token to put between two texts"):
        plain.wrap([7], [8])


@given(
    first=st.lists(st.integers(6, 500), max_size=20),
    second=st.none() | st.lists(st.integers(6, 500), max_size=20),
    window=st.integers(4, 50),
)
def test_a_cut_text_fits_and_keeps_its_special_tokens(first: list[int], second: list[int] | None, window: int) -> None:
    own = trained("bpe")
    whole, _ = own.wrap(first, second)
    ids, segments = own.wrap(first, second, window=window)
    assert len(ids) == len(segments) == min(window, len(whole))
    assert [number for number in ids if number < 6] == [number for number in whole if number < 6]
    kept = [number for number, segment in zip(ids, segments, strict=True) if segment == 0 and number >= 6]
    rest = [number for number, segment in zip(ids, segments, strict=True) if segment == 1 and number >= 6]
    assert kept == first[: len(kept)] and rest == (second or [])[: len(rest)]
    if second is not None and len(kept) < len(first) and len(rest) < len(second):
        assert abs(len(kept) - len(rest)) <= 1
    elif second is not None and len(kept) < len(first):
        assert len(kept) >= len(rest) - 1  # of two as long as each other, the second keeps one more


@pytest.mark.parametrize("window", [-1, 0, 2])
def test_a_window_without_room_for_text_is_refused(window: int) -> None:
    with pytest.raises(ConfigError, match=f"{window} tokens leave no room for text beside 2 special ones"):
        trained("bpe").wrap([7], window=window)


# Words


def test_words_begin_where_pieces_say_so() -> None:
    bert = Tokenizer.load(bert_folder())
    ids = bert.wrap(bert.encode("unaffordable books!"))[0]
    assert len(ids) > 6
    words: list[str] = []
    for piece, start in zip(bert.pieces(ids), word_starts(bert, ids), strict=True):
        words += [""] if start else []
        words[-1] += piece.removeprefix("##")
    assert words == ["[CLS]", "unaffordable", "books", "!", "[SEP]"]


@pytest.mark.parametrize("kind", KINDS)
def test_there_are_as_many_word_starts_as_words(kind: str) -> None:
    own = trained(kind)
    for text in sentences()[:50]:
        words = text.removesuffix(".")
        ids = own.encode(words)
        assert len(ids) > len(words.split())
        assert sum(word_starts(own, ids)) == len(words.split())


def test_a_line_of_byte_level_pieces_begins_a_word() -> None:
    own = trained("bpe")
    ids = own.encode("bon\nmot\tbon mot")
    begins = [own.decode([number]).strip() for number, start in zip(ids, word_starts(own, ids), strict=True) if start]
    assert "".join(begins)[:1] == "b" and own.decode(ids).split() == ["bon", "mot", "bon", "mot"]
    starts = [place for place, start in enumerate(word_starts(own, ids)) if start]
    # Where each word begins, with the space before it if it has one; a line feed and a tab are on their own.
    assert [len(own.decode(ids[:place])) for place in starts] == [0, 3, 4, 7, 8, 11]


def test_a_piece_after_a_special_token_begins_a_word_and_an_unknown_one_does_not() -> None:
    model = models.BPE({"<unk>": 0, "▁": 1, "a": 2, "▁a": 3, "<s>": 4}, [("▁", "a")], unk_token="<unk>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.add_special_tokens(["<unk>", "<s>"])
    marked = Tokenizer(tokenizer)
    assert word_starts(marked, [4, 2, 0, 2, 3, 0]) == [True, True, False, False, True, False]


# Bad input


def test_ids_of_another_tokenizer_are_refused() -> None:
    for number in (-1, 600):
        with pytest.raises(TokenizerError, match=f"id {number} is not in this vocabulary of 600"):
            trained("bpe").pieces([7, number])
        with pytest.raises(TokenizerError, match=f"id {number} is not in"):
            trained("bpe").decode([number])


def test_many_texts_are_encoded_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library holds more than a hundred bytes for each character that is encoded at once."""
    texts = strings(6, 50)
    whole = trained("bpe").encode_batch(texts)
    monkeypatch.setattr(module, "PART", 100)
    assert len(list(module._parts(texts))) > 3
    assert trained("bpe").encode_batch(texts) == whole == [trained("bpe").encode(text) for text in texts]


def test_text_that_utf8_cannot_write_is_refused() -> None:
    for attempt in (lambda: trained("bpe").encode("a\ud800"), lambda: trained("bpe").encode_batch(["a", "\udfff"])):
        with pytest.raises(TokenizerError, match="UTF-8 cannot write"):
            attempt()


def test_importing_the_module_leaves_torch_alone() -> None:
    check = "import sys, headstart.tokenizers.tokenizer; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)
