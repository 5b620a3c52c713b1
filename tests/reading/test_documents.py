"""Documents: every format and compression gives the same texts, and bad input a clear error, never a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headstart.errors import DataError, HeadstartError
from headstart.reading.documents import DOCUMENT_SUFFIXES, Document, expand_paths, read_documents
from headstart.reading.skipped import SkippedRows
from tests.reading.files import COMPRESSORS, TEXTS, encode_texts, read_error, texts_of, write_file

# Formats


@pytest.mark.parametrize("compression", COMPRESSORS)
@pytest.mark.parametrize("extension", DOCUMENT_SUFFIXES)
def test_every_format_and_compression_gives_the_same_texts(tmp_path: Path, extension: str, compression: str) -> None:
    path = write_file(
        tmp_path, f"corpus{extension}{compression}", COMPRESSORS[compression](encode_texts(extension, TEXTS))
    )
    assert texts_of(path) == TEXTS


def test_a_document_says_where_it_begins(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.txt", "one\n\n  \nfour\r\nfive")
    assert list(read_documents([path])) == [
        Document("one", str(path), 1),
        Document("four", str(path), 4),
        Document("five", str(path), 5),
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_blank_lines_set_blocks_apart(tmp_path: Path, end: str) -> None:
    path = write_file(tmp_path, "a.txt", end.join(["", "one", "two", " ", "", "three", ""]))
    found = [(document.line, document.text) for document in read_documents([path], blank_lines=True)]
    assert found == [(2, "one\ntwo"), (6, "three")]


@pytest.mark.parametrize("extension", DOCUMENT_SUFFIXES)
def test_a_line_of_a_million_characters_simply_works(tmp_path: Path, extension: str) -> None:
    long = "é" * 1_000_000
    assert texts_of(write_file(tmp_path, "a" + extension, encode_texts(extension, [long, "short"]))) == [long, "short"]


# Files


def test_expand_takes_files_folders_and_globs_each_file_once(tmp_path: Path) -> None:
    (tmp_path / "sub" / ".hidden").mkdir(parents=True)
    for name in ("b.txt", "a.jsonl", "sub/c.csv.gz", "notes.md", ".d.txt", "sub/.hidden/e.txt"):
        write_file(tmp_path, name, b"x")
    names = ["a.jsonl", "b.txt", "sub/c.csv.gz"]
    inside = [tmp_path / name for name in names]
    assert expand_paths([tmp_path]) == inside
    assert expand_paths([tmp_path / "b.txt", tmp_path]) == [inside[1], inside[0], inside[2]]
    assert expand_paths([f"{tmp_path}/*"]) == inside
    assert expand_paths([f"{tmp_path}/**/*.gz"]) == inside[2:]
    assert expand_paths(str(tmp_path / "b.txt")) == [inside[1]]


def test_a_name_with_the_signs_of_a_glob_is_first_a_name(tmp_path: Path) -> None:
    path = write_file(tmp_path, "part[1].txt", "one\n")
    assert texts_of(path) == ["one"]


def test_where_nothing_matches_the_nearest_name_is_given(tmp_path: Path) -> None:
    write_file(tmp_path, "train.txt", "one\n")
    with pytest.raises(DataError, match=r"trian\.txt: no such file.*did you mean 'train\.txt'"):
        expand_paths([tmp_path / "trian.txt"])
    with pytest.raises(DataError, match=r"\*\.csv: no such file"):
        expand_paths([f"{tmp_path}/*.csv"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="folder without a file to read"):
        expand_paths([tmp_path / "empty"])
    for odd in ("a\0b", "x" * 5000, "no/such/folder/a.txt"):
        with pytest.raises(DataError):
            expand_paths([odd])


def test_paths_are_checked_before_anything_is_read(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.txt", "one\n")
    with pytest.raises(DataError, match="no such file"):
        read_documents([path, tmp_path / "missing.txt"])


# Bad input


@pytest.mark.parametrize("extension", DOCUMENT_SUFFIXES)
@pytest.mark.parametrize("compression", COMPRESSORS)
def test_an_empty_file(tmp_path: Path, extension: str, compression: str) -> None:
    read_error(write_file(tmp_path, f"a{extension}{compression}", COMPRESSORS[compression](b"")))


@pytest.mark.parametrize("extension", DOCUMENT_SUFFIXES)
def test_a_file_without_texts(tmp_path: Path, extension: str) -> None:
    read_error(write_file(tmp_path, "a" + extension, encode_texts(extension, [])))


def test_importing_the_readers_does_not_import_torch() -> None:
    code = "import sys, headstart.reading.documents, headstart.reading.examples; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Anything at all


def read_anything(path: Path, blank_lines: bool) -> None:
    """Rows or a clear error; and with `skipped`, never an error for what is in the file."""
    try:
        documents = list(read_documents([path], blank_lines=blank_lines))
        assert all(document.text.strip() and document.text.encode() for document in documents)
    except HeadstartError as error:
        assert str(path) in str(error)
    skipped = SkippedRows()
    kept = list(read_documents([path], blank_lines=blank_lines, skipped=skipped))
    assert kept or skipped.count


SUFFIXES = ["", ".weird", *(extension + compression for extension in DOCUMENT_SUFFIXES for compression in COMPRESSORS)]

FRAGMENTS = st.lists(
    st.sampled_from(
        [b"text", b",", b";", b"\t", b'"', b"\n", b"\r", b"{", b"}", b":", b"1", b"\xff", b"\0", b"\xef\xbb\xbf"]
    )
).map(b"".join)

FUZZ = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@pytest.mark.parametrize("suffix", SUFFIXES)
@FUZZ
@given(raw=st.binary() | FRAGMENTS, blank_lines=st.booleans())
@example(raw=b'text,n\n"', blank_lines=False)
@example(raw=b"text\r\rn", blank_lines=False)
def test_any_bytes_give_documents_or_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, raw: bytes, blank_lines: bool
) -> None:
    path = write_file(tmp_path_factory.getbasetemp(), "fuzz" + suffix, raw)
    read_anything(path, blank_lines)


@pytest.mark.parametrize(
    "suffix", [extension + compression for extension in DOCUMENT_SUFFIXES for compression in COMPRESSORS]
)
@FUZZ
@given(data=st.data())
def test_a_damaged_file_gives_documents_or_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, data: st.DataObject
) -> None:
    extension = next(extension for extension in DOCUMENT_SUFFIXES if suffix.startswith(extension))
    raw = bytearray(COMPRESSORS[suffix.removeprefix(extension)](encode_texts(extension, TEXTS)))
    for _ in range(data.draw(st.integers(0, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw
    read_anything(write_file(tmp_path_factory.getbasetemp(), "damaged" + suffix, bytes(raw)), blank_lines=False)


# Real data


def count(data: Path, corpus: str) -> int:
    return sum(1 for _ in read_documents([data / "corpora" / f"{corpus}.txt.xz"]))


@pytest.mark.parametrize(("corpus", "documents"), [("fr-reviews", 25_804), ("en-novels", 14_748)])
def test_the_small_corpora_have_the_documents_their_table_says(data: Path, corpus: str, documents: int) -> None:
    assert count(data, corpus) == documents


@pytest.mark.slow
@pytest.mark.parametrize(
    ("corpus", "documents"),
    [
        ("fr-europarl", 70_001),
        ("fr-novels", 16_942),
        ("fr-critique", 32_858),
        ("en-imdb", 91_693),
        ("en-wiki", 33_895),
    ],
)
def test_the_large_corpora_have_the_documents_their_table_says(data: Path, corpus: str, documents: int) -> None:
    assert count(data, corpus) == documents
