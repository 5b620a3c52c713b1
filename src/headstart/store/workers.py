"""Workers: processes that encode the chunks of a corpus."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np

from headstart.errors import HeadstartError
from headstart.parallel import Parallel
from headstart.reading.content import split_position
from headstart.store.encoder import Encoder
from headstart.store.store import Counts, checksum


@dataclass(frozen=True)
class EncodedSplit:
    """What one chunk adds to one split."""

    ids: bytes
    lengths: Counts  # (documents,) ids of each
    bytes: Counts  # (documents,) bytes of its text


@dataclass(frozen=True)
class EncodedChunk:
    text_digest: str
    splits: dict[str, EncodedSplit]


class ChunkEncoder:
    """Encodes chunks with the tokenizer in a folder, and divides them into train and valid."""

    def __init__(self, folder: Path, dtype: str, valid: float) -> None:
        self._encoder = Encoder(folder, dtype)
        self._width = np.dtype(dtype).itemsize
        self._valid_from = 1 - valid

    def encode(self, texts: list[str] | None) -> EncodedChunk | None:
        if texts is None:
            return None
        utf8 = [text.encode() for text in texts]
        ids = self._encoder.encode(texts)
        held_out = np.array([split_position(text) >= self._valid_from for text in texts])
        splits = {}
        for name, chosen in (("train", ~held_out), ("valid", held_out)):
            documents = np.flatnonzero(chosen).tolist()
            lengths = np.array([len(ids[i]) // self._width for i in documents], np.int64)
            sizes = np.array([len(utf8[i]) for i in documents], np.int64)
            splits[name] = EncodedSplit(b"".join([ids[i] for i in documents]), lengths, sizes)
        return EncodedChunk(text_digest(utf8), splits)


def text_digest(texts: Iterable[bytes]) -> str:
    digest = checksum()
    for text in texts:
        digest.update(len(text).to_bytes(8, "little"))
        digest.update(text)
    return digest.hexdigest()


_encoder: ChunkEncoder | None = None  # in a worker process: made once, used for every chunk


def _start_worker(folder: Path, dtype: str, valid: float) -> None:
    global _encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers
    parent = multiprocessing.parent_process()
    if parent is not None:  # a pool's workers would outlive a parent that is killed, and wait for ever
        threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a process for each core is enough
    _encoder = ChunkEncoder(folder, dtype, valid)


def _exit_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _encode(texts: list[str] | None) -> EncodedChunk | None:
    assert _encoder is not None
    return _encoder.encode(texts)


def encode_chunks(
    chunks: Iterator[list[str]], encoder: tuple[Path, str, float], workers: int | None, parallel: Parallel
) -> Generator[EncodedChunk, None, None]:
    """All chunks encoded, in order, in the main process: of each `world_size` chunks every process encodes one.

    `encoder` are the arguments of `ChunkEncoder`, `workers` the processes that each process starts (None: one a core).
    """
    rounds = iter(lambda: list(islice(chunks, parallel.world_size)), [])
    own = (group[parallel.rank] if parallel.rank < len(group) else None for group in rounds)
    with closing(_encode_in_workers(own, encoder, workers or _cores())) as encoded:
        for own_chunk in encoded:
            yield from (chunk for chunk in parallel.gather(own_chunk) if chunk is not None)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _encode_in_workers(
    chunks: Iterator[list[str] | None], encoder: tuple[Path, str, float], workers: int
) -> Generator[EncodedChunk | None, None, None]:
    """The chunks encoded, in order, with no more than a few under way at any time."""
    if workers == 1:
        yield from map(ChunkEncoder(*encoder).encode, chunks)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=encoder)
    pending: deque[Future[EncodedChunk | None]] = deque()
    try:
        for chunk in chunks:
            pending.append(pool.submit(_encode, chunk))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool:
        raise HeadstartError(
            f"one of {workers} worker processes ended unexpectedly: is there memory for so many? Try fewer workers "
            "(--workers 1 uses none). A script must call write_store under `if __name__ == '__main__':`"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
