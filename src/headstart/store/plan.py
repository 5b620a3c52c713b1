"""The plan of a store: its files, its tokenizer and its options, which together decide its bytes."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import Any

import numpy as np

from headstart.errors import ConfigError, DataError, did_you_mean
from headstart.files import open_regular
from headstart.reading.documents import DOCUMENT_SUFFIXES, expand_paths, read_documents
from headstart.reading.lines import check_suffix
from headstart.reading.skipped import SkippedRows
from headstart.store.store import FORMAT, checksum
from headstart.tokenizers.tokenizer import Tokenizer

CHUNK = 1 << 20  # characters of text in a chunk: a fraction of a second's work
NAMES = {"reading": "options for reading", "sources": "input files"}  # of what is too long for a message


@dataclass(frozen=True)
class StorePlan:
    """What a store is made from. `manifest` is the part of store.json that is known before it is written."""

    files: tuple[Path, ...]  # each as often as it counts
    modified: tuple[object, ...]  # the time and size of each file when it was planned
    manifest: dict[str, Any]

    @classmethod
    def of(
        cls,
        paths: Sequence[str | Path],
        tokenizer: Tokenizer,
        *,
        valid: float,
        repeat: Mapping[str, int],
        reading: Mapping[str, Any],
    ) -> StorePlan:
        files = _repeated(expand_paths(paths), repeat)
        modified = _modified(files)
        sources = {path: _source(path) for path in dict.fromkeys(files)}
        manifest = {
            "format": FORMAT,
            "tokenizer": tokenizer.fingerprint,
            "dtype": id_type(tokenizer.size),
            "valid": float(valid),
            "reading": dict(reading),
            "sources": [sources[path] for path in files],
        }
        return cls(files, modified, manifest)

    def chunks(self, skipped: SkippedRows | None) -> Iterator[list[str]]:
        """The texts of the corpus, about `CHUNK` characters at a time: a function of the texts alone."""
        column, blank_lines = (self.manifest["reading"][name] for name in ("column", "blank_lines"))
        chunk: list[str] = []
        length = 0
        for path in self.files:
            for document in read_documents([path], column=column, blank_lines=blank_lines, skipped=skipped):
                chunk.append(document.text)
                length += len(document.text) + 16  # so that many tiny texts fill a chunk too
                if length >= CHUNK:
                    yield chunk
                    chunk, length = [], 0
        if chunk:
            yield chunk

    @property
    def text_bytes(self) -> int | None:
        """Bytes of text in all, where the sizes of the files tell."""
        plain = all(path.suffix == ".txt" for path in self.files)
        return sum(path.stat().st_size for path in self.files) if plain else None

    def require_unchanged(self) -> None:
        if _modified(self.files) != self.modified:
            problem = "the corpus was changed while it was being read"
            raise DataError(self.files[0], problem, fix="run the command again")

    def require_same(self, out: Path, what: str, manifest: Mapping[str, Any]) -> None:
        """A folder that holds a store of another plan is refused."""
        differing = [key for key in self.manifest if key in manifest and manifest[key] != self.manifest[key]]
        if differing:
            short = [f"{key} {manifest[key]}, here {self.manifest[key]}" for key in differing if key not in NAMES]
            made_with = "; ".join([*short, *(f"other {NAMES[key]}" for key in differing if key in NAMES)])
            fix = f"choose another --out, or delete {out}"
            raise DataError(out, f"already holds {what} made with {made_with}", fix=fix)

    def command(self, out: Path) -> str:
        """The command that finishes this store, whatever the working folder; the tokenizer is in `out` by then."""
        times = Counter(path.absolute() for path in self.files)
        words = ["headstart", "tokens", *map(str, times)]
        words += [word for path, count in times.items() if count > 1 for word in ("--repeat", f"{path}={count}")]
        words += ["--tokenizer", str(out.absolute()), "--out", str(out.absolute())]
        words += ["--valid", str(self.manifest["valid"])]
        reading = self.manifest["reading"]
        words += ["--column", reading["column"]] if reading["column"] is not None else []
        words += ["--blank-lines"] if reading["blank_lines"] else []
        words += ["--skip-bad"] if reading["skip_bad"] else []
        return shlex.join(words)


def id_type(size: int) -> str:
    """The smallest unsigned integer type that holds every id of a vocabulary.

    >>> id_type(256), id_type(50001), id_type(65537)
    ('uint8', 'uint16', 'uint32')
    """
    return str(np.min_scalar_type(max(size - 1, 0)))


def _repeated(files: Sequence[Path], repeat: Mapping[str, int]) -> tuple[Path, ...]:
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
    return tuple(path for path in files for _ in range(times[path]))


def _modified(files: Sequence[Path]) -> tuple[object, ...]:
    stats = [path.stat() if path.exists() else None for path in files]
    return tuple(stat and (stat.st_mtime_ns, stat.st_size) for stat in stats)


def _source(path: Path) -> dict[str, Any]:
    check_suffix(path, DOCUMENT_SUFFIXES)
    try:
        with open_regular(path) as stream:
            digest = file_digest(stream, checksum).hexdigest()
            return {"name": path.name, "size": stream.tell(), "blake2b": digest}
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror}") from None
