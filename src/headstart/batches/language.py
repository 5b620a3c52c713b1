"""Batches for language models, each a pure function of (seed, epoch, step).

causal           `CausalBatches`: documents end to end, each token's target the next one
causal+masked    `CausalMaskedBatches`, in a file of its own: steps of both kinds
masked           `MaskedBatches`: windows of documents, some of their tokens masked
next sentence    `PairBatches`: two segments that follow one another, or do not, with masks

With `evaluation` the order is that of the file and masks and pairs are the same in every pass.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headstart.batches.batch import IGNORE_INDEX, Batch, Ints, packed
from headstart.batches.draws import Bits, below, draw, streams
from headstart.batches.masking import Masking
from headstart.batches.ragged import Piece, concatenate
from headstart.batches.sampler import BatchSampler, RunLength
from headstart.batches.windows import Windows
from headstart.errors import DataError, ModelError
from headstart.store.store import Documents
from headstart.tokenizers.tokenizer import Tokenizer


class CausalBatches:
    """About `batch_size` × `window` tokens a step, each with the next token as its target.

    Across borders, documents follow one another and every `window` tokens make a sequence: a token may attend to the
    document before, and a step has exactly so many tokens. Without, a sequence is a document or a window of one.
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
        evaluation: bool = False,
    ) -> None:
        prefix, suffix = _document_borders(tokenizer, across)
        self.windows = Windows.cut(documents, prefix, suffix, None if across else window, wrap_each=False)
        self.tokens = min(window * batch_size, self.windows.tokens)
        self.sampler = BatchSampler(self.windows.length, self.tokens, seed, evaluation=evaluation)
        self.window, self.across = window, across
        # A start that always follows an end teaches nothing: it is no target.
        self.predictable = prefix if suffix and suffix != prefix else ()

    def steps(self, epoch: int) -> int:
        if not self.across:
            return self.sampler.steps(epoch)
        rounded_up = -(-self.windows.tokens // self.tokens)
        return rounded_up if self.sampler.evaluation else self.windows.tokens // self.tokens

    def batch(self, epoch: int, step: int) -> Batch:
        return self._across_documents(epoch, step) if self.across else self._within_documents(epoch, step)

    def _across_documents(self, epoch: int, step: int) -> Batch:
        plan = self.sampler.epoch(epoch)
        low = step * self.tokens
        high = min(low + self.tokens + 1, self.windows.tokens)  # one more, for the last target
        ids = self.windows.span(plan.order, plan.starts, low, high)
        targets = np.append(ids[1:], IGNORE_INDEX)[: self.tokens]
        targets[np.isin(targets, self.predictable)] = IGNORE_INDEX
        ids = ids[: self.tokens]
        starts = np.append(np.arange(0, len(ids), self.window), len(ids))
        return Batch(**packed(ids, starts), targets=torch.from_numpy(targets), causal=True)

    def _within_documents(self, epoch: int, step: int) -> Batch:
        ids, starts = self.windows.sequences(self.sampler.items(epoch, step))
        targets = np.append(ids[1:], IGNORE_INDEX)
        targets[starts[1:] - 1] = IGNORE_INDEX
        return Batch(**packed(ids, starts), targets=torch.from_numpy(targets), causal=True)


def _document_borders(tokenizer: Tokenizer, across: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The start and end tokens around a document; across documents, one token that is both stands once between two."""
    start = () if tokenizer.start is None else (tokenizer.start,)
    end = () if tokenizer.end is None or (across and tokenizer.end == tokenizer.start) else (tokenizer.end,)
    return start, end


class MaskedBatches:
    """About `batch_size` × `window` tokens a step: windows in special tokens, as a classifier sees its texts."""

    version = 2  # of its draws: a run that was begun with others cannot be resumed

    def __init__(
        self,
        documents: Documents,
        tokenizer: Tokenizer,
        *,
        window: int,
        batch_size: int,
        seed: int,
        masking: Masking,
        evaluation: bool = False,
        run_length: RunLength | None = None,
    ) -> None:
        text = tokenizer.size  # no token has this id, so it shows where `wrap` puts the text
        wrapped = tokenizer.wrap([text])[0]
        at = wrapped.index(text)
        self.windows = Windows.cut(documents, tuple(wrapped[:at]), tuple(wrapped[at + 1 :]), window, wrap_each=True)
        tokens = window * batch_size
        self.sampler = BatchSampler(self.windows.length, tokens, seed, evaluation=evaluation, run_length=run_length)
        self.masking = masking

    def steps(self, epoch: int) -> int:
        return self.sampler.steps(epoch)

    def batch(self, epoch: int, step: int) -> Batch:
        windows = self.sampler.items(epoch, step)
        ids, starts = self.windows.sequences(windows)
        masking = masking_of_step(self.masking, self.sampler, epoch, step)
        return _masked_batch(masking, ids, starts, streams((*self.sampler.key(epoch), 1), windows))


def masking_of_step(masking: Masking, sampler: BatchSampler, epoch: int, step: int) -> Masking:
    """The masking of one step: its rate may change in the course of a run."""
    return masking if masking.rate_end is None else masking.at(sampler.progress(epoch, step))


def _masked_batch(masking: Masking, ids: Ints, starts: Ints, streams: Bits, **fields: Any) -> Batch:
    ids, masked, targets = masking.apply(ids, starts, streams)
    return Batch(**packed(ids, starts), masked=torch.from_numpy(masked), targets=torch.from_numpy(targets), **fields)


class PairBatches:
    """About `batch_size` × `window` tokens a step, in pairs of segments for BERT's two objectives.

    A pair is a window of a document cut in two, or its first part and as much of another document, half of the time
    each. Label 0: the second segment follows the first. Label 1: it does not.
    """

    version = 2

    def __init__(
        self,
        documents: Documents,
        tokenizer: Tokenizer,
        *,
        window: int,
        batch_size: int,
        seed: int,
        masking: Masking,
        evaluation: bool = False,
        run_length: RunLength | None = None,
    ) -> None:
        self.masking = masking
        self.text = tokenizer.size  # no token has this id, so it shows where `wrap` puts the texts
        self.layout = list(zip(*tokenizer.wrap([self.text], [self.text]), strict=True))  # each token and its segment
        special = len(self.layout) - 2
        if window - special < 2:
            raise ModelError(f"a window of {window} tokens has no room for a pair: choose a longer one")
        self.windows = Windows.cut(documents, (), (), window - special, wrap_each=True)
        self.divisible = np.flatnonzero(self.windows.length >= 2)  # (P,) the windows that can be cut in two
        self.document = self.windows.document[self.divisible]  # (P,) in rising order
        if len(np.unique(self.document)) < 2:
            raise DataError("tokens", "next-sentence pairs need two documents of two tokens or more in this split")
        lengths = self.windows.length[self.divisible] + special
        tokens = window * batch_size
        self.sampler = BatchSampler(lengths, tokens, seed, evaluation=evaluation, run_length=run_length)

    def steps(self, epoch: int) -> int:
        return self.sampler.steps(epoch)

    def batch(self, epoch: int, step: int) -> Batch:
        key, pairs = self.sampler.key(epoch), self.sampler.items(epoch, step)
        first, second, labels = self._segments(pairs, streams((*key, 2), pairs))
        texts = iter((first, second))
        pieces = [next(texts) if token == self.text else Piece.same(token, len(pairs)) for token, _ in self.layout]
        ids, starts = concatenate(pieces)
        lengths = np.stack([piece.length for piece in pieces], axis=1)
        segments = np.repeat(np.tile([segment for _, segment in self.layout], len(pairs)), lengths.ravel())
        return _masked_batch(
            masking_of_step(self.masking, self.sampler, epoch, step),
            ids,
            starts,
            streams((*key, 1), pairs),
            segments=torch.from_numpy(segments),
            labels=torch.from_numpy(labels),
        )

    def _segments(self, pairs: Ints, streams: Bits) -> tuple[Piece, Piece, Ints]:
        """The two segments of each pair, and whether the second is unrelated to the first (1) or follows it (0)."""
        windows = self.divisible[pairs]
        start, length = self.windows.text_start(windows), self.windows.length[windows]
        middle = 1 + below(draw(streams, 0), length - 1)
        labels = below(draw(streams, 1), 2)
        second_start, second_length = start + middle, length - middle
        unrelated = np.flatnonzero(labels)
        second_start[unrelated], second_length[unrelated] = self._unrelated_segments(
            pairs[unrelated], second_length[unrelated], streams[unrelated]
        )
        ids = self.windows.documents.ids
        return Piece(ids, start, middle), Piece(ids, second_start, second_length), labels

    def _unrelated_segments(self, pairs: Ints, wanted: Ints, streams: Bits) -> tuple[Ints, Ints]:
        """Start and length of as much text from within another document, so that neither its length nor a beginning
        tells it apart.
        """
        start, length = np.zeros_like(pairs), np.zeros_like(pairs)
        own_first = np.searchsorted(self.document, self.document[pairs], side="left")
        own = np.searchsorted(self.document, self.document[pairs], side="right") - own_first  # windows of this document
        unfilled = np.arange(len(pairs))
        for attempt in range(8):  # a window that is long enough is soon drawn, where there are any
            window_bits, offset_bits = (draw(streams[unfilled], 2 + 2 * attempt + k) for k in (0, 1))
            other = below(window_bits, len(self.document) - own[unfilled])
            other += np.where(other < own_first[unfilled], 0, own[unfilled])
            window = self.divisible[other]
            available = self.windows.length[window]
            offset = 1 + below(offset_bits, np.maximum(available - wanted[unfilled], 1))
            found = np.minimum(available - offset, wanted[unfilled])
            better = found > length[unfilled]
            start[unfilled[better]] = (self.windows.text_start(window) + offset)[better]
            length[unfilled[better]] = found[better]
            unfilled = unfilled[length[unfilled] < wanted[unfilled]]
        return start, length
