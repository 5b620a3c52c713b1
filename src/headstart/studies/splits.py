"""The labelled texts of a study: read, split into train, valid and test, cut to a label budget."""

from __future__ import annotations

import random
import reprlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from headstart.errors import ConfigError, DataError
from headstart.reading.examples import Example, Examples, read_examples
from headstart.reading.skipped import SkippedRows, summary_lines
from headstart.reading.split import split
from headstart.studies.settings import LabelledSettings
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.wording import plural

SPLITS = ("train", "valid", "test")
VOCABULARY = 8000  # of a tokenizer that is trained on the labelled texts
VALID_SHARE = 0.1  # of the training file, where no valid file is given


def read_splits(settings: LabelledSettings, log: Callable[[str], None] = lambda text: None) -> dict[str, Examples]:
    """The splits that there are, in the order of `SPLITS`; two classes at least, and no split empty.

    Where a file for valid (or for test, if a share is asked for) is not given, it is split off the training file by
    content: the same rows whatever the seed; a class with too few rows for that is in train alone.
    """
    skipped = SkippedRows() if settings.skip_bad else None
    files = {"train": settings.data, "valid": settings.valid, "test": settings.test}
    splits = {
        name: read_examples(path, text=settings.text, second=settings.second, label=settings.label, skipped=skipped)
        for name, path in files.items()
        if path is not None
    }
    for line in dict.fromkeys(line for part in splits.values() for line in part.notes):
        log(line)
    for line in summary_lines(skipped.count, skipped.lines) if skipped else ():
        log(line)
    shares = {
        "valid": (settings.valid_share or VALID_SHARE) if settings.valid is None else 0.0,
        "test": settings.test_share if settings.test is None else 0.0,
    }
    if any(shares.values()):
        _check_classes(splits["train"])
        parts = split(splits["train"], valid=shares["valid"], test=shares["test"])
        for name, part in _keep_classes_in_train(splits["train"], parts, log).items():
            splits[name] = part
            if name != "train":
                purpose = "to choose on" if name == "valid" else "as the test"
                log(f"no {name} file: {len(part.rows)} rows of the training file are kept aside {purpose}")
    names = splits["train"].class_names
    if len(names) < 2:
        raise DataError(settings.data, f"all rows have the label {names[0]!r}" if names else "no row has a label")
    return {name: splits[name] for name in SPLITS if name in splits}


def _check_classes(examples: Examples) -> None:
    """A column in which most values stand once is no label: an id, a price, another text."""
    counts = Counter(row.label for row in examples.rows)
    single = [str(label) for label, count in counts.items() if count == 1]
    if len(single) > len(examples.rows) / 2:
        raise DataError(
            examples.rows[0].path,
            f"{len(examples.rows):,} rows have {len(counts):,} labels, and {len(single):,} of them stand in one row "
            f"only (such as {reprlib.repr(single[0])}): there is nothing to learn a class from",
            fix="name the column of the label with --label, or give several rows of each class",
        )


def _keep_classes_in_train(
    examples: Examples, parts: Mapping[str, Examples], log: Callable[[str], None]
) -> dict[str, Examples]:
    """The parts of a set, but that a class of which no row came to train has all its rows there.

    A class with a row or two may miss train by chance; it could not be learnt, and every answer to it would be wrong.
    """
    missing = set(examples.class_names) - set(parts["train"].class_names)
    if not missing:
        return dict(parts)
    counts = Counter(str(row.label) for row in examples.rows if row.label in missing)
    names = ", ".join(f"{reprlib.repr(name)} ({plural(rows, 'row')})" for name, rows in counts.most_common(5))
    more = f" and {len(counts) - 5:,} more" if len(counts) > 5 else ""
    log(f"too few rows to be in every split, so all of them are in train, and no score is of them: {names}{more}")
    in_train = set(parts["train"].rows)
    train = tuple(row for row in examples.rows if row in in_train or row.label in missing)
    others = {
        name: replace(part, rows=tuple(row for row in part.rows if row.label not in missing))
        for name, part in parts.items()
        if name != "train"
    }
    return {"train": replace(examples, rows=train), **others}


def train_tokenizer_on(rows: Iterable[Example], folder: Path) -> None:
    """A tokenizer for a model without one of its own, trained on the labelled texts themselves."""
    texts = (text for row in rows for text in (row.text, row.second) if text is not None)
    Tokenizer.train(texts, kind="bpe", size=VOCABULARY).save(folder)


def draw_budget(examples: Examples, budget: int, seed: int) -> Examples:
    """So many rows, balanced over the classes as far as they go, drawn by the seed and left in their order.

    A larger budget with the same seed holds the smaller one: rows are drawn in rounds of one for each class, in an
    order that the budget has no part in.

    >>> rows = [Example(f"text {i}", "ab"[i % 4 == 0], None, "made up", i) for i in range(20)]
    >>> fifteen, four = (draw_budget(Examples(tuple(rows)), budget, seed=1) for budget in (15, 4))
    >>> sorted(row.label for row in four.rows), set(four.rows) < set(fifteen.rows)
    (['a', 'a', 'b', 'b'], True)
    """
    rows = examples.rows
    if budget > len(rows):
        raise ConfigError("labels", [f"{budget:,} labels are asked for, and train has {len(rows):,}"])
    if budget < len(examples.class_names):
        asked = "1 label is" if budget == 1 else f"{budget} labels are"
        problem = f"{asked} fewer than the {len(examples.class_names)} classes: ask for at least one of each"
        raise ConfigError("labels", [problem])
    rng = random.Random(seed)
    rows_of: dict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        rows_of[str(row.label)].append(index)
    order: list[tuple[int, int, int]] = []  # (round, class id, row)
    for class_id, name in enumerate(examples.class_names):
        rng.shuffle(rows_of[name])
        order += [(turn, class_id, index) for turn, index in enumerate(rows_of[name])]
    kept = sorted(index for _, _, index in sorted(order)[:budget])
    return replace(examples, rows=tuple(rows[index] for index in kept))
