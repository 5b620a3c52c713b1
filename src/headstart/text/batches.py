"""Flat batches for every objective, each a pure function of (seed, epoch, step), and of (rank, world) where shared.

    classification   `ExampleBatches`: a number of examples a step, or a budget of tokens
    causal           `CausalBatches`: documents end to end, each token's target the next one
    masked           `MaskedBatches`: pieces of documents, some of their tokens behind a mask
    next sentence    `PairBatches`: two segments that follow one another, or do not, and masks

No loader, no state: to ask for step 1,234 of epoch 3 is to compute it, so a run that was stopped goes on where it
was. `share_of` parts a step among the micro-batches of one process, or among processes side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.errors import DataError, ModelError
from headstart.text.examples import Examples
from headstart.text.tokenizer import Tokenizer
from headstart.text.tokens import Documents

Ints = NDArray[np.int64]
IGNORE = -100  # a target that no loss counts


@dataclass(frozen=True)
class Batch:
    """Tokens end to end: sequence s is tokens `starts[s]` up to `starts[s + 1]`. N tokens, S sequences, M masked."""

    ids: Tensor  # (N,)
    starts: Tensor  # (S + 1,) int32
    longest: int
    segments: Tensor | None = None  # (N,) 0 for the first text of a pair, 1 for the second
    targets: Tensor | None = None  # (N,) the next token, or (M,) the token behind each mask
    masked: Tensor | None = None  # (M,) where the masks are
    labels: Tensor | None = None  # (S,) the class of each sequence
    rows: Tensor | None = None  # (S,) which example of the set each sequence is

    def tensors(self) -> dict[str, Tensor]:
        """What of it is there, by name."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in found.items() if isinstance(value, Tensor)}

    def to(self, device: torch.device | str) -> Batch:
        return self._with(lambda value: value.to(device, non_blocking=True))

    def pinned(self) -> Batch:
        """Where a GPU can fetch it without the CPU waiting for that."""
        return self._with(Tensor.pin_memory)

    def _with(self, change: Callable[[Tensor], Tensor]) -> Batch:
        changed: dict[str, Any] = {name: change(value) for name, value in self.tensors().items()}
        return replace(self, **changed)


class Batches(Protocol):
    """What the training loop asks of its data."""

    def steps(self, epoch: int) -> int:
        """How many steps the epoch has."""

    def batch(self, epoch: int, step: int) -> Batch:
        """One step of it."""


def share_of(batch: Batch, share: int, shares: int) -> Batch | None:
    """One of several equal parts of a batch, by tokens, sequences kept whole; None where nothing is left for it.

    The parts of a batch are the batch: losses that are sums add up to the same, whoever computes them.
    """
    if shares == 1:
        return batch
    starts = batch.starts.numpy()
    first, last = np.searchsorted(starts[:-1], [len(batch.ids) * k / shares for k in (share, share + 1)])
    if share == shares - 1:
        last = len(starts) - 1  # with the empty sequences at the end, if there are any
    if first == last:
        return None
    low, high = int(starts[first]), int(starts[last])
    part: dict[str, Any] = {"ids": batch.ids[low:high], "starts": batch.starts[first : last + 1] - low}
    part["longest"] = int(part["starts"].diff().max())
    if batch.segments is not None:
        part["segments"] = batch.segments[low:high]
    if batch.masked is not None and batch.targets is not None:
        inside = (batch.masked >= low) & (batch.masked < high)
        part |= {"masked": batch.masked[inside] - low, "targets": batch.targets[inside]}
    elif batch.targets is not None:
        part["targets"] = batch.targets[low:high]
    if batch.labels is not None:
        part["labels"] = batch.labels[first:last]
    if batch.rows is not None:
        part["rows"] = batch.rows[first:last]
    return Batch(**part)


