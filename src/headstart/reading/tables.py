"""Tables: rows under named columns, streamed from csv, tsv, jsonl and parquet files, plain or compressed.

    with open_table(Path("reviews.csv.gz"), skipped=None) as table:
        name = table.guess_text()
        for line, (value,) in table.rows([name]):
            text = as_text(value, name, table.path, line)

Which columns there are is known when the table is open; a row is read when it is asked for.
"""

from __future__ import annotations

import csv
import io
import json
import re
import reprlib
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from headstart.errors import DataError, did_you_mean
from headstart.reading.lines import (
    BUFFER,
    COMPRESSIONS,
    TABLE_SUFFIXES,
    Lines,
    check_suffix,
    decode,
    open_bytes,
    open_plain,
    read_lines,
    reason,
)
from headstart.reading.skipped import SKIP, SkippedRows, raise_or_skip

TEXT_NAMES = ("text", "content", "body", "review", "sentence", "document", "comment", "message", "article", "tweet")
FIELD_LIMIT = 1 << 26  # characters in one csv field: far above any document, far below a machine's memory

Cells = tuple[object, ...]
_Record = tuple[int, Mapping[str, object]]


@dataclass(frozen=True)
class Table:
    """A file of rows under named columns. `rows(names)` gives each row's line and its values under those names."""

    path: Path
    columns: tuple[str, ...]
    words: tuple[str, ...]  # the columns that hold words, as far as the first row or the schema tells
    rows: Callable[[Sequence[str]], Iterator[tuple[int, Cells]]]
    notes: tuple[str, ...] = ()

    def check(self, name: str) -> str:
        """The name itself, if there is one such column."""
        if name not in self.columns:
            raise DataError(self.path, f"no column {name!r}", fix=did_you_mean(name, self.columns)[:400])
        if self.columns.count(name) > 1:
            raise DataError(self.path, f"column {name!r} is there more than once", fix="rename one of them")
        return name

    def find(self, names: Iterable[str], apart_from: Sequence[str | None] = ()) -> str | None:
        """The column with the first of some usual names, in capitals or not."""
        ours = {column.casefold(): column for column in self.columns if column not in apart_from}
        return next((ours[name] for name in names if name in ours), None)

    def guess_text(self, apart_from: Sequence[str | None] = (), option: str = "--text") -> str:
        """The column of text: one with a usual name, or the only one that holds words; `option` is what names it."""
        usual = self.find(TEXT_NAMES, apart_from)
        if usual is not None:
            return self.check(usual)
        left = self.named(apart_from)
        if len(left) != 1:
            left = [name for name in left if name in self.words]
        if len(left) != 1:
            raise self.unclear("text", option)
        return self.check(left[0])

    def named(self, apart_from: Sequence[str | None] = ()) -> list[str]:
        """The columns a guess may choose from: not the unnamed one that row numbers are often saved under."""
        return [name for name in self.columns if name and name not in apart_from]

    def unclear(self, what: str, option: str) -> DataError:
        names = ", ".join(reprlib.repr(name) for name in self.columns[:12])
        more = ", …" if len(self.columns) > 12 else ""
        fix = f"name the column of the {what} with {option}"
        if check_suffix(self.path) in (".csv", ".tsv"):
            fix += "; where the first row is no header, write one above it"
        return DataError(self.path, f"which column is the {what}? There are: {names}{more}", fix=fix)


@contextmanager
def open_table(path: Path, skipped: SkippedRows | None) -> Iterator[Table]:
    """A csv, tsv, jsonl or parquet file as a `Table`; bad rows are noted in `skipped` or raised."""
    form = check_suffix(path, TABLE_SUFFIXES)
    opener = {".csv": _csv_table, ".tsv": _tsv_table, ".jsonl": _jsonl_table, ".parquet": _parquet_table}[form]
    with opener(path, skipped) as table:
        yield table


