"""The backbone: token ids in, one vector a token out. The same code is BERT, RoBERTa, DistilBERT, MPNet, GPT-2, the
lab's transformer and our own; a `ModelConfig` says which.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from headstart.config import ModelConfig
from headstart.errors import ModelError
from headstart.model.dropout import Dropout
from headstart.model.layers import Layer, add_norm, layer_norm
from headstart.model.layout import Cached, Layout
from headstart.model.linear import Linear
from headstart.model.positions import relative_buckets, rotary, sinusoidal


class Embeddings(nn.Module):
    """Token embeddings, plus positions and segments.

    With `shared`, tokens come as the embeddings that another model has for them, which are so wide, and are projected.
    """

    def __init__(self, config: ModelConfig, shared: int | None = None) -> None:
        super().__init__()
        self.scale = math.sqrt(config.width) if config.embedding_scale else None
        self.offset = config.position_offset
        self.tokens: nn.Embedding | nn.Linear
        if shared is None:
            self.tokens = nn.Embedding(config.vocabulary, config.width)
        else:
            self.tokens = Linear(shared, config.width, bias=config.bias)
        self.positions = nn.Embedding(config.learned_rows, config.width) if config.learned_rows else None
        self.segments = nn.Embedding(config.segments, config.width) if config.segments else None
        self.norm = layer_norm(config) if config.embedding_norm else None
        self.dropout = Dropout(config.dropout)
        with torch.device("cpu"):  # a real table even where the parameters are on the meta device
            sinusoids = sinusoidal(config.window, config.width) if config.positions == "sinusoidal" else None
        self.register_buffer("sinusoids", sinusoids, persistent=False)
        self.sinusoids: Tensor | None

    def forward(self, ids: Tensor, position: Tensor, segments: Tensor | None) -> Tensor:
        x = self.tokens(ids)  # (…, D)
        if self.scale is not None:
            x = x * self.scale
        if self.sinusoids is not None:
            x = x + self.sinusoids[position]
        if self.positions is not None:
            x = x + self.positions(position + self.offset)
        if self.segments is not None:  # a single text is all segment 0; with one row (RoBERTa) a pair is as well
            one = segments is None or self.segments.num_embeddings == 1
            x = x + (self.segments.weight[0] if one else self.segments(segments))
        if self.norm is not None:
            x = self.norm(x)
        return self.dropout(x)


class Backbone(nn.Module):
    """Embeddings, layers, the last norm of a pre-norm model, and BERT's pooler where the config has one.

    >>> from headstart.model.layout import Flat
    >>> from headstart.model.presets import preset
    >>> backbone = Backbone(preset("bert-tiny")).eval()
    >>> backbone(torch.tensor([101, 7592, 102, 101, 102]), Flat.from_lengths([3, 2])).shape
    torch.Size([5, 128])
    """

    def __init__(self, config: ModelConfig, shared: int | None = None) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config, shared)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = layer_norm(config) if config.norm == "pre" else None
        self.pooler = Linear(config.width, config.width) if config.pooler else None
        relative = config.positions == "relative"
        self.relative = nn.Embedding(config.relative_buckets, config.heads) if relative else None
        with torch.device("cpu"):
            buckets = relative_buckets(config.window, config.relative_buckets) if relative else None
            angles = rotary(config.window, config.head_width) if config.positions == "rotary" else None
        self.register_buffer("buckets", buckets, persistent=False)
        self.register_buffer("angles", angles, persistent=False)
        self.buckets: Tensor | None
        self.angles: Tensor | None

    def forward(
        self,
        ids: Tensor,
        layout: Layout,
        segments: Tensor | None = None,
        keep: Tensor | None = None,
        *,
        mean: bool = False,
    ) -> Tensor:
        """ids (N,) or (S, L), as the layout says → hidden states (…, D).

        With `keep` (M,), only these tokens' states are returned, (M, D): the last layer then skips all others, which
        saves a classifier on the first token most of that layer. With `mean`, a state is the mean over all layers.
        """
        x, angles, bias = self._embed(ids, layout, segments)
        *layers, last = self.layers
        outputs, beside = [], None
        for layer in layers:
            x, beside = layer(x, layout, angles, bias, None, beside)
            if mean:
                x, beside = self._whole(x, beside)
                outputs.append(x if keep is None else layout.take(x, keep))
        x, beside = last(x, layout, angles, bias, keep, beside)
        if mean:
            x, beside = torch.stack([*outputs, self._whole(x, beside)[0]]).mean(0), None
        if self.norm is None:
            return x
        return self.norm(x) if beside is None else add_norm(x, beside, self.norm, self.embeddings.dropout, post=True)[0]

    def every_layer(self, ids: Tensor, layout: Layout, segments: Tensor | None = None) -> list[Tensor]:
        """What `forward` would return if the model ended after layer 1, 2 and so on; last, its mean over all layers."""
        x, angles, bias = self._embed(ids, layout, segments)
        outputs, beside = [], None
        for layer in self.layers:
            x, beside = self._whole(*layer(x, layout, angles, bias, None, beside))
            outputs.append(x)
        outputs.append(torch.stack(outputs).mean(0))
        return outputs if self.norm is None else [self.norm(x) for x in outputs]

    def _whole(self, x: Tensor, beside: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """A layer's output with nothing left to be added to it."""
        return (x, beside) if beside is None or self.norm is None else (x + self.embeddings.dropout(beside), None)

    def _embed(
        self, ids: Tensor, layout: Layout, segments: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """What the first layer receives: the embeddings (…, D), and the angles and the bias that all layers share."""
        if layout.longest > self.config.window:
            raise ModelError(
                f"a sequence of {layout.longest} tokens is longer than the model's window of "
                f"{self.config.window}: cut it, or build the model with a larger window"
            )
        if layout.causal and self.config.direction == "bidirectional":
            cached = isinstance(layout, Cached)
            raise ModelError(
                "a bidirectional model looks ahead, so it reads a text at once: give it a layout without cache"
                if cached
                else "a causal batch on a bidirectional model would read its own answers: choose direction = 'causal' "
                "or 'both'"
            )
        position = layout.position
        angles = None if self.angles is None else self.angles[position]  # (…, 2, K / 2)
        return self.embeddings(ids, position, segments), angles, self._bias(layout.longest)

    def _bias(self, length: int) -> Tensor | None:
        """(H, L, L): the bias of each head's scores by distance, shared by all layers."""
        if self.relative is None or self.buckets is None:
            return None
        return self.relative(self.buckets[:length, :length]).permute(2, 0, 1)

    def pooled(self, vectors: Tensor) -> Tensor:
        """(S, D) → (S, D): BERT's pooler, a dense layer and tanh."""
        if self.pooler is None:
            raise ModelError("this backbone has no pooler: set pooler = true in its config, or use a head without it")
        return torch.tanh(self.pooler(vectors))
