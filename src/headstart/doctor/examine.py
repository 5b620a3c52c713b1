"""What is wrong with a labelled set, found before anyone trusts a number from it.

`examine` returns a `Report`: a summary of each split and the findings, gravest first, each with its count, up to five
rows to look at, and what to do. `leaked_rows` are the test rows that a leak-free score leaves out.

Two rows are the same when their `content_hash` is, whatever their case, punctuation and white space. `split` splits a
file by the same hash, so its splits have no leaks.

>>> from headstart.reading.examples import Example
>>> row = Example(text="Great!", label="good", second=None, path="train.csv", line=2)
>>> copy = Example(text="great", label="good", second=None, path="test.csv", line=9)
>>> report = examine(Examples((row,), ()), test=Examples((copy,), ()))
>>> report.findings[0].message
'1 of 1 test rows is also in train (1 row there)'
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from headstart.doctor import duplicate_checks, label_checks, text_checks
from headstart.doctor.findings import SEVERITIES, Finding, Report
from headstart.doctor.splits import Split, named_splits
from headstart.errors import ConfigError
from headstart.reading.examples import Examples

if TYPE_CHECKING:
    from headstart.tokenizers.tokenizer import Tokenizer

CHECKS: tuple[Callable[[Sequence[Split]], Iterator[Finding]], ...] = (
    duplicate_checks.leaks,
    label_checks.one_label,
    label_checks.new_labels,
    duplicate_checks.near_leaks,
    duplicate_checks.conflicts,
    duplicate_checks.duplicates,
    label_checks.sorted_by_label,
    label_checks.imbalance,
    label_checks.drift,
    text_checks.empty,
    text_checks.damaged_characters,
    duplicate_checks.near_duplicates_within,
    text_checks.short,
)


def examine(
    train: Examples,
    valid: Examples | None = None,
    test: Examples | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    window: int = 512,
) -> Report:
    """Run every check on the splits that are given; those about tokens only with a tokenizer."""
    if window < 1:
        raise ConfigError("doctor", [f"the window is {window} tokens, expected at least 1"])
    splits = named_splits(train, valid, test, tokenizer)
    findings = [finding for check in CHECKS for finding in check(splits)]
    unexamined = []
    if len(splits) == 1:
        unexamined.append("leaks between splits: give the others with --valid and --test")
    if tokenizer is None:
        unexamined.append(
            "rows longer than the model's window, and unknown tokens: give the tokenizer with --tokenizer"
        )
    else:
        findings += text_checks.truncated_rows(splits, window)
        findings += text_checks.unknown_tokens(splits, tokenizer)
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return Report(tuple(split.summary() for split in splits), tuple(findings), tuple(unexamined))


def leaked_rows(train: Examples, valid: Examples | None, test: Examples) -> set[int]:
    """The rows of test, by index, that are also in train or valid: a leak-free score leaves them out."""
    *others, tested = named_splits(train, valid, test)
    known = {key for split in others for key in split.rows_by_key}
    return {row for row, key in enumerate(tested.keys) if key in known}
