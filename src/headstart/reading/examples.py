"""Examples: labelled texts, read from files as they are, and split so that a row keeps its side for ever.

The forms, told apart by name:

    train.csv, .tsv, .jsonl, .parquet   a column of texts (or two, for pairs) and one of labels, named or guessed
    train.txt                           one `label ||| text` a line
    train.review.spm + train.label      SentencePiece pieces, and a label on the same line of the file beside it
    train/pos/*.txt, train/neg/*.txt    a folder for each label, a file for each text

All but the folders may be compressed (.gz, .xz, .zst). Labels are strings: 1, 1.0 and "1" are the label "1".
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from headstart.errors import ConfigError, DataError
from headstart.reading.content import split_position
from headstart.reading.lines import (
    COMPRESSIONS,
    TABLE_SUFFIXES,
    check_suffix,
    decode,
    is_folder,
    open_bytes,
    read_lines,
)
from headstart.reading.skipped import SKIP, SkippedRows, raise_or_skip
from headstart.reading.tables import Table, as_text, open_table

Text = str | tuple[str, str]  # a text, or a pair of texts
EXAMPLE_SUFFIXES = (*TABLE_SUFFIXES, ".txt", ".spm", ".label")
LABEL_NAMES = (
    "label", "labels", "class", "category", "target", "sentiment", "polarity", "stars", "rating", "score", "intent",
    "topic", "gold_label",
)  # fmt: skip
PAIR_NAMES = (
    ("text", "second"),
    ("sentence1", "sentence2"),
    ("sentence_a", "sentence_b"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
)


@dataclass(frozen=True, slots=True)
class Example:
    """One text, or a pair, with its label (None only when read for prediction) and the line where it begins."""

    text: str
    label: str | None
    second: str | None
    path: str
    line: int

    @property
    def content(self) -> str:
        """The text, or both texts of a pair, as one string."""
        return self.text if self.second is None else f"{self.text}\n{self.second}"


@dataclass(frozen=True)
class Examples:
    """The rows of a labelled set, and what was guessed on the way, to be said aloud."""

    rows: tuple[Example, ...]
    notes: tuple[str, ...] = ()

    @property
    def class_names(self) -> tuple[str, ...]:
        """Every label once: numbers by size, then words by the alphabet."""
        return tuple(sorted({row.label for row in self.rows if row.label is not None}, key=_label_order))


_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_WHOLE = re.compile(r"(-?[0-9]+)\.0+")


def _label_order(label: str) -> tuple[int, float, str]:
    return (0, float(label), label) if _NUMBER.fullmatch(label) else (1, 0.0, label)


def as_label(value: str | float | None) -> str | None:
    """A label as the string it is kept under; None where there is none.

    >>> [as_label(value) for value in (1, 1.0, "1", "1.0", 0.5, " good ", "", None)]
    ['1', '1', '1', '1', '0.5', 'good', None, None]
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    text = str(value).strip()
    return _WHOLE.sub(r"\1", text) if _WHOLE.fullmatch(text) else text or None


def read_examples(
    path: str | Path,
    *,
    text: str | None = None,
    second: str | None = None,
    label: str | None = None,
    labelled: bool = True,
    skipped: SkippedRows | None = None,
) -> Examples:
    """Read a labelled set, of any of the forms above.

    `text`, `second` and `label` name columns of a table; `second` is the other text of a pair. Those not named are
    guessed, and the guess is in `notes`. With `labelled=False` texts are read for prediction: labels are not asked
    for, those there are left aside, and a `.txt` file may hold bare texts, one a line.

    Takes `skipped` to note bad rows there and go on; without it the first one raises `DataError`. A set without a
    single good row is an error in any case.

        examples = read_examples("reviews.csv", text="review", label="stars")
        examples.class_names     # ('1', '2', '3', '4', '5')
    """
    path = Path(path)
    named = _Columns(text, second, label if labelled else None)
    notes: list[str] = []
    rows: list[Example] = []
    try:
        for row in _rows(path, named, labelled, notes, skipped):
            rows.append(row)  # noqa: PERF402 (what was read before an error is kept)
    except DataError as error:
        if not rows:
            raise
        raise_or_skip(error, skipped)
    if not rows:
        why = (
            f"; left out as bad: {skipped.count}, the first of them: {skipped.first[0]}"
            if skipped and skipped.count
            else ""
        )
        raise DataError(path, f"holds no rows, expected at least one{why}", fix="give a file with texts")
    return Examples(tuple(rows), tuple(notes))


