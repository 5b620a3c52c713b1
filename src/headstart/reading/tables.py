"""Tables: rows under named columns, streamed from csv, tsv, jsonl and parquet files, plain or compressed.

    with open_table(Path("reviews.csv.gz"), skipped=None) as table:
        for line, (value,) in table.rows(["text"]):
            text = as_text(value, "text", table.path, line)

The columns are known when the table is open; a row is read when it is asked for.
"""

from __future__ import annotations

import csv
import io
import json
import re
import reprlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast

from headstart.errors import DataError, did_you_mean, shown
from headstart.reading.limits import MAX_LINE, require_few_columns
from headstart.reading.lines import Lines, check_suffix, decode, open_bytes, open_seekable, read_lines
from headstart.reading.parquet import ParquetRows
from headstart.reading.skipped import SkippedRows, bad_row, parse_rows, raise_or_skip
from headstart.wording import reason

TABLE_SUFFIXES = (".csv", ".jsonl", ".parquet", ".tsv")

Cells = tuple[object, ...]
_Record = tuple[int, Mapping[str, object]]


@dataclass(frozen=True)
class Table:
    """A file of rows under named columns. `rows(names)` gives each row's line and its values under those names."""

    path: Path
    columns: tuple[str, ...]
    text_columns: tuple[str, ...]  # the columns that hold text, by the schema or the first row
    rows: Callable[[Sequence[str]], Iterator[tuple[int, Cells]]]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_few_columns(self.path, len(self.columns))

    def require(self, name: str) -> str:
        """The name itself, if exactly one column has it."""
        if name not in self.columns:
            raise DataError(self.path, f"no column {shown(name)}", fix=did_you_mean(name, self.columns))
        if self.columns.count(name) > 1:
            raise self._repeated(name)
        return name

    def require_distinct(self) -> list[str]:
        """All columns, if no two have one name."""
        repeated = next((name for name, count in Counter(self.columns).items() if count > 1), None)
        if repeated is not None:
            raise self._repeated(repeated)
        return list(self.columns)

    def _repeated(self, name: str) -> DataError:
        problem = f"column {shown(name)} is there more than once"
        return DataError(self.path, problem, fix="rename one of them")


@contextmanager
def open_table(path: Path, skipped: SkippedRows | None) -> Iterator[Table]:
    """A csv, tsv, jsonl or parquet file as a `Table`; bad rows are collected in `skipped`, or raised."""
    suffix = check_suffix(path, TABLE_SUFFIXES)
    if suffix == ".jsonl":
        with closing(read_lines(path, skipped)) as numbered:
            yield _json_table(path, numbered, skipped)
    elif suffix == ".parquet":
        with open_seekable(path) as file:
            yield _parquet_table(ParquetRows(path, file), skipped)
    else:
        with open_bytes(path) as stream:
            yield (_csv_table if suffix == ".csv" else _tsv_table)(path, stream, skipped)


def as_text(value: object, name: str, path: Path, line: int) -> str:
    """A table's value as text that any tokenizer can take, or a `DataError`."""
    if value is None:
        raise bad_row(path, line, f"nothing under {name!r}, expected a text", "fill it in")
    if not isinstance(value, str):
        problem = f"found {reprlib.repr(value)} under {name!r}, expected a text"
        raise DataError(path, problem, line=line, fix="name a column that holds texts")
    try:
        encoded = value.encode()
    except UnicodeEncodeError as error:  # JSON can spell half of a character: "\ud83d"
        problem = f"half of a surrogate pair under {name!r} (character {error.start + 1})"
        raise bad_row(path, line, problem, "write the character whole") from None
    if b"\0" in encoded:
        problem = f"a NUL character under {name!r} (character {value.index(chr(0)) + 1})"
        raise bad_row(path, line, problem, "take it out")
    return value


def _table(path: Path, columns: Sequence[str] | None, records: Iterator[_Record], notes: Sequence[str] = ()) -> Table:
    """A table over records that are read one after the other.

    The first record shows which columns hold text and, where there is no header, what the columns are.
    """
    first = next(records, None)
    if first is None and columns is None:
        raise DataError(path, "holds no row that can be read, expected at least one", fix="leave the file out")
    sample = first[1] if first else {}
    names = tuple(sample if columns is None else columns)
    text_columns = tuple(name for name in names if _is_text(sample.get(name)))

    def rows(wanted: Sequence[str]) -> Iterator[tuple[int, Cells]]:
        for line, record in chain([first] if first else [], records):
            yield line, tuple(record.get(name) for name in wanted)

    return Table(path, names, text_columns, rows, tuple(notes))