def random(*key: int) -> np.random.Generator:
    """A stream of random numbers that the key alone decides."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))


@lru_cache(maxsize=8)
def order(count: int, seed: int, epoch: int) -> Ints:
    """(count,): the order in which an epoch visits its items."""
    return random(seed, epoch, 0).permutation(count)


def _flat(pieces: Sequence[NDArray[Any]]) -> dict[str, Any]:
    """The part that every batch has."""
    lengths = [len(piece) for piece in pieces]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ids = np.concatenate(pieces).astype(np.int64)
    return {"ids": torch.from_numpy(ids), "starts": torch.from_numpy(starts), "longest": max(lengths)}


# --- classification -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Encoded:
    """A labelled set as ids: row r is `ids[starts[r]:starts[r + 1]]`, in its special tokens and cut to a window."""

    ids: NDArray[np.int32]
    starts: Ints
    segments: NDArray[np.int8] | None  # None where no row is a pair
    labels: Ints  # -1 where a row has none
    cut: int  # rows that were longer than the window

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Ints:
        return np.diff(self.starts)

    @classmethod
    def of(cls, examples: Examples, tokenizer: Tokenizer, labels: Sequence[str], window: int) -> Encoded:
        """Encode a set; a label that is not in the table is an error that names the row."""
        number = {label: i for i, label in enumerate(labels)}
        first = tokenizer.encode_batch([row.text for row in examples.rows])
        paired = any(row.second is not None for row in examples.rows)
        second = tokenizer.encode_batch([row.second or "" for row in examples.rows]) if paired else None
        ids: list[NDArray[np.int32]] = []
        segments: list[NDArray[np.int8]] = []
        classes: list[int] = []
        cut = 0
        for i, row in enumerate(examples.rows):
            if row.label is not None and row.label not in number:
                raise DataError(
                    row.path,
                    f"label {row.label!r} is not one of {', '.join(labels)}, which the model or the training set has",
                    line=row.line,
                    fix="mend the label, or train on data that has this class",
                )
            mate = second[i] if second is not None and row.second is not None else None
            wrapped, parts = tokenizer.wrap(first[i], mate, window=window)
            whole = tokenizer.wrap(first[i], mate)[0]
            cut += len(whole) > len(wrapped)
            if not wrapped:  # an empty text, and a form that puts nothing around it: something must stand there
                wrapped, parts = [next(t for t in (tokenizer.end, tokenizer.unknown, 0) if t is not None)], [0]
            ids.append(np.array(wrapped, dtype=np.int32))
            segments.append(np.array(parts, dtype=np.int8))
            classes.append(-1 if row.label is None else number[row.label])
        starts = np.concatenate([[0], np.cumsum([len(row) for row in ids])]).astype(np.int64)
        return cls(
            np.concatenate(ids) if ids else np.zeros(0, np.int32),
            starts,
            np.concatenate(segments) if paired else None,
            np.array(classes, dtype=np.int64),
            cut,
        )

    def batch(self, rows: Ints) -> Batch:
        """These rows as one batch, in this order."""
        spans = [slice(self.starts[r], self.starts[r + 1]) for r in rows]
        segments = None
        if self.segments is not None:
            segments = torch.from_numpy(np.concatenate([self.segments[s] for s in spans]).astype(np.int64))
        return Batch(
            **_flat([self.ids[s] for s in spans]),
            segments=segments,
            labels=torch.from_numpy(self.labels[rows]),
            rows=torch.from_numpy(np.array(rows, dtype=np.int64)),
        )


@dataclass
class ExampleBatches:
    """`batch_size` examples a step; or, where `tokens` is given, about so many tokens a step.

    The order is drawn anew each epoch and lengths fall as they may: a batch is a fair sample, and since nothing is
    padded there is nothing to gain by sorting. Of each text a share `left_out` of the tokens is missing, other ones
    each epoch: `keep` are those that always stay, as the special ones do.
    """

    data: Encoded
    seed: int
    batch_size: int = 8
    tokens: int | None = None
    left_out: float = 0.0
    keep: Sequence[int] = ()
    _last: tuple[int, Ints] | None = field(
        default=None, init=False, repr=False, compare=False
    )  # the edges of the last epoch asked for

    def __post_init__(self) -> None:
        if len(self.data) == 0:
            raise DataError("examples", "there are no rows to train on")

    def steps(self, epoch: int) -> int:
        return len(self.edges(epoch)) - 1

    def batch(self, epoch: int, step: int) -> Batch:
        edges = self.edges(epoch)
        whole = self.data.batch(order(len(self.data), self.seed, epoch)[edges[step] : edges[step + 1]])
        if not self.left_out:
            return whole
        stays = random(self.seed, epoch, 1, step).random(len(whole.ids)) >= self.left_out
        return thinned(whole, stays | np.isin(whole.ids.numpy(), self.keep))

    def edges(self, epoch: int) -> Ints:
        """(steps + 1,): where in the epoch's order each step begins."""
        count = len(self.data)
        if self.tokens is None:
            return np.append(np.arange(0, count, self.batch_size), count)
        if self._last is None or self._last[0] != epoch:
            self._last = epoch, token_edges(self.data.lengths[order(count, self.seed, epoch)], self.tokens)
        return self._last[1]


def thinned(batch: Batch, stays: NDArray[np.bool_]) -> Batch:
    """The batch with those of its tokens (N,) that stay; a text that would lose all of them keeps its first.

    >>> batch = Batch(torch.tensor([5, 6, 7, 8]), torch.tensor([0, 3, 4], dtype=torch.int32), longest=3)
    >>> few = thinned(batch, np.array([False, True, True, False]))
    >>> few.ids.tolist(), few.starts.tolist(), few.longest
    ([6, 7, 8], [0, 2, 3], 2)
    """
    starts = batch.starts.numpy()
    left = np.concatenate([[0], np.cumsum(stays)])[starts]
    emptied = np.flatnonzero(np.diff(left) == 0)
    stays = stays.copy()
    stays[starts[emptied]] = True
    left = np.concatenate([[0], np.cumsum(stays)])[starts].astype(np.int32)
    return replace(
        batch,
        ids=batch.ids[stays],
        starts=torch.from_numpy(left),
        longest=int(np.diff(left).max()),
        segments=None if batch.segments is None else batch.segments[stays],
    )


