"""A file of texts in, a file of labels out: rows and columns kept as they are, any form to any form.

csv, tsv, jsonl, parquet   columns kept; `predicted` and a `probability:` for each label added
txt, or -                  one text a line, under `text`; `-` is standard input or standard output

A file of lines gives a row for each line, whether it is blank or, where bad ones are skipped, cannot be read.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headstart.errors import ConfigError, DataError, OutputError
from headstart.reading import limits
from headstart.reading.columns import choose_columns
from headstart.reading.examples import Text, example_suffix
from headstart.reading.skipped import SkippedRows, parse_rows
from headstart.reading.tables import TABLE_SUFFIXES, Cells, as_text, open_table
from headstart.reading.texts import line_texts, stream_texts
from headstart.use.classifier import CHUNK, Prediction
from headstart.use.predict_output import STANDARD, Row, open_output, output_suffix

ReadRow = tuple[Row, Text | None]  # its cells, and the text to classify; None where the line could not be read


class Predictor(Protocol):
    """A classifier, whether it is a network or linear."""

    @property
    def class_names(self) -> tuple[str, ...]: ...

    def predict(self, texts: Sequence[Text], *, abstain_below: float | None = None) -> list[Prediction]: ...


@dataclass(frozen=True)
class LabelCounts:
    """How many texts got each label; None is for those on which the classifier abstained."""

    rows: int
    labels: dict[str | None, int]


def predict_file(
    classifier: Predictor,
    source: str,
    out: str,
    *,
    text: str | None = None,
    second: str | None = None,
    abstain_below: float | None = None,
    escape_formulas: bool = False,
    skipped: SkippedRows | None = None,
    log: Callable[[str], None] = lambda text: None,
    progress: Callable[[int], None] = lambda rows: None,
    write: bool = True,
) -> LabelCounts:
    """Label every text of a file, a few thousand at a time; `out` is written whole or not at all.

    Several processes may share the work; only the main one should `write`.
    """
    suffix = output_suffix(out)
    if escape_formulas and suffix not in (".csv", ".tsv"):
        problem = f"escape_formulas is for .csv and .tsv, which spreadsheets open, and {out} is none"
        raise ConfigError("predict", [problem])
    counts: Counter[str | None] = Counter()
    added = ["predicted", *(f"probability:{label}" for label in classifier.class_names)]
    with _open(source, text, second, skipped, log) as (columns, rows):
        taken = sorted(set(added).intersection(columns))
        if taken:
            raise DataError(source, f"there is a column {taken[0]!r} already", fix="rename it, or leave it out")
        rows = _without_gaps(rows, skipped) if suffix == ".txt" and skipped else rows
        output = open_output(out, [*columns, *added], source, log, escape_formulas=escape_formulas)
        with output if write else nullcontext(lambda rows: None) as write_rows:
            for chunk in _chunks(rows):
                texts = [text for _, text in chunk if text is not None]
                predictions = classifier.predict(texts, abstain_below=abstain_below) if texts else []
                answers = iter(predictions)
                nothing = dict.fromkeys(added)
                write_rows([{**row, **(nothing if text is None else _cells(next(answers)))} for row, text in chunk])
                counts.update(prediction.label for prediction in predictions)
                progress(counts.total())
    return LabelCounts(counts.total(), dict(counts))


def _without_gaps(rows: Iterator[ReadRow], skipped: SkippedRows) -> Iterator[ReadRow]:
    """The rows, or an error where one was left out: in a file of labels alone nothing would show where."""
    left_out = skipped.count
    for row, text in rows:
        left_out += text is None  # a line that could not be read has a row all the same
        if skipped.count > left_out:
            break
        yield row, text
    if skipped.count > left_out:
        line = skipped.lines[-1]
        raise OutputError(f"left out: {line}; labels alone could not be matched with the rows: write .csv or .jsonl")


def _chunks(rows: Iterator[ReadRow]) -> Iterator[list[ReadRow]]:
    """Rows, as many at a time as are read ahead; fewer where they are long."""
    chunk: list[ReadRow] = []
    length = 0
    for row in rows:
        chunk.append(row)
        length += sum(len(value) for value in row[0].values() if isinstance(value, str))
        if len(chunk) >= CHUNK or length >= limits.MAX_LINE:
            yield chunk
            chunk, length = [], 0
    if chunk:
        yield chunk


def _cells(prediction: Prediction) -> Row:
    probabilities = {f"probability:{name}": p for name, p in prediction.probabilities.items()}
    return {"predicted": prediction.label, **probabilities}


@contextmanager
def _open(
    source: str, text: str | None, second: str | None, skipped: SkippedRows | None, log: Callable[[str], None]
) -> Iterator[tuple[Sequence[str], Iterator[ReadRow]]]:
    """The columns of a source, and its rows, each with the text (or pair) to classify."""
    path = Path(source)
    if source == STANDARD:
        if sys.stdin is None:
            raise DataError("standard input", "is closed", fix="name a file, or send texts to it")
        yield ["text"], _one_column(line_texts(sys.stdin.buffer, Path("standard input"), skipped))
        return
    if example_suffix(path) not in TABLE_SUFFIXES:
        if text is not None or second is not None:
            raise DataError(path, "has no columns, and one was named", fix="leave --text and --second out")
        yield ["text"], _one_column(stream_texts(path, log, skipped))
        return
    with open_table(path, skipped) as table:
        chosen = choose_columns(table, text, second, None, labelled=False)
        for note in (*table.notes, *chosen.notes):
            log(note)
        columns = table.require_distinct()

        def parse(line: int, cells: Cells) -> ReadRow:
            row = dict(zip(columns, cells, strict=True))
            first = as_text(row[chosen.text], chosen.text, path, line)
            if chosen.second is None:
                return row, first
            return row, (first, as_text(row[chosen.second], chosen.second, path, line))

        yield columns, parse_rows(parse, table.rows(columns), skipped)


def _one_column(texts: Iterator[str | None]) -> Iterator[ReadRow]:
    return (({"text": text}, text) for text in texts)
