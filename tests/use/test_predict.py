from __future__ import annotations

import csv
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headstart.errors import ConfigError, DataError, OutputError
from headstart.reading import limits
from headstart.reading.skipped import SkippedRows
from headstart.reading.tables import open_table
from headstart.use import predict as module
from headstart.use.classifier import TextClassifier
from headstart.use.predict import predict_file
from headstart.use.predict_output import open_output
from tests.studies.example_data import reviews

TEXTS = [text for _, text in reviews(12, 4)]


@pytest.fixture(scope="module")
def classifier(trained: Path) -> TextClassifier:
    return TextClassifier.load(trained)


@pytest.fixture(scope="module")
def expected(classifier: TextClassifier) -> list[str | None]:
    return [answer.label for answer in classifier.predict(TEXTS)]


def write(path: Path) -> Path:
    """The texts in a file of any form, beside a number and a note that is not always there."""
    rows: list[dict[str, Any]] = [
        {"id": i, "review": text, "note": None if i % 3 else "x"} for i, text in enumerate(TEXTS)
    ]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".txt":
        path.write_text("\n".join(TEXTS) + "\n")
    else:
        with path.open("w", newline="") as file:
            made = csv.DictWriter(file, ["id", "review", "note"], delimiter="," if path.suffix == ".csv" else "\t")
            made.writeheader()
            made.writerows(rows)
    return path


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return list(pq.read_table(path).to_pylist())
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="," if path.suffix == ".csv" else "\t"))


@pytest.mark.parametrize("out", ["csv", "tsv", "jsonl", "parquet"])
@pytest.mark.parametrize("source", ["csv", "tsv", "jsonl", "parquet", "txt"])
def test_any_form_to_any_form(
    classifier: TextClassifier,
    expected: list[str],
    tmp_path: Path,
    source: str,
    out: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CHUNK", 5)
    told: list[int] = []
    path = write(tmp_path / f"in.{source}")
    done = predict_file(classifier, str(path), str(tmp_path / f"out.{out}"), progress=told.append)
    rows = read(tmp_path / f"out.{out}")
    assert [row["predicted"] for row in rows] == expected
    assert [row["text" if source == "txt" else "review"] for row in rows] == TEXTS
    for row in rows:
        assert float(row["probability:neg"]) + float(row["probability:pos"]) == pytest.approx(1.0)
    if source != "txt":
        assert [int(row["id"]) for row in rows] == list(range(12))
        assert [row["note"] or None for row in rows] == [None if i % 3 else "x" for i in range(12)]
    assert done.rows == 12
    assert done.labels == {name: expected.count(name) for name in expected}
    assert told == [5, 10, 12]


def test_the_types_of_a_parquet_file_stay(classifier: TextClassifier, tmp_path: Path) -> None:
    schema = pa.schema([("review", pa.string()), ("day", pa.date32()), ("marks", pa.list_(pa.int16()))])
    pq.write_table(pa.table([TEXTS, [None] * 12, [[1, 2]] * 12], schema=schema), tmp_path / "a.parquet")
    predict_file(classifier, str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet"), text="review")
    found = pq.read_schema(tmp_path / "b.parquet")
    assert [found.field(name) for name in schema.names] == list(schema)


def test_labels_alone_and_doubt(classifier: TextClassifier, expected: list[str], tmp_path: Path) -> None:
    path = write(tmp_path / "in.csv")
    predict_file(classifier, str(path), str(tmp_path / "out.txt"))
    assert (tmp_path / "out.txt").read_text().splitlines() == expected
    done = predict_file(classifier, str(path), str(tmp_path / "sure.csv"), abstain_below=1.0)
    assert done.labels == {None: 12}
    assert {row["predicted"] for row in read(tmp_path / "sure.csv")} == {""}


def test_from_standard_input_to_standard_output(
    classifier: TextClassifier, expected: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def send(raw: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))

    send("\n".join(TEXTS).encode())
    predict_file(classifier, "-", "-")
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["predicted"] for row in rows] == expected
    send(b"one\ncaf\xe9\n\nt\rwo\n")
    with pytest.raises(DataError, match="standard input, line 2: not UTF-8"):
        predict_file(classifier, "-", "-")
    send(b"one\ncaf\xe9\n\nt\rwo\n")
    capsys.readouterr()
    predict_file(classifier, "-", "-", skipped=SkippedRows())
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["text"] for row in rows] == ["one", None, "", "t\rwo"], "a line each"
    assert [row["predicted"] is None for row in rows] == [False, True, False, False]
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(DataError, match="standard input: is closed"):
        predict_file(classifier, "-", "-")


