"""Lines: a file opened, decompressed, decoded and cut at line ends, with an error in words for each thing that fails.

    name (form, compression)  →  bytes (plain, gz, xz, zst)  →  lines of text

A line ends at "\\n" or "\\r\\n" and nowhere else: the Unicode separators that `str.splitlines` also honours belong to
the text.
"""

from __future__ import annotations

import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import pyarrow as pa

from headstart.errors import DataError, did_you_mean
from headstart.reading.skipped import SKIP, SkippedRows, raise_or_skip

COMPRESSIONS = (".gz", ".xz", ".zst")
TABLE_SUFFIXES = (".csv", ".jsonl", ".parquet", ".tsv")
DOCUMENT_SUFFIXES = (".txt", *TABLE_SUFFIXES)

BUFFER = 1 << 20


# Names


def uncompressed_suffix(path: Path) -> str:
    """A name's last suffix but that of its compression, whether such a file can be read or not."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in COMPRESSIONS else suffix


def check_suffix(path: Path, known: Sequence[str] = DOCUMENT_SUFFIXES) -> str:
    """The suffix that says how a file is read, without the one of its compression.

    >>> check_suffix(Path("corpus/novels.txt.xz"))
    '.txt'
    """
    form = uncompressed_suffix(path)
    if form not in known:
        problem = (
            f"ends in {form or 'no suffix'!r}, expected one of {', '.join(known)} (with or without .gz, .xz, .zst)"
        )
        raise DataError(path, problem, fix="rename the file after what it holds")
    return form


def is_folder(path: Path) -> bool:
    """Whether a folder is there; a path that cannot even be looked at is for `open_bytes` to complain of."""
    try:
        return path.is_dir()
    except OSError:
        return False


def near(path: Path) -> str:
    """The next step when a path is not there: the nearest name beside it, if one is near."""
    try:
        beside = [file.name for file in path.parent.iterdir()]
    except (OSError, ValueError):
        beside = []
    hint = did_you_mean(path.name, beside)
    return hint if hint.startswith("did you mean") else "check the spelling and the folder you are in"


def reason(error: BaseException) -> str:
    """What the system or a library says, on one line."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return said.partition("\n")[0] or type(error).__name__


# Bytes


def open_bytes(path: Path) -> BinaryIO:
    """A file's bytes, decompressed if its name says so; damage on the way is a `DataError`."""
    return cast(BinaryIO, io.BufferedReader(_Unpacked(path, open_plain(path)), BUFFER))


def open_plain(path: Path) -> BinaryIO:
    """A file's bytes as they lie on the disk."""
    try:
        return path.open("rb")
    except IsADirectoryError:
        raise DataError(path, "is a folder, expected a file", fix="name a file inside it") from None
    except FileNotFoundError:
        raise DataError(path, "no such file", fix=near(path)) from None
    except (OSError, ValueError) as error:
        raise DataError(path, f"cannot be opened: {reason(error)}") from None


class _Source(Protocol):
    def read1(self, size: int, /) -> bytes: ...


class _Unpacked(io.RawIOBase):
    """Decompressed bytes; the one place where a compressed file that is cut short or damaged is told."""

    def __init__(self, path: Path, plain: BinaryIO) -> None:
        self._path = path
        self._plain = plain
        self._source = self._unpack(path.suffix.lower())

    def _unpack(self, compression: str) -> _Source:
        if compression == ".gz":
            return gzip.GzipFile(fileobj=self._plain)
        if compression == ".xz":
            return lzma.LZMAFile(self._plain, format=lzma.FORMAT_XZ)
        if compression == ".zst":
            return cast(_Source, pa.CompressedInputStream(pa.PythonFile(self._plain, "r"), "zstd"))
        return cast(_Source, self._plain)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        try:
            data = self._source.read1(len(buffer))
        except (EOFError, OSError, lzma.LZMAError, zlib.error, MemoryError) as error:
            raise self._damaged(error) from None
        buffer[: len(data)] = data
        return len(data)

    def _damaged(self, error: BaseException) -> DataError:
        again = "copy or download the file again"
        if isinstance(error, EOFError) or "Truncated" in str(error):
            return DataError(self._path, "the compressed file is cut short", fix=again)
        return DataError(self._path, f"the file is damaged or not what its name says ({reason(error)})", fix=again)

    def close(self) -> None:
        self._plain.close()
        super().close()


# Lines


def decode(raw: bytes, path: Path, line: int) -> str:
    """One line's bytes as text, strictly; a byte order mark at the start of the file is dropped."""
    if line == 1 and raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        fix = "convert it: iconv -f utf-16 -t utf-8 OLD > NEW"
        raise DataError(path, "the file is UTF-16, expected UTF-8", line=line, fix=fix)
    if b"\0" in raw:
        problem = f"a NUL byte (byte {raw.index(0) + 1} of the line), expected text"
        raise DataError(path, problem, line=line, fix=f"save the file as UTF-8 text, or {SKIP}")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        problem = f"not UTF-8: {error.reason} 0x{raw[error.start]:02x} (byte {error.start + 1} of the line)"
        fix = f"convert the file (iconv -f latin1 -t utf-8 OLD > NEW), or {SKIP}"
        raise DataError(path, problem, line=line, fix=fix) from None
    return text.removeprefix("\ufeff") if line == 1 else text


def read_lines(path: Path, skipped: SkippedRows | None = None) -> Iterator[tuple[int, str]]:
    """The lines of a file, counted from 1, without their ends."""
    with open_bytes(path) as stream:
        for line, raw in enumerate(stream, 1):
            try:
                text = decode(raw, path, line)
            except DataError as error:
                raise_or_skip(error, skipped)
            else:
                yield line, text.removesuffix("\n").removesuffix("\r")


class Lines:
    """The lines of a file with their ends, as `csv.reader` wants them; unlike a generator it survives a bad line."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self._path = path
        # A generator, which ends for good at an error of the stream: asked again, the stream would fail for ever.
        self._raw = (numbered for numbered in enumerate(stream, 1))
        self.number = 0  # of the line read last

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self.number, raw = next(self._raw)
        return decode(raw, self._path, self.number)
