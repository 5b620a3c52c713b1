"""Replaced-token detection (Clark et al. 2020, "ELECTRA"), which learns from every token of a text.

A generator fills the masks of a text, and the model tells for each token whether it is the one that stood there:

    the text     the  cat   saw  a  bird
    masked       the [MASK] saw  a [MASK]
    filled       the  dog   saw  a  bird       a token is sampled from the generator's probabilities
    replaced      0    1     0   0    0        a sample that is the original counts as original

The generator is trained as any masked model is, and not to deceive: no gradient passes through a sampled token. It is a
part of the head while the model trains, and dropped at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.batches.batch import IGNORE_INDEX, Batch
from headstart.config import ReplacedConfig
from headstart.errors import ModelError
from headstart.metrics import Scores
from headstart.model.heads import ReplacedHead
from headstart.model.model import Model
from headstart.training.cross_entropy import chunked_cross_entropy
from headstart.training.objectives import Objective, layout_of

CHUNK = {"cpu": 512, "cuda": 1024}  # tokens to sample at a time: of each, three numbers a word are held
PARTS_OF_ONE = 2**30  # a probability is a whole number of these: sums of them are exact, in whatever order
WEIGHT = 50.0  # of the detection, as published: its loss is a small part of the generator's


class Detection(NamedTuple):
    """What the model said of N tokens."""

    generator_loss: Tensor  # the sum over the masked tokens
    logits: Tensor  # (N,) above 0: replaced
    replaced: Tensor  # (N,) whether it was


@dataclass(frozen=True)
class Replaced(Objective):
    """The generator's cross-entropy behind the masks, and `weight` times the binary cross-entropy of every token.

    The parts of a step's loss add up to it, so its detection is weighted; an evaluation's `detection_loss` is plain.
    """

    name = "replaced-token training"
    head = ReplacedHead
    parts = ("generator", "detection")

    weight: float = WEIGHT

    def check(self, model: Model) -> None:
        super().check(model)
        assert isinstance(model.head, ReplacedHead)
        if model.head.generator is None:
            raise ModelError(
                "this model's generator was dropped when its training ended: give it a new one, as with_generator does"
            )

    def counts(self, batch: Batch) -> dict[str, float]:
        assert batch.targets is not None
        assert batch.text is not None
        return {"generator": float((batch.targets != IGNORE_INDEX).sum()), "detection": float(batch.text.sum())}

    def sums(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        found = detect(model, batch)
        return {"generator": found.generator_loss, "detection": self.weight * _detection_loss(found, batch)}

    def evaluation_sums(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        """Beside the two losses, how many tokens are replaced, and how many of both kinds are taken for it."""
        assert batch.text is not None
        found = detect(model, batch)
        said, replaced = found.logits > 0, found.replaced
        return {
            "generator": found.generator_loss,
            "detection": _detection_loss(found, batch),
            "replaced": (replaced & batch.text).sum(),
            "hits": (said & replaced & batch.text).sum(),
            "false_alarms": (said & ~replaced & batch.text).sum(),
        }

    def scores(self, sums: dict[str, float], counts: dict[str, float]) -> Scores:
        """The losses, each a mean; of the detection also accuracy and F1, beside the share of tokens to be found."""
        generator = sums["generator"] / max(counts["generator"], 1.0)
        tokens = max(counts["detection"], 1.0)
        detection, replaced, hits = sums["detection"] / tokens, sums["replaced"], sums["hits"]
        wrong = sums["false_alarms"] + replaced - hits
        return {
            "loss": generator + self.weight * detection,
            "generator_loss": generator,
            "detection_loss": detection,
            "detection_accuracy": 1 - wrong / tokens,
            "detection_f1": 2 * hits / max(2 * hits + wrong, 1.0),
            "replaced_share": replaced / tokens,
        }


def detect(model: Model, batch: Batch) -> Detection:
    """Fill the masks of a batch by the generator, and ask the model which tokens are not the text's."""
    assert isinstance(model.head, ReplacedHead)
    assert model.head.generator is not None
    assert batch.masked is not None
    assert batch.targets is not None
    assert batch.draws is not None
    layout, generator = layout_of(batch), model.head.generator
    features = generator.features(batch.ids, layout, batch.segments, batch.masked, model.backbone)  # (M, D)
    decoder = generator.decoder(model.backbone)
    loss = chunked_cross_entropy(features, *decoder, batch.targets)
    sampled = sample_tokens(features, *decoder, batch.draws)  # (M,)
    counted = batch.targets != IGNORE_INDEX  # the rest is padding, whose position is that of a real token
    mask = batch.ids[batch.masked]
    ids = batch.ids.index_add(0, batch.masked, torch.where(counted, sampled - mask, 0))
    differs = (counted & (sampled != batch.targets)).long()
    replaced = torch.zeros_like(batch.ids).index_add(0, batch.masked, differs).bool()
    logits = model.head(model.backbone(ids, layout, batch.segments), layout, model.backbone)
    return Detection(loss, logits if logits.dtype == torch.float64 else logits.float(), replaced)