def stream_texts(path: Path, notes: list[str], skipped: SkippedRows | None) -> Iterator[Example]:
    """The texts of a file that is no table, one by one, their labels left aside."""
    return _rows(path, _Columns(None, None, None), False, notes, skipped)


@dataclass(frozen=True)
class _Columns:
    text: str | None
    second: str | None
    label: str | None

    def given(self) -> list[str]:
        return [name for name in (self.text, self.second, self.label) if name is not None]


def _rows(
    path: Path, named: _Columns, labelled: bool, notes: list[str], skipped: SkippedRows | None
) -> Iterator[Example]:
    folder = is_folder(path)
    if not folder:
        open_bytes(path).close()  # a path that is not there is told before a suffix that is not known
    form = "" if folder else check_suffix(path, EXAMPLE_SUFFIXES)
    if form in TABLE_SUFFIXES:
        return _table_rows(path, named, labelled, notes, skipped)
    if named.given():
        problem = f"has no columns, and {', '.join(map(repr, named.given()))} was named as one"
        raise DataError(path, problem, fix=f"name columns only with {', '.join(TABLE_SUFFIXES)}")
    if folder:
        return _folder_rows(path, labelled, notes, skipped)
    if form == ".txt":
        return _marked_rows(path, labelled, notes, skipped)
    return _paired_rows(path, labelled, skipped)


# Tables


def _table_rows(
    path: Path, named: _Columns, labelled: bool, notes: list[str], skipped: SkippedRows | None
) -> Iterator[Example]:
    with open_table(path, skipped) as table:
        columns = _choose(table, named, labelled)
        notes.extend(table.notes)
        notes.extend(_guesses(named, columns))
        for line, values in table.rows(columns.given()):
            try:
                yield _example(dict(zip(columns.given(), values, strict=True)), columns, path, line)
            except DataError as error:
                raise_or_skip(error, skipped)


def choose_texts(table: Table, text: str | None, second: str | None) -> tuple[str, str | None, tuple[str, ...]]:
    """The columns of a table that hold the text and, for pairs, the second one; and what was guessed of them."""
    named = _Columns(text, second, None)
    columns = _choose(table, named, labelled=False)
    assert columns.text is not None
    return columns.text, columns.second, tuple(_guesses(named, columns))


def _choose(table: Table, named: _Columns, labelled: bool) -> _Columns:
    """The columns to read: those named, checked, and guesses for the others."""
    for name in named.given():
        table.check(name)
    text, second, label = named.text, named.second, named.label
    if text is None:
        text, second = _pair(table, second)
    usual = table.find(LABEL_NAMES, apart_from=(text, second)) if label is None else label
    if text is None:
        text = table.guess_text(apart_from=(second, usual))
    if labelled and usual is None:
        others = table.named(apart_from=(text, second))
        if len(others) != 1:
            raise table.unclear("label", "--label")
        usual = others[0]
    columns = _Columns(text, second, table.check(usual) if labelled and usual is not None else None)
    if len(set(columns.given())) < len(columns.given()):
        problem = f"one column was named for two things: {', '.join(map(repr, columns.given()))}"
        raise DataError(table.path, problem, fix="name a column of its own for each of text, second and label")
    return columns


