"""Masks in a text, filled by a masked language model, or one that is causal and masked.

    fill(model, tokenizer, "Ce livre est [MASK].", top=2)[0].candidates
    # (Candidate(id=1234, piece='▁bon', probability=0.31, text='Ce livre est bon.'), …)

Several masks are filled independently: the model sees a mask token in each of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from headstart.errors import ConfigError, ModelError, TokenizerError
from headstart.model.heads import CausalMaskedHead, MaskedHead, MaskedNextSentenceHead
from headstart.model.layout import Flat
from headstart.model.model import Model
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.training.inference import check_finite
from headstart.use.generate import check_ready, special_token_mask, wrong_head

SPELLINGS = ("[MASK]", "<mask>")  # understood beside the tokenizer's own


@dataclass(frozen=True)
class Candidate:
    """A token for a mask, and its probability among the whole vocabulary."""

    id: int
    piece: str
    probability: float
    text: str  # with this token, and the most probable one in every other mask


@dataclass(frozen=True)
class Filled:
    """The most probable tokens for one mask, in order; special tokens are left out."""

    place: int  # index of the mask among the text's tokens
    candidates: tuple[Candidate, ...]


def fill(model: Model, tokenizer: Tokenizer, text: str, top: int = 5) -> list[Filled]:
    """The `top` most probable tokens for each mask in a text."""
    head = model.head.masked if isinstance(model.head, MaskedNextSentenceHead) else model.head
    if not isinstance(head, MaskedHead | CausalMaskedHead):
        raise wrong_head(model, "gaps are filled by a bidirectional model with a masked head")
    check_ready(model, tokenizer)
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
        read = torch.tensor([place for place, token in enumerate(wrapped) if token == tokenizer.mask])
        if isinstance(head, CausalMaskedHead):  # a masked token, too, is predicted as the next one
            read = read - 1
        vectors = model.backbone(tokens, layout)[read]  # (M, D)
        probabilities = head(vectors, layout, model.backbone).double().softmax(-1).cpu()  # (M, V)
    check_finite(probabilities)
    excluded = special_token_mask(tokenizer, model.config.vocabulary)
    ranked = probabilities.masked_fill(excluded, -1).argsort(descending=True)[:, : int((~excluded).sum())]
    places = [place for place, token in enumerate(ids) if token == tokenizer.mask]
    best = dict(zip(places, ranked[:, 0].tolist(), strict=True))

    def candidate(gap: int, token: int) -> Candidate:
        chosen = best | {places[gap]: token}
        completed = tokenizer.decode(chosen.get(place, there) for place, there in enumerate(ids))
        return Candidate(token, tokenizer.pieces([token])[0], float(probabilities[gap, token]), completed)

    return [
        Filled(place, tuple(candidate(gap, token) for token in ranked[gap, :top].tolist()))
        for gap, place in enumerate(places)
    ]


def encode_masks(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text in which gaps are written `[MASK]`, `<mask>` or as the tokenizer writes them.

    The space before a gap belongs to it, as it belongs to the words that could stand there (`▁bon`, `Ġbon`).
    """
    if tokenizer.mask is None:
        raise TokenizerError("this tokenizer has no mask token, so no gap can be shown to the model")
    own = tokenizer.pieces([tokenizer.mask])[0]
    spellings = "|".join(re.escape(decoder) for decoder in {own, *SPELLINGS})
    parts = re.split(rf"\s*(?:{spellings})", text)
    if len(parts) == 1:
        raise ConfigError("fill", ["the text has no gap to fill: write [MASK] where a word is missing"])
    ids = tokenizer.encode(own.join(parts))
    if ids.count(tokenizer.mask) != len(parts) - 1:  # some tokenizers take a mask that is spelled out for plain text
        first, *others = tokenizer.encode_batch(parts)
        ids = first + [token for part in others for token in (tokenizer.mask, *part)]
    return ids
