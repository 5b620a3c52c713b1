"""Lines: every compression gives the same text, and what is no text gives a clear error."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.errors import DataError
from headstart.reading.documents import DOCUMENT_SUFFIXES, read_documents
from headstart.reading.lines import COMPRESSIONS, open_bytes
from headstart.reading.skipped import SkippedRows
from tests.reading.files import COMPRESSORS, encode_texts, read_error, texts_of, write_file

# Formats


def test_every_compression_is_tested() -> None:
    assert {"", *COMPRESSIONS} == set(COMPRESSORS)


def test_a_byte_order_mark_is_dropped_once(tmp_path: Path) -> None:
    assert texts_of(write_file(tmp_path, "a.txt", "\ufeffone\n\ufefftwo\n")) == ["one", "\ufefftwo"]
    assert texts_of(write_file(tmp_path, "a.csv", "\ufefftext,n\none,1\n")) == ["one"]


def test_lines_end_at_newlines_only(tmp_path: Path) -> None:
    inside = "".join(chr(code) for code in (0x0B, 0x0C, 0x1C, 0x1D, 0x1E, 0x85, 0x2028, 0x2029))
    path = write_file(tmp_path, "a.txt", f"a{inside}b\nc\n")
    assert texts_of(path) == [f"a{inside}b", "c"]


@settings(deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0\ufeff"))))
def test_any_lines_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = write_file(tmp_path_factory.mktemp("lines"), "a.txt.gz", gzip.compress("\n".join(["x", *lines]).encode(), 1))
    assert texts_of(path) == ["x", *(line for line in lines if line.strip())]


# Files


def test_a_folder_where_a_file_was_meant(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a folder, expected a file"):
        open_bytes(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_leave_to_read(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.txt", "one\n")
    path.chmod(0)
    assert "Permission denied" in str(read_error(path))


def test_an_unknown_suffix_names_those_that_are_known(tmp_path: Path) -> None:
    assert "ends in '.docx', expected one of .txt, .csv" in str(read_error(write_file(tmp_path, "a.docx", "one")))


# Bad input


@pytest.mark.parametrize("extension", [".txt", ".jsonl", ".csv", ".tsv"])
def test_lines_that_end_in_cr_alone_are_refused(tmp_path: Path, extension: str) -> None:
    raw = encode_texts(extension, ["one", "two"]).replace(b"\r\n", b"\n").replace(b"\n", b"\r")
    error = read_error(write_file(tmp_path, "a" + extension, raw))
    assert error.problem == "its lines end in CR alone, expected LF or CRLF"
    assert texts_of(write_file(tmp_path, "b.txt", "one\r")) == ["one"], "a single line"
    assert texts_of(write_file(tmp_path, "b.txt", "o\rne\ntwo")) == ["o\rne", "two"], "a CR within a text"


@pytest.mark.parametrize("extension", [".txt", ".jsonl", ".csv", ".tsv"])
@pytest.mark.parametrize(
    ("bad", "problem"), [(b"\xe9", "not UTF-8: invalid continuation byte 0xe9"), (b"\0", "a NUL byte")]
)
def test_a_bad_byte_is_named_with_its_line_and_place(tmp_path: Path, extension: str, bad: bytes, problem: str) -> None:
    raw = encode_texts(extension, ["one", "two", "?three", "four"]).replace(b"?", bad)
    lines = raw.split(b"\n")
    line = next(number for number, content in enumerate(lines, 1) if bad in content)
    path = write_file(tmp_path, "a" + extension, raw)
    error = read_error(path)
    assert error.line == line
    assert problem in error.problem
    assert f"byte {lines[line - 1].index(bad) + 1} of the line" in error.problem
    skipped = SkippedRows()
    assert [document.text for document in read_documents([path], skipped=skipped)] == ["one", "two", "four"]
    assert (skipped.count, [str(each) for each in skipped.first]) == (1, [str(error)])


@pytest.mark.parametrize("codec", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16_is_refused(tmp_path: Path, codec: str) -> None:
    error = read_error(write_file(tmp_path, "a.txt", "one\ntwo\n".encode(codec)))
    assert error.line == 1
    assert ("UTF-16" in error.problem) == (codec == "utf-16")


@pytest.mark.parametrize("extension", DOCUMENT_SUFFIXES)
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_compressed_file_cut_short(tmp_path: Path, extension: str, compression: str) -> None:
    packed = COMPRESSORS[compression](encode_texts(extension, [os.urandom(20).hex() for _ in range(20_000)]))
    path = write_file(tmp_path, f"a{extension}{compression}", packed[: len(packed) // 2])
    assert "the compressed file is cut short" in str(read_error(path))
    skipped = SkippedRows()
    good = write_file(tmp_path, "b.txt", "good\n")
    kept = [document.text for document in read_documents([path, good], skipped=skipped)]
    assert kept[-1] == "good", "the next file is read"
    assert all(len(text) == 40 for text in kept[:-1]), "no half line is taken for a whole one"
    assert skipped.count == 1


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_file_that_is_not_compressed_as_its_name_says(tmp_path: Path, compression: str) -> None:
    path = write_file(tmp_path, "a.txt" + compression, b"plain text, much of it\n" * 10)
    assert "damaged or not what its name says" in str(read_error(path))


def test_reading_stays_small_and_lazy(tmp_path: Path) -> None:
    """The first document of a corpus comes before the damage at its end is seen."""
    packed = gzip.compress(b"line\n" * 200_000)
    documents = read_documents([write_file(tmp_path, "a.txt.gz", packed[:-20])])
    assert next(documents).text == "line"
    with pytest.raises(DataError, match="cut short"):
        list(documents)


def test_memory_that_runs_out_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def read1(self, size: int) -> bytes:
            raise MemoryError

    with open_bytes(write_file(tmp_path, "a.txt", "one\n")) as stream:
        monkeypatch.setattr(stream.raw, "_source", Full())  # type: ignore[attr-defined]
        with pytest.raises(MemoryError):
            stream.read()
