"""Lines: a file opened, decompressed, decoded as UTF-8 and split into lines; whatever fails is a `DataError`.

    suffix (format, compression)  →  bytes (plain, gz, xz, zst)  →  lines of text

A line ends at "\\n" or "\\r\\n" and nowhere else: the Unicode separators that `str.splitlines` also honours belong to
the text.
"""

from __future__ import annotations

import codecs
import gzip
import io
import lzma
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa

from headstart.errors import DataError, did_you_mean
from headstart.files import open_regular
from headstart.reading import limits
from headstart.reading.limits import row_too_long
from headstart.reading.skipped import SkippedRows, bad_row, parse_rows
from headstart.unpacking import expansion_limit, too_large
from headstart.wording import reason

_DECOMPRESSORS: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw),
    ".xz": lambda raw: lzma.LZMAFile(raw, format=lzma.FORMAT_XZ),  # noqa: SIM115 (closed with the raw file)
    ".zst": lambda raw: pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd"),
}
COMPRESSIONS = tuple(_DECOMPRESSORS)
BUFFER_SIZE = 1 << 20


# Suffixes and names


def base_suffix(path: Path) -> str:
    """The last suffix of a name without that of its compression, whether such a file can be read or not."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in COMPRESSIONS else suffix


def check_suffix(path: Path, known: Sequence[str]) -> str:
    """The suffix that says how a file is read, without that of its compression; it must be one of `known`.

    >>> check_suffix(Path("corpus/novels.txt.xz"), known=[".txt", ".csv"])
    '.txt'
    """
    suffix = base_suffix(path)
    if suffix not in known:
        expected = f"expected one of {', '.join(known)} (with or without {', '.join(COMPRESSIONS)})"
        problem = f"ends in {suffix or 'no suffix'!r}, {expected}"
        raise DataError(path, problem, fix="rename the file after what it holds")
    return suffix


def missing_path_hint(path: Path) -> str:
    """The next step when a path does not exist: the most similar name in its folder, if there is one."""
    try:
        names = [file.name for file in path.parent.iterdir()]
    except (OSError, ValueError):
        names = []
    hint = did_you_mean(path.name, names)
    return hint if hint.startswith("did you mean") else "check the spelling and the folder you are in"


# Bytes


def open_bytes(path: Path) -> BinaryIO:
    """A file's bytes, decompressed if its suffix says so; damage is a `DataError`."""
    return cast(BinaryIO, io.BufferedReader(_Decompressed(path, open_raw(path)), BUFFER_SIZE))


def open_raw(path: Path) -> BinaryIO:
    """A file's bytes as they are on the disk."""
    try:
        return open_regular(path)
    except IsADirectoryError:
        raise DataError(path, "is a folder, expected a file", fix="name a file inside it") from None
    except FileNotFoundError:
        raise DataError(path, "no such file", fix=missing_path_hint(path)) from None
    except (OSError, ValueError) as error:
        raise DataError(path, f"cannot be opened: {reason(error)}") from None


@contextmanager
def open_seekable(path: Path) -> Iterator[BinaryIO]:
    """A file to seek in; a compressed one is decompressed to disk first."""
    if path.suffix.lower() not in COMPRESSIONS:
        with open_raw(path) as raw:
            yield raw
        return
    with open_bytes(path) as stream, tempfile.TemporaryFile() as decompressed:
        shutil.copyfileobj(stream, decompressed, BUFFER_SIZE)
        yield decompressed


class _Decompressed(io.RawIOBase):
    """Decompressed bytes; a compressed file that is truncated or damaged is a `DataError`."""

    def __init__(self, path: Path, raw: BinaryIO) -> None:
        self._path = path
        self._raw = raw
        decompress = _DECOMPRESSORS.get(path.suffix.lower())
        self._source: Any = decompress(raw) if decompress else raw
        self._limit = expansion_limit(os.fstat(raw.fileno()).st_size) if decompress else None
        self._read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        try:
            data = self._source.read1(len(buffer))
        except (EOFError, OSError, lzma.LZMAError, zlib.error, MemoryError) as error:
            if isinstance(error, MemoryError) and self._limit is None:
                raise  # of a compressed file it is damage: its header asks for gigabytes
            problem = f"the file is damaged or not what its name says ({reason(error)})"
            if isinstance(error, EOFError) or "Truncated" in str(error):
                problem = "the compressed file is cut short"
            raise DataError(self._path, problem, fix="copy or download the file again") from None
        self._read += len(data)
        if self._limit is not None and self._read > self._limit:
            raise too_large(self._path, self._limit)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._raw.close()
        super().close()


