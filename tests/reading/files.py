"""Files of every format and compression to read, and what reading them gives."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headstart.errors import DataError
from headstart.reading.documents import read_documents

TEXTS = ["Ein Satz, mit Komma.", 'Sie sagte "nein".', "l'été\u2028déjà\x85vu", "日本語 🙂", "tab less; semi"]


def zstd(raw: bytes) -> bytes:
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as stream:
        stream.write(raw)
    return bytes(out.getvalue())


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
}


def parquet(**columns: list[object] | pa.Array) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


def as_csv(rows: list[list[str]], separator: str = ",") -> bytes:
    out = io.StringIO()
    csv.writer(out, delimiter=separator).writerows(rows)
    return out.getvalue().encode()


def encode_texts(extension: str, texts: list[str]) -> bytes:
    """The texts in one of the formats that can be read, under the column "text" beside a column of numbers."""
    numbered = [[str(number), text] for number, text in enumerate(texts)]
    if extension == ".txt":
        return "".join(text + "\n" for text in texts).encode()
    if extension == ".jsonl":
        return "".join(json.dumps({"id": 1, "text": text}, ensure_ascii=False) + "\n" for text in texts).encode()
    if extension == ".parquet":
        return parquet(id=list(range(len(texts))), text=list(texts))
    return as_csv([["id", "text"], *numbered], "," if extension == ".csv" else "\t")


def write_file(folder: Path, name: str, raw: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(raw.encode() if isinstance(raw, str) else raw)
    return path


def texts_of(*paths: Path, column: str | None = None, blank_lines: bool = False) -> list[str]:
    return [document.text for document in read_documents(paths, column=column, blank_lines=blank_lines)]


def read_error(path: Path, column: str | None = None) -> DataError:
    with pytest.raises(DataError) as caught:
        list(read_documents([path], column=column))
    assert str(path) in str(caught.value)
    return caught.value