def _is_text(value: object) -> bool:
    """Whether a value is a string that is neither blank nor a number."""
    if not isinstance(value, str):
        return False
    try:
        float(value)
    except ValueError:
        return bool(value.strip())
    return False


# jsonl


def _json_table(path: Path, numbered: Iterator[tuple[int, str]], skipped: SkippedRows | None) -> Table:
    def parse(line: int, text: str) -> _Record:
        try:
            record = json.loads(text)
            if isinstance(record, dict):
                return line, record
            problem = f"found {reprlib.repr(record)}, expected a JSON object"
        except json.JSONDecodeError as error:
            problem = f"not whole JSON: {error.msg} (character {error.pos + 1} of {len(text)})"
        except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets thousands deep
            problem = f"JSON that cannot be read: {reason(error)}"
        raise bad_row(path, line, problem, "write one object a line, whole")

    lines = ((line, text) for line, text in numbered if text.strip())
    return _table(path, None, parse_rows(parse, lines, skipped))


# csv and tsv


def _csv_table(path: Path, stream: BinaryIO, skipped: SkippedRows | None) -> Table:
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE))
    first_line = cast(io.BufferedReader, stream).peek().partition(b"\n")[0]
    separator = next((mark for mark in (",", ";", "\t") if mark.encode() in first_line), ",")
    lines = Lines(path, stream)
    reader = map(_empty_if_blank, csv.reader(lines, delimiter=separator, strict=True))
    fix = f"put quotes around a text that holds {separator!r} or a line break"
    notes = [] if separator == "," else [f"the columns are separated by {separator!r}"]
    return _table_with_header(reader, lines, fix, skipped, notes)


def _empty_if_blank(fields: list[str]) -> list[str]:
    return fields if len(fields) > 1 or "".join(fields).strip() else []


def _tsv_table(path: Path, stream: BinaryIO, skipped: SkippedRows | None) -> Table:
    lines = Lines(path, stream)
    fix = "a .tsv row is one line; where quotes hold tabs or line breaks, rename the file to .csv"
    return _table_with_header(map(_split_tsv, lines), lines, fix, skipped)


_QUOTED = re.compile(r'"[^"]*(?:""[^"]*)*"')


def _split_tsv(line: str) -> list[str]:
    """The fields of a line. Quotation marks are plain characters, unless they enclose a whole field."""
    if not line.strip(" \r\n"):
        return []
    fields = line.removesuffix("\n").removesuffix("\r").split("\t")
    return [field[1:-1].replace('""', '"') if _QUOTED.fullmatch(field) else field for field in fields]


def _table_with_header(
    reader: Iterator[list[str]], lines: Lines, fix: str, skipped: SkippedRows | None, notes: Sequence[str] = ()
) -> Table:
    """The table of a reader that gives the fields of each row, and none for a blank line."""
    header = next(_rows(reader, lines, None), None)
    if header is None:
        raise DataError(lines.path, "is empty, expected a header and rows", fix="write the names of the columns on top")
    columns = [name.strip() for name in header[1]]

    def parse(line: int, fields: list[str]) -> _Record:
        if len(fields) != len(columns):
            problem = f"the row has {len(fields)} fields, expected {len(columns)} as in the header"
            raise bad_row(lines.path, line, problem, fix, lines.row_lines)
        return line, dict(zip(columns, fields, strict=True))

    return _table(lines.path, columns, parse_rows(parse, _rows(reader, lines, skipped), skipped), notes)


def _rows(reader: Iterator[list[str]], lines: Lines, skipped: SkippedRows | None) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, each with the line it begins on; a quoted csv field may span several."""
    while True:
        lines.start_row()
        error = None
        fields: list[str] = []
        try:
            fields = next(reader)
        except StopIteration:
            return
        except DataError as damage:
            error = damage
        except csv.Error as mistake:
            problem = f"not csv: {mistake} (the row was read as far as line {lines.number})"
            fix = 'write a quoted field as "She said ""no""", closed at its end'
            error = bad_row(lines.path, lines.begin, problem, fix)
        error = lines.bad or error
        if error is not None:
            error.lines = lines.row_lines
            raise_or_skip(error, skipped)
        elif fields:
            yield lines.begin, fields


# parquet


def _parquet_table(file: ParquetRows, skipped: SkippedRows | None) -> Table:
    def parse(row: int, values: Cells) -> tuple[int, Cells]:
        return row, tuple(decode(value, file.path, row) if isinstance(value, bytes) else value for value in values)

    def rows(names: Sequence[str]) -> Iterator[tuple[int, Cells]]:
        return parse_rows(parse, enumerate(file.rows(names), 1), skipped)

    return Table(file.path, file.columns, file.text_columns, rows)
