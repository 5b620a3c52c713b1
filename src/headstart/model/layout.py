"""How the tokens of a batch lie: end to end, as a padded block, or as a block that goes on where others ended.

The backbone is written over `(…, D)` and never asks. Attention needs to know which tokens belong together, positions
need to know where each token stands, and a classifier needs one vector for each sequence; they ask the layout.

    N tokens, S sequences, L the longest of them, D width, H heads, K head width

    >>> flat = Flat.of([3, 2])
    >>> flat.starts.tolist(), flat.place.tolist(), flat.sequence.tolist()
    ([0, 3, 5], [0, 1, 2, 0, 1], [0, 0, 0, 1, 1])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from headstart.config import Pool


@dataclass(frozen=True)
class Flat:
    """Sequences end to end, without padding: sequence s is tokens `starts[s]` up to `starts[s + 1]`.

    A sequence may be empty: a batch filled up to a fixed number of sequences ends in empty ones.
    """

    starts: Tensor  # (S + 1,) int32, as the varlen kernel wants it
    longest: int
    sequence: Tensor  # (N,) which sequence a token belongs to
    place: Tensor  # (N,) where in that sequence it stands
    cell: Tensor  # (N,) where it stands in the block, row after row
    real: Tensor | None  # (S, L) which cells of the block hold a token; None where all do

    @classmethod
    def at(cls, starts: Tensor, longest: int, tokens: int) -> Flat:
        """The layout of `tokens` tokens whose sequences begin at `starts`; shapes depend on no value."""
        index = torch.arange(tokens, device=starts.device, dtype=starts.dtype)
        sequence = torch.searchsorted(starts[1:].contiguous(), index, right=True)
        place = (index - starts[sequence]).long()
        real = None
        if tokens != (len(starts) - 1) * longest:
            real = torch.arange(longest, device=starts.device) < starts.diff()[:, None]
        return cls(starts, longest, sequence, place, sequence * longest + place, real)

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device | str = "cpu") -> Flat:
        """The layout of sequences of these lengths."""
        starts = torch.tensor([0, *lengths], dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32)
        return cls.at(starts, max(lengths), sum(lengths))

    def block(self, x: Tensor) -> Tensor:
        """(N, …) → (S, L, …), zeros where there is no token."""
        sequences = self.starts.shape[0] - 1
        if x.shape[0] == sequences * self.longest:  # all of one length: nothing to move
            return x.view(sequences, self.longest, *x.shape[1:])
        empty = x.new_zeros(sequences * self.longest, *x.shape[1:])
        return empty.index_copy(0, self.cell, x).view(sequences, self.longest, *x.shape[1:])

    def flatten(self, x: Tensor) -> Tensor:
        """(S, L, …) → (N, …): the way back from `block`."""
        cells = x.reshape(-1, *x.shape[2:])
        return cells if cells.shape[0] == self.place.shape[0] else cells.index_select(0, self.cell)

    def take(self, x: Tensor, keep: Tensor) -> Tensor:
        """(N, …) → (M, …): the tokens at `keep` (M,)."""
        return x[keep]

    def one_each(self, how: Pool) -> Tensor | None:
        """(S,): which token stands for its sequence, the first or the last; None where all of them do."""
        if how == "first":
            return self.starts[:-1].clamp(max=self.place.shape[0] - 1)
        return self.starts[1:] - 1 if how == "last" else None

    def pool(self, x: Tensor, how: Pool) -> Tensor:
        """(N, D) → (S, D): the first or the last token of each sequence, or the mean of them."""
        one_each = self.one_each(how)
        if one_each is not None:
            return self.take(x, one_each)
        lengths = self.starts.diff()[:, None]
        exact = x if x.dtype == torch.float64 else x.float()  # a long sum in half precision loses what it adds
        total = exact.new_zeros(lengths.shape[0], x.shape[1]).index_add(0, self.sequence, exact)
        return (total / lengths.clamp(min=1)).to(x.dtype)


@dataclass(frozen=True)
class Dense:
    """A block of S sequences by L cells, padded on the right: the form that other tools and ONNX speak."""

    mask: Tensor  # (S, L) True where there is a token

    @property
    def longest(self) -> int:
        return self.mask.shape[1]

    @property
    def place(self) -> Tensor:
        return torch.arange(self.mask.shape[1], device=self.mask.device).expand(self.mask.shape)

    @property
    def real(self) -> Tensor:
        return self.mask

    def block(self, x: Tensor) -> Tensor:
        return x

    def flatten(self, x: Tensor) -> Tensor:
        return x

    def take(self, x: Tensor, keep: Tensor) -> Tensor:
        """(S, L, …) → (M, …): the cells at `keep` (M,), counted row after row."""
        return x.flatten(0, 1)[keep]

    def one_each(self, how: Pool) -> Tensor | None:
        """(S,): the cell that stands for its row."""
        sequences, cells = self.mask.shape
        first = torch.arange(sequences, device=self.mask.device) * cells
        if how == "first":
            return first
        return first + self.mask.sum(1) - 1 if how == "last" else None

    def pool(self, x: Tensor, how: Pool) -> Tensor:
        """(S, L, D) → (S, D)"""
        one_each = self.one_each(how)
        if one_each is not None:
            return self.take(x, one_each)
        return (x * self.mask[..., None]).sum(1) / self.mask.sum(1).clamp(min=1)[:, None]


@dataclass(frozen=True)
class Cached(Dense):
    """A block that goes on where others ended: a causal model reads a text step by step, and no token of it twice.

    `before` cells of each sequence were read in earlier steps; each layer's keys and values of them are in `seen`.
    There is no padding.

        >>> prompt = Cached(torch.ones(1, 3, dtype=torch.bool))
        >>> prompt.then(1).place.tolist(), prompt.then(1).visible.tolist()
        ([[3]], [[True, True, True, True]])
    """

    before: int = 0
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def then(self, length: int) -> Cached:
        """The layout of the next `length` tokens of each sequence."""
        return Cached(self.mask.new_ones(self.mask.shape[0], length), self.longest, self.seen)

    @property
    def longest(self) -> int:
        return self.before + self.mask.shape[1]

    @property
    def place(self) -> Tensor:
        return super().place + self.before

    @property
    def visible(self) -> Tensor:
        """(L, before + L): which tokens each new one may look at."""
        return self.mask.new_ones(self.mask.shape[1], self.longest).tril(self.before)

    def extend(self, layer: nn.Module, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """(S, L, H, K) → (S, before + L, H, K): a layer's keys and values of all tokens so far, kept for later."""
        if self.before:
            old_k, old_v = (x[:, : self.before] for x in self.seen[layer])
            k, v = torch.cat([old_k, k], 1), torch.cat([old_v, v], 1)
        self.seen[layer] = k, v
        return k, v


Layout = Flat | Dense
