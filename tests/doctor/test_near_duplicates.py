"""Near duplicates: what is found is what a comparison of all pairs finds."""

from __future__ import annotations

from fractions import Fraction
from hashlib import blake2b
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.doctor.near_duplicates import (
    BAND_VALUES,
    BUCKET_LIMIT,
    SHINGLE_WORDS,
    NearDuplicate,
    near_duplicates,
    similarity,
    sketch,
    words,
)

word_lists = st.lists(st.sampled_from("abcdefgh"), max_size=30).map(" ".join)
any_text = word_lists | st.text(max_size=60)


def sentence(*prefixes: str, length: int = 40) -> str:
    """A text of distinct words; texts of different prefixes share none."""
    return " ".join(f"{'x'.join(prefixes)}w{number}" for number in range(length))


def shingles_by_hand(text: str) -> set[tuple[str, ...]]:
    pairs = words(text)
    if not pairs:
        return set()
    if len(pairs) < SHINGLE_WORDS:
        return {tuple(pairs)}
    return {tuple(pairs[i : i + SHINGLE_WORDS]) for i in range(len(pairs) - SHINGLE_WORDS + 1)}


def jaccard_by_hand(one: str, two: str) -> float:
    left, right = shingles_by_hand(one), shingles_by_hand(two)
    return float(Fraction(len(left & right), max(1, len(left | right))))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("L'été, ENFIN !", ["l", "été", "enfin"]),
        ("e\u0301te\u0301", ["été"]),  # accents as characters of their own
        ("ﬁn", ["fin"]),  # a ligature
        ("हिन्दी में", ["हिन्दी", "में"]),  # vowel signs stay
        ("很好。", ["很", "好"]),
        ("ดีมาก", ["ด", "ี", "ม", "า", "ก"]),
        ("fine👍", ["fine", "👍"]),
        ("zero\u200bwidth\x07bell", ["zero", "width", "bell"]),
        (" :( ", [":("]),
        (" \t\n", []),
        ("", []),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@given(any_text, any_text)
def test_similarity_is_the_jaccard_of_the_shingles(one: str, two: str) -> None:
    assert similarity(one, two) == jaccard_by_hand(one, two)
    assert similarity(one, two) == similarity(two, one)


@given(st.lists(any_text, max_size=12), st.data())
def test_identical_texts_are_always_found(texts: list[str], data: st.DataObject) -> None:
    text = data.draw(any_text.filter(lambda text: bool(words(text))))
    where = data.draw(st.integers(0, len(texts)))
    texts = [*texts[:where], text, *texts[where:], text]
    pairs = {(pair.left, pair.right): pair.jaccard for pair in near_duplicates(sketch(texts))}
    assert pairs[where, len(texts) - 1] == 1.0
    across = {(pair.left, pair.right): pair.jaccard for pair in near_duplicates(sketch(texts), sketch([text]))}
    assert across[where, 0] == 1.0


@given(st.lists(any_text, max_size=12))
def test_what_is_found_is_near_and_ordered(texts: list[str]) -> None:
    pairs = near_duplicates(sketch(texts))
    assert pairs == sorted(pairs)
    for pair in pairs:
        assert pair.left < pair.right
        assert pair.jaccard == jaccard_by_hand(texts[pair.left], texts[pair.right]) >= 0.8


@given(st.lists(any_text, max_size=8))
def test_a_text_has_one_sketch_whatever_stands_beside_it(texts: list[str]) -> None:
    batch = sketch(texts)
    for number, text in enumerate(texts):
        single = sketch([text])
        assert np.array_equal(batch.shingles_of(number), single.shingles_of(0))
        assert np.array_equal(batch.signatures[number], single.signatures[0])


def test_every_near_pair_is_found_and_no_other() -> None:
    """Sixty families of an original and copies with more and more of it changed, against all pairs by hand."""
    families = [sentence(str(family)).split() for family in range(60)]
    texts = [
        " ".join([*family[: len(family) - changes], *(f"{family[0]}new{k}" for k in range(changes))])
        for family in families
        for changes in (0, 1, 2, 5)
    ]
    expected = {(i, j) for i, j in combinations(range(len(texts)), 2) if jaccard_by_hand(texts[i], texts[j]) >= 0.8}
    assert len(expected) == 60 * 3  # 5 changes leave 33 shingles of 43, which is too few
    assert {(pair.left, pair.right) for pair in near_duplicates(sketch(texts))} == expected


def test_the_threshold_is_met_and_not_crossed() -> None:
    base, added = "one two three four five six", "one two three four five six seven"
    assert near_duplicates(sketch([base, added])) == [NearDuplicate(0, 1, 0.8)]  # 4 shingles of 5
    assert near_duplicates(sketch([base, added]), threshold=0.81) == []
    assert near_duplicates(sketch(["one two three four five", "one two three four five six"])) == []  # 3 of 4


def test_across_two_sets_the_left_index_is_of_the_left_set() -> None:
    left, right = sketch([sentence("a"), sentence("b"), sentence("c")]), sketch([sentence("d"), sentence("c")])
    assert near_duplicates(left, right) == [NearDuplicate(2, 1, 1.0)]
    assert near_duplicates(right, left) == [NearDuplicate(1, 2, 1.0)]


def test_short_texts_are_near_only_to_themselves() -> None:
    texts = ["good", "bad", "good book", "bad book", "Good!", "", "  ", "?!", "!?"]
    assert near_duplicates(sketch(texts)) == [NearDuplicate(0, 4, 1.0)]


def test_no_texts_and_empty_texts() -> None:
    for texts in ([], [""], ["", " "]):
        sketches = sketch(texts)
        assert len(sketches) == len(texts)
        assert near_duplicates(sketches) == []
        assert near_duplicates(sketches, sketch(["a word"])) == []
        assert near_duplicates(sketch(["a word"]), sketches) == []


def test_a_large_bucket_of_one_template_finds_every_member_and_not_every_pair() -> None:
    count = 10 * BUCKET_LIMIT
    texts = [f"{sentence('t')} number{k}" for k in range(count)]
    pairs = near_duplicates(sketch(texts))
    assert {pair.right for pair in pairs} == set(range(1, count))
    assert len(pairs) < count * (count - 1) // 2
    across = near_duplicates(sketch(texts), sketch(texts[:1]))
    assert {pair.right for pair in across} == {0}


def test_the_signatures_are_the_same_on_every_machine() -> None:
    """By hand for the smallest case: one shingle, so every value is that shingle's under its hash function."""
    mask = 2**64 - 1

    def mix(x: int) -> int:
        x = (x + 0x9E3779B97F4A7C15) & mask
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    word = int.from_bytes(blake2b(b"good", digest_size=8).digest(), "little")
    shingle = mix(mix(mix(word) + 0 & mask) + 0 & mask)
    expected = [(shingle * (mix(k + 1) | 1) & mask) >> 32 for k in range(BAND_VALUES)]
    assert sketch(["Good"]).shingles_of(0).tolist() == [shingle]
    assert sketch(["Good"]).signatures[0, :BAND_VALUES].tolist() == expected
