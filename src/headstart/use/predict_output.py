"""The output of predictions: rows written as csv, tsv, jsonl or parquet, or their labels alone, one a line."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from headstart.errors import DataError, OutputError
from headstart.files import new_file
from headstart.wording import reason

OUTPUT_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".txt")
STANDARD = "-"
Row = dict[str, Any]
WriteRows = Callable[[Sequence[Row]], None]

_BREAKS = re.compile(r"[\t\r\n]+")
_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]")
_NUMBER = re.compile(r"\s*[+-]?[\d.,]+(?:[eE][+-]?\d+)?\s*")


def output_suffix(out: str) -> str:
    """The suffix that says how predictions are written."""
    suffix = ".jsonl" if out == STANDARD else "".join(Path(out).suffixes[-1:]).lower()
    if suffix not in OUTPUT_SUFFIXES:
        raise OutputError(
            f"{out} ends in {suffix or 'nothing'!r}, and predictions are written as {', '.join(OUTPUT_SUFFIXES)}"
        )
    return suffix


@contextmanager
def open_output(
    out: str, columns: Sequence[str], source: str, log: Callable[[str], None], *, escape_formulas: bool = False
) -> Iterator[WriteRows]:
    """A function that writes rows; the file takes its name when all are written."""
    if out == STANDARD:
        yield partial(_write_json_lines, sys.stdout)
        return
    suffix = output_suffix(out)
    with new_file(out) as unfinished, ExitStack() as stack:
        if suffix == ".parquet":
            yield stack.enter_context(_parquet_writer(unfinished, columns, source))
            return
        file = stack.enter_context(unfinished.open("w", encoding="utf-8", newline=""))
        if suffix == ".jsonl":
            yield partial(_write_json_lines, file)
        elif suffix == ".txt":
            yield lambda rows: file.writelines(f"{_BREAKS.sub(' ', row['predicted'] or '')}\n" for row in rows)
        elif suffix == ".csv":
            yield _table_writer(file, columns, ",", _flat, escape_formulas)
        else:
            yield _table_writer(file, columns, "\t", _OneLine(log), escape_formulas)


def _write_json_lines(file: TextIO, rows: Sequence[Row]) -> None:
    file.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)


def _table_writer(
    file: TextIO, columns: Sequence[str], separator: str, flat: Callable[[Any], Any], escape_formulas: bool
) -> WriteRows:
    def cell(value: Any) -> Any:
        return escaped_formula(flat(value)) if escape_formulas else flat(value)

    table = csv.writer(_UnixLines(file), delimiter=separator, lineterminator="\r\n")
    table.writerow([cell(name) for name in columns])
    return lambda rows: table.writerows([cell(row[name]) for name in columns] for row in rows)


@dataclass(frozen=True)
class _UnixLines:
    """Ends rows in LF. `csv.writer` puts quotes around a CR only where its own line end has one."""

    file: TextIO

    def write(self, row: str) -> int:
        return self.file.write(row.removesuffix("\r\n") + "\n")


def escaped_formula(value: Any) -> Any:
    """An apostrophe before a cell that a spreadsheet would take for a formula; numbers stay as they are.

    >>> [escaped_formula(cell) for cell in ("=1+1", "-3.5", -3.5, "a = b")]
    ["'=1+1", '-3.5', -3.5, 'a = b']
    """
    is_formula = isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value)
    return f"'{value}" if is_formula else value


def _flat(value: Any) -> Any:
    """Lists and objects as JSON, for a cell of csv or tsv."""
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else value


class _OneLine:
    """The same for tsv, where a row is one line: line ends and tabs become spaces, which is said once."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log: Callable[[str], None] | None = log

    def __call__(self, value: Any) -> Any:
        flat = _flat(value)
        if not isinstance(flat, str) or not _BREAKS.search(flat):
            return flat
        if self._log:
            self._log("line ends and tabs are written as spaces, since a row of .tsv is one line; .csv keeps them")
            self._log = None
        return _BREAKS.sub(" ", flat)


@contextmanager
def _parquet_writer(path: Path, columns: Sequence[str], source: str) -> Iterator[WriteRows]:
    with ExitStack() as stack:
        writer: Any = None

        def write(rows: Sequence[Row]) -> None:
            nonlocal writer
            if writer is None:  # its schema needs the first rows
                writer = stack.enter_context(pq.ParquetWriter(path, _parquet_schema(rows, columns, source)))
            try:
                writer.write_table(pa.Table.from_pylist(list(rows), schema=writer.schema))
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                problem = f"its values do not fit one type ({reason(error)})"
                raise DataError(source, problem, fix="write .jsonl instead") from None

        yield write
        if writer is None:
            write([])


def _parquet_schema(rows: Sequence[Row], columns: Sequence[str], source: str) -> Any:
    """The types of a parquet source, else those of the first rows; a column that is empty so far holds text."""
    fields = {
        field.name: field for field in pa.Table.from_pylist(list(rows)).schema if not pa.types.is_null(field.type)
    }
    if source != STANDARD and source.endswith(".parquet"):
        fields |= {field.name: field for field in pq.read_schema(source).remove_metadata()}
    return pa.schema([fields.get(name) or _empty_field(name) for name in columns])


def _empty_field(name: str) -> Any:
    return pa.field(name, pa.float64() if name.startswith("probability:") else pa.string())
