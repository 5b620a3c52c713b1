"""Content: the hash ignores case, white space and punctuation, and never changes."""

from __future__ import annotations

import string

from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.reading.content import content_hash


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
