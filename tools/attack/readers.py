"""An attack on data files: rows written in every format, damaged at random, read back.

Each row that is read back must be one of those that were written, but for the few that the damage lies in. A format
with checksums (gz, xz, parquet with those of its pages) must give no other row at all, unless bad rows are skipped.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from attack.cases import Outcome, WrongAnswer, judge, run_cases
from headstart.reading.documents import read_documents
from headstart.reading.examples import read_examples
from headstart.reading.skipped import SkippedRows

WORDS = (
    "dull",
    "witty",
    "a book",
    "page, by page",
    'he said "no"',
    "été",
    "日本",
    "1e5",
    "=1+1",
    "|",
    "it's",
    "-",
    "😀",
)
ODD_BYTES = b'\x00\xff\xfe\x80\xc3\n\r\t",;|{}[]\\ a0'
Rows = list[tuple[str, str]]


def run(cases: int, seed: int) -> list[Outcome]:
    return run_cases("readers", cases, seed)


def prepare(folder: Path) -> None:
    """Nothing: each case writes rows of its own."""


def attack(folder: Path, number: int, draw: random.Random) -> Outcome:
    """Write a file, damage it, read it as a labelled set or as a corpus."""
    rows = [(draw.choice(("pos", "neg", "0")), _text(draw, line)) for line in range(draw.choice((1, 3, 30, 200)))]
    suffix, compression = draw.choice(sorted(FORMATS)), draw.choice(("", "", ".gz", ".xz"))
    content, changes = FORMATS[suffix](rows), 0
    outside = bool(compression) and draw.random() < 0.7  # damage to what is compressed, or to what it holds
    if not outside:
        content, changes = _damage(draw, content)
    content = COMPRESS[compression](content)
    if outside:
        content, _ = _damage(draw, content)
    skip = draw.random() < 0.3
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / f"data{suffix}{compression}"
        path.write_bytes(content)
        checked = (outside or suffix == ".parquet") and not skip
        allowed = len(rows) if (outside or suffix == ".parquet") and skip else 0 if checked else 2 * changes
        corpus = draw.random() < 0.3 and suffix != ".txt"  # a line of `label ||| text` is a document of its own
        case = f"case {number}: {path.name}, {len(rows)} rows, {changes} changes{', skipping' * skip}"
        return judge(case, lambda: _read(path, rows, allowed, skip=skip, corpus=corpus))


def _read(path: Path, rows: Rows, allowed: int, *, skip: bool, corpus: bool) -> str:
    skipped = SkippedRows() if skip else None
    written: set[tuple[str, ...]]
    found: list[tuple[str, ...]]
    if corpus:
        written = {(text,) for _, text in rows}
        found = [(document.text,) for document in read_documents([path], column="text", skipped=skipped)]
    else:
        written = {(label, text.strip()) for label, text in rows}
        read = read_examples(path, text=None if path.name.startswith("data.txt") else "text", skipped=skipped)
        found = [(row.label or "", row.text.strip()) for row in read.rows]
    other = [row for row in found if row not in written]
    if len(other) > allowed:
        raise WrongAnswer(f"{len(other)} rows that were not written, such as {ascii(other[0])[:300]}")
    return f"{len(found)} rows"


def _text(draw: random.Random, line: int) -> str:
    """No two texts are alike: a row under another label is seen."""
    return " ".join([f"row {line}:", *draw.choices(WORDS, k=draw.randint(1, 8))])


def _damage(draw: random.Random, content: bytes) -> tuple[bytes, int]:
    """The bytes after some changes, and how many rows each at most may have spoiled is counted by their number."""
    changed, changes = bytearray(content), draw.choice((1, 1, 2, 5))
    for _ in range(changes):
        at = draw.randrange(len(changed) + 1)
        odd = bytes(draw.choices(ODD_BYTES, k=draw.choice((1, 1, 1, 3, 40))))
        what = draw.randrange(5)
        if what == 0:
            del changed[at:]
        elif what == 1:
            changed[at:at] = odd
        elif what == 2:
            changed[at : at + len(odd)] = odd
        elif what == 3:
            del changed[at : at + draw.randint(1, 30)]
        elif changed:
            changed[at % len(changed)] ^= 1 << draw.randrange(8)
    return bytes(changed), changes


def _csv(rows: Rows) -> bytes:
    file = io.StringIO(newline="")
    csv.writer(file).writerows([("label", "text"), *rows])
    return file.getvalue().encode()


def _parquet(rows: Rows) -> bytes:
    file = io.BytesIO()
    table = pa.table({"label": [label for label, _ in rows], "text": [text for _, text in rows]})
    pq.write_table(table, file, write_page_checksum=True)
    return file.getvalue()


FORMATS: dict[str, Callable[[Rows], bytes]] = {
    ".csv": _csv,
    ".tsv": lambda rows: "".join(f"{label}\t{text}\n" for label, text in [("label", "text"), *rows]).encode(),
    ".jsonl": lambda rows: "".join(json.dumps({"label": a, "text": b}) + "\n" for a, b in rows).encode(),
    ".parquet": _parquet,
    ".txt": lambda rows: "".join(f"{label} ||| {text}\n" for label, text in rows).encode(),
}
COMPRESS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}
