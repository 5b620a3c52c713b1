"""Documents cut into windows of at most so many tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headstart.batches.batch import Ints
from headstart.errors import DataError, ModelError
from headstart.store.store import Documents


@dataclass(frozen=True, eq=False)
class Windows:
    """W windows: each is `length[w]` tokens from `offset[w]` on of document `document[w]`, special tokens included.

    `prefix` and `suffix`, the special tokens, stand around each document, or with `wrap_each` around each window.
    """

    documents: Documents
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    document: Ints  # (W,)
    offset: Ints  # (W,)
    length: Ints  # (W,)
    wrap_each: bool

    @classmethod
    def cut(
        cls,
        documents: Documents,
        prefix: tuple[int, ...],
        suffix: tuple[int, ...],
        longest: int | None,
        *,
        wrap_each: bool,
    ) -> Windows:
        """Windows of at most `longest` tokens, special tokens included; None makes one of each document."""
        special = len(prefix) + len(suffix)
        sizes = np.diff(documents.starts)
        sizes = np.where(sizes > 0, sizes + (0 if wrap_each else special), 0)  # an empty document gives no window
        stride = int(sizes.max(initial=1)) if longest is None else longest - (special if wrap_each else 0)
        if stride < 1:
            raise ModelError(f"a window of {longest} tokens has no room beside {special} special tokens")
        counts = -(-sizes // stride)
        document = np.repeat(np.arange(len(sizes)), counts)
        in_document = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
        offset = in_document * stride
        length = np.minimum(stride, sizes[document] - offset) + (special if wrap_each else 0)
        if len(document) == 0:
            raise DataError("tokens", "the store has no token in this split: give it more text, or a larger share")
        return cls(documents, prefix, suffix, document, offset, length, wrap_each)

    def __len__(self) -> int:
        return len(self.document)

    @property
    def tokens(self) -> int:
        return int(self.length.sum())

    def __getitem__(self, window: int) -> Ints:
        """The tokens of one window."""
        begin, end = self.documents.starts[self.document[window]], self.documents.starts[self.document[window] + 1]
        offset, length = int(self.offset[window]), int(self.length[window])
        if self.wrap_each:
            text = length - len(self.prefix) - len(self.suffix)
            ids = self.documents.ids[begin + offset : begin + offset + text]
            return np.concatenate([self.prefix, ids, self.suffix]).astype(np.int64)
        head = np.array(self.prefix[offset : offset + length], dtype=np.int64)
        low, high = (max(place - len(self.prefix), 0) for place in (offset, offset + length))  # in the bare text
        ids = self.documents.ids[begin + low : min(begin + high, end)]
        tail = np.array(self.suffix, dtype=np.int64)[max(low - int(end - begin), 0) : max(high - int(end - begin), 0)]
        return np.concatenate([head, ids, tail]).astype(np.int64)

    def span(self, order: Ints, starts: Ints, low: int, high: int) -> Ints:
        """Tokens `low` to `high` of the windows laid end to end in this order; `starts` says where each begins."""
        first = int(np.searchsorted(starts, low, side="right")) - 1
        last = int(np.searchsorted(starts, high, side="left"))
        ids = np.concatenate([self[int(window)] for window in order[first:last]])
        return ids[low - starts[first] : high - starts[first]]
