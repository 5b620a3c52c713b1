"""Every parameter counted: by a closed formula from the config, and from the real tensors. The two must agree.

>>> from headstart.config import ClassifierConfig, NextTokenConfig
>>> from headstart.model.presets import preset
>>> count(preset("lab"), NextTokenConfig()).total, count(preset("lab"), ClassifierConfig(classes=2, pool="last")).total
(21018401, 10968602)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from headstart.config import (
    CausalMaskedConfig,
    ClassifierConfig,
    HeadConfig,
    MaskedConfig,
    MaskedNextSentenceConfig,
    ModelConfig,
    NextSentenceConfig,
    NextTokenConfig,
    ReplacedConfig,
)
from headstart.model.presets import generator_of

if TYPE_CHECKING:  # counting by formula needs no torch
    from headstart.model.model import Model

Precision = Literal["float32", "bfloat16"]
BYTES: dict[Precision, int] = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Block:
    """A group of parameters: what it is called, how its number comes about, and the number.

    `copies` is how often the block stands in the model (once a layer). A shared block is shown and not added up.
    """

    name: str
    formula: str
    each: int
    copies: int = 1
    part: Literal["backbone", "head"] = "backbone"
    shared: bool = False

    @property
    def number(self) -> int:
        return self.each * self.copies


@dataclass(frozen=True)
class Count:
    """The blocks of a model, and their sums. `frozen` says that the backbone is not trained."""

    blocks: tuple[Block, ...]
    frozen: bool = False

    @property
    def total(self) -> int:
        return sum(block.number for block in self.blocks if not block.shared)

    @property
    def trainable(self) -> int:
        head = sum(block.number for block in self.blocks if block.part == "head" and not block.shared)
        return head if self.frozen else self.total

    def memory(self, precision: Precision = "float32") -> dict[str, int]:
        """Bytes of weights, gradients and AdamW's two moments, all kept in `precision`; activations not counted."""
        width = BYTES[precision]
        return {
            "weights": width * self.total,
            "gradients": width * self.trainable,
            "optimizer": 2 * width * self.trainable,
        }


def count(config: ModelConfig, head: HeadConfig | None = None, *, frozen: bool = False) -> Count:
    """Parameters by formula; no tensor is made."""
    return Count((*_backbone(config), *_head(config, head)), frozen)


def _backbone(c: ModelConfig) -> Iterator[Block]:
    v, d, f, b = c.vocabulary, c.width, c.feed_forward, int(c.bias)
    yield Block("token embedding", f"{v} × {d}", v * d)
    if c.learned_rows:
        yield Block("positions", f"{c.learned_rows} × {d}", c.learned_rows * d)
    if c.segments:
        yield Block("segments", f"{c.segments} × {d}", c.segments * d)
    if c.embedding_norm:
        yield _norm("embedding norm", c)
    if c.positions == "relative":
        n, h = c.relative_buckets, c.heads
        yield Block("relative bias", f"{n} × {h}", n * h)
    plus = f" + {d}" if b else ""
    yield Block("attention", f"4 × ({d} × {d}{plus})", 4 * (d * d + b * d), c.layers)
    up = 2 if c.gated else 1
    formula = f"{f'{up} × ' if c.gated else ''}({d} × {f}{f' + {f}' if b else ''}) + ({f} × {d}{plus})"
    yield Block("feed-forward", formula, up * (d * f + b * f) + f * d + b * d, c.layers)
    norms = (1 + b) * d
    yield Block("layer norms", f"2 × ({_norm('', c).formula})" if b else f"2 × {d}", 2 * norms, c.layers)
    if c.norm == "pre":
        yield _norm("last norm", c)
    if c.pooler:
        yield Block("pooler", f"{d} × {d} + {d}", d * d + d)


def _norm(name: str, c: ModelConfig, part: Literal["backbone", "head"] = "backbone") -> Block:
    terms = 2 if c.bias else 1
    return Block(name, f"{terms} × {c.width}" if c.bias else f"{c.width}", terms * c.width, part=part)