def as_text(value: object, name: str, path: Path, line: int) -> str:
    """A table's value as text that any tokenizer can take, or a `DataError`."""
    if value is None:
        raise DataError(path, f"nothing under {name!r}, expected a text", line=line, fix=f"fill it in, or {SKIP}")
    if not isinstance(value, str):
        problem = f"found {reprlib.repr(value)} under {name!r}, expected a text"
        raise DataError(path, problem, line=line, fix="name a column that holds texts")
    try:
        encoded = value.encode()
    except UnicodeEncodeError as error:  # JSON can spell half of a character: "\ud83d"
        problem = f"half of a surrogate pair under {name!r} (character {error.start + 1})"
        raise DataError(path, problem, line=line, fix=f"write the character whole, or {SKIP}") from None
    if b"\0" in encoded:
        problem = f"a NUL character under {name!r} (character {value.index(chr(0)) + 1})"
        raise DataError(path, problem, line=line, fix=f"take it out, or {SKIP}")
    return value


def _table(path: Path, columns: Sequence[str] | None, records: Iterator[_Record], notes: Sequence[str] = ()) -> Table:
    """A table over records read one after the other. The first one is looked at to see which columns hold words,
    and, where no header says it, what the columns are."""
    first = next(records, None)
    if first is None and columns is None:
        raise DataError(path, "holds no row that can be read, expected at least one", fix="leave the file out")
    sample = first[1] if first else {}
    names = tuple(sample if columns is None else columns)
    words = tuple(name for name in names if _is_words(sample.get(name)))

    def rows(wanted: Sequence[str]) -> Iterator[tuple[int, Cells]]:
        for line, cells in chain([first] if first else [], records):
            yield line, tuple(cells.get(name) for name in wanted)

    return Table(path, names, words, rows, tuple(notes))


