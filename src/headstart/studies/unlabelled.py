"""The unlabelled texts of a task: read, each once, without those that a model is chosen or tested by.

Self-training makes labels of the answers to them that are sure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from headstart.batches.batch import Ints
from headstart.errors import DataError
from headstart.metrics import Floats, softmax
from headstart.reading.examples import Example, Examples
from headstart.reading.skipped import SkippedRows, summary_lines
from headstart.reading.split import content_hash
from headstart.reading.texts import read_unlabelled
from headstart.studies.held_out import HeldOutTexts
from headstart.studies.settings import LabelledSettings
from headstart.wording import plural

HELD_OUT = ("valid", "test")


def unlabelled_texts(
    settings: LabelledSettings, splits: Mapping[str, Examples], log: Callable[[str], None] = lambda text: None
) -> Examples:
    """What `unlabelled` names, without labels, copies, and texts of valid and test; a file of these alone is refused.

    Whether a text is one of them is decided by what it says, whatever its case, white space and punctuation.
    """
    assert settings.unlabelled is not None
    skipped = SkippedRows() if settings.skip_bad else None
    found = read_unlabelled(
        settings.unlabelled,
        text=settings.text,
        second=settings.second,
        label=settings.label,
        pairs=any(row.second is not None for row in splits["train"].rows),
        skipped=skipped,
    )
    for line in (*found.notes, *(summary_lines(skipped.count, skipped.lines) if skipped else ())):
        log(line)
    distinct = {content_hash(row.content): row for row in reversed(found.rows)}  # the first of equals
    held_out = HeldOutTexts(text for name in HELD_OUT if name in splits for text in _texts(splits[name]))
    rows = [row for row in reversed(distinct.values()) if not held_out.are_in(row.content)]
    left_out = len(distinct) - len(rows)
    if not rows:
        raise DataError(
            settings.unlabelled,
            f"all of its {len(distinct):,} texts are in {_whose(distinct, splits)}, from which no model may learn",
            fix="give other texts of the task",
        )
    duplicates = len(found.rows) - len(distinct)
    twice = f"{plural(duplicates, 'duplicate')} and " if duplicates else ""
    log(f"unlabelled: {len(rows):,} texts; {twice}{left_out:,} that hold a text of valid or test are left out")
    return replace(found, rows=tuple(rows))


def not_in(unlabelled: Examples, labelled: Examples) -> Examples:
    """Those whose label is not known: a text to train on may be among the unlabelled ones as well."""
    known = {content_hash(row.content) for row in labelled.rows}
    return replace(unlabelled, rows=tuple(row for row in unlabelled.rows if content_hash(row.content) not in known))


def sure_answers(answers: Floats, labels: Ints, confidence: float) -> tuple[Ints, Ints]:
    """The rows of (n, C) scaled log-probabilities that are sure, in their order, and the class of each.

    Of all that are sure, no class gets a larger share than it has among `labels`: the surest are taken. A model that
    answers with one class would else teach its student nothing but that class.

    >>> answers = np.log([[0.99, 0.01], [0.95, 0.05], [0.6, 0.4], [0.08, 0.92], [0.97, 0.03]])
    >>> rows, classes = sure_answers(answers, np.array([0, 1]), 0.9)
    >>> rows.tolist(), classes.tolist()
    ([0, 3, 4], [0, 1, 0])
    """
    probabilities = softmax(answers)
    classes, top = probabilities.argmax(1), probabilities.max(1)
    sure = np.flatnonzero(top >= confidence)
    shares = np.bincount(labels, minlength=answers.shape[1]) / len(labels)
    most = np.ceil(shares * len(sure)).astype(int)
    kept = []
    for k in range(answers.shape[1]):
        of_class = sure[classes[sure] == k]
        kept.append(of_class[np.argsort(-top[of_class], kind="stable")][: most[k]])
    rows = np.sort(np.concatenate(kept))
    return rows, classes[rows]


def _whose(rows: Mapping[int, Example], splits: Mapping[str, Examples]) -> str:
    """The split that the texts are of: `valid`, `test`, or both."""
    for name in (name for name in HELD_OUT if name in splits):
        if rows.keys() <= {content_hash(row.content) for row in splits[name].rows}:
            return name
    return "valid or test"


def _texts(examples: Examples) -> list[str]:
    return [text for row in examples.rows for text in (row.text, row.second) if text is not None]
