"""Batches for language models, each a pure function of (seed, epoch, step).

causal           `CausalBatches`: documents end to end, each token's target the next one
masked           `MaskedBatches`: windows of documents, some of their tokens masked
next sentence    `PairBatches`: two segments that follow one another, or do not, with masks

With `evaluation` the order is that of the file and masks and pairs are the same in every pass.
"""

from __future__ import annotations

import numpy as np
import torch

from headstart.batches.batch import IGNORE_INDEX, Batch, Ints, pack, rng
from headstart.batches.masking import Masking, pack_masked
from headstart.batches.sampler import BatchSampler
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
        sequences = np.split(ids, np.arange(self.window, len(ids), self.window))
        return Batch(**pack(sequences), targets=torch.from_numpy(targets))

    def _within_documents(self, epoch: int, step: int) -> Batch:
        sequences = [self.windows[int(window)] for window in self.sampler.items(epoch, step)]
        targets = np.concatenate([np.append(ids[1:], IGNORE_INDEX) for ids in sequences])
        return Batch(**pack(sequences), targets=torch.from_numpy(targets))


def _document_borders(tokenizer: Tokenizer, across: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The start and end tokens around a document; across documents, one token that is both stands once between two."""
    start = () if tokenizer.start is None else (tokenizer.start,)
    end = () if tokenizer.end is None or (across and tokenizer.end == tokenizer.start) else (tokenizer.end,)
    return start, end


class MaskedBatches:
    """About `batch_size` × `window` tokens a step: windows in special tokens, as a classifier sees its texts."""

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
    ) -> None:
        placeholder = tokenizer.size  # no token has this id, so it shows where `wrap` puts the text
        wrapped = tokenizer.wrap([placeholder])[0]
        at = wrapped.index(placeholder)
        self.windows = Windows.cut(documents, tuple(wrapped[:at]), tuple(wrapped[at + 1 :]), window, wrap_each=True)
        self.sampler = BatchSampler(self.windows.length, window * batch_size, seed, evaluation=evaluation)
        self.masking = masking

    def steps(self, epoch: int) -> int:
        return self.sampler.steps(epoch)

    def batch(self, epoch: int, step: int) -> Batch:
        key = self.sampler.key(epoch)
        windows = self.sampler.items(epoch, step).tolist()
        return Batch(**pack_masked([self.masking.apply(self.windows[w], (*key, w, 1)) for w in windows]))


class PairBatches:
    """About `batch_size` × `window` tokens a step, in pairs of segments for BERT's two objectives.

    A pair is a window of a document cut in two, or its first part and as much of another document, half of the time
    each. Label 0: the second segment follows the first. Label 1: it does not.
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
        evaluation: bool = False,
    ) -> None:
        self.tokenizer, self.masking = tokenizer, masking
        special = len(tokenizer.wrap([], [])[0])
        if window - special < 2:
            raise ModelError(f"a window of {window} tokens has no room for a pair: choose a longer one")
        self.windows = Windows.cut(documents, (), (), window - special, wrap_each=True)
        self.divisible = np.flatnonzero(self.windows.length >= 2)  # (P,) the windows that can be cut in two
        self.document = self.windows.document[self.divisible]  # (P,) in rising order
        if len(np.unique(self.document)) < 2:
            raise DataError("tokens", "next-sentence pairs need two documents of two tokens or more in this split")
        lengths = self.windows.length[self.divisible] + special
        self.sampler = BatchSampler(lengths, window * batch_size, seed, evaluation=evaluation)

    def steps(self, epoch: int) -> int:
        return self.sampler.steps(epoch)

    def batch(self, epoch: int, step: int) -> Batch:
        key = self.sampler.key(epoch)
        sequences, segments, labels = [], [], []
        for pair in self.sampler.items(epoch, step).tolist():
            ids, segment, label = self._pair(pair, rng(*key, pair, 2))
            sequences.append(self.masking.apply(ids, (*key, pair, 1)))
            segments.append(segment)
            labels.append(label)
        return Batch(
            **pack_masked(sequences),
            segments=torch.from_numpy(np.concatenate(segments)),
            labels=torch.tensor(labels),
        )

    def _pair(self, pair: int, generator: np.random.Generator) -> tuple[Ints, Ints, int]:
        """Ids and segments of a pair, and whether its second segment is unrelated."""
        text = self.windows[int(self.divisible[pair])]
        middle = int(generator.integers(1, len(text)))
        second, label = text[middle:], int(generator.random() < 0.5)
        if label:
            second = self._unrelated_segment(pair, len(second), generator)
        ids, segments = self.tokenizer.wrap(text[:middle].tolist(), second.tolist())
        return np.array(ids, dtype=np.int64), np.array(segments, dtype=np.int64), label

    def _unrelated_segment(self, pair: int, length: int, generator: np.random.Generator) -> Ints:
        """As much text from within another document, so that neither its length nor a beginning tells it apart."""
        first = np.searchsorted(self.document, self.document[pair], side="left")
        own = np.searchsorted(self.document, self.document[pair], side="right") - first  # windows of this document
        longest = np.zeros(0, dtype=np.int64)
        for _ in range(8):  # a window that is long enough is soon drawn, where there are any
            other = int(generator.integers(len(self.document) - own))
            text = self.windows[int(self.divisible[other if other < first else other + own])]
            offset = int(generator.integers(1, max(len(text) - length, 1) + 1))
            segment = text[offset : offset + length]
            if len(segment) > len(longest):
                longest = segment
            if len(longest) == length:
                break
        return longest