def _detection_loss(found: Detection, batch: Batch) -> Tensor:
    """Summed over the tokens of the text: special tokens and padding are never replaced."""
    assert batch.text is not None
    losses = F.binary_cross_entropy_with_logits(found.logits, found.replaced.to(found.logits.dtype), reduction="none")
    return torch.where(batch.text, losses, 0.0).sum()


@torch.no_grad()
def sample_tokens(features: Tensor, weight: Tensor, bias: Tensor | None, draws: Tensor) -> Tensor:
    """(M,): for each vector (M, D) a token, with the probability that the decoder gives it.

    `draws` (M,), each from 0 to below 1, decide: token i where a draw lies between the sums of the probabilities up to
    it, without it and with it. Nothing is read back from a GPU, and no shape depends on a value: a CUDA graph can
    capture it.

    >>> eye, certain = torch.eye(2), torch.tensor([[9e9, 0.0], [0.0, 9e9], [0.0, 0.0]])
    >>> sample_tokens(eye, certain, None, torch.tensor([0.9, 0.1], dtype=torch.float64)).tolist()
    [0, 1]
    """
    chunk = CHUNK.get(features.device.type, CHUNK["cpu"])
    dtype = features.dtype
    if torch.is_autocast_enabled(features.device.type):
        dtype = torch.get_autocast_dtype(features.device.type)
    # Not by autocast, which would keep its copies of weights that were made without gradients, for use with them.
    x, w, b = (None if t is None else t.detach().to(dtype) for t in (features, weight, bias))
    assert x is not None
    assert w is not None
    sampled = torch.empty(len(x), dtype=torch.int64, device=x.device)
    for start in range(0, len(x), chunk):
        rows = slice(start, start + chunk)
        p = F.linear(x[rows], w, b).float().softmax(-1)  # (chunk, V)
        sums = (p * PARTS_OF_ONE).int().cumsum(-1, dtype=torch.int32)
        wanted = (draws[rows] * sums[:, -1]).int()
        sampled[rows] = torch.searchsorted(sums, wanted[:, None], right=True)[:, 0]
    return sampled.clamp(max=len(weight) - 1)  # where probabilities are nan: the loss then says so


def with_generator(model: Model, generator: float | None) -> Model:
    """The model under a head for replaced tokens with a new generator, or with none; what detects them is kept."""
    swapped = model.with_head(ReplacedConfig(generator=generator))
    if isinstance(model.head, ReplacedHead) and isinstance(swapped.head, ReplacedHead):
        swapped.head.dense.load_state_dict(model.head.dense.state_dict())
        swapped.head.out.load_state_dict(model.head.out.state_dict())
    return swapped


def drop_generator(model: Model) -> Model:
    """The model as it is kept: without the generator, where it has one."""
    has_one = isinstance(model.head, ReplacedHead) and model.head.generator is not None
    return with_generator(model, None) if has_one else model
