"""Documents cut into windows of at most so many tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headstart.batches.batch import Ints
from headstart.batches.ragged import Piece, concatenate
from headstart.errors import DataError, ModelError
from headstart.store.store import Documents


@dataclass(frozen=True, eq=False)
class Windows:
    """W windows: each is `length[w]` tokens from `offset[w]` on of document `document[w]`, special tokens included.

    `prefix` and `suffix`, the special tokens, stand around each document, or with `wrap_each` around each window; there
    `offset` counts the tokens of the bare text.
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

    def sequences(self, windows: Ints) -> tuple[Ints, Ints]:
        """(N,) and (S + 1,): the tokens of these windows end to end, and where each begins."""
        return self._slices(windows, np.zeros_like(windows), self.length[windows])

    def span(self, order: Ints, starts: Ints, low: int, high: int) -> Ints:
        """Tokens `low` to `high` of the windows laid end to end in this order; `starts` says where each begins."""
        first = int(np.searchsorted(starts, low, side="right")) - 1
        last = int(np.searchsorted(starts, high, side="left"))
        windows = order[first:last]
        begin, end = np.zeros_like(windows), self.length[windows]
        begin[0] = low - starts[first]
        end[-1] -= starts[last] - high
        return self._slices(windows, begin, end)[0]

    def text_start(self, windows: Ints) -> Ints:
        """(S,): where the text of each begins among the ids of all documents; for windows that are wrapped each."""
        return self.documents.starts[self.document[windows]] + self.offset[windows]

    def ends_document(self, windows: Ints) -> NDArray[np.bool_]:
        """(S,): whether each is the last of its document; for windows that are wrapped each."""
        text_end = self.text_start(windows) + self.length[windows] - self._special
        last: NDArray[np.bool_] = text_end == self.documents.starts[self.document[windows] + 1]
        return last

    def _slices(self, windows: Ints, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Tokens `begin[s]` to `end[s]` of each of these windows, end to end."""
        if self.wrap_each:
            text_start, text_length = self.text_start(windows), self.length[windows] - self._special
        else:  # from positions in the window to positions in its document
            begin, end = begin + self.offset[windows], end + self.offset[windows]
            document = self.document[windows]
            text_start = self.documents.starts[document]
            text_length = self.documents.starts[document + 1] - text_start
        pieces, before = [], np.zeros_like(begin)  # tokens of the wrapped text that stand before the piece
        for source, start, length in (
            (np.array(self.prefix, np.int64), 0, len(self.prefix)),
            (self.documents.ids, text_start, text_length),
            (np.array(self.suffix, np.int64), 0, len(self.suffix)),
        ):
            low, high = (np.clip(place - before, 0, length) for place in (begin, end))
            pieces.append(Piece(source, start + low, high - low))
            before = before + length
        return concatenate(pieces)

    @property
    def _special(self) -> int:
        return len(self.prefix) + len(self.suffix)
