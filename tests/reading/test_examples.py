"""Examples: every format of a labelled set, guesses said aloud, clear errors, and a split that never moves a row."""

from __future__ import annotations

import csv
import gzip
import io
import json
import string
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headstart.errors import DataError, HeadstartError
from headstart.reading.examples import (
    EXAMPLE_SUFFIXES,
    Example,
    Examples,
    read_examples,
)
from headstart.reading.lines import COMPRESSIONS
from headstart.reading.pieces import decode_pieces
from headstart.reading.skipped import SkippedRows

TABLE_SUFFIXES = [".csv", ".tsv", ".jsonl", ".parquet"]


def write_file(folder: Path, name: str, raw: bytes | str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw.encode() if isinstance(raw, str) else raw)
    return path


def write_table(folder: Path, extension: str, names: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    """A table in one of its formats; csv and tsv spell every value out."""
    if extension == ".jsonl":
        lines = (json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)
        return write_file(folder, "table.jsonl", "".join(lines))
    if extension == ".parquet":
        out = io.BytesIO()
        pq.write_table(pa.table({name: [row[i] for row in rows] for i, name in enumerate(names)}), out)
        return write_file(folder, "table.parquet", out.getvalue())
    text = io.StringIO()
    csv.writer(text, delimiter="," if extension == ".csv" else "\t").writerows([names, *rows])
    return write_file(folder, "table" + extension, text.getvalue())


def labels_and_texts(examples: Examples) -> list[tuple[str | None, str]]:
    return [(row.label, row.text) for row in examples.rows]


def read_error(path: Path, **options: str) -> DataError:
    with pytest.raises(DataError) as caught:
        read_examples(path, text=options.get("text"), second=options.get("second"), label=options.get("label"))
    return caught.value


# Tables


@pytest.mark.parametrize("extension", TABLE_SUFFIXES)
def test_columns_that_are_named_are_read_without_a_note(tmp_path: Path, extension: str) -> None:
    path = write_table(
        tmp_path, extension, ["label", "text", "stars", "words"], [["a", "b", 1, "one"], ["a", "b", 2, "two"]]
    )
    examples = read_examples(path, text="words", label="stars")
    assert labels_and_texts(examples) == [("1", "one"), ("2", "two")]
    assert examples.notes == ()
    first = 1 if extension in (".jsonl", ".parquet") else 2
    assert [(row.path, row.line) for row in examples.rows] == [(str(path), first), (str(path), first + 1)]


@pytest.mark.parametrize("extension", TABLE_SUFFIXES)
@pytest.mark.parametrize(
    ("names", "note"),
    [
        (["id", "Review", "url", "stars"], "guessed: text column 'Review', label column 'stars'"),
        (["id", "sentence", "url", "label"], "guessed: text column 'sentence', label column 'label'"),
    ],
)
def test_a_guess_is_said_aloud(tmp_path: Path, extension: str, names: list[str], note: str) -> None:
    path = write_table(tmp_path, extension, names, [[7, "good", "u", 1], [8, "bad", "v", 0]])
    examples = read_examples(path)
    assert labels_and_texts(examples) == [("1", "good"), ("0", "bad")]
    assert examples.notes == (note,)


@pytest.mark.parametrize("extension", TABLE_SUFFIXES)
def test_the_only_column_of_words_is_the_text_and_the_other_the_label(tmp_path: Path, extension: str) -> None:
    examples = read_examples(write_table(tmp_path, extension, ["note", "avis"], [[5, "bon livre"], [1, "mauvais"]]))
    assert labels_and_texts(examples) == [("5", "bon livre"), ("1", "mauvais")]
    assert examples.notes == ("guessed: text column 'avis', label column 'note'",)


@pytest.mark.parametrize("extension", TABLE_SUFFIXES)
def test_labels_that_are_words_are_not_taken_for_the_text(tmp_path: Path, extension: str) -> None:
    path = write_table(tmp_path, extension, ["id", "sentiment", "avis"], [[1, "positif", "bon livre"]])
    assert labels_and_texts(read_examples(path)) == [("positif", "bon livre")]


def test_a_column_without_a_name_is_never_a_guess(tmp_path: Path) -> None:
    numbered = write_table(tmp_path, ".csv", ["", "avis", "note"], [[0, "bon livre", 5], [1, "mauvais", 1]])
    assert labels_and_texts(read_examples(numbered)) == [("5", "bon livre"), ("1", "mauvais")]
    assert "which column is the label?" in read_error(write_file(tmp_path, "a.csv", "text,\na,1\n")).problem
    assert labels_and_texts(read_examples(write_file(tmp_path, "a.csv", "text,\na,1\n"), label="")) == [("1", "a")]


@pytest.mark.parametrize("extension", TABLE_SUFFIXES)
def test_only_what_was_not_named_is_a_guess(tmp_path: Path, extension: str) -> None:
    path = write_table(tmp_path, extension, ["text", "title", "label"], [["a", "b", 1]])
    examples = read_examples(path, text="title")
    assert labels_and_texts(examples) == [("1", "b")]
    assert examples.notes == ("guessed: label column 'label'",)


@pytest.mark.parametrize("extension", TABLE_SUFFIXES)
def test_a_guess_that_could_go_two_ways_is_not_made(tmp_path: Path, extension: str) -> None:
    path = write_table(tmp_path, extension, ["note", "avis", "date"], [[5, "bon livre", 2024]])
    error = read_error(path)
    assert "which column is the label? There are: 'note', 'avis', 'date'" in error.problem
    assert "name the column of the label with --label" in str(error)
    path = write_table(tmp_path, extension, ["titre", "avis", "label"], [["t", "bon livre", 1]])
    assert "which column is the text?" in read_error(path).problem
    assert "name the column of the text with --text" in str(read_error(path))


@pytest.mark.parametrize("extension", TABLE_SUFFIXES)
@pytest.mark.parametrize("what", ["text", "second", "label"])
def test_a_named_column_that_is_absent_gets_the_nearest_name(tmp_path: Path, extension: str, what: str) -> None:
    path = write_table(tmp_path, extension, ["review", "label"], [["good", 1]])
    error = read_error(path, **{what: "reveiw"})
    assert error.problem == "no column 'reveiw'"
    assert error.fix == "did you mean 'review'?"


def test_one_column_cannot_be_both_text_and_label(tmp_path: Path) -> None:
    path = write_table(tmp_path, ".csv", ["review", "label"], [["good", 1]])
    assert "named for two things" in read_error(path, text="review", label="review").problem


@pytest.mark.parametrize("extension", TABLE_SUFFIXES)
def test_pairs_are_named_or_guessed(tmp_path: Path, extension: str) -> None:
    path = write_table(tmp_path, extension, ["sentence1", "sentence2", "text", "label"], [["a", "b", "c", "yes"]])
    guessed = read_examples(path)
    assert [(row.text, row.second) for row in guessed.rows] == [("a", "b")]
    note = "guessed: text column 'sentence1', second text column 'sentence2', label column 'label'"
    assert guessed.notes == (note,)
    named = read_examples(path, text="text", second="sentence1")
    assert [(row.text, row.second) for row in named.rows] == [("c", "a")]
    half = read_examples(path, second="sentence2")
    assert [(row.text, row.second) for row in half.rows] == [("a", "b")]
    single = read_examples(path, text="sentence2")
    assert [(row.text, row.second) for row in single.rows] == [("b", None)]


def test_labels_are_strings_whatever_they_were(tmp_path: Path) -> None:
    rows = [1, 1.0, "1", "1.0", " 1 ", -2.0, 0.5, "good", True, "01"]
    path = write_table(tmp_path, ".jsonl", ["text", "label"], [["t", label] for label in rows])
    labels = [row.label for row in read_examples(path).rows]
    assert labels == ["1", "1", "1", "1", "1", "-2", "0.5", "good", "True", "01"]
    floats = write_table(tmp_path, ".parquet", ["text", "label"], [["t", 1.0], ["t", 0.0]])
    assert [row.label for row in read_examples(floats).rows] == ["1", "0"]
    spelt = write_table(tmp_path, ".csv", ["text", "label"], [["t", 1.0], ["t", 0]])
    assert [row.label for row in read_examples(spelt).rows] == ["1", "0"]


def test_the_label_table_sorts_numbers_by_size_and_words_by_the_alphabet() -> None:
    def table(*labels: str | None) -> tuple[str, ...]:
        return Examples(tuple(Example("t", label, None, "p", 1) for label in labels)).class_names

    assert table("10", "9", "-1", "9", "0.5") == ("-1", "0.5", "9", "10")
    assert table("neg", "pos", "inf", "b") == ("b", "inf", "neg", "pos")
    assert table("word", "2", "10") == ("2", "10", "word")
    assert table(None) == ()


def test_a_separator_that_is_no_comma_is_said_aloud(tmp_path: Path) -> None:
    examples = read_examples(write_file(tmp_path, "a.csv", "text;label\nbon, très bon;1\n"))
    assert labels_and_texts(examples) == [("1", "bon, très bon")]
    assert examples.notes[0] == "the columns are separated by ';'"


@pytest.mark.parametrize("extension", TABLE_SUFFIXES)
@pytest.mark.parametrize("compression", ["", ".gz"])
def test_an_empty_text_is_a_row(tmp_path: Path, extension: str, compression: str) -> None:
    path = write_table(tmp_path, extension, ["text", "label"], [["a", 1], ["", 0], ["c", 1]])
    if compression:
        path = write_file(tmp_path, path.name + compression, gzip.compress(path.read_bytes()))
    assert labels_and_texts(read_examples(path)) == [("1", "a"), ("0", ""), ("1", "c")]


@pytest.mark.parametrize("missing", ["", None])
@pytest.mark.parametrize("extension", TABLE_SUFFIXES)
def test_a_label_missing_on_line_812(tmp_path: Path, extension: str, missing: str | None) -> None:
    header = 0 if extension in (".jsonl", ".parquet") else 1
    rows: list[list[str | None]] = [["text", "good"] for _ in range(1000)]
    rows[811 - header] = ["text", missing]
    path = write_table(tmp_path, extension, ["text", "label"], rows)
    error = read_error(path)
    assert (error.path, error.line, error.problem) == (str(path), 812, "no label under 'label'")
    skipped = SkippedRows()
    kept = read_examples(path, skipped=skipped)
    assert len(kept.rows) == 999
    assert 812 not in {row.line for row in kept.rows}
    assert [str(each) for each in skipped.first] == [str(error)]


def test_a_label_that_is_no_label(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": [1, 2]}\n')
    error = read_error(path)
    assert (error.line, error.problem) == (2, "found [1, 2] under 'label', expected a word or a number")
    path = write_file(tmp_path, "b.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": NaN}\n')
    assert read_error(path).problem == "no label under 'label'"


@pytest.mark.parametrize("extension", TABLE_SUFFIXES)
def test_a_million_characters_simply_work(tmp_path: Path, extension: str) -> None:
    long = "x" * 1_000_000
    assert labels_and_texts(read_examples(write_table(tmp_path, extension, ["text", "label"], [[long, 1]]))) == [
        ("1", long)
    ]


# `label ||| text`


def test_label_and_text_on_one_line(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.txt", "3 ||| It 's  good .\n\n0 |||\r\nvery bad ||| a ||| b\u2028c")
    examples = read_examples(path)
    assert [(row.line, row.label, row.text) for row in examples.rows] == [
        (1, "3", "It 's  good ."),
        (3, "0", ""),
        (4, "very bad", "a ||| b\u2028c"),
    ]


@pytest.mark.parametrize(
    ("line", "problem"), [("no mark", "no ' ||| ' in 'no mark'"), (" ||| text", "no label before")]
)
def test_a_line_without_mark_or_label(tmp_path: Path, line: str, problem: str) -> None:
    path = write_file(tmp_path, "a.txt", f"1 ||| one\n{line}\n0 ||| two\n")
    error = read_error(path)
    assert error.line == 2
    assert problem in error.problem
    assert labels_and_texts(read_examples(path, skipped=SkippedRows())) == [("1", "one"), ("0", "two")]


@pytest.mark.parametrize("end", ["", "\r", "\n"])
def test_rows_with_cr_alone_between_them_are_not_one_row(tmp_path: Path, end: str) -> None:
    assert "CR alone" in read_error(write_file(tmp_path, "a.txt", f"1 ||| one\r0 ||| two{end}")).problem
    kept = read_examples(write_file(tmp_path, "b.txt", "1 ||| o\rne\n0 ||| two\n"))
    assert labels_and_texts(kept) == [("1", "o\rne"), ("0", "two")]


def test_columns_named_where_there_are_none(tmp_path: Path) -> None:
    error = read_error(write_file(tmp_path, "a.txt", "1 ||| one\n"), text="review")
    assert "has no columns, and 'review' was named" in error.problem


# Pieces, and labels beside them


@pytest.mark.parametrize("given", ["train.review.spm", "train.label"])
def test_either_half_of_a_pair_finds_the_other(tmp_path: Path, given: str) -> None:
    spm = write_file(tmp_path, "train.review.spm", "▁Un ▁livre ▁ex ce ll ent !\n▁\n▁Non\n")
    write_file(tmp_path, "train.label", "1\n0\n0\n\n")
    examples = read_examples(tmp_path / given)
    assert [(row.label, row.text, row.path, row.line) for row in examples.rows] == [
        ("1", "Un livre excellent!", str(spm), 1),
        ("0", "", str(spm), 2),
        ("0", "Non", str(spm), 3),
    ]


def test_a_pair_may_be_compressed_and_named_shorter(tmp_path: Path) -> None:
    write_file(tmp_path, "train.spm.gz", gzip.compress("▁a\n".encode()))
    label = write_file(tmp_path, "train.label", "1\n")
    assert labels_and_texts(read_examples(label)) == [("1", "a")]
    assert labels_and_texts(read_examples(tmp_path / "train.spm.gz")) == [("1", "a")]


def test_pieces_alone(tmp_path: Path) -> None:
    path = write_file(tmp_path, "train.review.spm", "▁a ▁b\n")
    assert "train.label is not beside it" in read_error(path).problem


def test_a_label_file_alone(tmp_path: Path) -> None:
    assert "train.review.spm is not beside it" in read_error(write_file(tmp_path, "train.label", "1\n")).problem


def test_a_pair_of_two_lengths_is_refused_even_when_bad_rows_may_be_left_out(tmp_path: Path) -> None:
    path = write_file(tmp_path, "train.review.spm", "▁a\n▁b\n▁c\n")
    write_file(tmp_path, "train.label", "1\n0\n")
    with pytest.raises(DataError, match=r"3 lines, but train\.label beside it has 2"):
        read_examples(path, skipped=SkippedRows())


def test_a_bad_line_in_a_pair_does_not_move_the_labels(tmp_path: Path) -> None:
    path = write_file(tmp_path, "train.review.spm", "▁a\n".encode() + b"\xff\n" + "▁c\n▁d\n".encode())
    label = write_file(tmp_path, "train.label", "1\n2\n3\n\n5\n")
    write_file(tmp_path, "train.review.spm", path.read_bytes() + "▁e\n".encode())
    skipped = SkippedRows()
    assert labels_and_texts(read_examples(path, skipped=skipped)) == [("1", "a"), ("3", "c"), ("5", "e")]
    assert [(error.path, error.line) for error in skipped.first] == [(str(path), 2), (str(label), 4)]


@given(st.lists(st.text(string.ascii_letters + "é,.'", min_size=1), min_size=1), st.data())
@settings(deadline=None)
def test_pieces_cut_anywhere_give_the_text_back(words: list[str], data: st.DataObject) -> None:
    text = " ".join(words)
    marked = "▁" + text.replace(" ", "▁")
    cuts = sorted(data.draw(st.sets(st.integers(1, len(marked) - 1)))) if len(marked) > 1 else []
    pieces = [marked[a:b] for a, b in zip([0, *cuts], [*cuts, len(marked)], strict=True)]
    assert decode_pieces(" ".join(pieces)) == text


# Folders


def test_a_folder_for_each_label(tmp_path: Path) -> None:
    write_file(tmp_path, "pos/2.txt", "two\r\nlines\n")
    write_file(tmp_path, "pos/1.txt", "one")
    write_file(tmp_path, "neg/a.txt.gz", gzip.compress(b"zip"))
    write_file(tmp_path, "neg/notes.md", "not a text")
    write_file(tmp_path, "neg/empty.txt", "")
    write_file(tmp_path, ".cache/x.txt", "hidden")
    write_file(tmp_path, "images/x.png", b"\0")
    examples = read_examples(tmp_path)
    assert labels_and_texts(examples) == [("neg", "zip"), ("neg", ""), ("pos", "one"), ("pos", "two\nlines")]
    assert [Path(row.path).name for row in examples.rows] == ["a.txt.gz", "empty.txt", "1.txt", "2.txt"]
    assert examples.notes == (f"no .txt files in {tmp_path / 'images'}: left aside",)
    assert examples.class_names == ("neg", "pos")


def test_a_bad_file_in_a_folder_is_left_out_whole(tmp_path: Path) -> None:
    write_file(tmp_path, "pos/1.txt", "good")
    bad = write_file(tmp_path, "pos/2.txt", b"half of it\nis \xff bad\n")
    skipped = SkippedRows()
    assert labels_and_texts(read_examples(tmp_path, skipped=skipped)) == [("pos", "good")]
    assert [(error.path, error.line) for error in skipped.first] == [(str(bad), 2)]
    assert read_error(tmp_path).path == str(bad)


def test_a_folder_where_a_file_was_meant(tmp_path: Path) -> None:
    write_file(tmp_path, "train.txt", "1 ||| one\n")
    error = read_error(tmp_path)
    assert "is a folder, expected a file" in error.problem
    assert "train.txt" in str(error.fix)


# Bad input


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    write_file(tmp_path, "train.txt", "1 ||| one\n")
    error = read_error(tmp_path / "tarin.txt")
    assert (error.problem, error.fix) == ("no such file", "did you mean 'train.txt'?")
    assert read_error(tmp_path / "nosuffix").problem == "no such file"


def test_an_unknown_suffix(tmp_path: Path) -> None:
    assert "ends in '.docx', expected one of .csv" in read_error(write_file(tmp_path, "a.docx", "x")).problem


@pytest.mark.parametrize("extension", EXAMPLE_SUFFIXES)
@pytest.mark.parametrize("blank", ["", "\n", "\n \n"])
def test_an_empty_file(tmp_path: Path, extension: str, blank: str) -> None:
    for name in ("a.review.spm", "a.label"):
        write_file(tmp_path, name, blank)
    path = write_file(tmp_path, "a" + extension, blank)
    assert read_error(path).path in (str(path), str(tmp_path / "a.review.spm"))


def test_a_set_with_nothing_good_in_it_is_an_error_even_when_bad_rows_may_be_left_out(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.txt", "one\ntwo\n")
    with pytest.raises(DataError, match=r"left out as bad: 2, the first of them: .*line 1: no ' \|\|\| '"):
        read_examples(path, skipped=SkippedRows())


def test_a_compressed_set_cut_short_keeps_what_came_before_only_when_asked(tmp_path: Path) -> None:
    lines = "".join(f"{number % 2} ||| text {number}\n" for number in range(100_000))
    path = write_file(tmp_path, "a.txt.gz", gzip.compress(lines.encode())[:-100])
    assert "cut short" in read_error(path).problem
    skipped = SkippedRows()
    kept = read_examples(path, skipped=skipped).rows
    assert 0 < len(kept) < 100_000
    assert kept[-1].text == f"text {len(kept) - 1}"
    assert skipped.count == 1


SUFFIXES = [
    ".weird",
    *(extension + compression for extension in EXAMPLE_SUFFIXES for compression in ("", *COMPRESSIONS)),
]
FRAGMENTS = st.lists(
    st.sampled_from(
        [b"text", b"label", b" ||| ", b",", b";", b"\t", b'"', b"\n", b"\r", b'{"text":', b"}", b"1", b"\xff", b"\0"]
    )
).map(b"".join)


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(raw=st.binary() | FRAGMENTS, labels=st.binary() | FRAGMENTS, skip=st.booleans())
def test_any_bytes_give_examples_or_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, raw: bytes, labels: bytes, skip: bool
) -> None:
    folder = tmp_path_factory.getbasetemp() / "examples-fuzz"
    write_file(folder, "a.review.spm", labels)
    write_file(folder, "a.label", labels)
    path = write_file(folder, "a" + suffix, raw)
    try:
        examples = read_examples(path, skipped=SkippedRows() if skip else None)
    except HeadstartError as error:
        assert str(folder) in str(error)
    else:
        assert examples.rows
        for row in examples.rows:
            assert row.label is not None
            f"{row.text}{row.second}{row.label}".encode()


# Real data


@pytest.mark.parametrize(
    ("name", "rows", "labels"),
    [
        ("sst/train.txt", 8544, 5),
        ("sst/dev.txt", 1101, 5),
        ("sst/test.txt", 2210, 5),
        ("cfimdb/train.txt", 1707, 2),
        ("cfimdb/dev.txt", 245, 2),
        ("cfimdb/test.txt", 488, 1),
        ("cls-books/train.review.spm", 1600, 2),
        ("cls-books/valid.review.spm", 400, 2),
        ("cls-books/test.label", 2000, 2),
    ],
)
def test_the_real_sets_have_the_rows_their_table_says(data: Path, name: str, rows: int, labels: int) -> None:
    examples = read_examples(data / name)
    assert len(examples.rows) == rows
    assert examples.class_names == tuple("01234"[:labels])
    assert all(row.text for row in examples.rows)


def test_pieces_of_real_reviews_become_what_sentencepiece_makes_of_them(data: Path) -> None:
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(str(data / "cls-books" / "sentencepiece.french.model"))
    path = data / "cls-books" / "valid.review.spm"
    lines = path.read_bytes().decode().split("\n")
    for row in read_examples(path).rows:
        assert row.text == model.decode_pieces(lines[row.line - 1].split(" "))
