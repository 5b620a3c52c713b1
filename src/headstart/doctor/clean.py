"""A labelled set without leaks, duplicates, conflicting labels and empty rows, and the folder it is written to."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from headstart.doctor.splits import Split, named_splits
from headstart.errors import DataError
from headstart.files import new_folder
from headstart.reading.examples import Examples


def clean(
    train: Examples, valid: Examples | None = None, test: Examples | None = None
) -> tuple[dict[str, Examples], dict[str, dict[str, int]]]:
    """The cleaned splits, and how many rows were removed from each split for each reason.

    A row that is in two splits stays where it is scored: it is removed from train before valid or test, and from valid
    before test. Of rows that are the same the first stays; where their labels differ, all are removed.
    """
    splits = named_splits(train, valid, test)
    cleaned, removed = {}, {}
    for i, split in enumerate(splits):
        later_keys = {key for later in splits[i + 1 :] for key in later.rows_by_key}
        reasons = [_reason(split, row, later_keys) for row in range(len(split.rows))]
        kept = tuple(row for row, reason in zip(split.rows, reasons, strict=True) if reason is None)
        cleaned[split.name] = Examples(kept)
        removed[split.name] = dict(Counter(reason for reason in reasons if reason is not None))
    return cleaned, removed


def _reason(split: Split, row: int, later_keys: set[int | None]) -> str | None:
    """Why a row is removed, or None where it stays."""
    key = split.keys[row]
    if key is None:
        return "empty"
    if key in later_keys:
        return "leak"
    if len({split.rows[same].label for same in split.rows_by_key[key]}) > 1:
        return "conflict"
    return "duplicate" if split.rows_by_key[key][0] != row else None


def check_writable(out: Path) -> None:
    """Refuse a folder that holds something, before any work is done for it."""
    if out.exists() and not out.is_dir():
        raise DataError(out, "a file is there, expected a new folder", fix="choose another name")
    if out.is_dir() and (count := sum(1 for _ in out.iterdir())):
        problem = f"the folder holds {count} files or folders, and nothing is ever overwritten"
        raise DataError(out, problem, fix="choose a new folder, or empty this one")


def write_splits(splits: Mapping[str, Examples], out: Path) -> None:
    """Write `out/train.jsonl` and so on: all of them, or none."""
    check_writable(out)
    with new_folder(out) as unfinished:
        for name, examples in splits.items():
            with (unfinished / f"{name}.jsonl").open("w", encoding="utf-8", newline="\n") as file:
                for row in examples.rows:
                    values = {"text": row.text, "second": row.second, "label": row.label}
                    given = {name: value for name, value in values.items() if value is not None}
                    file.write(json.dumps(given, ensure_ascii=False) + "\n")
