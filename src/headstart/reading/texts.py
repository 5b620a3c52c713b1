"""Texts without labels, or whose labels do not count.

    new.txt                    one text a line, or `label ||| text`, the label left aside
    new.review.spm             SentencePiece pieces, one text a line
    new/pos/*.txt, new/neg/…   a file for each text

To `stream_texts` every line is a text, a blank one too, so that answers can be written beside the lines.
`read_unlabelled` reads tables as well, and leaves blank texts out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from headstart.errors import DataError, shown
from headstart.reading.columns import choose_columns, find_label
from headstart.reading.examples import Example, Examples, class_folders, example_suffix, split_label
from headstart.reading.lines import bounded_lines, decode_line, open_bytes, read_lines, whole_text
from headstart.reading.pieces import decode_pieces, piece_file
from headstart.reading.skipped import SkippedRows, parse_rows, raise_or_skip
from headstart.reading.tables import TABLE_SUFFIXES, Cells, as_text, open_table


def read_unlabelled(
    path: str | Path,
    *,
    text: str | None = None,
    label: str | None = None,
    second: str | None = None,
    pairs: bool = False,
    skipped: SkippedRows | None = None,
) -> Examples:
    """The texts of a file, or its pairs of texts, without labels; where it has some, that is in `notes`.

    `text`, `second` and `label` are columns of the labelled set, which this file may have as well.
    """
    path, notes = Path(path), list[str]()
    suffix = example_suffix(path)
    if suffix in TABLE_SUFFIXES:
        columns = (text, second, label) if pairs else (text, None, label)
        rows = list(_table_rows(path, *columns, pairs, notes.append, skipped))
    elif pairs:
        raise DataError(path, "has single texts, and those to train on are pairs", fix="give a table with both columns")
    else:
        if not suffix:
            notes.append("read as a folder for each label, the labels left aside")
        texts = enumerate(stream_texts(path, notes.append, skipped), 1)
        rows = [Example(text, None, None, str(path), line) for line, text in texts if text is not None]
    rows = [row for row in rows if row.content.strip()]
    if not rows:
        raise DataError(path, "holds no text, expected at least one", fix="give a file with texts")
    return Examples(tuple(rows), tuple(notes))


def _table_rows(
    path: Path,
    text: str | None,
    second: str | None,
    label: str | None,
    pairs: bool,
    log: Callable[[str], None],
    skipped: SkippedRows | None,
) -> Iterator[Example]:
    with open_table(path, skipped) as table:
        named = [name if name in table.columns else None for name in (text, second, label)]
        columns = choose_columns(table, named[0], named[1], named[2], labelled=False)
        if pairs and columns.second is None:
            problem = "has one column of texts, and those to train on are pairs"
            raise DataError(path, problem, fix="name the column of the second text with --second")
        for note in (*table.notes, *columns.notes):
            log(note)
        labels = named[2] or find_label(table, exclude=(columns.text, columns.second))
        if labels is not None:
            log(f"{path.name} has labels of its own (column {shown(labels)}): they are left aside")
        names = [columns.text, *([columns.second] if pairs and columns.second is not None else [])]

        def parse(line: int, cells: Cells) -> Example:
            texts = [as_text(cell, name, path, line) for cell, name in zip(cells, names, strict=True)]
            return Example(texts[0], None, texts[1] if pairs else None, str(path), line)

        yield from parse_rows(parse, table.rows(names), skipped)


def stream_texts(path: Path, log: Callable[[str], None], skipped: SkippedRows | None) -> Iterator[str | None]:
    """The texts of a file or folder; None for a line that is bad and was skipped."""
    suffix = example_suffix(path)
    if not suffix:
        files = ((1, file) for files in class_folders(path).values() for file in files)
        return parse_rows(lambda _, file: whole_text(file).strip(), files, skipped)
    if suffix != ".txt":
        return _file_texts(piece_file(path, suffix), skipped, lambda pieces, line: decode_pieces(pieces))
    if not _has_labels(path):
        return _file_texts(path, skipped)
    log("read as `label ||| text`, the labels left aside")
    return _file_texts(path, skipped, lambda text, line: split_label(text, path, line)[1] if text.strip() else "")


def line_texts(
    stream: BinaryIO,
    path: Path,
    skipped: SkippedRows | None,
    parse: Callable[[str, int], str] | None = None,
) -> Iterator[str | None]:
    """The lines of a stream, or `parse(text, line)` of each; None for one that is bad and was skipped."""
    for line, raw in enumerate(bounded_lines(stream), 1):
        try:
            text = decode_line(raw, path, line)
            text = parse(text, line) if parse else text
        except DataError as error:
            raise_or_skip(error, skipped)
            yield None
        else:
            yield text


def _file_texts(
    path: Path, skipped: SkippedRows | None, parse: Callable[[str, int], str] | None = None
) -> Iterator[str | None]:
    with open_bytes(path) as stream:
        yield from line_texts(stream, path, skipped, parse)


def _has_labels(path: Path) -> bool:
    """Whether the first line with text is `label ||| text`."""
    lines = (text for _, text in read_lines(path, SkippedRows()))
    return "|||" in next((text for text in lines if text.strip()), "")