def _head(c: ModelConfig, head: HeadConfig | None) -> Iterator[Block]:
    d, v = c.width, c.vocabulary
    if isinstance(head, MaskedConfig | CausalMaskedConfig | MaskedNextSentenceConfig):
        plus = f" + {d}" if c.bias else ""
        yield Block("head: dense", f"{d} × {d}{plus}", d * d + int(c.bias) * d, part="head")
        yield _norm("head: norm", c, "head")
    if isinstance(head, NextTokenConfig | MaskedConfig | CausalMaskedConfig | MaskedNextSentenceConfig):
        if c.tied:
            yield Block("head: vocabulary", "the token embedding, shared", v * d, part="head", shared=True)
        else:
            yield Block("head: vocabulary", f"{d} × {v}", d * v, part="head")
        if not (c.tied and isinstance(head, NextTokenConfig)):
            yield Block("head: bias", f"{v}", v, part="head")
    if isinstance(head, ReplacedConfig):
        plus = f" + {d}" if c.bias else ""
        yield Block("head: dense", f"{d} × {d}{plus}", d * d + int(c.bias) * d, part="head")
        yield Block("head: replaced", f"{d} × 1 + 1", d + 1, part="head")
        if head.generator is not None:
            yield from _generator(c, generator_of(c, head.generator))
    if isinstance(head, NextSentenceConfig | MaskedNextSentenceConfig):
        yield Block("head: next sentence", f"{d} × 2 + 2", 2 * d + 2, part="head")
    if isinstance(head, ClassifierConfig):
        if head.pooler in ("tanh", "relu"):
            yield Block("head: dense", f"{d} × {d} + {d}", d * d + d, part="head")
        k = head.classes
        formula = f"{d} × {k} + {k}" if head.bias else f"{d} × {k}"
        yield Block("head: classifier", formula, d * k + int(head.bias) * k, part="head")


def _generator(c: ModelConfig, small: ModelConfig) -> Iterator[Block]:
    """The generator beside a model: it reads the model's token embeddings, projected, and its head guesses among
    them."""
    d, g, b = c.width, small.width, int(c.bias)
    into, back = (f" + {n}" if b else "" for n in (g, d))
    replaced_blocks = {
        "token embedding": Block("token embedding", f"{d} × {g}{into}", d * g + b * g),
        "head: dense": Block("head: dense", f"{g} × {d}{back}", g * d + b * d),
    }
    for block in (*_backbone(small), *_head(replace(c, tied=True), MaskedConfig())):
        block = replaced_blocks.get(block.name, block)
        yield replace(block, name=f"generator: {block.name}", part="head")


# Which block a tensor belongs to, by its name; the first that matches.
_BLOCK_OF = {
    r"backbone\.embeddings\.tokens\.": "token embedding",
    r"backbone\.embeddings\.positions\.": "positions",
    r"backbone\.embeddings\.segments\.": "segments",
    r"backbone\.embeddings\.norm\.": "embedding norm",
    r"backbone\.relative\.": "relative bias",
    r"backbone\.layers\.\d+\.attention\.": "attention",
    r"backbone\.layers\.\d+\.feed_forward\.": "feed-forward",
    r"backbone\.layers\.\d+\.\w+_norm\.": "layer norms",
    r"backbone\.norm\.": "last norm",
    r"backbone\.pooler\.": "pooler",
    r"head\.(masked\.)?dense\.": "head: dense",
    r"head\.(masked\.)?norm\.": "head: norm",
    r"head\.(masked\.)?weight": "head: vocabulary",
    r"head\.(masked\.)?bias": "head: bias",
    r"head\.next_sentence\.": "head: next sentence",
}


@dataclass(frozen=True)
class TensorCount:
    """What the real parameters come to; a tensor that several modules share is one."""

    blocks: dict[str, int]
    total: int
    trainable: int

    def agrees(self, counted: Count) -> bool:
        """Whether the formula says the same, block by block."""
        by_formula = {block.name: block.number for block in counted.blocks if not block.shared}
        return (by_formula, counted.total, counted.trainable) == (self.blocks, self.total, self.trainable)


def count_tensors(model: Model) -> TensorCount:
    """Parameters by looking at them, under the names that the formula gives the blocks."""
    lasts = {"next-sentence": "head: next sentence", "replaced": "head: replaced"}
    last = "" if model.head_config is None else lasts.get(model.head_config.kind, "head: classifier")
    blocks: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        own = name.removeprefix("head.generator.")
        block = next((block for pattern, block in _BLOCK_OF.items() if re.match(pattern, own)), last)
        blocks[block if own == name else f"generator: {block}"] += parameter.numel()
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return TensorCount(dict(blocks), blocks.total(), trainable)
