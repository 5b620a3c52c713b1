"""Encoder: cached words give the ids of the whole text, or texts are encoded whole."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tokenizers
from headstart.parallel import SINGLE
from headstart.store import words
from headstart.store.encoder import Encoder, encode_chunks
from headstart.store.word_rules import LETTERS, closing_punctuation, first_tokens, splits_at_spaces
from headstart.tokenizers.tokenizer import Tokenizer
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

ODD = [
    *"ab cé  .,'’-(«»…▁\u00a0\u200b\u037a\u0600\t\n \u0301\u3000\ufeff漢😀ßİ1 \u00a8\u2028\u0d4e\u115f\ufdfa",
    "<mask>",
    " the ",
    " été,",
    'a" b.',
]


def encoded(encoder: Encoder, texts: list[str]) -> list[list[int]]:
    ids, lengths = encoder.encode(texts)
    assert len(lengths) == len(texts)
    assert lengths.sum() == len(ids)
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


@given(texts=st.lists(st.lists(st.sampled_from(ODD), max_size=30).map("".join) | st.text(max_size=20), max_size=20))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_words_one_by_one_give_the_ids_of_the_text(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, texts: list[str]
) -> None:
    monkeypatch.setattr(words, "CACHE_SIZE", 5)  # so that words are forgotten and found again
    monkeypatch.setattr(words, "BATCH", 3)
    tokenizer.save(tmp_path)
    encoder = Encoder(tmp_path, "uint32")
    texts = ["", *(text.encode("utf-8", "ignore").decode() for text in texts)]
    whole = tokenizer.encode_batch(texts)
    assert encoded(encoder, texts) == whole
    assert [encoded(encoder, [text])[0] for text in texts] == whole


def test_texts_of_every_length_in_one_chunk(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tokenizer.save(tmp_path)
    texts = [
        *("", " ", "   ", "\t", "\u00a0", ".", " , ", "a", " a", "a ", "x" * 70, "x" * 5000, "漢" * 300),
        *(" ".join(["le", "mot,"] * 3000), "le  mot" * 500, " " * 1000 + "fin", "€ 10 € 12 €", "a\u0301 b\u0301 c"),
        *("ligne\nligne \n ligne\r\n", "<mask> <mask>, x<mask>.", "".join(map(chr, range(1, 0x300)))),
    ]
    assert encoded(Encoder(tmp_path, "uint16"), texts) == tokenizer.encode_batch(texts)


def test_the_tokenizer_is_asked_for_many_new_words_at_a_time_and_for_each_once(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer.save(tmp_path)
    encoder = Encoder(tmp_path, "uint16")
    new = [f"{left}{right}" for left in ("ab", "ac", "ad", "ae", "ao") for right in "acdeilmnorstu"]
    texts = [f"le {' '.join(new)}", f"le {', '.join(new)}", *(f"le {word}." for word in new)]
    whole = tokenizer.encode_batch(texts)
    asked: list[str] = []
    encode_batch = Tokenizer.encode_batch

    def noted(self: Tokenizer, texts: list[str]) -> list[list[int]]:
        asked.extend(texts)
        return encode_batch(self, texts)

    monkeypatch.setattr(Tokenizer, "encode_batch", noted)
    assert encoded(encoder, texts) == whole
    assert not any("," in text or "." in text for text in asked)
    assert sorted(" ".join(asked).split()) == sorted([*new, "le"])
    description = described(tokenizer, tmp_path)
    assert len(asked) == (2 if first_tokens(description) else 1 + len(new))
    asked.clear()
    assert encoded(encoder, texts[::-1]) == whole[::-1]
    assert asked == []


def described(tokenizer: Tokenizer, folder: Path) -> dict[str, Any]:
    tokenizer.save(folder)
    description: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    return description


def test_our_own_tokenizers_go_word_by_word(tmp_path: Path, tokenizer: Tokenizer) -> None:
    assert splits_at_spaces(described(tokenizer, tmp_path))


def check_every_cut(tokenizer: Tokenizer) -> None:
    """No character that a text is cut after has anything to do with the word that follows."""
    characters = [chr(number) for number in range(0x110000) if not 0xD800 <= number < 0xE000]
    before = [letter for letter in characters if words._ends_plainly(letter)]
    assert len(before) > 100_000
    alone = tokenizer.encode(" b")
    whole = tokenizer.encode_batch([f"a{letter} b" for letter in before])
    parts = tokenizer.encode_batch([f"a{letter}" for letter in before])
    assert [letter for letter, ids, part in zip(before, whole, parts, strict=True) if ids != part + alone] == []


def test_every_cut_is_clean(tokenizer: Tokenizer) -> None:
    check_every_cut(tokenizer)


def test_punctuation_behind_a_letter_is_a_token_of_its_own(tmp_path: Path, tokenizer: Tokenizer) -> None:
    marks = closing_punctuation(described(tokenizer, tmp_path))
    assert {",", "."} <= set(marks)
    letters = [chr(number) for number in range(0x10000) if re.fullmatch(LETTERS, chr(number))]
    stems = [f"{before}{letter}" for before in (" a", "") for letter in letters]
    alone = tokenizer.encode_batch(stems)
    for mark, number in marks.items():
        whole = tokenizer.encode_batch([stem + mark for stem in stems])
        assert [ids[-1:] for ids in whole] == [[number]] * len(stems)
        assert [ids[:-1] for ids in whole] == alone


def test_the_labs_pair_goes_word_by_word(tmp_path: Path, data: Path) -> None:
    lab = Tokenizer.load(data / "cls-books")
    assert splits_at_spaces(described(lab, tmp_path))
    check_every_cut(lab)
    encoder = Encoder(tmp_path, "uint16")
    with (data / "sst" / "train.txt").open(encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line, _ in zip(file, range(2000), strict=False)]
    assert encoded(encoder, lines) == lab.encode_batch(lines)


def plain() -> tokenizers.Tokenizer:
    """A tokenizer that goes word by word; each test below changes one thing of it."""
    pieces = {piece: number for number, piece in enumerate(["<unk>", "▁", "a", "b", "▁a", "▁b", "a▁", "a▁b"])}
    raw = tokenizers.Tokenizer(models.BPE(pieces, [("▁", "a"), ("▁", "b"), ("a", "▁"), ("a▁", "b")], unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    return raw


def no_pre_tokenizer(raw: tokenizers.Tokenizer) -> None:
    raw.pre_tokenizer = None
    raw.normalizer = normalizers.Replace(" ", "▁")


def split_without_marks(raw: tokenizers.Tokenizer) -> None:
    raw.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")


CHANGES: dict[str, Callable[[tokenizers.Tokenizer], object]] = {
    "no pre-tokenizer": no_pre_tokenizer,
    "splits at a mark that no space becomes": split_without_marks,
    "a space in a token": lambda raw: raw.add_tokens([AddedToken("a b", normalized=False)]),
    "a token that takes the space after it": lambda raw: raw.add_tokens([AddedToken("a", rstrip=True)]),
    "leading spaces dropped": lambda raw: setattr(raw, "normalizer", normalizers.Strip(left=True, right=False)),
    "leading spaces replaced": lambda raw: setattr(raw, "normalizer", normalizers.Replace(Regex(r"\A +"), "")),
    "a mark before the text": lambda raw: setattr(raw, "normalizer", normalizers.Prepend("▁")),
    "any pattern": lambda raw: setattr(raw, "normalizer", normalizers.Replace(Regex("a b"), "b")),
    "a space swallowed": lambda raw: setattr(raw, "normalizer", normalizers.Replace("a ", "b")),
    "cut to a length": lambda raw: raw.enable_truncation(2),
    "filled to a length": lambda raw: raw.enable_padding(length=9),
    "random merges": lambda raw: setattr(raw.model, "dropout", 0.5),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_tokenizer_that_sees_past_words_is_given_whole_texts(tmp_path: Path, change: str) -> None:
    raw = plain()
    CHANGES[change](raw)
    raw.save(str(tmp_path / "tokenizer.json"))
    assert splits_at_spaces(json.loads(plain().to_str()))
    assert not splits_at_spaces(json.loads(raw.to_str()))
    if change != "random merges":
        encoder = Encoder(tmp_path, "uint8")
        texts = ["a b a", "b a  b", " a b"]
        assert encoded(encoder, texts) == Tokenizer.load(tmp_path).encode_batch(texts)


def test_a_character_that_becomes_a_space_is_not_parted_from_the_space_after_it(tmp_path: Path) -> None:
    raw = plain()
    raw.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.Replace(Regex(" {2,}"), " ")])
    raw.save(str(tmp_path / "tokenizer.json"))
    assert splits_at_spaces(json.loads(raw.to_str()))
    texts = ["a\u200b b", "a\ufeff b a", "a b"]
    assert raw.encode(texts[0]).ids == raw.encode("a b").ids
    assert encoded(Encoder(tmp_path, "uint8"), texts) == Tokenizer(raw).encode_batch(texts)


def test_a_mask_that_takes_the_space_before_it_goes_word_by_word(tmp_path: Path) -> None:
    raw = plain()
    raw.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    raw.save(str(tmp_path / "tokenizer.json"))
    assert splits_at_spaces(json.loads(raw.to_str()))
    texts = ["a <mask> b", "<mask>  a <mask>b", "a<mask> b <mask>"]
    assert encoded(Encoder(tmp_path, "uint8"), texts) == Tokenizer(raw).encode_batch(texts)


def with_commas(raw_pieces: list[str], merges: list[tuple[str, str]]) -> tokenizers.Tokenizer:
    pieces = {piece: number for number, piece in enumerate(["<unk>", "▁", "a", "b", ",", "▁a", *raw_pieces])}
    raw = tokenizers.Tokenizer(models.BPE(pieces, [("▁", "a"), *merges], unk_token="<unk>", fuse_unk=True))
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    return raw


def added(raw: tokenizers.Tokenizer, content: str) -> tokenizers.Tokenizer:
    raw.add_tokens([AddedToken(content, normalized=False)])
    return raw


def replaced(raw: tokenizers.Tokenizer, old: str, new: str) -> tokenizers.Tokenizer:
    raw.normalizer = normalizers.Replace(old, new)
    return raw


def of_words() -> tokenizers.Tokenizer:
    raw = tokenizers.Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, ",": 2, "a,": 3, "b,": 4}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return raw


COMMAS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "a piece of a letter and a comma": lambda: with_commas(["a,"], [("a", ",")]),
    "an added token with a comma": lambda: added(with_commas([], []), "b,"),
    "an added token that ends in a letter": lambda: added(with_commas(["▁,"], [("▁", ",")]), "bb"),
    "a comma that is replaced": lambda: replaced(with_commas([], []), "a,", "b"),
    "a letter that becomes a comma": lambda: replaced(with_commas([",,"], [(",", ",")]), "b", ","),
    "whole words": of_words,
}


@pytest.mark.parametrize("what", COMMAS)
def test_a_comma_that_is_not_a_token_of_its_own_stays_with_its_word(tmp_path: Path, what: str) -> None:
    assert closing_punctuation(json.loads(with_commas([], []).to_str())) == {",": 4}
    raw = COMMAS[what]()
    raw.save(str(tmp_path / "tokenizer.json"))
    assert splits_at_spaces(json.loads(raw.to_str()))
    assert closing_punctuation(json.loads(raw.to_str())) == {}
    texts = ["a, b, ba, bb,", "a b ba, aa,", "b, a,", "bb, a", "ab,"]
    assert encoded(Encoder(tmp_path, "uint8"), texts) == Tokenizer(raw).encode_batch(texts)


def test_words_with_several_first_tokens_are_encoded_one_by_one(tmp_path: Path) -> None:
    """One letter may become several words, and a word without a token of its own would go unnoticed beside it."""
    raw = plain()
    raw.normalizer = normalizers.NFKC()
    raw.save(str(tmp_path / "tokenizer.json"))
    texts = ["b a \ufdfa b a", "a \ufdfa a\ufdfa b"]
    assert len(raw.encode(" \ufdfa").ids) > 1
    assert first_tokens(json.loads(raw.to_str())) == {1, 4, 5}
    assert encoded(Encoder(tmp_path, "uint8"), texts) == Tokenizer(raw).encode_batch(texts)


def test_where_a_space_may_be_unknown_no_first_tokens_are_known() -> None:
    raw = tokenizers.Tokenizer(models.BPE({"<unk>": 0, "a": 1}, [], unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    assert first_tokens(json.loads(raw.to_str())) == set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_interrupt_waits_until_the_workers_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Else the command would wait for ever, for workers that nobody stops."""
    Tokenizer.train(["a text of few words"], kind="bpe", size=270).save(tmp_path)
    ended = []
    shutdown = ProcessPoolExecutor.shutdown

    def interrupted(pool: ProcessPoolExecutor, **options: bool) -> None:
        signal.raise_signal(number)
        shutdown(pool, **options)
        ended.append(True)

    monkeypatch.setattr(ProcessPoolExecutor, "shutdown", interrupted)
    before = signal.signal(number, signal.default_int_handler)
    try:
        encoded = encode_chunks(iter([["a text"]] * 3), (tmp_path, "uint16", 0.0), 2, SINGLE)
        with pytest.raises(KeyboardInterrupt), closing(encoded):
            next(encoded)
    finally:
        signal.signal(number, before)
    assert ended
