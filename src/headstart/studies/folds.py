"""Cross-validation folds: what settings are chosen on where valid is too small to choose on alone.

Four hundred texts tell two settings apart if they differ by six points. So where valid is small, its texts and those of
train are pooled and dealt out to folds; a setting is scored on every fold by a model that was trained on the others.
Not where valid has more texts than a label budget: folds would be trained on a multiple of it, and an epoch of theirs
would have as many times the steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from headstart.reading.examples import Example, Examples
from headstart.reading.split import content_hash

FOLDS = 5
ENOUGH = 1000  # rows of valid that settings are chosen on as they are


@dataclass(frozen=True)
class Fold:
    """One way to part the labelled texts: to train on, and to score on."""

    train: Examples
    valid: Examples


def choose_folds(train: Examples, valid: Examples, count: int = FOLDS) -> tuple[Fold, ...]:
    """Valid as it is where it is large enough, or larger than train; else folds of train and valid together.

    A text comes to a fold by its content: the same whatever the order of the rows, and copies of a text stay together.
    Each class is spread evenly over the folds. A class with a single text is trained on in every fold and scored in
    none.

    >>> rows = [Example(f"text {i}", "ab"[i % 2], None, "made up", i) for i in range(20)]
    >>> [len(fold.valid.rows) for fold in choose_folds(Examples(tuple(rows[:16])), Examples(tuple(rows[16:])))]
    [4, 4, 4, 4, 4]
    """
    if len(valid.rows) >= ENOUGH or len(valid.rows) > len(train.rows):
        return (Fold(train, valid),)
    rows = (*train.rows, *valid.rows)
    fold_of = dict(_deal(rows, count))
    parts = []
    for k in range(count):
        inside = [fold_of.get(content_hash(row.content)) == k for row in rows]
        if any(inside):
            train_rows, valid_rows = (
                tuple(row for row, scored in zip(rows, inside, strict=True) if scored is wanted)
                for wanted in (False, True)
            )
            parts.append(Fold(Examples(train_rows), Examples(valid_rows)))
    return tuple(parts) or (Fold(train, valid),)


def _deal(rows: tuple[Example, ...], count: int) -> Iterator[tuple[int, int]]:
    """(content hash, fold) of each text that may be scored."""
    hashes: dict[str, set[int]] = defaultdict(set)
    label_of: dict[int, str] = {}
    for row in rows:
        content = content_hash(row.content)
        hashes[label_of.setdefault(content, str(row.label))].add(content)
    offset = 0  # so that small classes do not all fill the first folds
    for label in sorted(hashes):
        texts = sorted(hashes[label])
        if len(texts) > 1:
            yield from ((content, (offset + rank) % count) for rank, content in enumerate(texts))
            offset += len(texts)