def token_edges(lengths: Ints, tokens: int) -> Ints:
    """Cut a row of lengths into runs that begin in successive spans of `tokens` tokens.

    >>> token_edges(np.array([3, 3, 3, 3, 9, 1]), 6).tolist()
    [0, 2, 4, 5, 6]
    """
    before = np.cumsum(lengths) - lengths  # tokens before each item
    span = before // tokens
    return np.concatenate([[0], np.flatnonzero(np.diff(span)) + 1, [len(lengths)]])


def in_order(data: Encoded, tokens: int) -> list[Ints]:
    """The rows of a set in batches of about `tokens` tokens, rows of like length together: for scoring alone."""
    if len(data) == 0:
        return []
    rows = np.argsort(data.lengths, kind="stable")
    edges = token_edges(data.lengths[rows], tokens)
    return [rows[a:b] for a, b in pairwise(edges)]


# --- language models ------------------------------------------------------------------------------------------------


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
        targets = np.append(ids[1:], IGNORE)[: visit.tokens]
        targets[np.isin(targets, self.given)] = IGNORE
        rows = np.split(ids[: visit.tokens], np.arange(self.window, min(len(ids), visit.tokens), self.window))
        return Batch(**_flat(rows), targets=torch.from_numpy(targets))

    def _apart(self, epoch: int, step: int) -> Batch:
        rows = [self.visit.pieces[number] for number in self.visit.numbers(epoch, step)]
        targets = np.concatenate([np.append(row[1:], IGNORE) for row in rows])
        return Batch(**_flat(rows), targets=torch.from_numpy(targets))


@dataclass(frozen=True)
class Hidden:
    """A sequence with some of its tokens hidden: where they are, and what they were."""

    ids: Ints
    places: Ints
    targets: Ints


def _masks(rows: Sequence[Hidden]) -> dict[str, Any]:
    """The masks of a batch of these sequences."""
    before = np.cumsum([0, *(len(row.ids) for row in rows)])
    masked = np.concatenate([row.places + begin for row, begin in zip(rows, before[:-1], strict=True)])
    return {"masked": torch.from_numpy(masked), "targets": torch.from_numpy(np.concatenate([r.targets for r in rows]))}


@dataclass(frozen=True)
class Masking:
    """Which tokens are hidden, and how: 80 % behind the mask, 10 % behind a random token, 10 % left as they are."""

    mask: int
    size: int  # of the vocabulary
    special: NDArray[np.bool_]  # (V,) tokens that are never hidden
    begins: NDArray[np.bool_]  # (V,) pieces that begin a word
    ends: NDArray[np.bool_]  # (V,) pieces that end one, whatever comes next
    rate: float = 0.15
    whole_words: bool = False

    @classmethod
    def of(cls, tokenizer: Tokenizer, rate: float = 0.15, whole_words: bool = False) -> Masking:
        if tokenizer.mask is None:
            raise ModelError("this tokenizer has no mask token: a masked model needs one that has")
        if not 0 < rate < 1:
            raise ModelError(f"a masking rate of {rate} hides nothing or everything: choose one between 0 and 1")
        special = np.zeros(tokenizer.size, dtype=bool)
        roles = [tokenizer.start, tokenizer.end, tokenizer.pad, tokenizer.mask, tokenizer.separator]
        roles.append(tokenizer.unknown)  # to guess that something is unknown teaches nothing
        special[[token for token in roles if token is not None]] = True
        begins, ends = (np.array(edge, dtype=bool) for edge in tokenizer.word_edges)
        return cls(tokenizer.mask, tokenizer.size, special, begins, ends, rate, whole_words)

    def hide(self, ids: Ints, key: tuple[int, ...]) -> Hidden:
        """The ids with some of them hidden; the key decides which."""
        draw = random(*key)
        chance, fate = draw.random(len(ids)), draw.random(len(ids))
        other = draw.integers(self.size, size=len(ids))
        if self.whole_words:  # a word shares the chance of its first piece
            begins = self.begins[ids] | np.append(True, self.ends[ids[:-1]])
            chance = chance[begins][np.cumsum(begins) - 1]
        chosen = (chance < self.rate) & ~self.special[ids]
        hidden = np.where(fate < 0.8, self.mask, np.where(fate < 0.9, other, ids))
        return Hidden(np.where(chosen, hidden, ids), np.flatnonzero(chosen), ids[chosen])


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
        return Batch(**_flat([row.ids for row in rows]), **_masks(rows))


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
            ids, parts, label = self._pair(int(number), random(*key, int(number), 2))
            rows.append(self.masking.hide(ids, (*key, int(number), 1)))
            segments.append(parts)
            labels.append(label)
        return Batch(
            **_flat([row.ids for row in rows]),
            **_masks(rows),
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
