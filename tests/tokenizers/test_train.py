"""Learning: vocabularies of the size asked for, the same each time, that know every text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.errors import ConfigError, DataError, TokenizerError
from headstart.tokenizers.special_tokens import SPECIALS
from headstart.tokenizers.tokenizer import Tokenizer
from tests.tokenizers.example_tokenizers import (
    CONTROLS,
    EMOJI,
    KINDS,
    SPACES,
    sentences,
    trained,
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [330, 600, 1000])
def test_training_gives_the_size_asked_for(kind: str, size: int) -> None:
    tokenizer = Tokenizer.train(sentences(), kind=kind, size=size)
    assert tokenizer.size == size
    assert None not in tokenizer.pieces(range(size))
    used = {number for ids in tokenizer.encode_batch(sentences()) for number in ids}
    assert max(used) < size and len(used) > 30
    assert tokenizer.unknown not in used


@pytest.mark.parametrize("kind", KINDS)
def test_a_corpus_too_small_gives_what_it_has(kind: str) -> None:
    tokenizer = Tokenizer.train(["ab ab", "", "ac"], kind=kind, size=5000)
    # 6 specials; 256 bytes but for wordpiece, which has each letter in two forms; then the pieces there can be.
    # unigram: ▁ a b c, and ▁a is in every word, ▁ab in two. bpe: ab, Ġab, ac. wordpiece: ab, ac.
    least = {"unigram": 6 + 256 + 4, "bpe": 6 + 256 + 3, "wordpiece": 6 + 6 + 2}[kind]
    assert least <= tokenizer.size <= least + 2
    assert tokenizer.unknown not in tokenizer.encode("ab ac b")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [500, 900])
def test_training_is_deterministic(kind: str, size: int) -> None:
    prints = {Tokenizer.train(sentences(), kind=kind, size=size).fingerprint for _ in range(4)}
    assert len(prints) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_training_follows_the_corpus(kind: str) -> None:
    tokenizer = Tokenizer.train(["zygomatique " * 40, *sentences()[:20]], kind=kind, size=500)
    assert len(tokenizer.encode("zygomatique zygomatique")) <= 3  # byte-level pieces have no space at a text's start


@pytest.mark.parametrize("kind", KINDS)
def test_lower_keeps_accents(kind: str) -> None:
    tokenizer = Tokenizer.train(sentences(), kind=kind, size=600, lower=True)
    assert tokenizer.encode("Été NAÇ") == tokenizer.encode("été naç") != tokenizer.encode("ete nac")
    assert trained(kind).encode("É") != trained(kind).encode("é")


@settings(max_examples=500)
@given(st.lists(st.text(max_size=30) | st.sampled_from([*SPECIALS, *EMOJI, *SPACES, *CONTROLS]), max_size=8))
def test_byte_level_gives_every_text_back(parts: list[str]) -> None:
    text = "".join(parts)
    assert trained("bpe").decode(trained("bpe").encode(text)) == text
    assert trained("bpe").decode(trained("bpe").encode_batch([text])[0]) == text


@settings(max_examples=300)
@given(st.text(max_size=60))
def test_unigram_knows_every_text_and_gives_its_normal_form_back(text: str) -> None:
    own = trained("unigram")
    ids = own.encode(text)
    assert own.unknown not in ids
    assert own.decode(ids) == own._tokenizer.normalizer.normalize_str(text).removeprefix(" ")


def test_unigram_text_is_nfkc_with_single_spaces() -> None:
    own = trained("unigram")
    assert own.decode(own.encode("  ﬁn\u00a0 de   l’e\u0301te\u0301 你 ")) == "fin de l’été 你"


def test_a_mask_in_running_text_leaves_the_rest_as_it_was() -> None:
    for kind in KINDS:
        own = trained(kind)
        around = own.pieces(own.encode("été <mask>. été"))
        assert around.count("<mask>") == 1
        after = around[around.index("<mask>") + 1 :]
        assert after[0].removeprefix("##") == "."  # no space has come before it


def test_wordpiece_knows_every_word_of_known_letters() -> None:
    own = trained("wordpiece")
    assert own.unknown not in own.encode("tsrqéabd çbdé é".replace("q", ""))
    assert own.encode("ж") == [own.unknown]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_in_the_corpus_comes_out_as_it_is(kind: str) -> None:
    def texts() -> Iterator[str]:
        yield from sentences()[:10]
        raise DataError("corpus.csv", "found 3 fields, expected 2", line=812)

    with pytest.raises(DataError, match="line 812"):
        Tokenizer.train(texts(), kind=kind, size=600)


def test_a_library_that_panics_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    panic = type("PanicException", (BaseException,), {})

    def fail(*_: object, **__: object) -> None:
        raise panic("The global thread pool has not been initialized")

    monkeypatch.setattr("headstart.tokenizers.tokenizer.train_tokenizer", fail)
    with pytest.raises(TokenizerError, match=r"thread pool.*too little memory"):
        Tokenizer.train(["a"], size=300)


def test_bad_requests_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"kind 'unigam' is unknown, did you mean 'unigram'\?"):
        Tokenizer.train(["a"], kind="unigam", size=600)
    with pytest.raises(TokenizerError, match="every document is empty"):
        Tokenizer.train(["", " \n"], kind="bpe", size=600)
    for kind in ("unigram", "bpe", "wordpiece"):  # the trainers would end the process, or raise an error of their own
        for size in (10**9, 10**11):
            with pytest.raises(ConfigError, match=r"more than a vocabulary can have: take 2,000,000 or less"):
                Tokenizer.train(["some text"], kind=kind, size=size)
    with pytest.raises(ConfigError, match="size -5 is too small for 6 special tokens: take 6 or more"):
        Tokenizer.train(["a"], kind="wordpiece", size=-5)
    with pytest.raises(ConfigError, match="size 261 is too small for 6 special tokens and 256 bytes: take 262"):
        Tokenizer.train(["a"], kind="bpe", size=261)
    # ▁ a b c
    with pytest.raises(ConfigError, match="6 special tokens, 256 bytes and 4 characters: take 266 or more"):
        Tokenizer.train(["abc"], kind="unigram", size=265)
    with pytest.raises(ConfigError, match="6 special tokens and 3 characters in two forms: take 12 or more"):
        Tokenizer.train(["abc"], kind="wordpiece", size=11)
    assert Tokenizer.train(["abc"], kind="unigram", size=266).size == 266
    assert Tokenizer.train(["abc"], kind="wordpiece", size=12).size == 12
