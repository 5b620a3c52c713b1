"""Parquet files, a batch at a time; what a small file can be made to unpack to is limited.

One value in a dictionary, or in a run of equal ones, may stand for millions of rows. What the metadata says is checked
before anything is read, and what was read is counted (see `expansion_limit`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headstart.unpacking import expansion_limit, too_large

BATCH_ROWS = (16, 1024)  # the fewest and the most that are unpacked at once
BATCH_BYTES = 1 << 27
ROW_BYTES = 16  # what a row counts beside its values, so that many empty ones fill the limit too


def read_batches(path: Path, file: pq.ParquetFile, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The columns of these names, some rows at a time, up to the limit on what the file at `path` may unpack to."""
    limit = expansion_limit(path.stat().st_size)
    unpacked = 0
    largest = _largest_chunk(path, file.metadata, set(names), limit)
    fewest, most = BATCH_ROWS
    # A dictionary is as large as its chunk at most, and so is each value in it.
    rows = min(most, max(fewest, BATCH_BYTES // largest))
    for batch in file.iter_batches(batch_size=rows, columns=list(names)):
        unpacked += sum(without_dictionary(column).nbytes for column in batch.columns) + ROW_BYTES * len(batch)
        if unpacked > limit:
            raise too_large(path, limit)
        yield batch


def without_dictionary(array: pa.Array) -> pa.Array:
    """A column with each of its values in memory."""
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _largest_chunk(path: Path, metadata: pq.FileMetaData, names: set[str], limit: int) -> int:
    """The bytes of the largest column chunk, by the metadata; all of them must be within the limit."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    leaves = [k for k in range(metadata.num_columns) if _is_under(metadata.schema.column(k).path, names)]
    chunks = [group.column(k) for group in groups for k in leaves]
    # A run of equal values takes no room in a chunk, and a byte each, or more, in memory.
    sizes: list[int] = [max(chunk.total_uncompressed_size, chunk.num_values) for chunk in chunks]
    if sum(sizes) > limit:
        raise too_large(path, limit)
    return max([1, *sizes])


def _is_under(path: str, names: set[str]) -> bool:
    """Whether a leaf of the schema, `tags.list.element`, belongs to a column of this name; names may hold dots."""
    parts = path.split(".")
    return any(".".join(parts[: end + 1]) in names for end in range(len(parts)))
