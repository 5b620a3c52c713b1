"""Attention: written out once as in the paper, and once more in the layouts that are fast.

The plain form is what the others are tested against, and what attention maps and the teaching pages use:

    >>> square_mask(3)
    tensor([[0., -inf, -inf],
            [0., 0., -inf],
            [0., 0., 0.]])
    >>> eye = torch.eye(3)[None]
    >>> _, weights = plain_attention(eye, eye, eye, square_mask(3))
    >>> weights[0, 0].tolist()  # the first token attends to itself alone
    [1.0, 0.0, 0.0]
"""

from __future__ import annotations

import math
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.config import ModelConfig
from headstart.model import attention_onednn, attention_triton, rotary_triton
from headstart.model.dropout import dropout as drop
from headstart.model.layout import Cached, Flat, Layout
from headstart.model.linear import Linear, linear
from headstart.model.positions import rotate

SHORT = 256  # tokens a sequence on average, below which `attention_triton` is faster
BY_WINDOW = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (
    2,
    11,
)  # how varlen takes a causal mask


def square_mask(length: int, device: torch.device | str | None = None) -> Tensor:
    """(L, L): 0 where token i may attend to token j (j ≤ i), -inf where j lies ahead."""
    return torch.full((length, length), -math.inf, device=device).triu(1)


def plain_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """softmax(QKᵀ / √K) V, and the weights: q, k, v are (…, L, K), the mask is added to the (…, L, L) scores."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # (…, L, L)
    if mask is not None:
        scores = scores + mask
    weights = scores.softmax(-1)
    return weights @ v, weights


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    *,
    causal: bool,
    bias: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """The same, fast: q, k, v and the result are (…, H, K) in the batch's own layout.

    `bias` (H, L, L) is added to the scores. The one function that knows which kernel runs where: on CUDA in half
    precision `varlen`, which takes packed tokens as they are, or our own for many short sequences; on the CPU one
    sequence at a time; elsewhere the tokens are padded for this step alone.
    """
    if isinstance(layout, Flat) and _varlen_can(q, bias, dropout):
        if attention_triton.AVAILABLE and _many_short(layout):
            return attention_triton.packed_attention(q, k, v, layout.starts, layout.sequence, causal=causal)
        return _varlen(q, k, v, layout, causal)
    if causal and bias is not None:
        bias = bias + square_mask(bias.shape[-1], bias.device).to(bias.dtype)
    if _long_on_cpu(layout, q) and (layout.real is not None or attention_onednn.supports(q, layout.longest)):
        return _one_by_one(q, k, v, layout, causal=causal, bias=bias, dropout=dropout)
    q, k, v = (layout.pad(x).transpose(1, 2) for x in (q, k, v))  # (S, H, L, K)
    if causal and bias is None:  # padding is on the right, so the causal mask already hides it
        mask = layout.causal_mask if isinstance(layout, Cached) else None
        out = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=mask is None)
    else:
        out = F.scaled_dot_product_attention(q, k, v, key_mask(layout, bias), dropout)
    return layout.unpad(out.transpose(1, 2))


def _many_short(layout: Flat) -> bool:
    """Batches of pretraining on short documents: below that, flash kernels are as fast and need no compiling."""
    tokens, sequences = layout.position.shape[0], layout.starts.shape[0] - 1
    return attention_triton.LEAST_TOKENS <= tokens < SHORT * sequences


def _long_on_cpu(layout: Layout, x: Tensor) -> TypeGuard[Flat]:
    """Below 16 tokens a sequence, calling the kernel once for each costs more than padding does."""
    if not isinstance(layout, Flat) or x.device.type != "cpu":
        return False
    return layout.position.shape[0] >= 16 * (layout.starts.shape[0] - 1)


def _one_by_one(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Flat,
    *,
    causal: bool,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    queries: list[int] | None = None,
) -> Tensor:
    """One sequence after the other, on views of the packed tokens; most sequences by one call of torch's kernel.

    `queries`: how many each sequence has, where q are some of its tokens; then nothing is causal, and there is no bias.
    """
    written_out = dropout > 0 and not causal and bias is None and q.dtype in (torch.float32, torch.float64)
    lengths: list[int] = layout.starts.diff().tolist()
    mixed = []
    for parts in zip(torch.split(q, queries or lengths), torch.split(k, lengths), torch.split(v, lengths), strict=True):
        one_q, one_k, one_v = (x.transpose(0, 1) for x in parts)  # (H, L, K)
        length, is_causal = parts[1].shape[0], causal and bias is None  # a bias has the causal mask in it
        own_bias = None if bias is None else bias[:, :length, :length]
        if queries is None and attention_onednn.supports(q, length):
            out = attention_onednn.attention(one_q, one_k, one_v, causal=is_causal, bias=own_bias, dropout=dropout)
        elif written_out:
            out = _with_dropout(one_q, one_k, one_v, dropout)
        else:
            mask = None if own_bias is None else own_bias[None]
            out = F.scaled_dot_product_attention(one_q[None], one_k[None], one_v[None], mask, dropout, is_causal)[0]
        mixed.append(out.transpose(0, 1))
    return torch.cat(mixed)


def _with_dropout(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    """The kernel's result with dropout, in less time: the kernel also masks rows that have no key."""
    scale = math.sqrt(1 / math.sqrt(q.shape[-1]))  # of queries and of keys, as the kernel does it
    return torch.bmm(drop(torch.bmm(q * scale, k.transpose(1, 2) * scale).softmax(-1), dropout), v)