# Lines


def bounded_lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a stream with their ends; of one above `MAX_LINE` so much that `decode` refuses it, and no more."""
    most = limits.MAX_LINE + 1
    pieces = iter(partial(stream.readline, most), b"")
    for raw in pieces:
        yield raw
        while len(raw) == most and not raw.endswith(b"\n"):
            raw = next(pieces, b"")


def decode(raw: bytes, path: Path, line: int) -> str:
    """One line's bytes as text, strict UTF-8; a byte order mark at the start of the file is dropped."""
    if line == 1 and raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        fix = "convert it: iconv -f utf-16 -t utf-8 OLD > NEW"
        raise DataError(path, "the file is UTF-16, expected UTF-8", line=line, fix=fix)
    if len(raw) > limits.MAX_LINE:
        raise row_too_long(path, line)
    if b"\0" in raw:
        problem = f"a NUL byte (byte {raw.index(0) + 1} of the line), expected text"
        raise bad_row(path, line, problem, "save the file as UTF-8 text")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        problem = f"not UTF-8: {error.reason} 0x{raw[error.start]:02x} (byte {error.start + 1} of the line)"
        raise bad_row(path, line, problem, "convert the file (iconv -f latin1 -t utf-8 OLD > NEW)") from None
    return text.removeprefix("\ufeff") if line == 1 else text


def decode_line(raw: bytes, path: Path, line: int) -> str:
    """One line's bytes as text, without its line end."""
    if line == 1:
        _require_line_ends(raw, path)
    return decode(raw, path, line).removesuffix("\n").removesuffix("\r")


def _require_line_ends(first: bytes, path: Path) -> None:
    """Refuse a first line that is a whole file of lines which end in CR alone."""
    if not first.endswith(b"\n") and b"\r" in first.rstrip(b"\r"):
        fix = "convert it: tr '\\r' '\\n' < OLD > NEW"
        raise DataError(path, "its lines end in CR alone, expected LF or CRLF", line=1, fix=fix)


def read_lines(path: Path, skipped: SkippedRows | None = None) -> Generator[tuple[int, str]]:
    """The lines of a file, counted from 1, without their ends."""
    with open_bytes(path) as stream:
        numbered = enumerate(bounded_lines(stream), 1)
        yield from parse_rows(lambda line, raw: (line, decode_line(raw, path, line)), numbered, skipped)


def whole_text(path: Path) -> str:
    """A file as one text, lines separated by "\\n"."""
    lines, length = [], 0
    with open_bytes(path) as stream:
        for line, raw in enumerate(bounded_lines(stream), 1):
            length += len(raw)
            if length > limits.MAX_LINE:
                raise row_too_long(path, 1, line)
            lines.append(decode(raw, path, line).removesuffix("\n").removesuffix("\r"))
    return "\n".join(lines)


class Lines(Iterator[str]):
    """The lines of a file with their ends, for `csv.reader`, which asks for as many as a row has.

    A line that is no text spoils its row. The row is read to its end all the same, for where that is the quotes of the
    other lines decide: what follows them would be taken for rows.
    """

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self.path = path
        # A generator ends at an error of the stream; the stream itself would raise the same error for ever.
        self._lines = bounded_lines(stream)
        self.number = 0  # of the last line read
        self.start_row()

    def start_row(self) -> None:
        self.begin = self.number + 1
        self.bad: DataError | None = None
        self._size = 0

    @property
    def row_lines(self) -> int:
        """The number of lines that the row has so far."""
        return max(1, self.number + 1 - self.begin)

    def __next__(self) -> str:
        raw = next(self._lines)
        self.number += 1
        self._size += len(raw)
        if self._size > limits.MAX_LINE:
            raise row_too_long(self.path, self.begin, self.row_lines)
        try:
            if self.number == 1:
                _require_line_ends(raw, self.path)
            return decode(raw, self.path, self.number)
        except DataError as error:
            self.bad = self.bad or error
            return raw.decode(errors="replace")