# As many rows as lines


LINES = [b"", TEXTS[0].encode(), b"", b"  ", TEXTS[1].encode(), b"caf\xe9", TEXTS[2].encode(), b"caf\xe9", b""]


@pytest.mark.parametrize("chunk", [1, 3, 4096])
@pytest.mark.parametrize("out", ["txt", "csv", "tsv", "jsonl", "parquet"])
def test_as_many_rows_out_as_lines_in(
    classifier: TextClassifier, tmp_path: Path, out: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    (tmp_path / "in.txt").write_bytes(b"\n".join(LINES) + b"\n")
    skipped, path = SkippedRows(), tmp_path / f"out.{out}"
    done = predict_file(classifier, str(tmp_path / "in.txt"), str(path), skipped=skipped)
    assert (done.rows, skipped.count) == (7, 2)
    expected = iter(classifier.predict([line.decode() for line in LINES if line != b"caf\xe9"]))
    wanted = ["" if line == b"caf\xe9" else next(expected).label for line in LINES]
    if out == "txt":
        found = path.read_text().split("\n")[:-1]
    else:
        found = [row["predicted"] or "" for row in read(path)]
        assert [(row["text"] or "").encode() for row in read(path)] == [
            b"" if line == b"caf\xe9" else line for line in LINES
        ]
    assert found == wanted


def test_labels_alone_need_every_row_of_a_table(classifier: TextClassifier, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "one"}\n{"text": 5}\n{"text": "two"}\n')
    for rows in ('{"text": "one"}\n{"text": 5}\n{"text": "two"}\n', '{"text": "one"}\n{"text": 5}\n'):
        (tmp_path / "in.jsonl").write_text(rows)
        with pytest.raises(OutputError, match=r"line 2: found 5.*labels alone could not be matched.*\.csv"):
            predict_file(classifier, str(tmp_path / "in.jsonl"), str(tmp_path / "out.txt"), skipped=SkippedRows())
    assert not (tmp_path / "out.txt").exists()
    predict_file(classifier, str(tmp_path / "in.jsonl"), str(tmp_path / "out.csv"), skipped=SkippedRows())
    assert len(read(tmp_path / "out.csv")) == 1


def test_long_texts_are_held_a_few_at_a_time(
    classifier: TextClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_LINE", 3 * len(TEXTS[0]))
    (tmp_path / "in.txt").write_text(f"{TEXTS[0]}\n" * 7)
    told: list[int] = []
    predict_file(classifier, str(tmp_path / "in.txt"), str(tmp_path / "out.txt"), progress=told.append)
    assert told == [3, 6, 7]


# What is written can be read


ODD = ["two\nlines", "c\rr", "a\tb", "\n", 'say "no"', '"', "=1+1", "", " x ", "\r\n", "l\u2028s", "a,b;c", "\\n"]


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "parquet"])
def test_what_is_written_can_be_read_back(tmp_path: Path, form: str) -> None:
    path, said = tmp_path / f"out.{form}", list[str]()
    with open_output(str(path), ["text", "no\nte"], "in.jsonl", said.append) as write_rows:
        write_rows([{"text": text, "no\nte": text} for text in ODD])
    with open_table(path, None) as table:
        found = [cells for _, cells in table.rows(table.columns)]
    wanted = ODD if form != "tsv" else [" ".join(re.split(r"[\t\r\n]+", text)) for text in ODD]
    assert table.columns == ("text", "no te" if form == "tsv" else "no\nte")
    assert found == [(text, text) for text in wanted]
    assert len(said) == (form == "tsv"), "said once"


