"""What is wrong with a labelled set, found before anyone trusts a number from it.

`examine` reads the splits once over and returns a `Report`: a summary of each split and the findings, gravest first,
each with its count, up to five rows to look at, and what to do. `clean` gives the splits without the leaks,
duplicates, conflicting labels and empty rows; `leaked_rows` names the test rows that a leak-free score leaves out.

Two rows are the same when what they say is, whatever the case, punctuation and white space: `content_hash`, by which
`split` parts a file too, so that what it parts has no leaks.

>>> row = Example(text="Great!", label="good", second=None, path="train.csv", line=2)
>>> copy = Example(text="great", label="good", second=None, path="test.csv", line=9)
>>> report = examine(Examples((row,), ()), test=Examples((copy,), ()))
>>> report.findings[0].message
'1 of 1 test rows is also in train (1 row there)'
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headstart.doctor.checks import CHECKS, cut_rows, unknown_tokens
from headstart.doctor.findings import SEVERITIES, Part, Report, count_tokens, splits_of, summary
from headstart.errors import ConfigError, DataError
from headstart.files import new_folder
from headstart.reading.examples import Example, Examples

if TYPE_CHECKING:
    from headstart.tokenizers.tokenizer import Tokenizer


def examine(
    train: Examples,
    valid: Examples | None = None,
    test: Examples | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    window: int = 512,
) -> Report:
    """Everything the doctor knows to look for, in the splits that there are."""
    if window < 1:
        raise ConfigError("doctor", [f"the window is {window} tokens, expected at least 1"])
    parts = splits_of(train, valid, test)
    counted = [] if tokenizer is None else [count_tokens(part, tokenizer) for part in parts]
    findings = [finding for check in CHECKS for finding in check(parts)]
    if tokenizer is not None:
        findings += cut_rows(parts, counted, window)
        findings += unknown_tokens(parts, counted, tokenizer)
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    summaries = [summary(part, counted[number] if counted else None) for number, part in enumerate(parts)]
    return Report(tuple(summaries), tuple(findings), tuple(_unexamined(parts, tokenizer)))


def leaked_rows(train: Examples, valid: Examples | None, test: Examples) -> set[int]:
    """The rows of test, by index, that are also in train or valid: a leak-free score leaves them out."""
    parts = {part.name: part for part in splits_of(train, valid, test)}
    known = {key for name, part in parts.items() if name != "test" for key in part.places}
    return {row for row, key in enumerate(parts["test"].keys) if key in known}


def clean(
    train: Examples, valid: Examples | None = None, test: Examples | None = None
) -> tuple[dict[str, Examples], dict[str, dict[str, int]]]:
    """The splits without what spoils a score, and how many rows went from each split for each reason.

    A row that stands in two splits stays where it is scored: train gives way to valid and test, valid to test.
    Of rows that are the same the first stays; where their labels differ nobody knows which is right, and all go.
    """
    parts = splits_of(train, valid, test)
    cleaned, removed = {}, {}
    for number, part in enumerate(parts):
        scored = {key for other in parts[number + 1 :] for key in other.places}
        reasons = [_reason(part, row, scored) for row in range(len(part.rows))]
        kept = tuple(row for row, reason in zip(part.rows, reasons, strict=True) if reason is None)
        cleaned[part.name] = Examples(rows=kept, notes=())
        removed[part.name] = dict(Counter(reason for reason in reasons if reason is not None))
    return cleaned, removed


def check_writable(out: Path) -> None:
    """Refuse a folder that holds something, before any work is done for it."""
    if out.exists() and not out.is_dir():
        raise DataError(out, "a file is there, expected a new folder", fix="choose another name")
    if out.is_dir() and (content := sum(1 for _ in out.iterdir())):
        raise DataError(
            out,
            f"the folder holds {content} files or folders, and nothing is ever overwritten",
            fix="choose a new folder, or empty this one",
        )


def write_splits(splits: Mapping[str, Examples], out: Path) -> None:
    """Write `out/train.jsonl` and so on: all of them, or none."""
    check_writable(out)
    with new_folder(out) as unfinished:
        for name, examples in splits.items():
            with (unfinished / f"{name}.jsonl").open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(_json_line(row) for row in examples.rows)


def _json_line(row: Example) -> str:
    second = {} if row.second is None else {"second": row.second}
    label = {} if row.label is None else {"label": row.label}
    return json.dumps({"text": row.text, **second, **label}, ensure_ascii=False) + "\n"


def _unexamined(parts: Sequence[Part], tokenizer: Tokenizer | None) -> Iterator[str]:
    if len(parts) == 1:
        yield "leaks between splits: give the others with --valid and --test"
    if tokenizer is None:
        yield "rows longer than the model's window, and unknown tokens: give the tokenizer with --tokenizer"


def _reason(part: Part, row: int, scored: set[int]) -> str | None:
    """Why a row goes, or None where it stays."""
    key = part.keys[row]
    if key is None:
        return "empty"
    if key in scored:
        return "leak"
    if len(part.labels_of(key)) > 1:
        return "conflict"
    return "duplicate" if part.places[key][0] != row else None
