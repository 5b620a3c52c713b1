"""Documents: the texts of a corpus, streamed from files of any supported format.

    bytes (plain, gz, xz, zst)  →  lines (txt)  or  rows of a table (jsonl, csv, tsv, parquet)  →  documents

Whatever a file holds, reading it gives documents or a `DataError` that names path, line and next step.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import chain, groupby
from pathlib import Path

from headstart.errors import DataError
from headstart.reading import limits
from headstart.reading.columns import guess_text_column
from headstart.reading.limits import row_too_long
from headstart.reading.lines import base_suffix, check_suffix, missing_path_hint, read_lines
from headstart.reading.skipped import SkippedRows, parse_rows, raise_or_skip
from headstart.reading.tables import TABLE_SUFFIXES, as_text, open_table
from headstart.wording import reason

DOCUMENT_SUFFIXES = (".txt", *TABLE_SUFFIXES)


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
    """The documents of files, folders and globs, in the order of `expand_paths`.

    A `.txt` file holds one document a line, or, with `blank_lines`, documents separated by blank lines. A `.jsonl`,
    `.csv`, `.tsv` or `.parquet` file holds one in each row, under `column`; where that is not given, under "text" or
    another usual name, or in the only column of text. Empty texts are left out.

    With `skipped`, bad rows and damaged files are collected there; without it the first one raises `DataError`.

        for document in read_documents(["speeches/", "novels-*.txt.xz"]):
            count += len(document.text)
    """

    def documents(path: Path) -> Iterator[Document]:
        skipped_before = skipped.count if skipped else 0
        empty = True
        try:
            if check_suffix(path, DOCUMENT_SUFFIXES) != ".txt":
                texts = _table_texts(path, column, skipped)
            else:
                texts = _paragraphs(path, skipped) if blank_lines else read_lines(path, skipped)
            for line, text in texts:
                if text.strip():
                    empty = False
                    yield Document(text, str(path), line)
            if empty and (skipped is None or skipped.count == skipped_before):
                raise DataError(path, "holds no text, expected at least one document", fix="leave the file out")
        except DataError as error:
            raise_or_skip(error, skipped)

    return chain.from_iterable(map(documents, expand_paths(paths)))


def _paragraphs(path: Path, skipped: SkippedRows | None) -> Iterator[tuple[int, str]]:
    groups = groupby(read_lines(path, skipped), key=lambda numbered: bool(numbered[1].strip()))
    blocks = ((*next(block), block) for has_text, block in groups if has_text)
    rows = ((begin, chain([first], (line for _, line in block))) for begin, first, block in blocks)
    return parse_rows(lambda begin, lines: (begin, _joined(path, begin, lines)), rows, skipped)


def _joined(path: Path, begin: int, lines: Iterator[str]) -> str:
    """The lines of a block as one text."""
    text, length = [], 0
    for line in lines:
        text.append(line)
        length += len(line) + 1
        if length > limits.MAX_LINE:
            raise row_too_long(path, begin, len(text) + sum(1 for _ in lines))
    return "\n".join(text)


def _table_texts(path: Path, column: str | None, skipped: SkippedRows | None) -> Iterator[tuple[int, str]]:
    with open_table(path, skipped) as table:
        name = guess_text_column(table, option="--column") if column is None else table.require(column)
        rows = table.rows([name])
        yield from parse_rows(lambda line, cells: (line, as_text(cells[0], name, path, line)), rows, skipped)


# Files


def expand_paths(paths: Sequence[str | Path]) -> list[Path]:
    """The files that paths stand for, each once: files, folders (everything inside, sorted) and globs (sorted).

    In folders and globs, hidden files and files of an unknown suffix are left out.
    """
    given = [paths] if isinstance(paths, str | Path) else paths  # a single string is a sequence of characters
    files: dict[Path, Path] = {}
    for path in given:
        try:
            matches = _matching_files(path)
        except (OSError, ValueError) as error:
            raise DataError(path, f"cannot be opened: {reason(error)}") from None
        for match in matches:
            files.setdefault(match.resolve(), match)
    return list(files.values())


def _matching_files(given: str | Path) -> list[Path]:
    path = Path(given)
    if path.is_dir():
        files = _folder_files(path)
        if not files:
            problem = f"is a folder without a file to read, expected one of {', '.join(DOCUMENT_SUFFIXES)}"
            raise DataError(path, problem, fix="name a file, or another folder")
        return files
    if path.exists():
        return [path]
    files = [file for match in _glob(path) for file in ([match] if match.is_file() else _folder_files(match))]
    files = [file for file in files if base_suffix(file) in DOCUMENT_SUFFIXES]
    if not files:
        problem = "no such file or folder, and no file that can be read matches it"
        raise DataError(path, problem, fix=missing_path_hint(path))
    return files


def _glob(pattern: Path) -> list[Path]:
    """What a pattern matches, sorted; hidden names only where it says so.

    `glob.glob` would follow links to folders under `**`, and links that form loops without end.
    """
    wild = next((k for k, part in enumerate(pattern.parts) if glob.has_magic(part)), None)
    if wild is None:
        return []
    folder = Path(*pattern.parts[:wild])
    parts = [part if part == "**" else re.sub(r"\*+", "*", part) for part in pattern.parts[wild:]]
    matches = folder.glob("/".join(parts))
    named = [part for part in parts if part.startswith(".")]
    return sorted(
        match
        for match in matches
        if all(name[0] != "." or any(fnmatch(name, part) for part in named) for name in match.relative_to(folder).parts)
    )


def _folder_files(folder: Path) -> list[Path]:
    files = (path for path in folder.rglob("*") if base_suffix(path) in DOCUMENT_SUFFIXES and path.is_file())
    return sorted(path for path in files if not any(part[0] == "." for part in path.relative_to(folder).parts))
