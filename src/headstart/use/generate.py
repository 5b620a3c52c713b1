"""Text continued by a causal model, one token at a time.

    generate(model, tokenizer, "Bonjour les", Sampling(max_tokens=3)).text      # ' amis de la'
    for piece in stream(model, tokenizer, "Bonjour les"): ...                   # the same, as it comes

At each step the model says how likely every token of its vocabulary is to come next, and one is chosen: the likeliest
where the temperature is 0, else one drawn by chance. The prompt begins with the start token, as documents did in
training; the end token ends the text, and no other special token is ever written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from headstart.config import Settings
from headstart.errors import ConfigError, ModelError, TokenizerError
from headstart.model.heads import NextTokenHead
from headstart.model.layout import Cached, Flat
from headstart.model.model import Model
from headstart.tokenizers.tokenizer import Tokenizer

HALF_A_CHARACTER = "\N{REPLACEMENT CHARACTER}"  # what bytes decode to while the rest of their character is to come


@dataclass(frozen=True)
class Sampling(Settings):
    """How a token is chosen, and how many of them. Where chance has a part, the same seed gives the same text."""

    max_tokens: int = field(default=50, metadata={"least": 1})
    temperature: float = field(default=0.0, metadata={"least": 0.0, "below": math.inf})  # 0: always the likeliest
    top_k: int | None = field(default=None, metadata={"least": 1})  # choose among the k likeliest
    top_p: float = 1.0  # choose among the likeliest that together reach this probability
    seed: int = field(default=0, metadata={"least": 0, "below": 2**63})

    @classmethod
    def rules(cls, value: Mapping[str, Any], well: Callable[..., bool]) -> Iterator[str]:
        if well("top_p") and not 0 < value["top_p"] <= 1:
            yield f"top_p is {value['top_p']}, and must be above 0 and at most 1"


@dataclass(frozen=True)
class Generated:
    """What a model wrote after a prompt: `ids` without the end token, and why it stopped."""

    text: str
    ids: tuple[int, ...]
    stopped: Literal["end", "length"]  # the model ended the text, or max_tokens did
    remarks: tuple[str, ...] = ()


GREEDY = Sampling()


def generate(
    model: Model, tokenizer: Tokenizer, prompt: str, settings: Sampling = GREEDY, *, cache: bool = True
) -> Generated:
    """Continue a prompt."""
    *_, whole = stream(model, tokenizer, prompt, settings, cache=cache)
    assert isinstance(whole, Generated)
    return whole


def stream(
    model: Model, tokenizer: Tokenizer, prompt: str, settings: Sampling = GREEDY, *, cache: bool = True
) -> Iterator[str | Generated]:
    """Continue a prompt: pieces of text as they come, and the whole at the end."""
    if not isinstance(model.head, NextTokenHead):
        raise ModelError(
            "text is continued by a causal model with a next-token head, and this is a "
            f"{describe(model)}: use `headstart fill` for a masked model, or pretrain a causal one"
        )
    check_fit(model, tokenizer)
    encoded = tokenizer.encode(prompt)
    ids = encoded if tokenizer.start is None else [tokenizer.start, *encoded]
    if not ids:
        problem = "the prompt is empty, and this tokenizer has no start token to begin with: give a first word"
        raise ConfigError("generate", [problem])
    window = model.config.window
    remarks = []
    if len(ids) > window:
        remarks.append(
            f"the prompt has {len(ids):,} tokens and the window {window:,}: only its last {window:,} are read"
        )
    spelling = Spelling(tokenizer, encoded[-window:])
    return _stream(Context(model, cache=cache), tokenizer, ids[-window:], spelling, settings, remarks)


def _stream(
    context: Context,
    tokenizer: Tokenizer,
    unread: list[int],
    spelling: Spelling,
    settings: Sampling,
    remarks: list[str],
) -> Iterator[str | Generated]:
    """Read, choose, say, until the end token or enough tokens."""
    never = not_text(tokenizer, context.model.config.vocabulary)
    if tokenizer.end is not None:
        never[tokenizer.end] = False
    chance = torch.Generator().manual_seed(settings.seed)
    chosen: list[int] = []
    stopped: Literal["end", "length"] = "length"
    while len(chosen) < settings.max_tokens:
        logits = context.read(unread).masked_fill(never, -math.inf)
        token = choose(logits, settings, chance)
        if token == tokenizer.end:
            stopped = "end"
            break
        chosen.append(token)
        unread = [token]
        if piece := spelling.add(token):
            yield piece
    if rest := spelling.rest():
        yield rest
    if context.outgrown:
        remarks.append(
            f"the text outgrew the window of {context.window:,} tokens: from there on each token was chosen "
            f"by the last {context.half:,} to {context.window:,} before it"
        )
    yield Generated(spelling.said, tuple(chosen), stopped, tuple(remarks))


class Spelling:
    """Tokens as text after a prompt, each part as soon as it is certain.

    A token alone has no text: the first of a text loses its space, and some are single bytes of a character.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self.tokenizer, self.ids = tokenizer, list(prompt)
        self.written = tokenizer.decode(prompt)
        self.begin = len(self.written)
        self.said = ""

    def add(self, token: int) -> str:
        """What can be said now, and will not change."""
        self.ids.append(token)
        self.written = self.tokenizer.decode(self.ids)
        return self._say(self.written.rstrip(HALF_A_CHARACTER))

    def rest(self) -> str:
        """What is left when no more tokens come."""
        return self._say(self.written)

    def _say(self, text: str) -> str:
        piece = text[self.begin + len(self.said) :]
        self.said += piece
        return piece


