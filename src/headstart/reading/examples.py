"""Examples: labelled texts, read from files of any supported format.

    train.csv, .tsv, .jsonl, .parquet   a column of texts (or two, for pairs) and one of labels, named or guessed
    train.txt                           one `label ||| text` a line
    train.review.spm + train.label      SentencePiece pieces, and a label on the same line of the file beside it
    train/pos/*.txt, train/neg/*.txt    a folder for each label, a file for each text

All but the folders may be compressed (.gz, .xz, .zst). Labels are strings: 1, 1.0 and "1" are the label "1".
"""

from __future__ import annotations

import math
import os
import re
import reprlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headstart.errors import DataError
from headstart.reading.columns import choose_columns
from headstart.reading.lines import base_suffix, check_suffix, decode, decode_line, open_bytes, read_lines, whole_text
from headstart.reading.pieces import companion, decode_pieces, piece_file, raw_lines
from headstart.reading.skipped import SkippedRows, bad_row, parse_rows, raise_or_skip
from headstart.reading.tables import TABLE_SUFFIXES, Cells, as_text, open_table

Text = str | tuple[str, str]  # a text, or a pair of texts
EXAMPLE_SUFFIXES = (*TABLE_SUFFIXES, ".txt", ".spm", ".label")


@dataclass(frozen=True, slots=True)
class Example:
    """One text, or a pair, with its label (None only where it is to be predicted) and the line where it begins."""

    text: str
    label: str | None
    second: str | None
    path: str
    line: int

    @property
    def content(self) -> str:
        """The text, or both texts of a pair, as one string."""
        return self.text if self.second is None else f"{self.text}\n{self.second}"


@dataclass(frozen=True)
class Examples:
    """The rows of a labelled set, and notes for the user about what was guessed."""

    rows: tuple[Example, ...]
    notes: tuple[str, ...] = ()

    @property
    def class_names(self) -> tuple[str, ...]:
        """Every label once: numbers by size, then words in alphabetical order."""
        return tuple(sorted({row.label for row in self.rows if row.label is not None}, key=_label_order))


_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_INTEGRAL = re.compile(r"(-?[0-9]+)\.0+")


def _label_order(label: str) -> tuple[int, float, str]:
    return (0, float(label), label) if _NUMBER.fullmatch(label) else (1, 0.0, label)


