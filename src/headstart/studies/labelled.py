"""The labelled texts of a study: read, parted into train, valid and test, cut to a label budget."""

from __future__ import annotations

import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from headstart.errors import ConfigError, DataError
from headstart.reading.examples import Example, Examples, read_examples
from headstart.reading.skipped import SkippedRows, summary_lines
from headstart.reading.split import split
from headstart.studies.settings import LabelledSettings
from headstart.tokenizers.tokenizer import Tokenizer

SPLITS = ("train", "valid", "test")
VOCABULARY = 8000  # of a tokenizer that is trained on the labelled texts
VALID_SHARE = 0.1  # of the training file, where no valid file is given


def read_splits(settings: LabelledSettings, log: Callable[[str], None] = lambda text: None) -> dict[str, Examples]:
    """The splits that there are, in the order of `SPLITS`; two classes at least, and no split empty.

    Where a file for valid (or for test, if a share is asked for) is not given, it is parted from the training file by
    content: the same rows whatever the seed.
    """
    skipped = SkippedRows() if settings.skip_bad else None
    files = {"train": settings.data, "valid": settings.valid, "test": settings.test}
    found = {
        name: read_examples(path, text=settings.text, second=settings.second, label=settings.label, skipped=skipped)
        for name, path in files.items()
        if path is not None
    }
    for line in dict.fromkeys(line for part in found.values() for line in part.notes):
        log(line)
    for line in summary_lines(skipped.count, skipped.lines) if skipped else ():
        log(line)
    shares = {
        "valid": (settings.valid_share or VALID_SHARE) if settings.valid is None else 0.0,
        "test": settings.test_share if settings.test is None else 0.0,
    }
    if any(shares.values()):
        for name, part in split(found["train"], valid=shares["valid"], test=shares["test"]).items():
            found[name] = part
            if name != "train":
                purpose = "to choose on" if name == "valid" else "as the test"
                log(f"no {name} file: {len(part.rows)} rows of the training file are kept aside {purpose}")
    labels = found["train"].class_names
    if len(labels) < 2:
        raise DataError(settings.data, f"all rows have the label {labels[0]!r}" if labels else "no row has a label")
    return {name: found[name] for name in SPLITS if name in found}


def train_tokenizer_on(rows: Iterable[Example], folder: Path) -> None:
    """A tokenizer for a model without one of its own, trained on the labelled texts themselves."""
    texts = (text for row in rows for text in (row.text, row.second) if text is not None)
    Tokenizer.train(texts, kind="bpe", size=VOCABULARY).save(folder)


def subset(examples: Examples, count: int, seed: int) -> Examples:
    """`count` rows, as many of each class as there are to have, drawn by the seed and left in their order.

    A larger count with the same seed holds the smaller one: rows are drawn in rounds of one for each class, in an
    order that the count has no part in.

    >>> rows = [Example(f"text {i}", "ab"[i % 4 == 0], None, "made up", i) for i in range(20)]
    >>> fifteen, four = (subset(Examples(tuple(rows)), count, seed=1) for count in (15, 4))
    >>> sorted(row.label for row in four.rows), set(four.rows) < set(fifteen.rows)
    (['a', 'a', 'b', 'b'], True)
    """
    rows = examples.rows
    if count > len(rows):
        raise ConfigError("labels", [f"{count:,} labels are asked for, and train has {len(rows):,}"])
    if count < len(examples.class_names):
        said = "1 label is" if count == 1 else f"{count} labels are"
        problem = f"{said} fewer than the {len(examples.class_names)} classes: ask for at least one of each"
        raise ConfigError("labels", [problem])
    draw = random.Random(seed)
    classes: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        classes[str(row.label)].append(number)
    rounds: list[tuple[int, int, int]] = []
    for place, label in enumerate(examples.class_names):
        numbers = classes[label]
        draw.shuffle(numbers)
        rounds += [(turn, place, number) for turn, number in enumerate(numbers)]
    kept = sorted(number for _, _, number in sorted(rounds)[:count])
    return replace(examples, rows=tuple(rows[number] for number in kept))


def fingerprint(splits: Mapping[str, Examples]) -> dict[str, str]:
    """A digest of what each split says: its texts and labels, in their order, wherever they were read from."""
    return {name: _digest(part) for name, part in splits.items()}


def _digest(part: Examples) -> str:
    digest = hashlib.sha256()
    for row in part.rows:
        digest.update(json.dumps(_content(row)).encode())
    return digest.hexdigest()


def _content(row: Example) -> list[str | None]:
    return [row.text, row.second, row.label]
