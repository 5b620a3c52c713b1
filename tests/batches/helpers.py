"""What the tests of batches are made of: documents, examples, and batches read back into lists."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st

from headstart.batches.batch import Batch, Batches
from headstart.batches.examples import EncodedExamples
from headstart.batches.sampler import epoch_order
from headstart.reading.examples import Example, Examples
from headstart.store.store import Documents
from headstart.tokenizers.tokenizer import Tokenizer

SIZES = {"wordpiece": 150, "bpe": 340, "unigram": 360}  # small, so that most words are several tokens
FIRST = 10  # ids from here on are text in every tokenizer here

seeds = st.integers(0, 2**32 - 1)
epochs = st.integers(0, 1000)
some_lengths = st.lists(st.integers(1, 40), min_size=1, max_size=40)
few = settings(max_examples=25, deadline=None)


def sentences(count: int, name: str) -> list[str]:
    """Made-up sentences of windows-up words of one to five syllables."""
    draw = random.Random(name)
    syllables = [consonant + vowel for consonant in "bdklmnprst" for vowel in "aeiou"]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 5))) for _ in range(150)]
    return [" ".join(draw.choices(words, k=draw.randint(4, 12))) + draw.choice(".,;") for _ in range(count)]


def store(rows: Sequence[Sequence[int]]) -> Documents:
    """Documents of these tokens."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    ids = np.array([token for row in rows for token in row], dtype=np.uint16)
    return Documents(ids, np.append(0, lengths.cumsum()), lengths)


def numbered(lengths: Sequence[int]) -> list[list[int]]:
    """Documents of these lengths in which every token is another: its id says where it comes from."""
    edges = [FIRST, *accumulate(lengths, initial=FIRST)][1:]
    return [list(range(low, high)) for low, high in pairwise(edges)]


def document_of_token(rows: Sequence[Sequence[int]]) -> dict[int, int]:
    """The document of each token of `numbered` documents."""
    return {token: number for number, row in enumerate(rows) for token in row}


def encoded_documents(tokenizer: Tokenizer, count: int, name: str = "documents") -> list[list[int]]:
    """Documents of one to four sentences, an empty one and one of a single token among them."""
    draw = random.Random(name)
    text = iter(sentences(4 * count, name))
    rows = [tokenizer.encode(" ".join(next(text) for _ in range(draw.randint(1, 4)))) for _ in range(count)]
    return [rows[0], [], [FIRST], *rows[1:], []]


def encoded(lengths: Sequence[int]) -> EncodedExamples:
    """Rows of these lengths, every token another."""
    rows = numbered(lengths)
    ids = np.array([token for row in rows for token in row], dtype=np.int32)
    starts = np.append(0, np.cumsum(lengths)).astype(np.int64)
    return EncodedExamples(ids, starts, None, np.arange(len(rows)) % 3, 0)


def examples(rows: Sequence[tuple[str, str | None, str | None]], path: str = "train.csv") -> Examples:
    """(text, second, label) on lines 2, 3, 4 …"""
    return Examples(
        tuple(Example(text, label, second, path, line) for line, (text, second, label) in enumerate(rows, 2))
    )


@dataclass(frozen=True)
class PlainSequence:
    """One sequence of a batch in lists, and what belongs to it: positions are counted from its own beginning."""

    ids: list[int]
    segments: list[int] | None
    targets: list[int] | None  # the next token of each
    masked: dict[int, int] | None  # position -> the token that was masked
    label: int | None
    row: int | None

    @property
    def text(self) -> list[int]:
        """The tokens as they were before any was masked."""
        return [(self.masked or {}).get(position, token) for position, token in enumerate(self.ids)]


