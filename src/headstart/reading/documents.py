"""Documents: the texts of a corpus, read from files as they are and streamed, never whole in memory.

    bytes (plain, gz, xz, zst)  →  lines (txt)  or  rows of a table (jsonl, csv, tsv, parquet)  →  documents

Whatever a file holds, reading it gives documents or a `DataError` that names path, line and next step.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from headstart.errors import DataError
from headstart.reading.lines import DOCUMENT_SUFFIXES, check_suffix, near, read_lines, reason, uncompressed_suffix
from headstart.reading.skipped import SkippedRows, raise_or_skip
from headstart.reading.tables import as_text, open_table


@dataclass(frozen=True, slots=True)
class Document:
    """One text of a corpus, and the line (of a parquet file: the row) where it begins, counted from 1."""

    text: str
    path: str
    line: int


def read_documents(
    paths: Sequence[str | Path],
    *,
    column: str | None = None,
    blank_lines: bool = False,
    skipped: SkippedRows | None = None,
) -> Iterator[Document]:
    """The documents of files, folders and globs, one after the other, in the order of `expand`.

    A `.txt` file holds one document a line, or, with `blank_lines`, blocks of lines with blank lines between them.
    A `.jsonl`, `.csv`, `.tsv` or `.parquet` file holds one in each row, under `column`; where that is not given, under
    "text" or another usual name, or in the only column of words. Empty texts are passed over.

    Takes `skipped` to note bad rows and damaged files there and go on; without it the first one raises `DataError`.

        for document in read_documents(["speeches/", "novels-*.txt.xz"]):
            count += len(document.text)
    """
    files = expand(paths)
    return chain.from_iterable(_file_documents(path, column, blank_lines, skipped) for path in files)


def _file_documents(
    path: Path, column: str | None, blank_lines: bool, skipped: SkippedRows | None
) -> Iterator[Document]:
    left_out_before = skipped.count if skipped else 0
    empty = True
    try:
        if check_suffix(path) != ".txt":
            found = _column(path, column, skipped)
        elif blank_lines:
            found = _blocks(path, skipped)
        else:
            found = read_lines(path, skipped)
        for line, text in found:
            if text and not text.isspace():
                empty = False
                yield Document(text, str(path), line)
        if empty and (skipped is None or skipped.count == left_out_before):
            raise DataError(path, "holds no text, expected at least one document", fix="leave the file out")
    except DataError as error:
        raise_or_skip(error, skipped)


def _blocks(path: Path, skipped: SkippedRows | None) -> Iterator[tuple[int, str]]:
    block: list[str] = []
    begins = 0
    for line, text in read_lines(path, skipped):
        if text and not text.isspace():
            if not block:
                begins = line
            block.append(text)
        elif block:
            yield begins, "\n".join(block)
            block = []
    if block:
        yield begins, "\n".join(block)


def _column(path: Path, column: str | None, skipped: SkippedRows | None) -> Iterator[tuple[int, str]]:
    with open_table(path, skipped) as table:
        name = table.guess_text(option="--column") if column is None else table.check(column)
        for line, (value,) in table.rows([name]):
            try:
                text = as_text(value, name, path, line)
            except DataError as error:
                raise_or_skip(error, skipped)
            else:
                yield line, text


# Files


def expand(paths: Sequence[str | Path]) -> list[Path]:
    """The files that paths stand for, each once: files, folders (all they hold, sorted) and globs (sorted).

    In folders and globs, hidden files and those of a form that cannot be read are passed over.
    """
    given = [paths] if isinstance(paths, str | Path) else paths  # a lone string is a sequence of letters
    found: dict[Path, Path] = {}
    for one in given:
        try:
            matches = _matches(one)
        except (OSError, ValueError) as error:
            raise DataError(one, f"cannot be opened: {reason(error)}") from None
        for path in matches:
            found.setdefault(path.resolve(), path)
    return list(found.values())


def _matches(given: str | Path) -> list[Path]:
    path = Path(given)
    if path.is_dir():
        files = _readable(path)
        if not files:
            problem = f"is a folder without a file to read, expected one of {', '.join(DOCUMENT_SUFFIXES)}"
            raise DataError(path, problem, fix="name a file, or another folder")
        return files
    if path.exists():
        return [path]
    # Path.glob takes no pattern that begins at the root of the disk.
    matches = [Path(match) for match in sorted(glob.glob(str(given), recursive=True))]  # noqa: PTH207
    files = [file for match in matches for file in ([match] if match.is_file() else _readable(match))]
    files = [file for file in files if uncompressed_suffix(file) in DOCUMENT_SUFFIXES]
    if not files:
        raise DataError(path, "no such file or folder, and no file that can be read matches it", fix=near(path))
    return files


def _readable(folder: Path) -> list[Path]:
    files = (path for path in folder.rglob("*") if uncompressed_suffix(path) in DOCUMENT_SUFFIXES and path.is_file())
    return sorted(path for path in files if not any(part[0] == "." for part in path.relative_to(folder).parts))
