"""Texts for prediction: as many as there are lines, whatever is on them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.errors import DataError
from headstart.reading.skipped import SkippedRows
from headstart.reading.texts import stream_texts
from tests.reading.files import write_file


def texts(path: Path, skipped: SkippedRows | None = None, said: list[str] | None = None) -> list[str | None]:
    return list(stream_texts(path, (said if said is not None else []).append, skipped))


def test_every_line_is_a_text_and_blank_ones_too(tmp_path: Path) -> None:
    said: list[str] = []
    path = write_file(tmp_path, "a.txt", "\none\n\n  \r\ntwo ||| three\n\n")
    assert texts(path, said=said) == ["", "one", "", "  ", "two ||| three", ""]
    assert said == []


def test_labels_are_left_aside(tmp_path: Path) -> None:
    said: list[str] = []
    path = write_file(tmp_path, "a.txt", "\n3 ||| It 's  good .\n\n0 |||\r\n ||| a ||| b")
    assert texts(path, said=said) == ["", "It 's  good .", "", "", "a ||| b"]
    assert said == ["read as `label ||| text`, the labels left aside"]


@pytest.mark.parametrize("bad", [b"caf\xe9", b"a\0b", b"no mark"])
def test_a_bad_line_leaves_its_place(tmp_path: Path, bad: bytes) -> None:
    path = write_file(tmp_path, "a.txt", b"1 ||| one\n" + bad + b"\n0 ||| two\n" + bad)
    with pytest.raises(DataError, match="line 2"):
        texts(path)
    skipped = SkippedRows()
    assert texts(path, skipped) == ["one", None, "two", None]
    assert skipped.count == 2


def test_pieces_need_no_labels(tmp_path: Path) -> None:
    path = write_file(tmp_path, "train.review.spm", "▁a ▁b\n\n▁c\n\n")
    assert texts(path) == ["a b", "", "c", ""]


def test_a_folder_of_texts(tmp_path: Path) -> None:
    for name, text in (("pos/1.txt", "good\nindeed\n"), ("neg/1.txt", "bad\rly")):
        (tmp_path / name).parent.mkdir()
        write_file(tmp_path, name, text)
    assert texts(tmp_path) == ["bad\rly", "good\nindeed"]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=8).map(lambda raw: raw.replace(b"\n", b"")), min_size=1))
def test_as_many_texts_as_lines_whatever_the_bytes(
    tmp_path_factory: pytest.TempPathFactory, content: list[bytes]
) -> None:
    path = write_file(tmp_path_factory.getbasetemp(), "lines.txt", b"".join(line + b"\n" for line in content))
    assert len(texts(path, SkippedRows())) == len(content)
