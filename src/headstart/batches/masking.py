"""Which tokens a masked language model has to predict, and what the model sees instead (Devlin et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.batches.batch import Ints
from headstart.batches.draws import Bits, below, draw, threshold
from headstart.batches.ragged import positions
from headstart.errors import ModelError
from headstart.tokenizers.tokenizer import Tokenizer


class MaskingResult(NamedTuple):
    """N tokens of a batch, M of which are masked."""

    ids: Ints  # (N,) as the model sees them
    masked: Ints  # (M,) positions of the masked tokens
    targets: Ints  # (M,) what they were


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
    rate_end: float | None = None  # in the last step of a run; None: the rate stays

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, rate: float = 0.15, whole_words: bool = False, rate_end: float | None = None
    ) -> Masking:
        if tokenizer.mask is None:
            raise ModelError("this tokenizer has no mask token: a masked model needs one that has")
        for each in (rate, rate if rate_end is None else rate_end):
            if not 0 < each < 1:
                raise ModelError(f"a masking rate of {each} masks nothing or everything: choose one between 0 and 1")
        special = np.zeros(tokenizer.size, dtype=bool)
        roles = [tokenizer.start, tokenizer.end, tokenizer.pad, tokenizer.mask, tokenizer.separator]
        roles.append(tokenizer.unknown)  # nothing is learned from predicting that a token is unknown
        special[[token for token in roles if token is not None]] = True
        begins, ends = (np.array(edge, dtype=bool) for edge in tokenizer.word_edges)
        return cls(tokenizer.mask, tokenizer.size, special, begins, ends, rate, whole_words, rate_end)

    def at(self, progress: float) -> Masking:
        """With the rate of a step that is so far through its run: 0 is the first step and 1 the last."""
        end = self.rate if self.rate_end is None else self.rate_end
        return replace(self, rate=(1 - progress) * self.rate + progress * end, rate_end=None)

    def apply(self, ids: Ints, starts: Ints, streams: Bits) -> MaskingResult:
        """Mask some of the tokens (N,) of S sequences, which begin at `starts` (S + 1,). The stream of a sequence (S,)
        decides which of its tokens, so that it does not matter what else is in the batch.
        """
        lengths = np.diff(starts)
        bits = draw(np.repeat(streams, lengths), positions(lengths))
        chance = bits
        if self.whole_words:  # a word shares the chance of its first token
            begins = self.begins[ids]
            begins[1:] |= self.ends[ids[:-1]]
            begins[starts[:-1][lengths > 0]] = True
            chance = bits[begins][np.cumsum(begins) - 1]
        masked = np.flatnonzero((chance < threshold(self.rate)) & ~self.special[ids])
        targets = ids[masked]
        kind, random_bits = draw(bits[masked], 1), draw(bits[masked], 2)
        random_ids = below(random_bits, self.size)
        seen = np.where(kind < threshold(0.8), self.mask, np.where(kind < threshold(0.9), random_ids, targets))
        ids = ids.copy()
        ids[masked] = seen
        return MaskingResult(ids, masked, targets)