def sequences_of(batch: Batch) -> list[PlainSequence]:
    """The sequences of a batch, read one by one, with its format checked."""
    edges = batch.starts.tolist()
    ids = batch.ids.tolist()
    assert batch.starts.dtype == torch.int32
    assert batch.ids.dtype == torch.int64
    assert (edges[0], edges[-1]) == (0, len(ids))
    assert batch.longest == max(high - low for low, high in pairwise(edges))
    for per_sequence in (batch.labels, batch.rows):
        assert per_sequence is None or len(per_sequence) == len(edges) - 1
    assert batch.segments is None or len(batch.segments) == len(ids)
    targets = None if batch.targets is None else batch.targets.tolist()
    masks: dict[int, int] | None = None
    if batch.masked is not None:
        assert targets is not None
        masks = dict(zip(batch.masked.tolist(), targets, strict=True))
        assert len(masks) == len(targets), "one position is masked twice"
        assert set(masks) <= set(range(len(ids)))
    elif targets is not None:
        assert len(targets) == len(ids)
    return [
        PlainSequence(
            ids=ids[low:high],
            segments=None if batch.segments is None else batch.segments[low:high].tolist(),
            targets=None if targets is None or masks is not None else targets[low:high],
            masked=None if masks is None else {p - low: masks[p] for p in range(low, high) if p in masks},
            label=None if batch.labels is None else int(batch.labels[number]),
            row=None if batch.rows is None else int(batch.rows[number]),
        )
        for number, (low, high) in enumerate(pairwise(edges))
    ]


def steps_of(data: Batches, epoch: int) -> list[list[PlainSequence]]:
    """Every step of an epoch."""
    return [sequences_of(data.batch(epoch, step)) for step in range(data.steps(epoch))]


def sequences_in(steps: Sequence[Sequence[PlainSequence]]) -> list[PlainSequence]:
    return [sequence for step in steps for sequence in step]


def tokens_in(steps: Sequence[Sequence[PlainSequence]]) -> list[int]:
    """Every token, masks taken off, in the order of the steps."""
    return [token for sequence in sequences_in(steps) for token in sequence.text]


def near(count: int, trials: float, chance: float, spread: float | None = None) -> bool:
    """Is a count within five standard deviations of what a chance gives? `spread`: its variance, if not binomial."""
    variance = trials * chance * (1 - chance) if spread is None else spread
    return abs(count - trials * chance) <= 5 * math.sqrt(variance)


def windows_by_hand(
    rows: Sequence[Sequence[int]],
    prefix: tuple[int, ...],
    suffix: tuple[int, ...],
    longest: int | None,
    wrap_each: bool,
) -> list[list[int]]:
    """Wrap each document and cut it, or cut it and wrap each window."""
    windows: list[list[int]] = []
    for row in filter(None, rows):
        body = list(row) if wrap_each else [*prefix, *row, *suffix]
        stride = len(body) if longest is None else longest - (len(prefix) + len(suffix) if wrap_each else 0)
        cut = [body[low : low + stride] for low in range(0, len(body), stride)]
        windows += [[*prefix, *text, *suffix] for text in cut] if wrap_each else cut
    return windows


def epoch_by_hand(windows: Sequence[list[int]], seed: int | None, epoch: int) -> list[tuple[int, bool]]:
    """The tokens of an epoch end to end, each with whether a window begins there."""
    order = range(len(windows)) if seed is None else epoch_order(len(windows), seed, epoch).tolist()
    return [(token, position == 0) for number in order for position, token in enumerate(windows[number])]


def steps_by_hand(windows: Sequence[list[int]], budget: int, seed: int | None, epoch: int) -> list[list[int]]:
    """The numbers of the windows of each step: a window is in the step in whose span of tokens it begins."""
    order = range(len(windows)) if seed is None else epoch_order(len(windows), seed, epoch).tolist()
    begins = accumulate((len(windows[number]) for number in order), initial=0)
    spans = groupby(zip(order, begins, strict=False), key=lambda item: item[1] // budget)
    return [[number for number, _ in step] for _, step in spans]


def check_sizes(steps: Sequence[Sequence[PlainSequence]], window: int, size: int) -> None:
    """A step is less than a window away from `size` × `window` tokens; the last may have fewer, but not none."""
    lengths = [len(tokens_in([step])) for step in steps]
    assert all(abs(length - window * size) < window for length in lengths[:-1])
    assert 0 < lengths[-1] < window * (size + 1)
    assert len(lengths) <= math.ceil(sum(lengths) / (window * size))
