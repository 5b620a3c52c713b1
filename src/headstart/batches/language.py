"""Batches for language models, each a pure function of (seed, epoch, step).

causal           `CausalBatches`: documents end to end, each token's target the next one
masked           `MaskedBatches`: pieces of documents, some of their tokens behind a mask
next sentence    `PairBatches`: two segments that follow one another, or do not, and masks
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from headstart.batches.batch import IGNORE_INDEX, Batch, Ints, flat, order, rng, token_edges
from headstart.batches.masking import Masking, masks
from headstart.errors import DataError, ModelError
from headstart.store.store import Documents
from headstart.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Pieces:
    """Documents cut into pieces, as one long row of tokens for each epoch.

    A piece is tokens `offset[p]` up to `offset[p] + length[p]` of document `document[p]` with the special tokens around
    it: once around each document, or, with `each`, around every piece of it.
    """

    documents: Documents
    before: tuple[int, ...]
    after: tuple[int, ...]
    document: Ints  # (P,)
    offset: Ints  # (P,)
    length: Ints  # (P,)
    each: bool

    @classmethod
    def cut(
        cls, documents: Documents, before: tuple[int, ...], after: tuple[int, ...], longest: int | None, *, each: bool
    ) -> Pieces:
        """Cut documents into pieces of at most `longest` tokens, specials included; None leaves them whole."""
        around = len(before) + len(after)
        sizes = np.diff(documents.starts)
        sizes = np.where(sizes > 0, sizes + (0 if each else around), 0)  # an empty document gives no piece
        room = int(sizes.max(initial=1)) if longest is None else longest - (around if each else 0)
        if room < 1:
            raise ModelError(f"a window of {longest} tokens has no room beside {around} special tokens")
        counts = -(-sizes // room)
        document = np.repeat(np.arange(len(sizes)), counts)
        nth = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
        offset = nth * room
        length = np.minimum(room, sizes[document] - offset) + (around if each else 0)
        if len(document) == 0:
            raise DataError("tokens", "the store has no token in this split: give it more text, or a larger share")
        return cls(documents, before, after, document, offset, length, each)

    def __len__(self) -> int:
        return len(self.document)

    @property
    def tokens(self) -> int:
        return int(self.length.sum())

    def __getitem__(self, piece: int) -> Ints:
        """The tokens of one piece."""
        begin, end = self.documents.starts[self.document[piece]], self.documents.starts[self.document[piece] + 1]
        offset, length = int(self.offset[piece]), int(self.length[piece])
        if self.each:
            body = length - len(self.before) - len(self.after)
            ids = self.documents.ids[begin + offset : begin + offset + body]
            return np.concatenate([self.before, ids, self.after]).astype(np.int64)
        lead = len(self.before)
        head = np.array(self.before[offset : offset + length], dtype=np.int64)
        low, high = max(offset - lead, 0), max(offset + length - lead, 0)
        ids = self.documents.ids[begin + low : min(begin + high, end)]
        tail = np.array(self.after, dtype=np.int64)[max(low - int(end - begin), 0) : max(high - int(end - begin), 0)]
        return np.concatenate([head, ids, tail]).astype(np.int64)

    def span(self, seed: int | None, epoch: int, low: int, high: int) -> tuple[Ints, Ints]:
        """Tokens `low` to `high` of the epoch's row, and where each piece begins; without a seed, in file order."""
        visit, edges = _row(self, seed, epoch)
        first = int(np.searchsorted(edges, low, side="right")) - 1
        last = int(np.searchsorted(edges, high, side="left"))
        whole = np.concatenate([self[int(visit[p])] for p in range(first, last)])
        starts = np.maximum(edges[first:last] - low, 0)
        return whole[low - edges[first] : high - edges[first]], starts

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


@lru_cache(maxsize=8)
def _row(pieces: Pieces, seed: int | None, epoch: int) -> tuple[Ints, Ints]:
    """The order of an epoch's pieces, and where each begins in the row of all tokens."""
    visit = np.arange(len(pieces)) if seed is None else order(len(pieces), seed, epoch)
    return visit, np.concatenate([[0], np.cumsum(pieces.length[visit])])


