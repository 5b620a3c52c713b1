"""Which tokens a masked language model has to predict, and what the model sees instead (Devlin et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.batches.batch import Ints, pack, rng
from headstart.errors import ModelError
from headstart.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class MaskedSequence:
    """A sequence of L tokens, M of which are masked."""

    ids: Ints  # (L,) as the model sees them
    positions: Ints  # (M,) of the masked tokens
    targets: Ints  # (M,) what they were


def pack_masked(sequences: Sequence[MaskedSequence]) -> dict[str, Any]:
    """The fields of a batch of masked sequences."""
    packed = pack([sequence.ids for sequence in sequences])
    starts = packed["starts"][:-1].tolist()
    masked = [sequence.positions + start for sequence, start in zip(sequences, starts, strict=True)]
    targets = [sequence.targets for sequence in sequences]
    packed["masked"], packed["targets"] = (torch.from_numpy(np.concatenate(parts)) for parts in (masked, targets))
    return packed


@dataclass(frozen=True)
class Masking:
    """Of the masked tokens 80 % become the mask token, 10 % a random one, and 10 % stay as they are."""

    mask: int
    size: int  # of the vocabulary
    special: NDArray[np.bool_]  # (V,) tokens that are never masked
    begins: NDArray[np.bool_]  # (V,) tokens that begin a word
    ends: NDArray[np.bool_]  # (V,) tokens that end one, whatever comes next
    rate: float = 0.15
    whole_words: bool = False

    @classmethod
    def of(cls, tokenizer: Tokenizer, rate: float = 0.15, whole_words: bool = False) -> Masking:
        if tokenizer.mask is None:
            raise ModelError("this tokenizer has no mask token: a masked model needs one that has")
        if not 0 < rate < 1:
            raise ModelError(f"a masking rate of {rate} masks nothing or everything: choose one between 0 and 1")
        special = np.zeros(tokenizer.size, dtype=bool)
        roles = [tokenizer.start, tokenizer.end, tokenizer.pad, tokenizer.mask, tokenizer.separator]
        roles.append(tokenizer.unknown)  # nothing is learned from predicting that a token is unknown
        special[[token for token in roles if token is not None]] = True
        begins, ends = (np.array(edge, dtype=bool) for edge in tokenizer.word_edges)
        return cls(tokenizer.mask, tokenizer.size, special, begins, ends, rate, whole_words)

    def apply(self, ids: Ints, key: tuple[int, ...]) -> MaskedSequence:
        """Mask some of these tokens (L,); the key decides which."""
        generator = rng(*key)
        chance, fate = generator.random(len(ids)), generator.random(len(ids))
        random_ids = generator.integers(self.size, size=len(ids))
        if self.whole_words:  # a word shares the chance of its first token
            begins = self.begins[ids] | np.append(True, self.ends[ids[:-1]])
            chance = chance[begins][np.cumsum(begins) - 1]
        masked = (chance < self.rate) & ~self.special[ids]
        replaced = np.where(fate < 0.8, self.mask, np.where(fate < 0.9, random_ids, ids))
        return MaskedSequence(np.where(masked, replaced, ids), np.flatnonzero(masked), ids[masked])
