"""The encoder of a corpus: a tokenizer with a cache of words, in as many processes as wanted.

    encoder = Encoder(Path("store"), "uint16")      # the folder of a tokenizer, and the type of the ids
    encoder.encode(["the cat sat", "the cat"])      # a list of bytes: each text's ids

Whether words can be encoded one by one is read from tokenizer.json; in doubt they are not.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import struct
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from headstart.errors import HeadstartError
from headstart.parallel import Parallel, cores
from headstart.reading.split import split_position
from headstart.store.store import Counts, checksum
from headstart.tokenizers.special_tokens import steps
from headstart.tokenizers.tokenizer import Tokenizer

CACHE_SIZE = 1 << 17  # words in one generation of the cache, about 25 MB with their ids

# A text is split before a single space that follows a letter, digit or usual punctuation mark. Other characters are
# left out because normalisation may remove them, or turn them into something that ends in a space.
_WORD_BOUNDARY = re.compile(r"(?= \S)(?<=[\w!-/:-@\[-`{-~«»‘’“”…–—])")
# Steps that look at one character or one word at a time.
_LOCAL_STEPS = {
    "normalizers": {"NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "StripAccents", "BertNormalizer", "Precompiled"},
    "pretokenizers": {"ByteLevel", "Digits", "Punctuation", "Split", "UnicodeScripts"},  # after the first
    "models": {"BPE", "Unigram", "WordPiece", "WordLevel"},
}
# What SentencePiece does with spaces, as normalizers: none at both ends, one at a time between, each written as "▁".
_WRITE_SPACE = ("Replace", {"String": " "}, "▁")
# The leading space is dropped and a "▁" is put in its place: harmless together, and only so.
_EDGE_STEPS = [("Replace", {"Regex": r"\A +"}, ""), ("Prepend", None, "▁")]
_SPACE_STEPS = [
    *_EDGE_STEPS,
    _WRITE_SPACE,
    ("Replace", {"Regex": " {2,}"}, " "),
    ("Replace", {"Regex": " {2,}"}, "▁"),
    ("Replace", {"Regex": r"[▁\ufffd\r\n]"}, " "),
    ("Replace", {"Regex": r"▁+\z"}, ""),
]
_SPLIT_AT_SPACE = {"type": "Split", "pattern": {"String": "▁"}, "behavior": "MergedWithNext", "invert": False}


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


class Encoder:
    """A tokenizer that caches words: several times faster on running text, and exact.

    Most tokenizers split a text at spaces before anything else, so that words are encoded one by one:

        encode("the cat sat") == encode("the") + encode(" cat") + encode(" sat")

    and a corpus of a billion words has few different ones. Where tokenizer.json does not show that this holds
    (`splits_at_spaces`), texts are encoded as a whole.
    """

    def __init__(self, folder: Path, dtype: str, valid: float = 0.0) -> None:
        self._tokenizer = Tokenizer.load(folder)
        self._letter = {"uint8": "B", "uint16": "H", "uint32": "I"}[dtype]
        self._valid_from = 1 - valid
        self._by_words = splits_at_spaces(json.loads((folder / "tokenizer.json").read_bytes()))
        self._words = _WordCache(lambda word: self._pack(self._tokenizer.encode(word)))

    def encode(self, texts: Sequence[str]) -> list[bytes]:
        """Each text's ids, as the bytes that a store holds."""
        if not self._by_words:
            return [self._pack(ids) for ids in self._tokenizer.encode_batch(texts)]
        lookup = self._words.__getitem__
        encoded = [b"".join(map(lookup, _WORD_BOUNDARY.split(text))) for text in texts]
        if len(self._words) > CACHE_SIZE:
            self._words.start_generation()
        return encoded

    def _pack(self, ids: Sequence[int]) -> bytes:
        return struct.pack(f"<{len(ids)}{self._letter}", *ids)

    def encode_chunk(self, texts: list[str] | None) -> EncodedChunk | None:
        """A chunk of the corpus encoded and divided into train and valid; None stays None."""
        if texts is None:
            return None
        utf8 = [text.encode() for text in texts]
        ids = self.encode(texts)
        lengths = np.array([len(packed) // struct.calcsize(self._letter) for packed in ids], np.int64)
        sizes = np.array([len(text) for text in utf8], np.int64)
        held_out = np.array([split_position(text) >= self._valid_from for text in texts])
        splits = {}
        for name, chosen in (("train", ~held_out), ("valid", held_out)):
            own_ids = b"".join([ids[i] for i in np.flatnonzero(chosen)])
            splits[name] = EncodedSplit(own_ids, lengths[chosen], sizes[chosen])
        return EncodedChunk(text_digest(utf8), splits)


def text_digest(texts: Iterable[bytes]) -> str:
    return checksum(b"".join(len(text).to_bytes(8, "little") + text for text in texts)).hexdigest()


class _WordCache(dict[str, bytes]):
    """The ids of words, encoded when first needed. Words not used for a whole generation are dropped."""

    def __init__(self, encode: Callable[[str], bytes]) -> None:
        self._encode = encode
        self._older: dict[str, bytes] = {}

    def __missing__(self, word: str) -> bytes:
        ids = self._older.get(word)
        if ids is None:
            ids = self._encode(word)
        if len(word) <= 64:  # a longer one is no word, and unlikely to come again
            self[word] = ids
        return ids

    def start_generation(self) -> None:
        self._older = dict(self)
        self.clear()


def splits_at_spaces(description: dict[str, Any]) -> bool:
    """Whether a tokenizer.json describes a tokenizer that encodes the words of a text one by one.

    Every step must be one of those known to look at one word, or one character, at a time.
    """
    model = description["model"]
    normalizers = steps(description["normalizer"], "normalizers")
    # What is done to the beginning of a text would be done to every word.
    edges = [_signature(step) for step in normalizers if _signature(step) in _EDGE_STEPS]
    return (
        not description.get("truncation")
        and not description.get("padding")
        and not any(token["rstrip"] or re.search(r"[\s▁]", token["content"]) for token in description["added_tokens"])
        and edges in ([], _EDGE_STEPS)
        and all(map(_is_local, normalizers))
        and _splits_words(steps(description["pre_tokenizer"], "pretokenizers"), normalizers)
        and model["type"] in _LOCAL_STEPS["models"]
        and not model.get("dropout")
    )


def _signature(step: dict[str, Any]) -> tuple[str, Any, Any]:
    return step["type"], step.get("pattern"), step.get("content", step.get("prepend"))


def _is_local(normalizer: dict[str, Any]) -> bool:
    """Whether " cat" by itself becomes what it becomes after "the"."""
    kind, pattern, content = signature = _signature(normalizer)
    if kind == "Strip":  # words begin with a space, and end in none
        return not normalizer["strip_left"]
    if kind == "Replace" and "String" in pattern and not any(map(str.isspace, pattern["String"] + content)):
        return True
    return kind in _LOCAL_STEPS["normalizers"] or signature in _SPACE_STEPS


def _splits_words(pre_tokenizers: list[dict[str, Any]], normalizers: list[dict[str, Any]]) -> bool:
    """Whether the first step splits at spaces; those after it see one word at a time."""
    if not pre_tokenizers:
        return False
    first, *rest = pre_tokenizers
    kind = first["type"]
    splits = (
        kind in {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
        or (kind == "ByteLevel" and first["use_regex"])
        or (kind == "Metaspace" and first["split"] and first["replacement"] == "▁")
        or (kind == "Split" and first == _SPLIT_AT_SPACE and _WRITE_SPACE in map(_signature, normalizers))
    )
    return splits and all(step["type"] in _LOCAL_STEPS["pretokenizers"] for step in rest)


_encoder: Encoder | None = None  # in a worker process: made once, used for every chunk


def _start_worker(folder: Path, dtype: str, valid: float) -> None:
    global _encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where it cannot be blocked; the parent ends its workers
    parent = multiprocessing.parent_process()
    if parent is not None:  # a pool's workers would outlive a parent that is killed, and wait for ever
        threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a process for each core is enough
    _encoder = Encoder(folder, dtype, valid)


@contextmanager
def _blocked(*signals: signal.Signals) -> Iterator[None]:
    """Signals wait for the end of the block; processes that are started in it never see them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _exit_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _encode(texts: list[str] | None) -> EncodedChunk | None:
    assert _encoder is not None
    return _encoder.encode_chunk(texts)


def encode_chunks(
    chunks: Iterator[list[str]], encoder: tuple[Path, str, float], workers: int | None, parallel: Parallel
) -> Generator[EncodedChunk, None, None]:
    """All chunks encoded, in order, in the main process: of each `world_size` chunks every process encodes one.

    `encoder` are the arguments of `Encoder`, `workers` the processes that each process starts (None: one a core).
    """
    rounds = iter(lambda: list(islice(chunks, parallel.world_size)), [])
    own = (group[parallel.rank] if parallel.rank < len(group) else None for group in rounds)
    with closing(_encode_in_workers(own, encoder, workers or cores())) as encoded:
        for own_chunk in encoded:
            yield from (chunk for chunk in parallel.gather(own_chunk) if chunk is not None)


def _encode_in_workers(
    chunks: Iterator[list[str] | None], encoder: tuple[Path, str, float], workers: int
) -> Generator[EncodedChunk | None, None, None]:
    """The chunks encoded, in order, with no more than a few under way at any time."""
    if workers == 1:
        yield from map(Encoder(*encoder).encode_chunk, chunks)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=encoder)
    pending: deque[Future[EncodedChunk | None]] = deque()
    try:
        for chunk in chunks:
            with _blocked(signal.SIGINT):
                pending.append(pool.submit(_encode, chunk))  # which starts a worker, while there are too few
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
        # Python takes a thread whose `join` was interrupted for one that has ended, and would then wait for ever for
        # the workers, which that thread was about to stop. They have no more than a chunk each to finish.
        with _blocked(signal.SIGINT, signal.SIGTERM):
            pool.shutdown(cancel_futures=True)