def key_mask(layout: Layout, bias: Tensor | None) -> Tensor | None:
    """The mask added to the scores: the bias, and -inf for padding; without a bias a boolean mask, True for tokens."""
    real = layout.real
    if real is None:
        return None if bias is None else bias[None]
    keys = real[:, None, None, :]  # (S, 1, 1, L)
    return keys if bias is None else bias[None].masked_fill(~keys, -math.inf)


def _varlen_can(q: Tensor, bias: Tensor | None, dropout: float) -> bool:
    return q.is_cuda and q.dtype in (torch.bfloat16, torch.float16) and bias is None and dropout == 0


def _varlen(q: Tensor, k: Tensor, v: Tensor, layout: Flat, causal: bool) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    # Flash kernels want a head width that is a multiple of 8; zeros change neither the scores nor the kept columns.
    width = q.shape[-1]
    missing = -width % 8
    if missing:
        q, k, v = (F.pad(x, (0, missing)) for x in (q, k, v))
    mask: dict[str, Any] = {"is_causal": causal}
    if BY_WINDOW:
        mask = {"window_size": (-1, 0)} if causal else {}
    scale = 1 / math.sqrt(width)
    starts, longest = layout.starts, layout.longest
    out: Any = varlen_attn(q, k, v, starts, starts, longest, longest, scale=scale, **mask)
    return out[..., :width]


def _queries(layout: Flat, keep: Tensor, causal: bool) -> list[int] | None:
    """How many of the tokens at `keep` each sequence has; None where they are not in its order, or look back alone.

    The last token of a causal sequence looks at all of it, as every token of a bidirectional one does.
    """
    last = layout.starts[1:] - 1
    if causal and (keep.shape != last.shape or (keep != last).any()):
        return None
    sequence = layout.sequence[keep]
    if (sequence.diff() < 0).any():
        return None
    counts: list[int] = torch.bincount(sequence, minlength=len(last)).tolist()
    return counts


class Attention(nn.Module):
    """Multi-head attention: project to queries, keys and values, attend in each head, project back."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.head_width = config.heads, config.head_width
        self.causal = config.direction == "causal"  # else the layout says, where both directions are allowed
        self.dropout = config.attention_dropout
        self.qkv = Linear(config.width, 3 * config.width, bias=config.bias)
        self.out = Linear(config.width, config.width, bias=config.bias)

    def project(self, x: Tensor, angles: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """(…, D) → queries, keys and values, each (…, H, K); queries and keys rotated where positions are rotary."""
        x = self.qkv(x)
        if angles is not None and rotary_triton.supports(x):
            return rotary_triton.rotated(x, angles, self.heads)
        q, k, v = x.view(*x.shape[:-1], 3, self.heads, self.head_width).unbind(-3)
        return (q, k, v) if angles is None else (rotate(q, angles), rotate(k, angles), v)

    def forward(
        self, x: Tensor, layout: Layout, angles: Tensor | None, bias: Tensor | None, keep: Tensor | None = None
    ) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        causal = self.causal or layout.causal
        if keep is not None and bias is None and _long_on_cpu(layout, x):
            queries = _queries(layout, keep, causal)
            if queries is not None:
                q, k, v = self._project_kept(x, angles, keep)
                return self.out(
                    _one_by_one(q, k, v, layout, causal=False, dropout=dropout, queries=queries).flatten(-2)
                )
        q, k, v = self.project(x, angles)
        if isinstance(layout, Cached):
            k, v = layout.extend(self, k, v)
        mixed = attend(q, k, v, layout, causal=causal, bias=bias, dropout=dropout)
        if keep is not None:
            mixed = layout.take(mixed, keep)
        return self.out(mixed.flatten(-2))

    def _project_kept(self, x: Tensor, angles: Tensor | None, keep: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of the tokens at `keep` alone, (M, H, K); keys and values of all, (N, H, K)."""
        width, shape = x.shape[-1], (self.heads, self.head_width)
        weight, bias = self.qkv.weight, self.qkv.bias
        q_bias, kv_bias = (None, None) if bias is None else (bias[:width], bias[width:])
        q = linear(x[keep], weight[:width], q_bias).view(-1, *shape)
        k, v = linear(x, weight[width:], kv_bias).view(-1, 2, *shape).unbind(1)
        return (q, k, v) if angles is None else (rotate(q, angles[keep]), rotate(k, angles), v)
