"""Words for the gaps in a text, by a masked model.

    fill(model, tokenizer, "Ce livre est [MASK].", top=2)[0].candidates
    # (Candidate(id=1234, piece='▁bon', probability=0.31, text='Ce livre est bon.'), …)

Several gaps are filled independently: the model sees a mask in each while it says what could stand in any.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from headstart.errors import ConfigError, ModelError, TokenizerError
from headstart.model.heads import MaskedHead, MaskedNextSentenceHead
from headstart.model.layout import Flat
from headstart.model.model import Model
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.use.generate import check_fit, describe, not_text

SPELLINGS = ("[MASK]", "<mask>")  # understood beside the tokenizer's own


@dataclass(frozen=True)
class Candidate:
    """A token for a gap. Its probability is among the whole vocabulary."""

    id: int
    piece: str
    probability: float
    text: str  # with this token in its gap, and the likeliest in every other


@dataclass(frozen=True)
class Filled:
    """What a model would write in one gap, the likeliest first; special tokens are not offered."""

    place: int  # of the mask among the text's tokens
    candidates: tuple[Candidate, ...]


def fill(model: Model, tokenizer: Tokenizer, text: str, top: int = 5) -> list[Filled]:
    """The `top` likeliest tokens for each mask in a text."""
    head = model.head.masked if isinstance(model.head, MaskedNextSentenceHead) else model.head
    if not isinstance(head, MaskedHead):
        raise ModelError(
            "gaps are filled by a bidirectional model with a masked head, and this is a "
            f"{describe(model)}: use `headstart generate` for a causal model, or pretrain a masked one"
        )
    check_fit(model, tokenizer)
    if top < 1:
        raise ConfigError("fill", [f"top is {top}, and must be at least 1"])
    ids = encode_masks(tokenizer, text)
    wrapped, _ = tokenizer.wrap(ids)
    length, window = len(wrapped), model.config.window
    if length > window:
        raise ModelError(
            f"the text is {length:,} tokens with its special ones, and the window {window:,}: shorten it around the gap"
        )
    with torch.inference_mode():
        layout = Flat.from_lengths([length], model.device)
        tokens = torch.tensor(wrapped, device=model.device)
        vectors = model.backbone(tokens, layout)[tokens == tokenizer.mask]  # (M, D)
        probabilities = head(vectors, layout, model.backbone).double().softmax(-1).cpu()  # (M, V)
    if not probabilities.isfinite().all():
        raise ModelError("the model's scores are no finite numbers: its weights are damaged, or its training diverged")
    never = not_text(tokenizer, model.config.vocabulary)
    likeliest = probabilities.masked_fill(never, -1).argsort(descending=True)[:, : int((~never).sum())]
    places = [place for place, token in enumerate(ids) if token == tokenizer.mask]
    best = dict(zip(places, likeliest[:, 0].tolist(), strict=True))

    def candidate(gap: int, token: int) -> Candidate:
        chosen = best | {places[gap]: token}
        completed = tokenizer.decode(chosen.get(place, there) for place, there in enumerate(ids))
        return Candidate(token, tokenizer.pieces([token])[0], float(probabilities[gap, token]), completed)

    return [
        Filled(place, tuple(candidate(gap, token) for token in likeliest[gap, :top].tolist()))
        for gap, place in enumerate(places)
    ]


def encode_masks(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text in which gaps are written `[MASK]`, `<mask>` or as the tokenizer writes them.

    The space before a gap belongs to it, as it belongs to the words that could stand there (`▁bon`, `Ġbon`).
    """
    if tokenizer.mask is None:
        raise TokenizerError("this tokenizer has no mask token, so no gap can be shown to the model")
    own = tokenizer.pieces([tokenizer.mask])[0]
    spellings = "|".join(re.escape(spelling) for spelling in {own, *SPELLINGS})
    parts = re.split(rf"\s*(?:{spellings})", text)
    if len(parts) == 1:
        raise ConfigError("fill", ["the text has no gap to fill: write [MASK] where a word is missing"])
    ids = tokenizer.encode(own.join(parts))
    if ids.count(tokenizer.mask) != len(parts) - 1:  # some tokenizers take a mask that is spelled out for plain text
        first, *others = tokenizer.encode_batch(parts)
        ids = first + [token for part in others for token in (tokenizer.mask, *part)]
    return ids
