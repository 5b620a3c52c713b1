"""Limits: a small file, a link or a pipe neither fills the memory nor keeps the reader waiting."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headstart import unpacking
from headstart.errors import DataError
from headstart.reading import limits
from headstart.reading.documents import expand_paths, read_documents
from headstart.reading.examples import read_examples
from headstart.reading.limits import MAX_COLUMNS
from headstart.reading.skipped import SkippedRows
from headstart.reading.tables import open_table
from tests.reading.files import COMPRESSORS, as_csv, parquet, read_error, texts_of, write_file, zstd


@pytest.fixture
def a_megabyte(monkeypatch: pytest.MonkeyPatch) -> int:
    """A limit that tests reach sooner."""
    monkeypatch.setattr(limits, "MAX_LINE", 1 << 20)
    monkeypatch.setattr(unpacking, "ALWAYS_ALLOWED", 1 << 20)
    return 1 << 20


@contextmanager
def not_for_ever() -> Iterator[None]:
    """A reader that hangs ends in an error instead."""

    def stop(number: int, frame: FrameType | None) -> None:
        pytest.fail("the reader hangs")  # no OSError, which a reader may take for one of the file

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(20)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# Long lines and rows


@pytest.mark.parametrize("extension", [".txt", ".jsonl", ".tsv", ".csv"])
def test_a_line_without_end_is_refused_and_can_be_left_out(tmp_path: Path, a_megabyte: int, extension: str) -> None:
    rows = {".txt": b"one\n%b\ntwo\n", ".jsonl": b'{"text": "one"}\n{"text": "%b"}\n{"text": "two"}\n'}
    table = rows.get(extension, b"text\none\n%b\ntwo\n")
    path = write_file(tmp_path, "a" + extension, table % (b"a" * (2 * a_megabyte + 10)))
    error = read_error(path)
    assert "more than 1.0 MiB in one row" in error.problem
    assert error.line == (2 if extension in rows else 3)
    skipped = SkippedRows()
    assert [document.text for document in read_documents([path], skipped=skipped)] == ["one", "two"]
    assert skipped.count == 1


def test_a_quote_that_takes_more_than_a_row_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_LINE", 100)
    path = write_file(tmp_path, "a.csv", 'n,text\n1,one\n2,"open\n' + "word\n" * 19 + "4,four\n")
    assert "in one row" in read_error(path).problem
    skipped = SkippedRows()
    kept = [document.text for document in read_documents([path], skipped=skipped)]
    assert kept == ["one", "four"]
    assert skipped.count == 20, "every line that is in no row"


def test_a_block_between_blank_lines_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_LINE", 20)
    path = write_file(tmp_path, "a.txt", "one\n\n" + "word\n" * 10 + "\ntwo\n")
    with pytest.raises(DataError, match="line 3: more than"):
        texts_of(path, blank_lines=True)
    skipped = SkippedRows()
    kept = [document.text for document in read_documents([path], blank_lines=True, skipped=skipped)]
    assert (kept, skipped.count) == (["one", "two"], 10)


def test_a_file_that_is_one_text_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_LINE", 20)
    for name, text in (("pos/1.txt", "good\r\nindeed"), ("neg/1.txt", "word\n" * 10)):
        (tmp_path / name).parent.mkdir()
        write_file(tmp_path, name, text)
    with pytest.raises(DataError, match=r"neg/1.txt, line 1: more than"):
        read_examples(tmp_path)
    kept = read_examples(tmp_path, skipped=SkippedRows())
    assert [(row.label, row.text) for row in kept.rows] == [("pos", "good\nindeed")]


# Files that unpack to far more than they are


@pytest.mark.parametrize("extension", [".txt", ".csv", ".jsonl"])
@pytest.mark.parametrize("compression", [".gz", ".xz", ".zst"])
@pytest.mark.usefixtures("a_megabyte")
def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path: Path, extension: str, compression: str) -> None:
    line = b'{"text": "' + b"a" * (1 << 16) + b'"}\n' if extension == ".jsonl" else b"a" * (1 << 16) + b"\n"
    raw = COMPRESSORS[compression](b"text\n" * (extension == ".csv") + line * 20)
    path = write_file(tmp_path, f"a{extension}{compression}", raw)
    assert "unpacks to more than 1.0 MiB" in read_error(path).problem
    skipped = SkippedRows()
    assert len(list(read_documents([path], skipped=skipped))) in (14, 15), "what came before it is kept"
    assert skipped.count == 1


def test_a_compressed_parquet_file_does_not_fill_the_disk(tmp_path: Path, a_megabyte: int) -> None:
    path = write_file(tmp_path, "a.parquet.zst", zstd(bytes(a_megabyte + 1)))
    assert "unpacks to more than" in read_error(path).problem


@pytest.mark.parametrize("as_dictionary", [True, False])
def test_one_value_that_stands_for_thousands_of_rows(tmp_path: Path, as_dictionary: bool) -> None:
    """A dictionary of one value and a run of its number: below a kilobyte, and 6 GB as texts."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 3000, pa.int32()), pa.array(["a" * (2 << 20)]))
    path = tmp_path / "a.parquet"
    # Without the schema of Arrow the column is one of strings.
    table = pa.table({"text": texts, "label": ["x"] * 3000})
    pq.write_table(table, path, compression="zstd", store_schema=as_dictionary)
    assert path.stat().st_size < 2000
    assert "unpacks to more than 64.0 MiB" in read_error(path).problem
    with pytest.raises(DataError, match="unpacks to more than"):
        read_examples(path)


