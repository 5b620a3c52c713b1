"""Which tokens a masked language model has to predict, and what stands in their place (Devlin et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.batches.batch import Ints, rng
from headstart.errors import ModelError
from headstart.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Hidden:
    """A sequence with some of its tokens hidden: where they are, and what they were."""

    ids: Ints
    places: Ints
    targets: Ints


def masks(rows: Sequence[Hidden]) -> dict[str, Any]:
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
        draw = rng(*key)
        chance, fate = draw.random(len(ids)), draw.random(len(ids))
        other = draw.integers(self.size, size=len(ids))
        if self.whole_words:  # a word shares the chance of its first piece
            begins = self.begins[ids] | np.append(True, self.ends[ids[:-1]])
            chance = chance[begins][np.cumsum(begins) - 1]
        chosen = (chance < self.rate) & ~self.special[ids]
        hidden = np.where(fate < 0.8, self.mask, np.where(fate < 0.9, other, ids))
        return Hidden(np.where(chosen, hidden, ids), np.flatnonzero(chosen), ids[chosen])