def as_label(value: str | float | None) -> str | None:
    """A label as a string; None where there is none.

    >>> [as_label(value) for value in (1, 1.0, "1", "1.0", 0.5, " good ", "", None)]
    ['1', '1', '1', '1', '0.5', 'good', None, None]
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    text = str(value).strip()
    integral = _INTEGRAL.fullmatch(text)
    return integral[1] if integral else text or None


def read_examples(
    path: str | Path,
    *,
    text: str | None = None,
    second: str | None = None,
    label: str | None = None,
    skipped: SkippedRows | None = None,
) -> Examples:
    """Read a labelled set in any of the formats above.

    `text`, `second` and `label` name columns of a table; `second` is the other text of a pair. Those not named are
    guessed, and the guess is in `notes`.

    With `skipped`, bad rows are collected there; without it the first one raises `DataError`. A set without a single
    good row is an error in any case.

        examples = read_examples("reviews.csv", text="review", label="stars")
        examples.class_names     # ('1', '2', '3', '4', '5')
    """
    path = Path(path)
    notes: list[str] = []
    rows: list[Example] = []
    try:
        for row in _Reader(path, notes.append, skipped).rows(text, second, label):
            rows.append(row)  # noqa: PERF402 (rows read before an error are kept)
    except DataError as error:
        if not rows:
            raise
        raise_or_skip(error, skipped)
    if not rows:
        problem = "holds no rows, expected at least one"
        if skipped and skipped.count:
            problem += f"; left out as bad: {skipped.count}, the first of them: {skipped.first[0]}"
        raise DataError(path, problem, fix="give a file with texts")
    return Examples(tuple(rows), tuple(notes))


def example_suffix(path: Path) -> str:
    """The suffix that says how a labelled set is read; "" for a folder."""
    if os.path.isdir(path):  # noqa: PTH112 (`Path.is_dir` raises where the path cannot be examined)
        return ""
    open_bytes(path).close()  # a missing file is reported before an unknown suffix
    return check_suffix(path, EXAMPLE_SUFFIXES)


@dataclass(frozen=True)
class _Reader:
    """The rows of one file or folder, by its format."""

    path: Path
    log: Callable[[str], None]
    skipped: SkippedRows | None

    def rows(self, text: str | None, second: str | None, label: str | None) -> Iterator[Example]:
        suffix = example_suffix(self.path)
        if suffix in TABLE_SUFFIXES:
            return self._table_rows(text, second, label)
        named = [repr(name) for name in (text, second, label) if name is not None]
        if named:
            problem = f"has no columns, and {', '.join(named)} was named as one"
            raise DataError(self.path, problem, fix=f"name columns only with {', '.join(TABLE_SUFFIXES)}")
        if suffix == ".txt":
            return self._line_rows()
        return self._piece_rows(suffix) if suffix else self._folder_rows()

    def _table_rows(self, text: str | None, second: str | None, label: str | None) -> Iterator[Example]:
        path = self.path
        with open_table(path, self.skipped) as table:
            columns = choose_columns(table, text, second, label, labelled=True)
            for note in (*table.notes, *columns.notes):
                self.log(note)

            def parse(line: int, cells: Cells) -> Example:
                row = dict(zip(columns.names, cells, strict=True))
                label = None if columns.label is None else _parse_label(row[columns.label], columns.label, path, line)
                second = None if columns.second is None else as_text(row[columns.second], columns.second, path, line)
                return Example(as_text(row[columns.text], columns.text, path, line), label, second, str(path), line)

            yield from parse_rows(parse, table.rows(columns.names), self.skipped)

    def _line_rows(self) -> Iterator[Example]:
        """Lines of `label ||| text`."""

        def parse(line: int, content: str) -> Example:
            label, text = split_label(content, self.path, line)
            if not label:
                raise bad_row(self.path, line, "no label before ' ||| '", "write one")
            return Example(text, as_label(label), None, str(self.path), line)

        lines = (numbered for numbered in read_lines(self.path, self.skipped) if numbered[1].strip())
        return parse_rows(parse, lines, self.skipped)

    def _piece_rows(self, suffix: str) -> Iterator[Example]:
        """SentencePiece pieces, and the labels in the file beside them."""
        path = piece_file(self.path, suffix)
        label_path = self.path if suffix == ".label" else companion(self.path, ".label")
        pieces, labels = raw_lines(path), raw_lines(label_path)
        if len(labels) != len(pieces):
            # A line is missing somewhere, and every label after it is another row's: no row can be used.
            problem = f"{len(pieces)} lines, but {label_path.name} beside it has {len(labels)}"
            raise DataError(path, problem, fix="write one label for each line")

        def parse(line: int, raw: bytes) -> Example:
            text = decode_pieces(decode_line(raw, path, line))
            label = as_label(decode(labels[line - 1], label_path, line))
            if label is None:
                raise bad_row(label_path, line, "no label on this line", "write one")
            return Example(text, label, None, str(path), line)

        return parse_rows(parse, enumerate(pieces, 1), self.skipped)

    def _folder_rows(self) -> Iterator[Example]:
        """A folder for each label, a file for each text."""

        def parse(line: int, path: Path) -> Example:
            return Example(whole_text(path).strip(), as_label(path.parent.name), None, str(path), line)

        for folder, files in class_folders(self.path).items():
            if not files:
                self.log(f"no .txt files in {folder}: left aside")
            yield from parse_rows(parse, ((1, path) for path in files), self.skipped)


def split_label(content: str, path: Path, line: int) -> tuple[str, str]:
    """The label and the text of a line of `label ||| text`."""
    label, separator, text = content.partition("|||")
    if not separator:
        problem = f"no ' ||| ' in {reprlib.repr(content)}, expected `label ||| text`"
        raise bad_row(path, line, problem, "write the label and ' ||| ' before it")
    if "|||" in text.partition("\r")[2]:
        raise bad_row(path, line, "two rows with CR alone between them", "end each line in LF")
    return label.strip(), text.strip()


def class_folders(path: Path) -> dict[Path, list[Path]]:
    """The folders inside a folder, one for each label, and the text files of each."""
    try:
        inside = sorted(path for path in path.iterdir() if not path.name.startswith("."))
        classes = {path: _text_files(path) for path in inside if path.is_dir()}
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror}") from None
    if not any(classes.values()):
        problem = "is a folder, expected a file, or a folder of folders as in pos/1.txt, neg/1.txt"
        names = [path.name for path in inside if path.is_file()][:5]
        raise DataError(path, problem, fix=f"name a file inside it: {', '.join(names)}" if names else None)
    return classes


def _parse_label(value: object, name: str, path: Path, line: int) -> str:
    if value is not None and not isinstance(value, str | int | float):
        problem = f"found {reprlib.repr(value)} under {name!r}, expected a word or a number"
        raise DataError(path, problem, line=line, fix="name a column that holds labels")
    label = as_label(as_text(value, name, path, line) if isinstance(value, str) else value)
    if label is None:
        raise bad_row(path, line, f"no label under {name!r}", "write one")
    return label


def _text_files(folder: Path) -> list[Path]:
    files = (path for path in folder.iterdir() if base_suffix(path) == ".txt" and path.is_file())
    return sorted(path for path in files if not path.name.startswith("."))
