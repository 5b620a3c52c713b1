"""Parquet: the rows of a file, a batch at a time; what a small file can be made to unpack to is limited.

One value in a dictionary, or in a run of equal ones, may stand for millions of rows. What the metadata says is checked
before anything is read, and what was read is counted (see `expansion_limit`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from headstart.errors import DataError
from headstart.reading.limits import expansion_limit, require_few_columns, too_large
from headstart.reading.lines import BUFFER_SIZE
from headstart.wording import reason

BATCH_ROWS = (16, 1024)  # the fewest and the most that are unpacked at once
BATCH_BYTES = 1 << 27
ROW_BYTES = 16  # what a row counts beside its values, so that many empty ones fill the limit too


class ParquetRows:
    """A parquet file as rows of values; strings are bytes, so that what is no UTF-8 can be named with its row."""

    def __init__(self, path: Path, source: BinaryIO) -> None:
        self.path = path
        with _parquet_errors(path):
            # Pre-buffering, or no buffer, would hold a whole column of a row group.
            self._file = pq.ParquetFile(source, pre_buffer=False, buffer_size=BUFFER_SIZE)
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
        limit = expansion_limit(self.path.stat().st_size)
        unpacked = 0
        with _parquet_errors(self.path):
            largest = self._largest_chunk(set(names), limit)
            fewest, most = BATCH_ROWS
            # A dictionary is as large as its chunk at most, and so is each value in it.
            rows = min(most, max(fewest, BATCH_BYTES // largest))
            for batch in self._file.iter_batches(batch_size=rows, columns=list(names)):
                arrays = [_plain(batch.column(name)) for name in names]
                unpacked += sum(array.nbytes for array in arrays) + ROW_BYTES * len(batch)
                if unpacked > limit:
                    raise too_large(self.path, limit)
                yield from zip(*(array.to_pylist() for array in arrays), strict=True)

    def _largest_chunk(self, names: set[str], limit: int) -> int:
        """The bytes of the largest column chunk, by the metadata; all of them must be within the limit."""
        metadata = self._file.metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        leaves = [k for k in range(metadata.num_columns) if _is_under(metadata.schema.column(k).path, names)]
        chunks = [group.column(k) for group in groups for k in leaves]
        # A run of equal values takes no room in a chunk, and a byte each, or more, in memory.
        sizes: list[int] = [max(chunk.total_uncompressed_size, chunk.num_values) for chunk in chunks]
        if sum(sizes) > limit:
            raise too_large(self.path, limit)
        return max([1, *sizes])


def _is_under(path: str, names: set[str]) -> bool:
    """Whether a leaf of the schema, `tags.list.element`, belongs to a column of this name; names may hold dots."""
    parts = path.split(".")
    return any(".".join(parts[: end + 1]) in names for end in range(len(parts)))


def _plain(array: pa.Array) -> pa.Array:
    """A column without its dictionary, strings as bytes."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
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
