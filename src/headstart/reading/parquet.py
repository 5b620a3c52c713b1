"""Parquet: the rows of a file, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from headstart.errors import DataError
from headstart.parquet import read_batches, without_dictionary
from headstart.reading.limits import require_few_columns
from headstart.reading.lines import BUFFER_SIZE
from headstart.wording import reason


class ParquetRows:
    """A parquet file as rows of values; strings are bytes, so that what is no UTF-8 can be named with its row."""

    def __init__(self, path: Path, source: BinaryIO) -> None:
        self.path = path
        with _parquet_errors(path):
            # Pre-buffering, or no buffer, would hold a whole column of a row group.
            self._file = pq.ParquetFile(
                source, pre_buffer=False, buffer_size=BUFFER_SIZE, page_checksum_verification=True
            )
            require_few_columns(path, self._file.metadata.num_columns)
            schema = self._file.schema_arrow
        self.columns: tuple[str, ...] = tuple(schema.names)
        self.text_columns = tuple(column.name for column in schema if _is_string(column.type))

    def rows(self, names: Sequence[str]) -> Iterator[tuple[object, ...]]:
        """The values of each row under these names; where the file is damaged, the error counts all rows from there."""
        read = 0
        try:
            for row in self._rows(names):
                yield row
                read += 1
        except DataError as error:
            error.lines = max(1, self._file.metadata.num_rows - read)
            raise

    def _rows(self, names: Sequence[str]) -> Iterator[tuple[object, ...]]:
        with _parquet_errors(self.path):
            for batch in read_batches(self.path, self._file, names):
                arrays = [_plain(batch.column(name)) for name in names]
                yield from zip(*(array.to_pylist() for array in arrays), strict=True)


def _plain(array: pa.Array) -> pa.Array:
    """A column without its dictionary, strings as bytes."""
    array = without_dictionary(array)
    return array.cast(pa.large_binary()) if _is_string(array.type) else array


def _is_string(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


@contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # on a damaged file pyarrow raises errors of a dozen kinds
        problem = f"not a whole parquet file ({reason(error)})"
        raise DataError(path, problem, fix="write or copy the file again") from None