def _pair(table: Table, second: str | None) -> tuple[str | None, str | None]:
    """The columns of a pair, if two with usual names are there (and the second is the one that was named)."""
    for names in PAIR_NAMES:
        ours = (table.find(names[:1]), table.find(names[1:]))
        if None not in ours and second in (None, ours[1]):
            return ours
    return None, second


def _guesses(named: _Columns, columns: _Columns) -> Iterator[str]:
    pairs = {
        "text": (named.text, columns.text),
        "second text": (named.second, columns.second),
        "label": (named.label, columns.label),
    }
    guessed = [f"{what} column {ours!r}" for what, (given, ours) in pairs.items() if ours is not None and given is None]
    if guessed:
        yield "guessed: " + ", ".join(guessed)


def _example(values: dict[str, object], columns: _Columns, path: Path, line: int) -> Example:
    def text(name: str) -> str:
        return as_text(values[name], name, path, line)

    assert columns.text is not None, "`_choose` finds a column of text or raises"
    label = None if columns.label is None else _label(values[columns.label], columns.label, path, line)
    second = None if columns.second is None else text(columns.second)
    return Example(text(columns.text), label, second, str(path), line)


def _label(value: object, name: str, path: Path, line: int) -> str:
    if value is not None and not isinstance(value, str | int | float):
        problem = f"found {reprlib.repr(value)} under {name!r}, expected a word or a number"
        raise DataError(path, problem, line=line, fix="name a column that holds labels")
    label = as_label(as_text(value, name, path, line) if isinstance(value, str) else value)
    if label is None:
        raise DataError(path, f"no label under {name!r}", line=line, fix=f"write one, or {SKIP}")
    return label


# `label ||| text`


def _marked_rows(path: Path, labelled: bool, notes: list[str], skipped: SkippedRows | None) -> Iterator[Example]:
    bare: bool | None = None
    for line, content in read_lines(path, skipped):
        if not content or content.isspace():
            continue
        before, mark, after = content.partition("|||")
        if bare is None:
            bare = not labelled and not mark
            if not labelled and mark:
                notes.append("read as `label ||| text`, the labels left aside")
        if bare:
            yield Example(content, None, None, str(path), line)
        elif not mark:
            problem = f"no ' ||| ' in {reprlib.repr(content)}, expected `label ||| text`"
            raise_or_skip(
                DataError(path, problem, line=line, fix=f"write the label and ' ||| ' before it, or {SKIP}"), skipped
            )
        elif labelled and not before.strip():
            problem = "no label before ' ||| '"
            raise_or_skip(DataError(path, problem, line=line, fix=f"write one, or {SKIP}"), skipped)
        else:
            yield Example(after.strip(), as_label(before) if labelled else None, None, str(path), line)


# Pieces, and labels beside them


def _paired_rows(path: Path, labelled: bool, skipped: SkippedRows | None) -> Iterator[Example]:
    pieces = path if check_suffix(path, EXAMPLE_SUFFIXES) == ".spm" else _beside(path, ".review.spm", ".spm")
    texts = _raw_lines(pieces)
    labels: list[bytes] = []
    if labelled:
        beside = path if check_suffix(path, EXAMPLE_SUFFIXES) == ".label" else _beside(path, ".label")
        labels = _raw_lines(beside)
        if len(labels) != len(texts):
            # Somewhere a line is missing, and from there on every label is another row's: nothing here can be used.
            problem = f"{len(texts)} lines, but {beside.name} beside it has {len(labels)}"
            raise DataError(pieces, problem, fix="write one label for each line")
    for line, raw in enumerate(texts, 1):
        try:
            text = from_pieces(decode(raw, pieces, line).removesuffix("\n").removesuffix("\r"))
            label = as_label(decode(labels[line - 1], beside, line)) if labelled else None
            if labelled and label is None:
                raise DataError(beside, "no label on this line", line=line, fix=f"write one, or {SKIP}")
        except DataError as error:
            raise_or_skip(error, skipped)
        else:
            yield Example(text, label, None, str(pieces), line)