def _around(tokenizer: Tokenizer, across: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What stands before and after a document in the row: its start and its end.

    Where one token is both, as GPT-2's, and documents follow one another, one of them between two documents will do.
    """
    start = () if tokenizer.start is None else (tokenizer.start,)
    end = () if tokenizer.end is None or (across and tokenizer.end == tokenizer.start) else (tokenizer.end,)
    return start, end


class _Visit:
    """How a pass goes through pieces: in the epoch's order to train, in file order and drawing alike to score."""

    def __init__(self, pieces: Pieces, seed: int, tokens: int, whole: bool) -> None:
        self.pieces, self.whole = pieces, whole
        self.seed = 0 if whole else seed
        self.tokens = min(tokens, pieces.tokens)
        self._edges: tuple[int, Ints] | None = None  # of the last epoch that was asked for

    def plan(self, epoch: int) -> tuple[Ints, Ints]:
        return _row(self.pieces, None if self.whole else self.seed, epoch)

    def epoch(self, epoch: int) -> int:
        """What chance is drawn from: masks are fresh each epoch, but a model is always scored on the same."""
        return 0 if self.whole else epoch

    def edges(self, epoch: int) -> Ints:
        """(steps + 1,): where in the epoch's order each step of whole pieces begins."""
        if self._edges is None or self._edges[0] != epoch:
            visit, _ = self.plan(epoch)
            self._edges = epoch, token_edges(self.pieces.length[visit], self.tokens)
        return self._edges[1]

    def numbers(self, epoch: int, step: int) -> list[int]:
        """The pieces of a step."""
        edges, (visit, _) = self.edges(epoch), self.plan(epoch)
        return [int(piece) for piece in visit[edges[step] : edges[step + 1]]]


class CausalBatches:
    """About `batch_size` × `window` tokens a step, each with the next token as its target.

    Across borders, documents follow one another and every `window` tokens make a sequence: a token may look back into
    the document before, and a step has exactly so many tokens. Without, a sequence is a document or a piece of one.
    """

    def __init__(
        self,
        documents: Documents,
        tokenizer: Tokenizer,
        *,
        window: int,
        batch_size: int,
        seed: int,
        across: bool = False,
        whole: bool = False,
    ) -> None:
        before, after = _around(tokenizer, across)
        pieces = Pieces.cut(documents, before, after, None if across else window, each=False)
        self.visit = _Visit(pieces, seed, window * batch_size, whole)
        self.window, self.across, self.whole = window, across, whole
        # A start that always follows an end: there is nothing to learn from it.
        self.given = before if after and after != before else ()

    def steps(self, epoch: int) -> int:
        if not self.across:
            return len(self.visit.edges(epoch)) - 1
        available, tokens = self.visit.pieces.tokens, self.visit.tokens
        return -(-available // tokens) if self.whole else available // tokens

    def batch(self, epoch: int, step: int) -> Batch:
        return self._across(epoch, step) if self.across else self._apart(epoch, step)

    def _across(self, epoch: int, step: int) -> Batch:
        visit = self.visit
        low = step * visit.tokens
        high = min(low + visit.tokens + 1, visit.pieces.tokens)  # one more, for the last target
        ids, _ = visit.pieces.span(None if self.whole else visit.seed, epoch, low, high)
        targets = np.append(ids[1:], IGNORE_INDEX)[: visit.tokens]
        targets[np.isin(targets, self.given)] = IGNORE_INDEX
        rows = np.split(ids[: visit.tokens], np.arange(self.window, min(len(ids), visit.tokens), self.window))
        return Batch(**flat(rows), targets=torch.from_numpy(targets))

    def _apart(self, epoch: int, step: int) -> Batch:
        rows = [self.visit.pieces[number] for number in self.visit.numbers(epoch, step)]
        targets = np.concatenate([np.append(row[1:], IGNORE_INDEX) for row in rows])
        return Batch(**flat(rows), targets=torch.from_numpy(targets))


class MaskedBatches:
    """About `batch_size` × `window` tokens a step: pieces of documents in special tokens, as a classifier sees them."""

    def __init__(
        self,
        documents: Documents,
        tokenizer: Tokenizer,
        *,
        window: int,
        batch_size: int,
        seed: int,
        masking: Masking,
        whole: bool = False,
    ) -> None:
        probe = tokenizer.size  # no token has this id, so it shows where wrap puts the text
        wrapped = tokenizer.wrap([probe])[0]
        place = wrapped.index(probe)
        pieces = Pieces.cut(documents, tuple(wrapped[:place]), tuple(wrapped[place + 1 :]), window, each=True)
        self.visit = _Visit(pieces, seed, window * batch_size, whole)
        self.masking = masking

    def steps(self, epoch: int) -> int:
        return len(self.visit.edges(epoch)) - 1

    def batch(self, epoch: int, step: int) -> Batch:
        key = (self.visit.seed, self.visit.epoch(epoch))
        numbers = self.visit.numbers(epoch, step)
        rows = [self.masking.hide(self.visit.pieces[number], (*key, number, 1)) for number in numbers]
        return Batch(**flat([row.ids for row in rows]), **masks(rows))


class PairBatches:
    """About `batch_size` × `window` tokens a step, as the others have, in pairs for BERT's two objectives.

    A pair is a stretch of a document in two parts, or the first part and as much from another document, half of the
    time each. Label 0: the second follows the first. Label 1: it does not.
    """

    def __init__(
        self,
        documents: Documents,
        tokenizer: Tokenizer,
        *,
        window: int,
        batch_size: int,
        seed: int,
        masking: Masking,
        whole: bool = False,
    ) -> None:
        self.tokenizer, self.masking = tokenizer, masking
        self.tokens, self.whole = window * batch_size, whole
        self.seed = 0 if whole else seed
        self.around = len(tokenizer.wrap([], [])[0])
        room = window - self.around
        if room < 2:
            raise ModelError(f"a window of {window} tokens has no room for a pair: choose a longer one")
        self.pieces = Pieces.cut(documents, (), (), room, each=True)
        self.stretches = np.flatnonzero(self.pieces.length >= 2)
        self.owner = self.pieces.document[self.stretches]  # the document of each, in rising order
        if len(np.unique(self.owner)) < 2:
            raise DataError("tokens", "next-sentence pairs need two documents of two tokens or more in this split")
        self._edges: tuple[int, Ints] | None = None  # of the last epoch that was asked for

    def visit(self, epoch: int) -> Ints:
        count = len(self.stretches)
        return np.arange(count) if self.whole else order(count, self.seed, epoch)

    def edges(self, epoch: int) -> Ints:
        """(steps + 1,): where in the epoch's order each step begins."""
        if self._edges is None or self._edges[0] != epoch:
            lengths = self.pieces.length[self.stretches[self.visit(epoch)]] + self.around
            self._edges = epoch, token_edges(lengths, self.tokens)
        return self._edges[1]

    def steps(self, epoch: int) -> int:
        return len(self.edges(epoch)) - 1

    def batch(self, epoch: int, step: int) -> Batch:
        edges = self.edges(epoch)
        key = (self.seed, 0 if self.whole else epoch)
        rows, segments, labels = [], [], []
        for number in self.visit(epoch)[edges[step] : edges[step + 1]]:
            ids, parts, label = self._pair(int(number), rng(*key, int(number), 2))
            rows.append(self.masking.hide(ids, (*key, int(number), 1)))
            segments.append(parts)
            labels.append(label)
        return Batch(
            **flat([row.ids for row in rows]),
            **masks(rows),
            segments=torch.from_numpy(np.concatenate(segments)),
            labels=torch.tensor(labels),
        )

    def _pair(self, number: int, draw: np.random.Generator) -> tuple[Ints, Ints, int]:
        text = self.pieces[int(self.stretches[number])]
        middle = int(draw.integers(1, len(text)))
        second, label = text[middle:], int(draw.random() < 0.5)
        if label:
            second = self._stranger(number, len(second), draw)
        ids, parts = self.tokenizer.wrap(text[:middle].tolist(), second.tolist())
        return np.array(ids, dtype=np.int64), np.array(parts, dtype=np.int64), label

    def _stranger(self, number: int, length: int, draw: np.random.Generator) -> Ints:
        """As much text of another document, from the middle of it: neither its length nor a beginning gives it away."""
        mine = np.searchsorted(self.owner, self.owner[number], side="left")
        after = np.searchsorted(self.owner, self.owner[number], side="right")
        best = np.zeros(0, dtype=np.int64)
        for _ in range(8):  # a stretch that is long enough is soon found, where there are any
            other = int(draw.integers(len(self.owner) - (after - mine)))
            text = self.pieces[int(self.stretches[other if other < mine else other + (after - mine)])]
            offset = int(draw.integers(1, max(len(text) - length, 1) + 1))
            found = text[offset : offset + length]
            if len(found) > len(best):
                best = found
            if len(best) == length:
                break
        return best
