"""The token store: a corpus encoded once, in a folder that is memory-mapped, so that no process reads all of it.

    store/
      store.json      what is here, from what and by which tokenizer; written last: a folder without it is no store
      tokenizer.json  the tokenizer itself: a store can be decoded on its own
      train.ids       every id of every document end to end, in the smallest of uint8, uint16, uint32 that fits
      train.starts    int64: where each document begins in train.ids, and the end
      train.bytes     int64: each document's length in bytes of UTF-8, for bits per byte
      valid.ids …     the same for the documents held out

Ids are those of the bare text: special tokens are added by the batches. All numbers are little-endian. Whether a
document is in train or valid depends on its text alone (`split_position`), so that it never changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.errors import DataError, TokenizerError
from headstart.files import read_json

FORMAT = 1
SPLITS = ("train", "valid")
PARTS = ("ids", "starts", "bytes")
FILES = tuple(f"{split}.{part}" for split in SPLITS for part in PARTS)
UNFINISHED = "unfinished.json"  # what a half-written store will be

Ids = NDArray[np.unsignedinteger[Any]]
Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Documents:
    """One split, mapped into memory. Document i is `ids[starts[i]:starts[i + 1]]`, from `bytes[i]` bytes of text."""

    ids: Ids  # (N,)
    starts: Counts  # (documents + 1,)
    bytes: Counts  # (documents,)

    def __len__(self) -> int:
        return len(self.bytes)

    def __getitem__(self, number: int) -> Ids:
        document = range(len(self))[number]  # so that -1 is the last, and one too many an IndexError
        return self.ids[self.starts[document] : self.starts[document + 1]]


@dataclass(frozen=True)
class SplitCounts:
    documents: int
    tokens: int
    bytes: int


@dataclass(frozen=True)
class Store:
    """A complete token store. Nothing of it is read before it is used:

    store = Store.open("store", tokenizer.fingerprint)
    train = store.split("train")
    tokenizer.decode(train[0])  # the first document
    """

    folder: Path
    tokenizer_fingerprint: str
    dtype: str
    counts: dict[str, SplitCounts]
    manifest: dict[str, Any] = field(repr=False)  # store.json as it is

    @classmethod
    def open(cls, folder: str | Path, tokenizer_fingerprint: str | None = None) -> Store:
        """Open a store; a half-written or damaged one, or one of another tokenizer, is refused.

        Sizes are checked here, contents by `verify`.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        try:
            store = cls(
                folder=folder,
                tokenizer_fingerprint=str(manifest["tokenizer"]),
                dtype=str(np.dtype(manifest["dtype"])),
                counts={split: SplitCounts(**manifest["splits"][split]) for split in SPLITS},
                manifest=manifest,
            )
            sizes = {name: int(manifest["files"][name]["size"]) for name in FILES}
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(folder / "store.json", f"not as it was written ({error!r})") from None
        for name, size in sizes.items():
            path = folder / name
            if not path.is_file():
                raise _damaged(path, f"is missing, expected {size} bytes")
            if path.stat().st_size != size:
                raise _damaged(path, f"holds {path.stat().st_size} bytes, expected {size} bytes")
        if tokenizer_fingerprint not in (None, store.tokenizer_fingerprint):
            raise TokenizerError(
                f"{folder}: the store was written with the tokenizer {store.tokenizer_fingerprint}, this one is "
                f"{tokenizer_fingerprint}. Use the tokenizer in {folder}, or write a store with this one"
            )
        return store

    def split(self, name: str) -> Documents:
        """The documents of "train" or of "valid"."""
        if name not in SPLITS:
            raise DataError(self.folder, f"no split {name!r}", fix=f"ask for one of {', '.join(SPLITS)}")
        ids, starts, sizes = (self._map(f"{name}.{part}") for part in PARTS)
        return Documents(ids, starts, sizes)

    def _map(self, name: str) -> NDArray[Any]:
        dtype = np.dtype(self.dtype if name.endswith(".ids") else np.int64).newbyteorder("<")
        path = self.folder / name
        if path.stat().st_size == 0:  # an empty file cannot be mapped
            return np.empty(0, dtype)
        return np.memmap(path, dtype, mode="r")

    @property
    def size(self) -> int:
        """Bytes on disk, all files together."""
        return sum(path.stat().st_size for path in self.folder.iterdir() if path.is_file())

    def verify(self) -> None:
        """Read every file and compare it with its checksum."""
        for name in FILES:
            path = self.folder / name
            with path.open("rb") as stream:
                digest = file_digest(stream, checksum).hexdigest()
            if digest != self.manifest["files"][name]["blake2b"]:
                raise _damaged(path, f"its checksum is {digest}, not that in store.json")


def read_manifest(folder: Path) -> dict[str, Any]:
    """store.json; a folder without a complete store of this format is refused."""
    path = folder / "store.json"
    if not path.exists():
        raise _no_store(folder)
    manifest = read_json(path)
    if manifest.get("format") != FORMAT:
        problem = f"a store of format {manifest.get('format')!r}, expected {FORMAT}"
        raise DataError(path, problem, fix="write the store again with `headstart tokens`")
    return manifest


def _no_store(folder: Path) -> DataError:
    if (folder / UNFINISHED).exists():
        command = read_json(folder / UNFINISHED).get("command")
        return DataError(folder, "a half-written token store", fix=f"finish it with: {command}")
    if folder.is_dir():
        return DataError(folder, "no token store in this folder", fix="write one with `headstart tokens`")
    return DataError(folder, "no such folder", fix="write a store with `headstart tokens`")


def _damaged(path: Path, problem: str) -> DataError:
    return DataError(path, problem, fix=f"delete {path.parent} and write the store again with `headstart tokens`")


def checksum(data: bytes = b"") -> blake2b:
    """A digest of the kind that store.json has for each file."""
    return blake2b(data, digest_size=16)
