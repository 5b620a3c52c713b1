"""Split: a row's split depends on its content alone; the hash ignores case, white space and punctuation."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.errors import ConfigError, DataError
from headstart.reading.examples import Example, Examples
from headstart.reading.split import content_hash, split


def make_examples(count: int) -> Examples:
    return Examples(tuple(Example(f"text number {n}", str(n % 2), None, "p", n + 1) for n in range(count)), ("r",))


def test_a_split_keeps_its_shares_and_every_row() -> None:
    splits = split(make_examples(20_000), valid=0.1, test=0.2)
    assert list(splits) == ["train", "valid", "test"]
    assert sorted(row.line for part in splits.values() for row in part.rows) == list(range(1, 20_001))
    # Within five standard deviations of the share: sqrt(20000 × 0.1 × 0.9) is 42 and sqrt(20000 × 0.2 × 0.8) is 57.
    assert abs(len(splits["valid"].rows) - 2000) < 5 * 43
    assert abs(len(splits["test"].rows) - 4000) < 5 * 57
    assert all(part.notes == ("r",) for part in splits.values())


def test_a_row_stays_in_its_split_whatever_else_is_in_the_file() -> None:
    whole = make_examples(2000)
    splits = split(whole, valid=0.1, test=0.2)
    half = split(Examples(whole.rows[::-2]), valid=0.1, test=0.2)
    assert all(set(half[name].rows) <= set(splits[name].rows) for name in splits)
    assert set(split(whole, valid=0.1, test=0.5)["valid"].rows) == set(splits["valid"].rows)
    assert set(split(whole, valid=0.3, test=0.2)["test"].rows) == set(splits["test"].rows)


def test_the_second_text_counts() -> None:
    rows = tuple(Example("same", "1", f"second {n}", "p", n) for n in range(1000))
    assert len(split(Examples(rows), valid=0.0, test=0.5)["test"].rows) > 300


def test_a_share_of_nothing_is_no_split() -> None:
    assert list(split(make_examples(50), valid=0, test=0)) == ["train"]
    assert list(split(make_examples(50), valid=0, test=0.5)) == ["train", "test"]


@pytest.mark.parametrize(("valid", "test"), [(-0.1, 0.1), (0.1, 1.0), (0.5, 0.5), (float("nan"), 0.1)])
def test_shares_that_cannot_be(valid: float, test: float) -> None:
    with pytest.raises(ConfigError, match="split"):
        split(make_examples(10), valid=valid, test=test)


def test_a_split_that_comes_out_empty_is_an_error() -> None:
    with pytest.raises(DataError, match="none of 3 rows came to the test split, whose share is 1e-09"):
        split(make_examples(3), valid=0, test=1e-9)


# Content


def test_content_hash_is_the_same_for_ever() -> None:
    """Worked out with coreutils: printf a1 | b2sum -l 64, and the same of nothing."""
    assert content_hash("A-1!") == 0x9F6566910330ED1B
    assert content_hash("") == 0xE4A6A0577479B2B4


def test_content_hash_looks_past_case_spaces_and_marks() -> None:
    same = ["L’été, enfin !", "l'été enfin", "«L' ÉTÉ»\u00a0— enfin…", "l' e\u0301te\u0301\n enfin", "l！été。 enfin"]
    assert len({content_hash(text) for text in same}) == 1
    assert content_hash("été") != content_hash("ete")
    assert content_hash("👍") != content_hash("👎")
    assert content_hash("!") != content_hash("?"), "where there is nothing else, marks count"


@settings(deadline=None)
@given(st.text(), st.text(string.whitespace + string.punctuation + "“”«»—…’\u00a0\u3000、。"), st.integers(0))
def test_content_hash_of_any_text_is_a_64_bit_number_that_marks_do_not_move(text: str, marks: str, at: int) -> None:
    place = at % (len(text) + 1)
    marked, plain = (f"{text[:place]}x{between}x{text[place:]}" for between in (marks, ""))
    assert 0 <= content_hash(plain) < 1 << 64
    assert content_hash(marked) == content_hash(plain)
