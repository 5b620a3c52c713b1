"""The writer of a store: appends encoded chunks to its files, and goes on where an interrupted run stopped.

After each chunk a line in `progress.log` notes the digest of its text, and the length and digest of each file.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from headstart.errors import DataError, HeadstartError
from headstart.files import LOCK, locked, read_json, write_json
from headstart.reading.skipped import SkippedRows
from headstart.store.encoder import EncodedChunk, EncodedSplit, text_digest
from headstart.store.plan import StorePlan
from headstart.store.store import FILES, PARTS, SPLITS, UNFINISHED, SplitCounts, checksum

PROGRESS = "progress.log"  # a suffix that no corpus has: a store may lie in the folder of its corpus


@dataclass(frozen=True)
class Progress:
    """How far a store is: documents in it, those kept from an earlier run, and bytes of text."""

    documents: int
    kept: int
    bytes: int
    total: int | None  # bytes of text in all, where the sizes of the files tell


OnProgress = Callable[[Progress], None]


@contextmanager
def open_writer(out: Path, plan: StorePlan, on_progress: OnProgress) -> Iterator[StoreWriter]:
    """The writer of the store at `out`; two at a time, and a folder that holds anything else, are refused."""
    with _write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        _refuse_other_files(out)
    with locked(out / LOCK) as ours, ExitStack() as stack:
        if not ours:
            fix = "wait for it, or choose another --out"
            raise DataError(out, "another run is writing this store", fix=fix)
        with _write_errors(out):
            _refuse_other_files(out)  # once more: another run may have finished in between
            if (out / UNFINISHED).exists():
                plan.require_same(out, "a half-written store", read_json(out / UNFINISHED))
            claim = {key: plan.manifest[key] for key in ("format", "tokenizer", "dtype", "valid")}
            write_json(out / UNFINISHED, {**claim, "command": plan.command(out)})
            writer = StoreWriter(out, plan, on_progress, stack)
        yield writer


class StoreWriter:
    """Made by `open_writer`."""

    def __init__(self, out: Path, plan: StorePlan, on_progress: OnProgress, stack: ExitStack) -> None:
        self._out, self._plan, self._on_progress = out, plan, on_progress
        self._journal = stack.enter_context((out / PROGRESS).open("a+b"))
        streams = {name: stack.enter_context((out / name).open("a+b", buffering=0)) for name in FILES}
        self._files = {name: _GrowingFile(stream) for name, stream in streams.items()}
        self._total = plan.text_bytes
        self._width = np.dtype(plan.manifest["dtype"]).itemsize
        self._bytes = dict.fromkeys(SPLITS, 0)
        self._kept = 0

    def skip_finished(self, chunks: Iterator[list[str]], on_chunk: Callable[[], object]) -> Iterator[list[str]]:
        """Skip the chunks that an earlier run finished, and drop what the files hold beyond them; return the others."""
        length = 0
        with _write_errors(self._out):
            self._journal.seek(0)
            for line in self._journal:
                chunk = next(chunks, None)
                if chunk is None:
                    break
                if not self._advance(line, chunk):
                    chunks = chain([chunk], chunks)
                    break
                length += len(line)
                self._kept += len(chunk)
                on_chunk()
                self._on_progress(self._progress())
            self._journal.truncate(length)
            for file in self._files.values():
                file.truncate()
        return chunks

    def _advance(self, line: bytes, chunk: list[str]) -> bool:
        """Whether the text and the files agree with a line of the journal; if so, go on behind it."""
        try:
            note = json.loads(line)
            added = [file.read_up_to(state) for file, state in zip(self._files.values(), note["files"], strict=True)]
            agrees = line.endswith(b"\n") and note["text"] == text_digest(text.encode() for text in chunk)
            text_bytes = dict(zip(SPLITS, map(int, note["bytes"]), strict=True))
        except (KeyError, TypeError, ValueError):
            return False  # the line was cut short, or a file is not what it says
        if agrees:
            self._bytes = text_bytes
            for file, data in zip(self._files.values(), added, strict=True):
                file.advance(data)
        return agrees

    def append(self, chunk: EncodedChunk) -> None:
        with _write_errors(self._out):
            for name, split in chunk.splits.items():
                self._append(name, split)
            note = {
                "text": chunk.text_digest,
                "files": [file.state for file in self._files.values()],
                "bytes": list(self._bytes.values()),
            }
            self._journal.write(json.dumps(note).encode() + b"\n")
            self._journal.flush()
        self._on_progress(self._progress())

    def _append(self, name: str, split: EncodedSplit) -> None:
        ids, starts, sizes = (self._files[f"{name}.{part}"] for part in PARTS)
        ends = ids.size // self._width + np.cumsum(split.lengths)
        ids.append(split.ids)
        first = b"" if starts.size else bytes(8)  # the first document begins at 0
        starts.append(first + ends.astype("<i8").tobytes())
        sizes.append(split.bytes.astype("<i8").tobytes())
        self._bytes[name] += int(split.bytes.sum())

    def _counts(self, name: str) -> SplitCounts:
        ids, _, sizes = (self._files[f"{name}.{part}"] for part in PARTS)
        return SplitCounts(sizes.size // 8, ids.size // self._width, self._bytes[name])

    def _progress(self) -> Progress:
        documents = sum(self._counts(name).documents for name in SPLITS)
        return Progress(documents, self._kept, sum(self._bytes.values()), self._total)

    def finish(self, skipped: SkippedRows) -> None:
        """Write store.json, which makes the folder a store, when everything else is safe on the disk."""
        manifest = {
            **self._plan.manifest,
            "left_out": {"count": skipped.count, "first": [str(error) for error in skipped.first]},
            "splits": {name: asdict(self._counts(name)) for name in SPLITS},
            "files": {name: {"size": file.size, "blake2b": file.state[1]} for name, file in self._files.items()},
        }
        with _write_errors(self._out):
            for file in self._files.values():
                file.sync()
            write_json(self._out / "store.json", manifest)
            clear_unfinished(self._out)


class _GrowingFile:
    """A file that is appended to, with the digest of its first `size` bytes."""

    def __init__(self, stream: FileIO) -> None:
        self._stream = stream
        self._digest = checksum()
        self.size = 0

    @property
    def state(self) -> tuple[int, str]:
        return self.size, self._digest.hexdigest()

    def append(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:  # an unbuffered write may take less than it is given
            rest = rest[self._stream.write(rest) :]
        self.advance(data)

    def read_up_to(self, state: Sequence[Any]) -> bytes:
        """What the file holds from `size` up to a noted state; ValueError if it is not what was noted."""
        self._stream.seek(self.size)
        data = self._stream.read(max(int(state[0]) - self.size, 0))
        digest = self._digest.copy()
        digest.update(data)
        if (self.size + len(data), digest.hexdigest()) != tuple(state):
            raise ValueError(state)
        return data

    def advance(self, data: bytes) -> None:
        self._digest.update(data)
        self.size += len(data)

    def truncate(self) -> None:
        """Drop what lies beyond `size`, ready to append."""
        self._stream.truncate(self.size)

    def sync(self) -> None:
        os.fsync(self._stream.fileno())


@contextmanager
def _write_errors(out: Path) -> Iterator[None]:
    """A full disk or a forbidden folder as an error that says what to do."""
    try:
        yield
    except OSError as error:
        raise HeadstartError(
            f"{error.filename or out}: the store cannot be written: {error.strerror or error}. Make room or "
            "choose another --out; the same command goes on where this one stopped"
        ) from None


def _refuse_other_files(out: Path) -> None:
    """A store is written into a folder of its own."""
    if (out / UNFINISHED).exists():
        return
    others = sorted(path.name for path in out.iterdir() if path.name != LOCK and ".unfinished-" not in path.name)
    if others:
        raise DataError(out, f"holds something else ({others[0]})", fix="choose a new folder as --out")


def clear_unfinished(out: Path) -> None:
    """Remove what only a half-written store needs, and what a killed run left of files it was writing."""
    for name in (UNFINISHED, PROGRESS, LOCK):
        (out / name).unlink(missing_ok=True)
    for leftover in out.glob(".*.unfinished-*"):
        shutil.rmtree(leftover, ignore_errors=True)
