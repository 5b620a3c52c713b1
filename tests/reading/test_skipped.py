"""Skipped: what is left out is counted."""

from __future__ import annotations

from pathlib import Path

from headstart.reading.documents import read_documents
from headstart.reading.skipped import SkippedRows
from tests.reading.files import write_file


def test_skipped_counts_all_and_keeps_the_first_twenty(tmp_path: Path) -> None:
    skipped = SkippedRows()
    path = write_file(tmp_path, "a.txt", b"good\n" + b"\xff\n" * 50)
    assert [document.text for document in read_documents([path], skipped=skipped)] == ["good"]
    assert skipped.count == 50
    assert [error.line for error in skipped.first] == list(range(2, 22))
