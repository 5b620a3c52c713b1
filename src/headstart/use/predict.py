"""A file of texts in, a file of labels out: rows and columns kept as they are, any form to any form.

csv, tsv, jsonl, parquet   columns kept; `predicted` and a `probability:` for each label added
txt, or -                  one text a line, under `text`; `-` is standard input or standard output
"""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from headstart.errors import DataError, OutputError
from headstart.files import new_file
from headstart.reading.columns import choose_columns
from headstart.reading.examples import Text, example_suffix, stream_texts
from headstart.reading.skipped import SkippedRows, parse_rows
from headstart.reading.tables import TABLE_SUFFIXES, Cells, as_text, open_table
from headstart.use.classifier import CHUNK, Prediction, TextClassifier

OUTPUT_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".txt")
STANDARD = "-"
Row = dict[str, Any]
WriteRows = Callable[[Sequence[Row]], None]


@dataclass(frozen=True)
class LabelCounts:
    """How many texts got each label; None is for those on which the classifier abstained."""

    rows: int
    labels: dict[str | None, int]


def predict_file(
    classifier: TextClassifier,
    source: str,
    out: str,
    *,
    text: str | None = None,
    second: str | None = None,
    abstain_below: float | None = None,
    skipped: SkippedRows | None = None,
    log: Callable[[str], None] = lambda text: None,
    progress: Callable[[int], None] = lambda rows: None,
    write: bool = True,
) -> LabelCounts:
    """Label every text of a file, a few thousand at a time; `out` is written whole or not at all.

    Several processes may share the work; only the main one should `write`.
    """
    suffix = ".jsonl" if out == STANDARD else "".join(Path(out).suffixes[-1:]).lower()
    if suffix not in OUTPUT_SUFFIXES:
        raise OutputError(
            f"{out} ends in {suffix or 'nothing'!r}, and predictions are written as {', '.join(OUTPUT_SUFFIXES)}"
        )
    counts: Counter[str | None] = Counter()
    added = ["predicted", *(f"probability:{label}" for label in classifier.class_names)]
    with _open(source, text, second, skipped, log) as (columns, rows):
        taken = [name for name in added if name in columns]
        if taken:
            raise DataError(source, f"there is a column {taken[0]!r} already", fix="rename it, or leave it out")
        writer = _writer(out, suffix, [*columns, *added], source) if write else nullcontext(lambda rows: None)
        with writer as write_rows:
            while chunk := list(islice(rows, CHUNK)):
                predictions = classifier.predict([text for _, text in chunk], abstain_below=abstain_below)
                write_rows([{**row, **_cells(one)} for (row, _), one in zip(chunk, predictions, strict=True)])
                counts.update(prediction.label for prediction in predictions)
                progress(counts.total())
    return LabelCounts(counts.total(), dict(counts))


def _cells(prediction: Prediction) -> Row:
    probabilities = {f"probability:{name}": p for name, p in prediction.probabilities.items()}
    return {"predicted": prediction.label, **probabilities}


# --- reading ---


@contextmanager
def _open(
    source: str, text: str | None, second: str | None, skipped: SkippedRows | None, log: Callable[[str], None]
) -> Iterator[tuple[Sequence[str], Iterator[tuple[Row, Text]]]]:
    """The columns of a source, and its rows, each with the text (or pair) to classify."""
    if source == STANDARD:
        yield ["text"], _lines(sys.stdin)
        return
    path = Path(source)
    if example_suffix(path) not in TABLE_SUFFIXES:
        if text is not None or second is not None:
            raise DataError(path, "has no columns, and one was named", fix="leave --text and --second out")
        yield ["text"], (({"text": row.text}, row.text) for row in stream_texts(path, log, skipped))
        return
    with open_table(path, skipped) as table:
        chosen = choose_columns(table, text, second, None, labelled=False)
        for note in (*table.notes, *chosen.notes):
            log(note)
        columns = [table.require(name) for name in table.columns]

        def parse(line: int, cells: Cells) -> tuple[Row, Text]:
            row = dict(zip(columns, cells, strict=True))
            first = as_text(row[chosen.text], chosen.text, path, line)
            if chosen.second is None:
                return row, first
            return row, (first, as_text(row[chosen.second], chosen.second, path, line))

        yield columns, parse_rows(parse, table.rows(columns), skipped)


def _lines(stream: TextIO) -> Iterator[tuple[Row, Text]]:
    try:
        for line in stream:
            text = line.rstrip("\r\n")
            yield {"text": text}, text
    except UnicodeDecodeError as error:
        raise DataError("standard input", f"is no UTF-8 ({error.reason})", fix="convert it to UTF-8") from None


# --- writing ---


@contextmanager
def _writer(out: str, suffix: str, columns: Sequence[str], source: str) -> Iterator[WriteRows]:
    """A function that writes rows; the file takes its name when all are written."""
    if out == STANDARD:
        yield partial(_write_json_lines, sys.stdout)
        return
    with new_file(out) as unfinished, ExitStack() as stack:
        if suffix == ".parquet":
            yield stack.enter_context(_parquet_writer(unfinished, columns, source))
            return
        file = stack.enter_context(unfinished.open("w", encoding="utf-8", newline=""))
        if suffix == ".jsonl":
            yield partial(_write_json_lines, file)
        elif suffix == ".txt":
            yield lambda rows: file.writelines(f"{row['predicted'] or ''}\n" for row in rows)
        else:
            table = csv.DictWriter(file, columns, delimiter="," if suffix == ".csv" else "\t", lineterminator="\n")
            table.writeheader()
            yield lambda rows: table.writerows({name: _flat(value) for name, value in row.items()} for row in rows)


def _write_json_lines(file: TextIO, rows: Sequence[Row]) -> None:
    file.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)


def _flat(value: Any) -> Any:
    """Lists and objects as JSON, for a cell of csv or tsv."""
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else value


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
                problem = f"its values do not fit one type ({error})"
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
    return pa.schema([fields.get(name) or pa.field(name, pa.string()) for name in columns])