def from_pieces(pieces: str) -> str:
    """The text behind SentencePiece pieces with spaces between them.

    >>> from_pieces("▁Un ▁livre ▁cap tiv ant .")
    'Un livre captivant.'
    """
    return pieces.replace(" ", "").replace("▁", " ").removeprefix(" ")


def _raw_lines(path: Path) -> list[bytes]:
    with open_bytes(path) as stream:
        lines = list(stream)
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def _beside(path: Path, *endings: str) -> Path:
    """The other half of a pair: the file with the same beginning and one of some endings."""
    name = path.name
    for ending in (*COMPRESSIONS, ".spm", ".label", ".review"):
        name = name.removesuffix(ending)
    for ending in endings:
        for compression in ("", *COMPRESSIONS):
            other = path.with_name(name + ending + compression)
            if other.is_file():
                return other
    problem = f"{name + endings[0]} is not beside it, and the two are read together"
    raise DataError(path, problem, fix=f"put {name + endings[0]} into {path.parent}")


# Folders


def _folder_rows(folder: Path, labelled: bool, notes: list[str], skipped: SkippedRows | None) -> Iterator[Example]:
    try:
        inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        classes = {path: _texts_in(path) for path in inside if path.is_dir()}
    except OSError as error:
        raise DataError(folder, f"cannot be read: {error.strerror}") from None
    if not any(classes.values()):
        problem = "is a folder, expected a file, or a folder of folders as in pos/1.txt, neg/1.txt"
        names = [path.name for path in inside if path.is_file()][:5]
        raise DataError(folder, problem, fix=f"name a file inside it: {', '.join(names)}" if names else None)
    for each, files in classes.items():
        if not files:
            notes.append(f"no .txt files in {each}: left aside")
        for path in files:
            try:
                text = "\n".join(content for _, content in read_lines(path)).strip()
            except DataError as error:
                raise_or_skip(error, skipped)
            else:
                yield Example(text, as_label(each.name) if labelled else None, None, str(path), 1)


def _texts_in(folder: Path) -> list[Path]:
    endings = tuple(".txt" + compression for compression in ("", *COMPRESSIONS))
    files = (path for path in folder.iterdir() if path.name.lower().endswith(endings) and path.is_file())
    return sorted(path for path in files if not path.name.startswith("."))


# Splitting


def split(examples: Examples, *, valid: float, test: float) -> dict[str, Examples]:
    """Split into "train" and, where their share is above 0, "valid" and "test".

    The side of a row hangs on its content alone (see `content_hash`): it stays the same when rows come, go or change
    places, and two copies of a text never face each other across the split. Test is cut from one end of the hashes and
    valid from the other, so that changing the one share moves no row of the other.

        sides = split(examples, valid=0.1, test=0.2)
        len(sides["test"].rows)
    """
    problems = [
        f"{name} is {share}, expected a share from 0 up to (not including) 1"
        for name, share in (("valid", valid), ("test", test))
        if not 0 <= share < 1
    ]
    if not problems and valid + test >= 1:
        problems = [f"valid + test is {valid + test}, which leaves nothing to train on: keep it below 1"]
    if problems:
        raise ConfigError("split", problems)
    shares = {"train": 1 - valid - test, "valid": valid, "test": test}
    sides: dict[str, list[Example]] = {name: [] for name, share in shares.items() if share > 0}
    for row in examples.rows:
        position = split_position(row.content)
        sides["test" if position < test else "valid" if position >= 1 - valid else "train"].append(row)
    for name, rows in sides.items():
        if not rows:
            where = examples.rows[0].path if examples.rows else "the set"
            problem = f"none of {len(examples.rows)} rows came to the {name} side, whose share is {shares[name]:g}"
            raise DataError(where, problem, fix="give more rows, a larger share, or a file for each side")
    return {name: replace(examples, rows=tuple(rows)) for name, rows in sides.items()}
