"""predictions.parquet: one row for each scored example, with a probability for each class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from headstart.errors import DataError, listed_names
from headstart.files import new_file, open_regular
from headstart.parquet import read_batches
from headstart.wording import reason

PROBABILITY = "probability:"  # and the name of the class
DAMAGE = (DataError, KeyError, ValueError, OSError, pa.ArrowException)  # what reading a damaged file may raise


class Scored(Protocol):
    """A labelled text, and the line of the file it stands in."""

    @property
    def text(self) -> str: ...
    @property
    def second(self) -> str | None: ...
    @property
    def label(self) -> str | None: ...
    @property
    def path(self) -> str: ...
    @property
    def line(self) -> int: ...


class ScoredText(NamedTuple):
    """A scored example as it was read back."""

    text: str
    second: str | None
    label: str
    path: str
    line: int


@dataclass(frozen=True, eq=False)
class Predictions:
    """I scored examples, C classes."""

    class_names: tuple[str, ...]
    labels: NDArray[np.int64]  # (I,)
    probabilities: NDArray[np.float64]  # (I, C)
    table: pa.Table  # the other columns: split, row, path, line, text, second, label

    @classmethod
    def of(
        cls,
        class_names: Sequence[str],
        examples: Mapping[str, Sequence[Scored]],
        log_probabilities: Mapping[str, NDArray[np.float64]],
    ) -> Predictions:
        """The examples of each split that has (I, C) log-probabilities."""
        rows = [(split, i, row) for split in log_probabilities for i, row in enumerate(examples[split])]
        columns: dict[str, Any] = {
            "split": [split for split, _, _ in rows],
            "row": [i for _, i, _ in rows],
            "path": [row.path for _, _, row in rows],
            "line": [row.line for _, _, row in rows],
            "text": [row.text for _, _, row in rows],
            "second": pa.array([row.second for _, _, row in rows], pa.string()),
            "label": [row.label for _, _, row in rows],
        }
        probabilities = np.exp(np.concatenate(list(log_probabilities.values())))
        labels = _class_ids(columns["label"], class_names)
        return cls(tuple(class_names), labels, probabilities, pa.table(columns))

    def __len__(self) -> int:
        return len(self.labels)

    def split(self, name: str) -> Predictions:
        """The rows of one split."""
        chosen = self.of_split(name)
        table = self.table.filter(pa.array(chosen))
        return replace(self, labels=self.labels[chosen], probabilities=self.probabilities[chosen], table=table)

    def of_split(self, name: str) -> NDArray[np.bool_]:
        """(I,) whether each row is of this split."""
        return np.array([split == name for split in self.table["split"].to_pylist()], dtype=bool)

    @property
    def texts(self) -> list[str]:
        return list(self.table["text"].to_pylist())

    def examples(self, rows: NDArray[np.int64]) -> list[ScoredText]:
        return _scored_texts(self.table.take(rows))

    def write(self, path: Path) -> None:
        predicted = [self.class_names[k] for k in self.probabilities.argmax(1)]
        table = self.table.append_column("predicted", pa.array(predicted, pa.string()))
        for k, name in enumerate(self.class_names):
            table = table.append_column(PROBABILITY + name, pa.array(self.probabilities[:, k]))
        with new_file(path) as unfinished:
            pq.write_table(table, unfinished)


def read_predictions(path: Path, class_names: Sequence[str] | None = None) -> Predictions:
    """What `Predictions.write` wrote; the classes are those of the file, unless their order is given."""
    try:
        table = _read_table(path)
        columns = [name for name in table.column_names if name.startswith(PROBABILITY)]
        names = tuple(class_names or (name.removeprefix(PROBABILITY) for name in columns))
        labels = _class_ids(table["label"].to_pylist(), names)
        probabilities = np.stack([table[PROBABILITY + name].to_numpy() for name in names], axis=1)
        table = table.drop_columns(["predicted", *columns])
    except DAMAGE as error:
        classes = "of a run" if class_names is None else f"for the classes {listed_names(class_names)}"
        raise DataError(path, f"it does not hold the predictions {classes} ({_problem(error)})") from None
    return Predictions(names, labels, probabilities, table)


def read_scored(path: Path, split: str) -> list[ScoredText]:
    """The texts of a split, without what was predicted for them."""
    try:
        return _scored_texts(_read_table(path, ScoredText._fields, split))
    except DAMAGE as error:
        raise DataError(path, f"it does not hold the predictions of a run ({_problem(error)})") from None


def read_predicted(path: Path, split: str) -> list[tuple[ScoredText, str]]:
    """The texts of a split, each with the label that was predicted for it."""
    try:
        table = _read_table(path, [*ScoredText._fields, "predicted"], split)
        return list(zip(_scored_texts(table), map(str, table["predicted"].to_pylist()), strict=True))
    except DAMAGE as error:
        raise DataError(path, f"it does not hold the predictions of a run ({_problem(error)})") from None


def read_correct(path: Path, split: str) -> NDArray[np.bool_] | None:
    """Which texts of a split were given their label; None where the file is not here or cannot be read."""
    try:
        table = _read_table(path, ["label", "predicted"], split)
    except DAMAGE:
        return None
    pairs = zip(table["label"].to_pylist(), table["predicted"].to_pylist(), strict=True)
    return np.array([label == predicted for label, predicted in pairs], dtype=bool)


def _read_table(path: Path, columns: Sequence[str] | None = None, split: str | None = None) -> pa.Table:
    """All columns, or these; all rows, or those of a split."""
    with open_regular(path) as opened:
        file = pq.ParquetFile(opened, pre_buffer=False)
        names = file.schema_arrow.names if columns is None else [*columns, "split"]
        batches = list(read_batches(path, file, names))
        empty = file.schema_arrow.empty_table().select(names)
        table = pa.Table.from_batches(batches).select(names) if batches else empty
    if split is not None:
        table = table.filter(pc.equal(table["split"], split))
    return table.select(names if columns is None else list(columns)).combine_chunks()


def _problem(error: Exception) -> str:
    return error.problem if isinstance(error, DataError) else reason(error)


def _scored_texts(table: pa.Table) -> list[ScoredText]:
    return [ScoredText(*(row[name] for name in ScoredText._fields)) for row in table.to_pylist()]


def _class_ids(labels: Sequence[Any], class_names: Sequence[str]) -> NDArray[np.int64]:
    number = {name: k for k, name in enumerate(class_names)}
    return np.array([number[str(label)] for label in labels], dtype=np.int64)
