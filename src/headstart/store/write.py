"""Writing: a corpus encoded into a token store, by many processes, in a way that can be stopped at any moment.

Documents are taken in chunks of about a megabyte, in the order of the files; processes encode the chunks and one
writer appends them in order, so the bytes do not depend on the number of processes. After each chunk a line in
`progress.log` says how long each file is now and what it should hold. Killed and started again, the writer reads
the corpus from its beginning, passes over the chunks whose text and files still agree with their lines, and goes on
from the first that does not.

Where `torchrun` started several, each reads the whole corpus and encodes one chunk in so many; the first writes.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import shutil
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from hashlib import file_digest
from itertools import chain, islice
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from headstart.errors import ConfigError, DataError, HeadstartError, did_you_mean
from headstart.parallel import SINGLE, Parallel
from headstart.reading.content import split_position
from headstart.reading.documents import DOCUMENT_SUFFIXES, expand_paths, read_documents
from headstart.reading.lines import check_suffix
from headstart.reading.skipped import SkippedRows
from headstart.store.encoder import Encoder
from headstart.store.store import (
    FILES,
    FORMAT,
    PARTS,
    SPLITS,
    UNFINISHED,
    Counts,
    SplitCounts,
    Store,
    checksum,
    read_json,
    read_manifest,
)
from headstart.tokenizers.tokenizer import Tokenizer

try:
    import fcntl
except ImportError:  # not on Windows: there, two runs on one folder are not kept apart
    fcntl = None  # type: ignore[assignment]

PROGRESS = "progress.log"  # how far a store is; no suffix of a corpus, which may lie in the folder around
CHUNK = 1 << 20  # characters of text in a chunk: a fraction of a second's work


@dataclass(frozen=True)
class Progress:
    """How far a store is: documents in it, those found there from an earlier run, tokens, and bytes of text."""

    documents: int
    kept: int
    tokens: int
    bytes: int
    total: int | None  # bytes of text in all, where the sizes of the files tell


def write_store(
    paths: Sequence[str | Path],
    tokenizer: Tokenizer,
    out: str | Path,
    *,
    valid: float = 0.01,
    workers: int | None = None,
    column: str | None = None,
    blank_lines: bool = False,
    skip_bad: bool = False,
    repeat: Mapping[str, int] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    parallel: Parallel = SINGLE,
) -> Store:
    """Encode the documents of files, folders and globs into a token store at `out`.

    `valid` is the share of documents held out, `workers` the number of processes (all cores if None; 1 encodes in
    this process). `column`, `blank_lines` and `skip_bad` say how files are read, as in `read_documents`. `repeat` says
    how often a file counts, by its name or path: its documents stand in the store so many times.

    What an interrupted run has finished is kept and gone on from. Where `out` already holds the whole store of the
    same files, tokenizer and options, it is checked and returned; where it holds anything else, that is an error.
    The processes of `parallel` call it with the same arguments and share the work; all must be able to read `out`.

    Workers are fresh processes, which import the calling script: call this under `if __name__ == "__main__":`.
    """
    if not 0 <= valid <= 1:
        raise ConfigError("valid", [f"{valid} is not a share of the documents, expected 0 to 1"])
    if workers is not None and workers < 1:
        raise ConfigError("workers", [f"{workers} processes, expected at least 1"])
    out = Path(out)
    files = _repeated(expand_paths(paths), repeat or {})
    stamps = _stamps(files)
    reading = {"column": column, "blank_lines": blank_lines, "skip_bad": skip_bad}
    sources = {path: _source(path) for path in dict.fromkeys(files)}
    plan = {
        "format": FORMAT,
        "tokenizer": tokenizer.fingerprint,
        "dtype": id_type(tokenizer.size),
        "valid": float(valid),
        "reading": reading,
        "sources": [sources[path] for path in files],
    }
    parallel.require_same("corpus, tokenizer or options", plan)
    if parallel.broadcast((out / "store.json").exists()):
        return _same_store(out, plan) if parallel.is_main else Store.open(out)

    skipped = SkippedRows() if skip_bad else None
    documents = chain.from_iterable(
        read_documents([path], column=column, blank_lines=blank_lines, skipped=skipped) for path in files
    )
    chunks = _chunks(document.text for document in documents)
    first = next(chunks, None)
    if first is None:
        raise DataError(files[0], "not one document that can be read, expected at least one", fix=_listed(skipped))

    chunks = chain([first], chunks)

    def encode(rest: Iterator[list[str]]) -> Generator[_Chunk, None, None]:
        yield from _encode_shared(rest, parallel, workers or _cores(), out, id_type(tokenizer.size), valid)
        if _stamps(files) != stamps:
            raise DataError(files[0], "the corpus was changed while it was being read", fix="run the command again")

    if not parallel.is_main:
        while parallel.broadcast(None):  # for each chunk that an earlier run finished
            next(chunks)
        deque(encode(chunks), maxlen=0)  # they are the first's to write
        parallel.broadcast(None)  # the store is whole
        return Store.open(out, tokenizer.fingerprint)
    with _Writer(out, plan, _command(files, out, plan)) as writer:
        with writer.guard():
            tokenizer.save(out)
        total = sum(path.stat().st_size for path in files) if all(path.suffix == ".txt" for path in files) else None
        report = on_progress or (lambda progress: None)

        def passed() -> None:
            parallel.broadcast(True)
            report(writer.progress(total))

        rest = writer.pass_finished(chunks, passed)
        parallel.broadcast(False)
        with closing(encode(rest)) as encoded:
            for chunk in encoded:
                writer.append(chunk)
                report(writer.progress(total))
        writer.finish(plan, skipped or SkippedRows())
    parallel.broadcast(None)
    return Store.open(out, tokenizer.fingerprint)


def id_type(size: int) -> str:
    """The smallest unsigned integer type that holds every id of a vocabulary.

    >>> id_type(256), id_type(50001), id_type(65537)
    ('uint8', 'uint16', 'uint32')
    """
    return str(np.min_scalar_type(max(size - 1, 0)))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _source(path: Path) -> dict[str, Any]:
    check_suffix(path, DOCUMENT_SUFFIXES)
    try:
        with path.open("rb") as stream:
            digest = file_digest(stream, checksum).hexdigest()
            return {"name": path.name, "size": stream.tell(), "blake2b": digest}
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror}") from None


def _repeated(files: Sequence[Path], repeat: Mapping[str, int]) -> list[Path]:
    """The files, each as often as it counts."""
    times = dict.fromkeys(files, 1)
    for name, count in repeat.items():
        named = [path for path in files if name in (path.name, str(path))]
        if not named:
            known = did_you_mean(name, [path.name for path in files])
            raise ConfigError("repeat", [f"{name} is none of the files of the corpus: {known}"])
        if count < 1:
            raise ConfigError("repeat", [f"{name}={count}: a file counts once at least"])
        times |= dict.fromkeys(named, count)
    return [path for path in files for _ in range(times[path])]


def _stamps(files: Sequence[Path]) -> list[tuple[int, int] | None]:
    """What tells that a file was touched."""
    stats = [path.stat() if path.exists() else None for path in files]
    return [stat and (stat.st_mtime_ns, stat.st_size) for stat in stats]


def _listed(skipped: SkippedRows | None) -> str | None:
    return "\n  ".join(["every one was left out:", *map(str, skipped.first)]) if skipped else None


def _command(files: Sequence[Path], out: Path, plan: dict[str, Any]) -> str:
    """The command that finishes this store, wherever it is typed; the tokenizer is in the folder by then."""
    reading = plan["reading"]
    times = Counter(path.absolute() for path in files)
    words = ["headstart", "tokens", *map(str, times)]
    words += [word for path, count in times.items() if count > 1 for word in ("--repeat", f"{path}={count}")]
    words += ["--tokenizer", str(out.absolute()), "--out", str(out.absolute()), "--valid", str(plan["valid"])]
    words += ["--column", reading["column"]] if reading["column"] is not None else []
    words += ["--blank-lines"] if reading["blank_lines"] else []
    words += ["--skip-bad"] if reading["skip_bad"] else []
    return shlex.join(words)


def _same_store(out: Path, plan: dict[str, Any]) -> Store:
    """The store that is there already, if it is the one that was asked for."""
    manifest = read_manifest(out)
    _check_plan(out, "a whole store", manifest, plan)
    store = Store.open(out)
    store.verify()
    _clear(out)  # a run may have been killed in its last moment
    return store


def _check_plan(out: Path, what: str, found: dict[str, Any], plan: dict[str, Any]) -> None:
    names = {"reading": "options for reading", "sources": "input files"}
    other = [key for key in plan if key in found and found[key] != plan[key]]
    if other:
        short = [key for key in other if key not in names]
        said = [f"{key} {found[key]}, here {plan[key]}" for key in short]
        said += [f"other {names[key]}" for key in other if key in names]
        fix = f"choose another --out, or delete {out}"
        raise DataError(out, f"already holds {what} made with {'; '.join(said)}", fix=fix)


def _chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    """Consecutive texts, about `CHUNK` characters at a time: a function of the texts alone."""
    chunk: list[str] = []
    length = 0
    for text in texts:
        chunk.append(text)
        length += len(text) + 16  # so that many tiny texts fill a chunk too
        if length >= CHUNK:
            yield chunk
            chunk, length = [], 0
    if chunk:
        yield chunk


def _text_digest(encoded: Iterable[bytes]) -> str:
    digest = checksum()
    for text in encoded:
        digest.update(len(text).to_bytes(8, "little"))
        digest.update(text)
    return digest.hexdigest()


# Encoding, in worker processes


@dataclass(frozen=True)
class _Side:
    """What one chunk adds to one split."""

    ids: bytes
    lengths: Counts  # (documents,): ids of each
    bytes: Counts  # (documents,)


@dataclass(frozen=True)
class _Chunk:
    text_digest: str
    sides: dict[str, _Side]


class _Worker:
    """Encodes chunks with the tokenizer in a folder."""

    def __init__(self, folder: Path, dtype: str, valid: float) -> None:
        self._encoder = Encoder(folder, dtype)
        self._width = np.dtype(dtype).itemsize
        self._border = 1 - valid

    def encode(self, texts: list[str]) -> _Chunk:
        encoded = [text.encode() for text in texts]
        ids = self._encoder.encode(texts)
        held_out = np.array([split_position(text) >= self._border for text in texts])
        sides = {}
        for name, mine in (("train", ~held_out), ("valid", held_out)):
            chosen = np.flatnonzero(mine).tolist()
            lengths = np.array([len(ids[i]) // self._width for i in chosen], np.int64)
            sizes = np.array([len(encoded[i]) for i in chosen], np.int64)
            sides[name] = _Side(b"".join([ids[i] for i in chosen]), lengths, sizes)
        return _Chunk(_text_digest(encoded), sides)


_worker: _Worker | None = None  # in a worker process: made once by `_begin`, used for every chunk


def _begin(folder: Path, dtype: str, valid: float) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers
    parent = multiprocessing.parent_process()
    if parent is not None:  # a pool's workers would outlive a parent that is killed, and wait for ever
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a process for each core is enough
    _worker = _Worker(folder, dtype, valid)


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _work(texts: list[str]) -> _Chunk:
    assert _worker is not None
    return _worker.encode(texts)


def _encode_shared(
    chunks: Iterator[list[str]], parallel: Parallel, workers: int, folder: Path, dtype: str, valid: float
) -> Generator[_Chunk, None, None]:
    """In the first process all chunks encoded, in order: each process encodes one in `world_size`."""
    found = 0

    def counted() -> Iterator[list[str]]:
        nonlocal found
        for chunk in chunks:
            found += 1
            yield chunk

    mine = _encode_all(islice(counted(), parallel.rank, None, parallel.world_size), workers, folder, dtype, valid)
    with closing(mine):
        given = 0
        # Who has no chunk left has read to the end, and knows whether others have one in the last row.
        while (chunk := next(mine, None)) is not None or given < found:
            yield from (each for each in parallel.gather(chunk) if each is not None)
            given += parallel.world_size


def _encode_all(
    chunks: Iterator[list[str]], workers: int, folder: Path, dtype: str, valid: float
) -> Generator[_Chunk, None, None]:
    """The chunks encoded, in order, with no more than a few on the way at any time."""
    if workers == 1:
        yield from map(_Worker(folder, dtype, valid).encode, chunks)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(folder, dtype, valid))
    waiting: deque[Future[_Chunk]] = deque()
    try:
        for chunk in chunks:
            waiting.append(pool.submit(_work, chunk))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise HeadstartError(
            f"one of {workers} worker processes ended unexpectedly: is there memory for so many? Try fewer workers "
            "(--workers 1 uses none). A script must call write_store under `if __name__ == '__main__':`"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


# The files of a store while it grows


class _File:
    """A growing file that knows what it holds."""

    def __init__(self, path: Path) -> None:
        self._stream: BinaryIO = path.open("r+b" if path.exists() else "w+b", buffering=0)
        self._digest = checksum()
        self.size = 0

    @property
    def state(self) -> tuple[int, str]:
        return self.size, self._digest.hexdigest()

    def append(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:  # an unbuffered write may take less than it is given
            rest = rest[self._stream.write(rest) :]
        self.go_on(data)

    def agrees(self, state: Sequence[Any]) -> bytes | None:
        """What lies between here and a noted state, if that is what was noted."""
        self._stream.seek(self.size)
        data = self._stream.read(max(int(state[0]) - self.size, 0))
        digest = self._digest.copy()
        digest.update(data)
        return data if (self.size + len(data), digest.hexdigest()) == tuple(state) else None

    def go_on(self, data: bytes) -> None:
        self._digest.update(data)
        self.size += len(data)

    def cut(self) -> None:
        """Drop what lies beyond here, ready to append."""
        self._stream.truncate(self.size)
        self._stream.seek(self.size)

    def sync(self) -> None:
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        self._stream.close()


class _Writer:
    """The one process that writes a store, from an empty folder or from where an earlier run stopped."""

    def __init__(self, out: Path, plan: dict[str, Any], command: str) -> None:
        self._out = out
        self._width = np.dtype(plan["dtype"]).itemsize
        self._bytes = dict.fromkeys(SPLITS, 0)
        self._kept = 0
        with self.guard():
            out.mkdir(parents=True, exist_ok=True)
            _refuse_other_files(out)
            self._journal = (out / PROGRESS).open("a+b")
            try:
                self._lock()
                _refuse_other_files(out)  # once more: another run may have finished in between
                self._claim({key: plan[key] for key in ("format", "tokenizer", "dtype", "valid")}, command)
                self._files = {name: _File(out / name) for name in FILES}
            except BaseException:
                self._journal.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()
        self._journal.close()

    @contextmanager
    def guard(self) -> Iterator[None]:
        """A full disk or a forbidden folder, in words."""
        try:
            yield
        except OSError as error:
            raise HeadstartError(
                f"{error.filename or self._out}: the store cannot be written: {error.strerror or error}. Make room or "
                "choose another --out; the same command goes on where this one stopped"
            ) from None

    def _lock(self) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)  # let go by the system when a process dies
        except BlockingIOError:
            fix = "wait for it, or choose another --out"
            raise DataError(self._out, "another run is writing this store", fix=fix) from None

    def _claim(self, plan: dict[str, Any], command: str) -> None:
        """Say what the folder will hold, or make sure that it is what an earlier run said."""
        claimed = read_json(self._out / UNFINISHED)
        if claimed is not None:
            _check_plan(self._out, "a half-written store", claimed, plan)
        _write_json(self._out / UNFINISHED, {**plan, "command": command})

    def pass_finished(self, chunks: Iterator[list[str]], report: Callable[[], None]) -> Iterator[list[str]]:
        """Pass over the chunks that an earlier run finished; the others are returned, and the files end before them."""
        length = 0
        with self.guard():
            self._journal.seek(0)
            for line in self._journal:
                chunk = next(chunks, None)
                if chunk is None:
                    break
                if not self._passes(line, chunk):
                    chunks = chain([chunk], chunks)
                    break
                length += len(line)
                self._kept += len(chunk)
                report()
            self._journal.truncate(length)
            for file in self._files.values():
                file.cut()
        return chunks

    def _passes(self, line: bytes, chunk: list[str]) -> bool:
        try:
            note = json.loads(line)
            found = [file.agrees(state) for file, state in zip(self._files.values(), note["files"], strict=True)]
            agree = None not in found and note["text"] == _text_digest(text.encode() for text in chunk)
            now = dict(zip(SPLITS, map(int, note["bytes"]), strict=True))
        except (KeyError, TypeError, ValueError):
            return False  # the line was cut short
        if not agree or not line.endswith(b"\n"):
            return False
        for file, data in zip(self._files.values(), found, strict=True):
            file.go_on(data or b"")
        self._bytes = now
        return True

    def append(self, chunk: _Chunk) -> None:
        with self.guard():
            for split, side in chunk.sides.items():
                self._append(split, side)
            note = {
                "text": chunk.text_digest,
                "files": [file.state for file in self._files.values()],
                "bytes": list(self._bytes.values()),
            }
            self._journal.write(json.dumps(note).encode() + b"\n")
            self._journal.flush()

    def _append(self, split: str, side: _Side) -> None:
        ids, starts, sizes = (self._files[f"{split}.{part}"] for part in PARTS)
        ends = ids.size // self._width + np.cumsum(side.lengths)
        ids.append(side.ids)
        first = b"" if starts.size else bytes(8)  # the first document begins at 0
        starts.append(first + ends.astype("<i8").tobytes())
        sizes.append(side.bytes.astype("<i8").tobytes())
        self._bytes[split] += int(side.bytes.sum())

    def _counts(self, split: str) -> SplitCounts:
        ids, _, sizes = (self._files[f"{split}.{part}"] for part in PARTS)
        return SplitCounts(sizes.size // 8, ids.size // self._width, self._bytes[split])

    def progress(self, total: int | None) -> Progress:
        train, valid = map(self._counts, SPLITS)
        return Progress(
            documents=train.documents + valid.documents,
            kept=self._kept,
            tokens=train.tokens + valid.tokens,
            bytes=train.bytes + valid.bytes,
            total=total,
        )

    def finish(self, plan: dict[str, Any], skipped: SkippedRows) -> None:
        """Write store.json, which makes the folder a store, when everything else is safe on the disk."""
        manifest = {
            **plan,
            "left_out": {"count": skipped.count, "first": [str(error) for error in skipped.first]},
            "splits": {split: asdict(self._counts(split)) for split in SPLITS},
            "files": {name: {"size": file.size, "blake2b": file.state[1]} for name, file in self._files.items()},
        }
        with self.guard():
            for file in self._files.values():
                file.sync()
            _write_json(self._out / "store.json", manifest)
            _clear(self._out)


def _refuse_other_files(out: Path) -> None:
    """A store is written into a folder of its own."""
    if (out / UNFINISHED).exists():
        return
    ours = {PROGRESS, UNFINISHED + ".new"}  # a run may have been killed in its first moment
    others = sorted(path.name for path in out.iterdir() if path.name not in ours)
    if others:
        raise DataError(out, f"holds something else ({others[0]})", fix="choose a new folder as --out")


def _clear(out: Path) -> None:
    """Take away what only a half-written store needs."""
    for path in (out / UNFINISHED, out / PROGRESS):
        path.unlink(missing_ok=True)
    for unfinished in out.glob(".tokenizer.json.unfinished-*"):  # left where a run was killed while it wrote one
        shutil.rmtree(unfinished, ignore_errors=True)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a file that is there whole or not at all, whatever happens."""
    new = path.with_name(path.name + ".new")
    with new.open("w", encoding="utf-8") as stream:
        json.dump(value, stream, indent=2, ensure_ascii=False)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
    new.replace(path)
