"""Tables: the column of text is found in every format, and a bad row gives a clear error with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.reading.documents import read_documents
from headstart.reading.skipped import SkippedRows, summary_lines
from tests.reading.files import TEXTS, as_csv, encode_texts, parquet, read_error, texts_of, write_file

# Formats


@pytest.mark.parametrize("extension", [".csv", ".jsonl", ".parquet"])
@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0")), min_size=1))
def test_a_table_holds_any_text(tmp_path_factory: pytest.TempPathFactory, extension: str, texts: list[str]) -> None:
    path = write_file(tmp_path_factory.mktemp("table"), "a" + extension, encode_texts(extension, ["x", *texts]))
    assert texts_of(path) == ["x", *(text for text in texts if text.strip())]


def test_a_quoted_newline_stays_inside_and_the_line_is_where_the_row_begins(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.csv", 'text,n\n"one\ntwo\n\nfour",1\n\nlast,2\n')
    found = [(document.line, document.text) for document in read_documents([path])]
    assert found == [(2, "one\ntwo\n\nfour"), (7, "last")]


@pytest.mark.parametrize("separator", [";", "\t"])
def test_a_csv_may_be_separated_by_something_else(tmp_path: Path, separator: str) -> None:
    path = write_file(tmp_path, "a.csv", as_csv([["n", "text"], ["1", "one, two"], ["2", "a\nb"]], separator))
    assert texts_of(path) == ["one, two", "a\nb"]


def test_quotes_in_a_tsv_are_plain_unless_they_wrap_a_field(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.tsv", 'n\ttext\n1\t"Yes" she said\n2\t"open\n3\t"a ""b"" c"\n')
    assert texts_of(path) == ['"Yes" she said', '"open', 'a "b" c']


def test_a_million_quoted_lines_simply_work(tmp_path: Path) -> None:
    long = "a\n" * 1_000_000
    assert texts_of(write_file(tmp_path, "a.csv", encode_texts(".csv", [long]))) == [long]


# Columns


@pytest.mark.parametrize("extension", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_the_column_is_named_or_guessed(tmp_path: Path, extension: str) -> None:
    def table(*names: str) -> Path:
        rows = {name: f"the {name}" for name in names}
        raw = {
            ".jsonl": json.dumps(rows).encode(),
            ".parquet": parquet(**{name: [text] for name, text in rows.items()}),
            ".csv": as_csv([list(rows), list(rows.values())]),
            ".tsv": as_csv([list(rows), list(rows.values())], "\t"),
        }
        return write_file(tmp_path, "table" + extension, raw[extension])

    assert texts_of(table("title", "Review", "url")) == ["the Review"]
    assert texts_of(table("body", "text")) == ["the text"], "the order of the usual names decides"
    assert texts_of(table("body", "text"), column="body") == ["the body"]
    assert texts_of(table("title")) == ["the title"], "the only column"
    unclear = read_error(table("title", "url"))
    assert "'title', 'url'" in str(unclear)
    assert "did you mean 'title'?" in str(read_error(table("title", "url"), column="titel"))


def test_the_only_column_of_words_is_the_text(tmp_path: Path) -> None:
    assert texts_of(write_file(tmp_path, "a.csv", "id,avis,note\n1,bon,5\n2,7,5\n")) == ["bon", "7"]
    assert texts_of(write_file(tmp_path, "a.csv", "titre\n1984\nGerminal\n")) == ["1984", "Germinal"], "the only column"
    assert texts_of(write_file(tmp_path, "a.jsonl", '{"id": 1, "avis": "bon"}\n')) == ["bon"]
    assert texts_of(write_file(tmp_path, "a.parquet", parquet(id=[1], avis=["bon"]))) == ["bon"]


def test_parquet_strings_of_every_kind(tmp_path: Path) -> None:
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        column = pa.array(["été", "b", "été"]).cast(kind)
        assert texts_of(write_file(tmp_path, "a.parquet", parquet(other=[1, 2, 3], avis=column))) == ["été", "b", "été"]


# Bad input


def test_bad_utf8_in_a_parquet_string_names_the_row(tmp_path: Path) -> None:
    bad = pa.array([b"one", b"tw\xe9", b"three"]).view(pa.string())
    path = write_file(tmp_path, "a.parquet", parquet(text=bad))
    error = read_error(path)
    assert error.line == 2
    assert "unexpected end of data 0xe9 (byte 3 of the line)" in error.problem
    assert [document.text for document in read_documents([path], skipped=SkippedRows())] == ["one", "three"]


def test_a_ragged_csv_names_the_line_and_both_widths(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.csv", 'n,text\n1,"two\nlines"\n2,so, so\n3,good\n')
    error = read_error(path)
    assert error.line == 4
    assert "has 3 fields, expected 2" in error.problem
    assert "quotes" in str(error.fix)
    assert [document.text for document in read_documents([path], skipped=SkippedRows())] == ["two\nlines", "good"]


@pytest.mark.parametrize("extension", [".csv", ".tsv", ".jsonl"])
def test_blank_lines_in_a_table_are_no_rows(tmp_path: Path, extension: str) -> None:
    raw = encode_texts(extension, ["one", "two"]).replace(b"\n", b"\n\n  \r\n")
    assert texts_of(write_file(tmp_path, "a" + extension, b"\n" + raw)) == ["one", "two"]


def test_a_ragged_tsv(tmp_path: Path) -> None:
    error = read_error(write_file(tmp_path, "a.tsv", "n\ttext\n1\tone\n2\n"))
    assert (error.line, "has 1 fields, expected 2" in error.problem) == (3, True)


def test_a_quote_that_is_never_closed(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.csv", 'n,text\n1,one\n2,"open\n' + "3,more\n" * 1000)
    error = read_error(path)
    assert error.line == 3
    assert "as far as line 1003" in error.problem
    skipped = SkippedRows()
    assert [document.text for document in read_documents([path], skipped=skipped)] == ["one"]
    assert skipped.count == 1001, "every line that was swallowed"
    assert list(summary_lines(skipped.count, skipped.lines)) == ["left out 1,001, these:", f"  {skipped.lines[0]}"]


def test_a_quote_that_is_closed_far_below_counts_the_lines_between(tmp_path: Path) -> None:
    swallowed = 'n,text\n1,one\n2,"open\n' + "3,more\n" * 100
    for end in ('4,"closed" here\n', '4,a",b\n'):  # no csv; a row with too many fields
        path = write_file(tmp_path, "a.csv", swallowed + end + "5,five\n")
        skipped = SkippedRows()
        assert [document.text for document in read_documents([path], skipped=skipped)] == ["one", "five"]
        assert (skipped.count, len(skipped.first)) == (102, 1)


@pytest.mark.parametrize("bad", [b"\xff", b"\0"])
def test_a_bad_byte_in_a_quoted_field_spoils_its_row_and_no_other(tmp_path: Path, bad: bytes) -> None:
    path = write_file(tmp_path, "a.csv", b'n,text\n1,one\n2,"begin\n' + bad + b'\n3,not a row"\n4,four\n')
    assert read_error(path).line == 4
    skipped = SkippedRows()
    assert [document.text for document in read_documents([path], skipped=skipped)] == ["one", "four"]
    assert skipped.count == 3


def test_a_bad_header_is_never_taken_from_the_next_line(tmp_path: Path) -> None:
    skipped = SkippedRows()
    path = write_file(tmp_path, "a.csv", b"n,t\xe9xt\n1,one\n2,two\n")
    assert list(read_documents([path], skipped=skipped)) == []
    assert [error.line for error in skipped.first] == [1]


def test_a_column_that_is_there_twice(tmp_path: Path) -> None:
    assert "more than once" in str(read_error(write_file(tmp_path, "a.csv", "text,text\na,b\n")))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"text": "cut in ha', "not whole JSON: Unterminated string"),
        ("[1, 2]", "found [1, 2], expected a JSON object"),
        ('{"text": null}', "nothing under 'text'"),
        ('{"other": "x"}', "nothing under 'text'"),
        ('{"text": 12}', "found 12 under 'text'"),
        ('{"text": "\\ud83d"}', "half of a surrogate pair"),
        ('{"text": "a\\u0000b"}', "a NUL character under 'text' (character 2)"),
        ("[" * 100_000, "cannot be read"),
        ('{"n": ' + "9" * 10_000 + "}", "cannot be read"),
    ],
)
def test_a_bad_line_of_json(tmp_path: Path, line: str, problem: str) -> None:
    path = write_file(tmp_path, "a.jsonl", f'{{"text": "one"}}\n\n{line}\n{{"text": "two"}}\n')
    error = read_error(path)
    assert error.line == 3
    assert problem in error.problem
    assert len(str(error)) < 600, "an error does not quote a whole line"
    assert [document.text for document in read_documents([path], skipped=SkippedRows())] == ["one", "two"]


def test_a_parquet_file_without_such_a_column(tmp_path: Path) -> None:
    error = read_error(write_file(tmp_path, "a.parquet", parquet(review=["one"])), column="revue")
    assert "no column 'revue'" in str(error)
    assert "did you mean 'review'?" in str(error)


def test_a_parquet_column_of_numbers_is_no_text(tmp_path: Path) -> None:
    assert "found 1 under 'n', expected a text" in str(
        read_error(write_file(tmp_path, "a.parquet", parquet(n=[1])), "n")
    )


def test_a_parquet_file_cut_short(tmp_path: Path) -> None:
    whole = encode_texts(".parquet", TEXTS)
    assert "not a whole parquet file" in str(read_error(write_file(tmp_path, "a.parquet", whole[: len(whole) // 2])))


def test_the_checksums_of_a_parquet_file_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"text": [f"line {n}" for n in range(30)]})
    pq.write_table(table, path, compression="none", use_dictionary=False, write_page_checksum=True)
    path.write_bytes(path.read_bytes().replace(b"line 17", b"lime 17", 1))
    assert "not a whole parquet file" in str(read_error(path))


def test_damage_in_a_parquet_file_counts_every_row_from_there(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = [f"text {number}" for number in range(6000)]
    pq.write_table(pa.table({"text": texts}), path, row_group_size=2000, use_dictionary=False)
    raw = bytearray(path.read_bytes())
    begin = pq.read_metadata(path).row_group(1).column(0).data_page_offset
    raw[begin + 200 : begin + 900] = b"\xff" * 700
    path.write_bytes(raw)
    skipped = SkippedRows()
    kept = [document.text for document in read_documents([path], skipped=skipped)]
    assert kept == texts[: len(kept)]
    assert 1000 < len(kept) <= 2000
    assert (len(kept) + skipped.count, len(skipped.first)) == (6000, 1)
