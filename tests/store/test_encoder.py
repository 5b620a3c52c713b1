"""Encoder: words remembered give the ids of the whole text, or texts are encoded whole."""

from __future__ import annotations

import json
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
from headstart.store.encoder import _WORD_BOUNDARY, Encoder, encode_chunks, splits_at_spaces
from headstart.tokenizers.tokenizer import Tokenizer
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

ODD = [
    *"ab cé  .,'’-(«»…▁\u00a0\u200b\u037a\u0600\t\n \u0301\u3000\ufeff漢😀ßİ1 \u00a8\u2028\u0d4e\u115f",
    "<mask>",
    " the ",
]


@given(texts=st.lists(st.lists(st.sampled_from(ODD), max_size=30).map("".join) | st.text(max_size=20), max_size=20))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_words_one_by_one_give_the_ids_of_the_text(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, texts: list[str]
) -> None:
    monkeypatch.setattr("headstart.store.encoder.CACHE_SIZE", 5)  # so that words are forgotten and found again
    tokenizer.save(tmp_path)
    encoder = Encoder(tmp_path, "uint32")
    texts = [text.encode("utf-8", "ignore").decode() for text in texts] * 2
    whole = [np.array(ids, "<u4").tobytes() for ids in tokenizer.encode_batch(texts)]
    assert [encoder.encode([text])[0] for text in texts] == whole


def described(tokenizer: Tokenizer, folder: Path) -> dict[str, Any]:
    tokenizer.save(folder)
    description: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    return description


def test_our_own_tokenizers_go_word_by_word(tmp_path: Path, tokenizer: Tokenizer) -> None:
    assert splits_at_spaces(described(tokenizer, tmp_path))


def check_every_cut(tokenizer: Tokenizer) -> None:
    """No character that a text is cut after has anything to do with the word that follows."""
    characters = [chr(number) for number in range(0x110000) if not 0xD800 <= number < 0xE000]
    before = [letter for letter in characters if len(_WORD_BOUNDARY.split(f"{letter} b")) == 2]
    assert len(before) > 100_000
    alone = tokenizer.encode(" b")
    whole = tokenizer.encode_batch([f"a{letter} b" for letter in before])
    parts = tokenizer.encode_batch([f"a{letter}" for letter in before])
    assert [letter for letter, ids, part in zip(before, whole, parts, strict=True) if ids != part + alone] == []


def test_every_cut_is_clean(tokenizer: Tokenizer) -> None:
    check_every_cut(tokenizer)


def test_the_labs_pair_goes_word_by_word(tmp_path: Path, data: Path) -> None:
    lab = Tokenizer.load(data / "cls-books")
    assert splits_at_spaces(described(lab, tmp_path))
    check_every_cut(lab)
    encoder = Encoder(tmp_path, "uint16")
    with (data / "sst" / "train.txt").open(encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line, _ in zip(file, range(2000), strict=False)]
    assert encoder.encode(lines) == [np.array(ids, "<u2").tobytes() for ids in lab.encode_batch(lines)]


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
        assert encoder.encode(texts) == [bytes(ids) for ids in Tokenizer.load(tmp_path).encode_batch(texts)]


def test_a_character_that_becomes_a_space_is_not_parted_from_the_space_after_it(tmp_path: Path) -> None:
    raw = plain()
    raw.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.Replace(Regex(" {2,}"), " ")])
    raw.save(str(tmp_path / "tokenizer.json"))
    assert splits_at_spaces(json.loads(raw.to_str()))
    texts = ["a\u200b b", "a\ufeff b a", "a b"]
    assert raw.encode(texts[0]).ids == raw.encode("a b").ids
    assert Encoder(tmp_path, "uint8").encode(texts) == [bytes(ids) for ids in Tokenizer(raw).encode_batch(texts)]


def test_a_mask_that_takes_the_space_before_it_goes_word_by_word(tmp_path: Path) -> None:
    raw = plain()
    raw.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    raw.save(str(tmp_path / "tokenizer.json"))
    assert splits_at_spaces(json.loads(raw.to_str()))
    texts = ["a <mask> b", "<mask>  a <mask>b", "a<mask> b <mask>"]
    assert Encoder(tmp_path, "uint8").encode(texts) == [bytes(ids) for ids in Tokenizer(raw).encode_batch(texts)]


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
