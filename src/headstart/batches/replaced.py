"""Batches for replaced-token detection: masked windows, and all that their replacements depend on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from headstart.batches.batch import Batch
from headstart.batches.draws import draw, streams, uniform
from headstart.batches.language import MaskedBatches


class ReplacedBatches(MaskedBatches):
    """Windows in which every hidden token is the mask token, for a generator to fill.

    Each of them has a number from 0 to 1 that decides, with the generator's probabilities, which token is sampled. So a
    step samples the same whether it is run whole, in micro-batches, by several processes or after a resume, and every
    evaluation the same as the last.
    """

    def batch(self, epoch: int, step: int) -> Batch:
        batch = super().batch(epoch, step)
        assert batch.masked is not None
        assert batch.targets is not None
        starts, masked, ids = batch.starts.numpy(), batch.masked.numpy(), batch.ids.clone()
        ids[batch.masked] = batch.targets
        text = ~self.masking.special[ids.numpy()]
        ids[batch.masked] = self.masking.mask
        window = np.searchsorted(starts, masked, side="right") - 1  # of each masked token
        numbers = streams((*self.sampler.key(epoch), 4), self.sampler.items(epoch, step))[window]
        draws = uniform(draw(numbers, masked - starts[window]))
        return replace(batch, ids=ids, text=torch.from_numpy(text), draws=torch.from_numpy(draws))