def _is_words(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        float(value)
    except ValueError:
        return bool(value.strip())
    return False


def _jsonl_records(path: Path, skipped: SkippedRows | None) -> Generator[_Record, None, None]:
    for line, text in read_lines(path, skipped):
        if not text or text.isspace():
            continue
        try:
            record = json.loads(text)
        except json.JSONDecodeError as error:
            problem = f"not whole JSON: {error.msg} (character {error.pos + 1} of {len(text)})"
        except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets thousands deep
            problem = f"JSON that cannot be read: {reason(error)}"
        else:
            if isinstance(record, dict):
                yield line, record
                continue
            problem = f"found {reprlib.repr(record)}, expected a JSON object"
        fix = f"write one object a line, whole, or {SKIP}"
        raise_or_skip(DataError(path, problem, line=line, fix=fix), skipped)


@contextmanager
def _jsonl_table(path: Path, skipped: SkippedRows | None) -> Iterator[Table]:
    with closing(_jsonl_records(path, skipped)) as records:
        yield _table(path, None, records)


def _csv_fields(
    lines: Lines, path: Path, separator: str, skipped: SkippedRows | None
) -> Iterator[tuple[int, list[str]]]:
    """The rows of a csv file, each with the line it begins on; a quoted field may go on over several."""
    reader = csv.reader(lines, delimiter=separator, strict=True)
    while True:
        begins = lines.number + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except DataError as error:
            raise_or_skip(error, skipped)
        except csv.Error as error:
            fix = f'write a quoted field as "She said ""no""", closed at its end, or {SKIP}'
            problem = f"not csv: {error} (the row was read as far as line {lines.number})"
            raise_or_skip(DataError(path, problem, line=begins, fix=fix), skipped)
        else:
            if len(fields) > 1 or any(field.strip() for field in fields):  # else the line is blank
                yield begins, fields


def _tsv_fields(lines: Lines, path: Path, skipped: SkippedRows | None) -> Iterator[tuple[int, list[str]]]:
    """The rows of a tsv file, one a line. Quotation marks are plain characters, unless they wrap a field whole."""
    while True:
        try:
            text = next(lines, None)
        except DataError as error:
            raise_or_skip(error, skipped)
            continue
        if text is None:
            return
        if text.strip(" \r\n"):
            row = text.removesuffix("\n").removesuffix("\r")
            yield lines.number, [_unquoted(cell) for cell in row.split("\t")]


_QUOTED = re.compile(r'"[^"]*(?:""[^"]*)*"')


def _unquoted(cell: str) -> str:
    if cell.startswith('"') and _QUOTED.fullmatch(cell):
        return cell[1:-1].replace('""', '"')
    return cell


def _even(
    rows: Iterator[tuple[int, list[str]]], columns: Sequence[str], path: Path, fix: str, skipped: SkippedRows | None
) -> Iterator[_Record]:
    """The rows as wide as the header, and a complaint for each of the others."""
    for line, fields in rows:
        if len(fields) == len(columns):
            yield line, dict(zip(columns, fields, strict=True))
        else:
            problem = f"the row has {len(fields)} fields, expected {len(columns)} as in the header"
            raise_or_skip(DataError(path, problem, line=line, fix=f"{fix}, or {SKIP}"), skipped)


def _header(rows: Iterator[tuple[int, list[str]]], path: Path) -> list[str]:
    first = next(rows, None)
    if first is None:
        raise DataError(path, "is empty, expected a header and rows", fix="write the names of the columns on top")
    return [name.strip() for name in first[1]]


@contextmanager
def _csv_table(path: Path, skipped: SkippedRows | None) -> Iterator[Table]:
    csv.field_size_limit(max(csv.field_size_limit(), FIELD_LIMIT))
    with open_bytes(path) as stream:
        top = cast(io.BufferedReader, stream).peek().partition(b"\n")[0]
        separator = next((mark for mark in (",", ";", "\t") if mark.encode() in top), ",")
        lines = Lines(path, stream)
        columns = _header(_csv_fields(lines, path, separator, None), path)
        rows = _csv_fields(lines, path, separator, skipped)
        fix = f"put quotes around a text that holds {separator!r} or a line break"
        notes = [] if separator == "," else [f"the columns are separated by {separator!r}"]
        yield _table(path, columns, _even(rows, columns, path, fix, skipped), notes)


@contextmanager
def _tsv_table(path: Path, skipped: SkippedRows | None) -> Iterator[Table]:
    with open_bytes(path) as stream:
        lines = Lines(path, stream)
        columns = _header(_tsv_fields(lines, path, None), path)
        rows = _tsv_fields(lines, path, skipped)
        fix = "a .tsv row is one line; where quotes hold tabs or line breaks, rename the file to .csv"
        yield _table(path, columns, _even(rows, columns, path, fix, skipped))


@contextmanager
def _parquet_table(path: Path, skipped: SkippedRows | None) -> Iterator[Table]:
    with _seekable(path) as source:
        with _as_data_error(path):
            file = pq.ParquetFile(source, pre_buffer=False)  # ahead of need it would hold a whole row group
            schema = file.schema_arrow

        def rows(names: Sequence[str]) -> Iterator[tuple[int, Cells]]:
            for row, cells in enumerate(_parquet_cells(file, names, path), 1):
                try:
                    decoded = tuple(decode(v, path, row) if isinstance(v, bytes) else v for v in cells)
                except DataError as error:
                    raise_or_skip(error, skipped)
                else:
                    yield row, decoded

        words = tuple(column.name for column in schema if _is_string(column.type))
        yield Table(path, tuple(schema.names), words, rows)


def _parquet_cells(file: pq.ParquetFile, names: Sequence[str], path: Path) -> Iterator[Cells]:
    with _as_data_error(path):
        batches = file.iter_batches(batch_size=1024, columns=list(names))
    while True:
        with _as_data_error(path):
            batch = next(batches, None)
            values = [_values(batch.column(name)) for name in names] if batch else []
        if batch is None:
            return
        yield from zip(*values, strict=True)


def _values(array: pa.Array) -> list[object]:
    """A column's values, strings as bytes: `decode` then says which row is not UTF-8, where pyarrow would not."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if _is_string(array.type):
        array = array.cast(pa.large_binary())
    values: list[object] = array.to_pylist()
    return values


def _is_string(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


@contextmanager
def _seekable(path: Path) -> Iterator[BinaryIO]:
    """A file to jump about in, as parquet needs; a compressed one is unpacked to disk first."""
    if path.suffix.lower() not in COMPRESSIONS:
        with open_plain(path) as plain:
            yield plain
        return
    with open_bytes(path) as stream, tempfile.TemporaryFile() as unpacked:
        shutil.copyfileobj(stream, unpacked, BUFFER)
        yield unpacked


@contextmanager
def _as_data_error(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # on a damaged file pyarrow raises errors of a dozen kinds
        problem = f"not a whole parquet file ({reason(error)})"
        raise DataError(path, problem, fix="write or copy the file again") from None