@pytest.mark.parametrize("form", ["csv", "tsv"])
def test_cells_that_a_spreadsheet_would_run(classifier: TextClassifier, tmp_path: Path, form: str) -> None:
    formulas = ["=1+1", "+1+1", "-1+cmd|' /C calc'!A0", "@SUM(A1)", "=HYPERLINK(A1)", " =1+1", "＝1+1"]
    others = ["a = b", "-3", "+4.5e-3", "'=1", "", "1,000"]
    rows = [{"text": "a tale", "=note": cell} for cell in (*formulas, *others)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source, plain, escaped = (str(tmp_path / name) for name in ("in.jsonl", f"plain.{form}", f"escaped.{form}"))
    predict_file(classifier, source, plain, text="text")
    assert [row["=note"] for row in read(Path(plain))] == [*formulas, *others]
    predict_file(classifier, source, escaped, text="text", escape_formulas=True)
    assert [row["'=note"] for row in read(Path(escaped))] == [*(f"'{cell}" for cell in formulas), *others]


def test_formulas_are_escaped_for_spreadsheets_alone(classifier: TextClassifier, tmp_path: Path) -> None:
    for name in ("out.jsonl", "out.parquet", "-"):
        with pytest.raises(ConfigError, match=r"is for \.csv and \.tsv"):
            predict_file(classifier, str(write(tmp_path / "in.csv")), name, escape_formulas=True)


def test_a_label_is_one_line_of_a_file_of_labels(tmp_path: Path) -> None:
    with open_output(str(tmp_path / "out.txt"), ["predicted"], "in.txt", print) as write_rows:
        write_rows([{"predicted": "two\nlines"}, {"predicted": None}, {"predicted": "b"}])
    assert (tmp_path / "out.txt").read_text() == "two lines\n\nb\n"


def test_pairs(classifier: TextClassifier, tmp_path: Path) -> None:
    rows = [{"sentence1": text, "sentence2": "a tale"} for text in TEXTS]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said: list[str] = []
    predict_file(classifier, str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), log=said.append)
    assert said == ["guessed: text column 'sentence1', second text column 'sentence2'"]
    answers = classifier.predict([(text, "a tale") for text in TEXTS])
    assert [row["predicted"] for row in read(tmp_path / "out.jsonl")] == [answer.label for answer in answers]


def test_a_crash_leaves_no_file(classifier: TextClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 5)
    (tmp_path / "in.jsonl").write_text("".join(f'{{"text": "{text}"}}\n' for text in TEXTS) + '{"text": 5}\n')
    for form in ("csv", "parquet"):
        with pytest.raises(DataError, match="line 13: found 5 under 'text'"):
            predict_file(classifier, str(tmp_path / "in.jsonl"), str(tmp_path / f"out.{form}"))
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
    skipped = SkippedRows()
    done = predict_file(classifier, str(tmp_path / "in.jsonl"), str(tmp_path / "out.csv"), skipped=skipped)
    assert (done.rows, skipped.count) == (12, 1)


@pytest.mark.parametrize(
    ("name", "content", "out", "error", "words"),
    [
        ("a.csv", "text\nx\n", "out.doc", OutputError, "ends in '.doc'"),
        ("a.csv", "text\nx\n", "out", OutputError, "ends in 'nothing'"),
        ("a.csv", "text,predicted\nx,y\n", "out.csv", DataError, "there is a column 'predicted' already"),
        ("a.csv", "one,two\nx y,z w\n", "out.csv", DataError, "which column is the text"),
        ("missing.csv", None, "out.csv", DataError, "missing.csv: no such file"),
        ("a fine book", None, "out.csv", DataError, "a fine book: no such file"),
        ("a fine book" * 99, None, "out.csv", DataError, "cannot be opened: File name too long"),
        ("a.xlsx", "", "out.csv", DataError, "xlsx"),
    ],
)
def test_bad_input(
    classifier: TextClassifier, tmp_path: Path, name: str, content: str | None, out: str, error: Any, words: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(error, match=words):
        predict_file(classifier, str(tmp_path / name), str(tmp_path / out))
    assert not (tmp_path / out).exists()


def test_an_empty_file_gives_an_empty_one(classifier: TextClassifier, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text\n")
    for form in ("csv", "parquet", "jsonl"):
        assert predict_file(classifier, str(tmp_path / "in.csv"), str(tmp_path / f"out.{form}")).rows == 0
    assert (tmp_path / "out.csv").read_text() == "text,predicted,probability:neg,probability:pos\n"
    assert pq.read_schema(tmp_path / "out.parquet").names[0] == "text"