class Context:
    """What a model sees of a growing text: its last tokens, as many as the window holds.

    When the window is full, its older half is let go and the rest read anew, as a text that begins there. To let go
    of one token at a time would move every token to another place at every step, and nothing kept of it would be
    true any more; so each token is read twice at most.
    """

    def __init__(self, model: Model, *, cache: bool = True) -> None:
        self.model, self.window, self.cache = model, model.config.window, cache
        self.half = (self.window + 1) // 2
        self.outgrown = False
        self.ids: list[int] = []
        self.layout: Cached | None = None  # of what was read last

    @torch.inference_mode()
    def read(self, tokens: Sequence[int]) -> Tensor:
        """(V,): take in more of the text; how strongly the model expects each token to come next."""
        self.ids += tokens
        if len(self.ids) > self.window:
            self.ids, self.layout, self.outgrown = self.ids[-self.half :], None, True
        vectors, layout = self._cached() if self.cache else self._whole()
        head, backbone = self.model.head, self.model.backbone
        assert head is not None
        logits: Tensor = head(vectors[..., -1:, :], layout, backbone).flatten().float().cpu()
        if not logits.isfinite().all():
            raise ModelError(
                "the model's scores are no finite numbers: its weights are damaged, or its training diverged"
            )
        return logits

    def _cached(self) -> tuple[Tensor, Cached]:
        new = self.ids if self.layout is None else self.ids[self.layout.longest :]
        ids = torch.tensor([new], device=self.model.device)  # (1, L)
        self.layout = Cached(torch.ones_like(ids).bool()) if self.layout is None else self.layout.next(len(new))
        return self.model.backbone(ids, self.layout), self.layout

    def _whole(self) -> tuple[Tensor, Flat]:
        """The plain form, all tokens read at every step: what the cache is tested against."""
        layout = Flat.from_lengths([len(self.ids)], self.model.device)
        return self.model.backbone(torch.tensor(self.ids, device=self.model.device), layout), layout


def choose(logits: Tensor, settings: Sampling, chance: torch.Generator) -> int:
    """The next token: the likeliest where the temperature is 0, else one drawn from `distribution`."""
    if settings.temperature == 0:
        return int(logits.argmax())
    return int(torch.multinomial(distribution(logits, settings), 1, generator=chance))


def distribution(logits: Tensor, settings: Sampling) -> Tensor:
    """(V,) → (V,): the probability with which each token is drawn: temperature first, then top_k, then top_p.

    >>> logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    >>> [round(p, 2) for p in distribution(logits, Sampling(temperature=1.0, top_k=3)).tolist()]
    [0.0, 0.44, 0.22, 0.33]
    >>> [round(p, 2) for p in distribution(logits, Sampling(temperature=1.0, top_p=0.5)).tolist()]
    [0.0, 0.57, 0.0, 0.43]
    """
    scores, order = logits.double().sort(descending=True, stable=True)
    ranked = ((scores - scores[0]) / settings.temperature).softmax(-1)  # from 0 down: no temperature is too small
    if settings.top_k is not None:
        ranked[settings.top_k :] = 0
    ranked = ranked / ranked.sum()
    likelier = ranked.cumsum(-1) - ranked  # (V,) how much comes before each, which is nothing before the first
    if settings.top_p < 1:
        ranked[likelier >= settings.top_p] = 0
    return torch.zeros_like(ranked).scatter(0, order, ranked / ranked.sum())


def not_text(tokenizer: Tokenizer, vocabulary: int) -> Tensor:
    """(V,): True for special tokens, and for ids that the tokenizer has no piece for."""
    special = (tokenizer.start, tokenizer.end, tokenizer.pad, tokenizer.unknown, tokenizer.mask, tokenizer.separator)
    return torch.tensor([i in special or not _has_piece(tokenizer, i) for i in range(vocabulary)])


def _has_piece(tokenizer: Tokenizer, number: int) -> bool:
    try:
        return bool(tokenizer.pieces([number]))
    except TokenizerError:
        return False


def check_fit(model: Model, tokenizer: Tokenizer) -> None:
    """Whether the model can be used with the tokenizer, and as it is."""
    if tokenizer.size > model.config.vocabulary:
        raise ModelError(
            f"the tokenizer has {tokenizer.size:,} tokens and the model knows {model.config.vocabulary:,}: "
            "use the tokenizer that the model was trained with"
        )
    if model.training:
        raise ModelError("the model is in training mode, where dropout changes what it says: call model.eval() first")


def describe(model: Model) -> str:
    """
    >>> from headstart.model.presets import preset
    >>> describe(Model.empty(preset("lab", vocabulary=10)))
    'causal model with no head'
    """
    head = "no head" if model.head_config is None else f"a {model.head_config.kind} head"
    return f"{model.config.direction} model with {head}"
