"""Batches for one model that is causal and masked (GPT-BERT, Charpentier and Samuel 2024)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from headstart.batches.batch import IGNORE_INDEX, Batch, packed, rng
from headstart.batches.language import MaskedBatches
from headstart.errors import ModelError

KIND = 4  # sets the draw of the kinds of steps apart from those of order, masks and dropout


class CausalMaskedBatches(MaskedBatches):
    """The windows of `MaskedBatches`, each once an epoch; a share of the steps are causal, the others masked.

    In both the target is the next token of the position that is read: in a causal step at every token, under the causal
    mask; in a masked step at the token before each masked one, and all tokens see both sides.
    """

    def __init__(self, *arguments: Any, causal_share: float, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.causal_share = causal_share
        if not self.windows.prefix:
            raise ModelError(
                "this tokenizer puts no token before a text, and causal+masked predicts the first word from it: "
                "use a tokenizer with a start token"
            )

    def batch(self, epoch: int, step: int) -> Batch:
        if self.is_causal(epoch, step):
            return self._causal_batch(epoch, step)
        batch = super().batch(epoch, step)
        assert batch.masked is not None
        return replace(batch, masked=batch.masked - 1)  # a special token, never masked, begins each window

    def is_causal(self, epoch: int, step: int) -> bool:
        """Causal steps lie evenly apart; where they begin in an epoch is drawn, so that short epochs have them too."""
        begin = rng(*self.sampler.key(epoch), KIND).random()
        before, after = (math.floor(begin + self.causal_share * number) for number in (step, step + 1))
        return after > before

    def _causal_batch(self, epoch: int, step: int) -> Batch:
        windows = self.sampler.items(epoch, step)
        ids, starts = self.windows.sequences(windows)
        targets = np.append(ids[1:], IGNORE_INDEX)
        ends, suffix = starts[1:], len(self.windows.suffix)
        for back in range(1, max(suffix, 1) + 1):
            targets[ends - back] = IGNORE_INDEX
        if suffix:  # the end of a window is no end of the text where its document goes on
            targets[ends[~self.windows.ends_document(windows)] - suffix - 1] = IGNORE_INDEX
        return Batch(**packed(ids, starts), targets=torch.from_numpy(targets), causal=True)
