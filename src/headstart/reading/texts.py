"""Texts for prediction, from files that are no tables.

    new.txt                    one text a line, or `label ||| text`, the label left aside
    new.review.spm             SentencePiece pieces, one text a line
    new/pos/*.txt, new/neg/…   a file for each text

Every line is a text, a blank one too, so that answers can be written beside the lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from headstart.errors import DataError
from headstart.reading.examples import class_folders, example_suffix, split_label
from headstart.reading.lines import bounded_lines, decode_line, open_bytes, read_lines, whole_text
from headstart.reading.pieces import decode_pieces, piece_file
from headstart.reading.skipped import SkippedRows, parse_rows, raise_or_skip


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
