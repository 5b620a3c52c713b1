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
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TextIO

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


@dataclass(frozen=True)
class Done:
    """How many texts got which label; None is for those that the model was not sure enough of."""

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
) -> Done:
    """Label every text of a file, a few thousand at a time; the file that comes out is whole or not there.

    Several processes share the work, and one of them is to `write`.
    """
    form = ".jsonl" if out == STANDARD else "".join(Path(out).suffixes[-1:]).lower()
    if form not in OUTPUT_SUFFIXES:
        raise OutputError(
            f"{out} ends in {form or 'nothing'!r}, and predictions are written as {', '.join(OUTPUT_SUFFIXES)}"
        )
    counts: Counter[str | None] = Counter()
    added = ["predicted", *(f"probability:{label}" for label in classifier.class_names)]
    with _open(source, text, second, skipped, log) as (columns, rows):
        clash = [name for name in added if name in columns]
        if clash:
            raise DataError(source, f"there is a column {clash[0]!r} already", fix="rename it, or leave it out")
        writer = _writer(out, form, [*columns, *added], source) if write else nullcontext(lambda rows: None)
        with writer as put:
            while chunk := list(islice(rows, CHUNK)):
                answers = classifier.predict([each for _, each in chunk], abstain_below=abstain_below)
                put([{**row, **_cells(answer)} for (row, _), answer in zip(chunk, answers, strict=True)])
                counts.update(answer.label for answer in answers)
                progress(counts.total())
    return Done(counts.total(), dict(counts))


def _cells(answer: Prediction) -> Row:
    return {"predicted": answer.label, **{f"probability:{name}": p for name, p in answer.probabilities.items()}}


# --- in ---


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


# --- out ---


class _Write(Protocol):
    def __call__(self, rows: Sequence[Row]) -> None: ...


@contextmanager
def _writer(out: str, form: str, columns: Sequence[str], source: str) -> Iterator[_Write]:
    """What writes some rows; the file takes its name when all are written."""
    if out == STANDARD:
        yield _lines_of_json(sys.stdout)
        return
    with new_file(out) as unfinished:
        if form == ".parquet":
            with _parquet(unfinished, columns, source) as write:
                yield write
            return
        with unfinished.open("w", encoding="utf-8", newline="") as file:
            if form == ".jsonl":
                yield _lines_of_json(file)
            elif form == ".txt":
                yield lambda rows: file.writelines(f"{row['predicted'] or ''}\n" for row in rows)
            else:
                yield _table(file, columns, "," if form == ".csv" else "\t")


def _lines_of_json(file: TextIO) -> _Write:
    def write(rows: Sequence[Row]) -> None:
        file.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)

    return write


def _table(file: TextIO, columns: Sequence[str], delimiter: str) -> _Write:
    made = csv.DictWriter(file, columns, delimiter=delimiter, lineterminator="\n")
    made.writeheader()

    def cell(value: Any) -> Any:
        return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else value

    def write(rows: Sequence[Row]) -> None:
        made.writerows({name: cell(value) for name, value in row.items()} for row in rows)

    return write


@contextmanager
def _parquet(path: Path, columns: Sequence[str], source: str) -> Iterator[_Write]:
    """The types of a parquet source stay; elsewhere those of the first rows hold for all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    known: Any = None
    if source != STANDARD and source.endswith(".parquet"):
        known = pq.read_schema(source).remove_metadata()
    writer: Any = None

    def write(rows: Sequence[Row]) -> None:
        nonlocal writer, known
        if writer is None:
            guessed = pa.Table.from_pylist(list(rows)).schema
            kept = {} if known is None else {name: known.field(name) for name in known.names}
            known = pa.schema([kept.get(name) or _field(guessed, name) for name in columns])
            writer = pq.ParquetWriter(path, known)
        try:
            writer.write_table(pa.Table.from_pylist(list(rows), schema=known))
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise DataError(source, f"its values do not fit one type ({error})", fix="write .jsonl instead") from None

    try:
        yield write
        if writer is None:
            pq.write_table(pa.table({name: pa.array([], pa.string()) for name in columns}), path)
    finally:
        if writer is not None:
            writer.close()


def _field(schema: Any, name: str) -> Any:
    """A column in which nothing stood so far holds text."""
    import pyarrow as pa

    if name not in schema.names or pa.types.is_null(schema.field(name).type):
        return pa.field(name, pa.string())
    return schema.field(name)
