"""How the tokens of a batch are laid out: packed end to end, padded, or as new tokens after a key-value cache.

The backbone is written over `(…, D)` and never asks. Attention needs to know which tokens belong to one sequence,
position embeddings where each token stands in it, and a classifier one vector for each sequence; they ask the layout.

    N tokens, S sequences, L the longest of them, D width, H heads, K head width

    >>> flat = Flat.from_lengths([3, 2])
    >>> flat.starts.tolist(), flat.position.tolist(), flat.sequence.tolist()
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
    sequence: Tensor  # (N,) the sequence of each token
    position: Tensor  # (N,) its position in that sequence
    padded_index: Tensor  # (N,) its index in the padded (S, L) block, row by row
    real: Tensor | None  # (S, L) True for tokens, False for padding; None without padding
    causal: bool = False  # no token attends to a later one; in a causal model none ever does

    @classmethod
    def from_starts(cls, starts: Tensor, longest: int, tokens: int, *, causal: bool = False) -> Flat:
        """The layout of sequences that begin at `starts`. Shapes depend on no tensor's values, for CUDA graphs."""
        index = torch.arange(tokens, device=starts.device, dtype=starts.dtype)
        sequence = torch.searchsorted(starts[1:].contiguous(), index, right=True)
        position = (index - starts[sequence]).long()
        real = None
        if tokens != (len(starts) - 1) * longest:
            real = torch.arange(longest, device=starts.device) < starts.diff()[:, None]
        return cls(starts, longest, sequence, position, sequence * longest + position, real, causal)

    @classmethod
    def from_lengths(cls, lengths: Sequence[int], device: torch.device | str = "cpu", *, causal: bool = False) -> Flat:
        """The layout of sequences of these lengths."""
        starts = torch.tensor([0, *lengths], dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32)
        return cls.from_starts(starts, max(lengths), sum(lengths), causal=causal)

    def pad(self, x: Tensor) -> Tensor:
        """(N, …) → (S, L, …), zeros for padding."""
        sequences = self.starts.shape[0] - 1
        if x.shape[0] == sequences * self.longest:  # all of one length: a view
            return x.view(sequences, self.longest, *x.shape[1:])
        empty = x.new_zeros(sequences * self.longest, *x.shape[1:])
        return empty.index_copy(0, self.padded_index, x).view(sequences, self.longest, *x.shape[1:])

    def unpad(self, x: Tensor) -> Tensor:
        """(S, L, …) → (N, …): the inverse of `pad`."""
        cells = x.reshape(-1, *x.shape[2:])
        return cells if cells.shape[0] == self.position.shape[0] else cells.index_select(0, self.padded_index)

    def take(self, x: Tensor, keep: Tensor) -> Tensor:
        """(N, …) → (M, …): the tokens at `keep` (M,)."""
        return x[keep]

    def pool_index(self, how: Pool) -> Tensor | None:
        """(S,): the index of the first or last token of each sequence; None for the mean of all."""
        if how == "first":
            return self.starts[:-1].clamp(max=self.position.shape[0] - 1)
        return self.starts[1:] - 1 if how == "last" else None

    def pool(self, x: Tensor, how: Pool) -> Tensor:
        """(N, D) → (S, D): the first or the last token of each sequence, or the mean of them."""
        index = self.pool_index(how)
        if index is not None:
            return self.take(x, index)
        lengths = self.starts.diff()[:, None]
        exact = x if x.dtype == torch.float64 else x.float()  # a long sum in half precision loses digits
        total = exact.new_zeros(lengths.shape[0], x.shape[1]).index_add(0, self.sequence, exact)
        return (total / lengths.clamp(min=1)).to(x.dtype)


@dataclass(frozen=True)
class Dense:
    """S sequences padded on the right to L tokens: the form of ONNX and `transformers`."""

    mask: Tensor  # (S, L) True for tokens, False for padding
    causal: bool = field(default=False, kw_only=True)

    @property
    def longest(self) -> int:
        return self.mask.shape[1]

    @property
    def position(self) -> Tensor:
        return torch.arange(self.mask.shape[1], device=self.mask.device).expand(self.mask.shape)

    @property
    def real(self) -> Tensor:
        return self.mask

    def pad(self, x: Tensor) -> Tensor:
        return x

    def unpad(self, x: Tensor) -> Tensor:
        return x

    def take(self, x: Tensor, keep: Tensor) -> Tensor:
        """(S, L, …) → (M, …): the tokens at `keep` (M,), indices into the flattened (S · L)."""
        return x.flatten(0, 1)[keep]

    def pool_index(self, how: Pool) -> Tensor | None:
        """(S,): the flattened index of the first or last token of each row."""
        sequences, cells = self.mask.shape
        first = torch.arange(sequences, device=self.mask.device) * cells
        if how == "first":
            return first
        return first + self.mask.sum(1) - 1 if how == "last" else None

    def pool(self, x: Tensor, how: Pool) -> Tensor:
        """(S, L, D) → (S, D)"""
        index = self.pool_index(how)
        if index is not None:
            return self.take(x, index)
        return (x * self.mask[..., None]).sum(1) / self.mask.sum(1).clamp(min=1)[:, None]


@dataclass(frozen=True)
class Cached(Dense):
    """New tokens after a key-value cache: a causal model generates step by step and reads no token twice.

    `past` tokens of each sequence were read in earlier steps; `cache` holds their keys and values for each layer.
    There is no padding.

        >>> prompt = Cached(torch.ones(1, 3, dtype=torch.bool))
        >>> prompt.next(1).position.tolist(), prompt.next(1).causal_mask.tolist()
        ([[3]], [[True, True, True, True]])
    """

    causal: bool = field(default=True, init=False)
    past: int = 0
    cache: dict[nn.Module, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def next(self, length: int) -> Cached:
        """The layout of the next `length` tokens of each sequence."""
        return Cached(self.mask.new_ones(self.mask.shape[0], length), self.longest, self.cache)

    @property
    def longest(self) -> int:
        return self.past + self.mask.shape[1]

    @property
    def position(self) -> Tensor:
        return super().position + self.past

    @property
    def causal_mask(self) -> Tensor:
        """(L, past + L): True where a new token may attend."""
        return self.mask.new_ones(self.mask.shape[1], self.longest).tril(self.past)

    def extend(self, layer: nn.Module, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """(S, L, H, K) → (S, past + L, H, K): a layer's keys and values of all tokens so far."""
        if self.past:
            old_k, old_v = (x[:, : self.past] for x in self.cache[layer])
            k, v = torch.cat([old_k, k], 1), torch.cat([old_v, v], 1)
        self.cache[layer] = k, v
        return k, v


Layout = Flat | Dense