def test_what_the_metadata_of_a_parquet_file_says_is_enough(tmp_path: Path) -> None:
    texts = pa.array(["a" * (1 << 21)] * 40)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": range(40), "text": texts}), path, compression="zstd", use_dictionary=False)
    assert "unpacks to more than 64.0 MiB" in read_error(path).problem
    with pytest.raises(DataError, match="found 0 under 'n'"):  # the other column can be read
        texts_of(path, column="n")


@pytest.mark.usefixtures("a_megabyte")
def test_a_run_of_many_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    labels = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int8()), pa.array(["x"]))
    pq.write_table(pa.table({"text": labels}), path)
    assert "unpacks to more than" in read_error(path).problem


@pytest.mark.usefixtures("a_megabyte")
def test_a_list_of_millions_of_equal_values(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    tags = pa.ListArray.from_arrays(pa.array([0, 2_000_000]), pa.array(bytearray(2_000_000), pa.int8()))
    pq.write_table(pa.table({"text": ["one"], "tags": tags}), path)
    assert path.stat().st_size < 5000
    assert texts_of(path) == ["one"], "a column that is not asked for is not read"
    with open_table(path, None) as table, pytest.raises(DataError, match="unpacks to more than"):
        list(table.rows(["text", "tags"]))


def test_values_that_come_again_and_again_can_be_read(tmp_path: Path) -> None:
    texts = [f"text {number % 7}" for number in range(5000)]
    path = write_file(tmp_path, "a.parquet", parquet(text=texts, **{"a.b": ["x"] * 5000}))
    assert texts_of(path) == texts
    assert texts_of(path, column="a.b") == ["x"] * 5000


# Columns


@pytest.mark.parametrize("extension", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_more_columns_than_a_table_may_have(tmp_path: Path, extension: str) -> None:
    names = ["text", *(f"c{number}" for number in range(MAX_COLUMNS))]
    row = dict.fromkeys(names, "x")
    raw = {
        ".csv": lambda: as_csv([names, names]),
        ".tsv": lambda: as_csv([names, names], "\t"),
        ".jsonl": lambda: json.dumps(row).encode(),
        ".parquet": lambda: parquet(**{name: ["x"] for name in names}),
    }[extension]()
    error = read_error(write_file(tmp_path, "a" + extension, raw))
    assert "10,001 columns, expected at most 10,000" in error.problem


# What is no file


def test_a_pipe_without_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.txt")
    with not_for_ever():
        assert "a FIFO or a device, expected a regular file" in read_error(tmp_path / "a.txt").problem
        with pytest.raises(DataError, match="a FIFO or a device"):
            read_examples(tmp_path / "a.txt")


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl", "a.parquet", "a.txt.gz"])
def test_a_link_to_a_device_that_never_ends(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to("/dev/zero")
    with not_for_ever():
        assert "a FIFO or a device" in read_error(tmp_path / name).problem


def test_links_that_form_loops(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.txt", "one\n")
    for name in ("x", "y", "z"):
        (tmp_path / name).symlink_to(tmp_path)
    with not_for_ever():
        assert expand_paths([f"{tmp_path}/**/*.txt"]) == [path]
        assert expand_paths([f"{tmp_path}/**"]) == [path]
        assert expand_paths([tmp_path]) == [path]
        assert expand_paths([f"{tmp_path}/x/*.txt"]) == [tmp_path / "x" / "a.txt"], "a link that is named is followed"


def test_a_glob_takes_hidden_names_only_where_it_says_so(tmp_path: Path) -> None:
    for name in ("a.txt", ".b.txt", ".c/d.txt", "e/f.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_file(tmp_path, name, "one\n")
    assert expand_paths([f"{tmp_path}/**/*.txt"]) == [tmp_path / "a.txt", tmp_path / "e/f.txt"]
    assert expand_paths([f"{tmp_path}/.*.txt"]) == [tmp_path / ".b.txt"]
    assert expand_paths([f"{tmp_path}/.c/*.txt"]) == [tmp_path / ".c/d.txt"]
    assert expand_paths([f"{tmp_path}/**.txt"]) == [tmp_path / "a.txt"], "within a name ** is *"
