"""Attention of one sequence on a CPU, written out, where oneDNN multiplies faster than MKL (`linear.py`).

torch's kernel never holds the weights of all tokens to all others, and multiplies with MKL. For a sequence that fits
into the cache it is faster to hold them and to multiply with oneDNN, although softmax and mask are then passes of their
own: on Zen 5 an eighth to two fifths of the time is saved, forward and backward, from about 100 tokens on.

oneDNN compiles a kernel for each shape, so sequences are padded to one of few lengths.

    H heads, L tokens, P padded to, K head width
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.model.dropout import factors
from headstart.model.linear import OneDnn, onednn_is_faster, onednn_rows

LEAST_TOKENS = 96  # of a sequence: below, torch's kernel takes less time
LEAST_ROWS = 384  # the same, of all heads together
KEPT_TOKENS = 512  # up to here the weights are kept for the backward pass; for longer sequences they are computed again


def supports(q: Tensor, tokens: int) -> bool:
    """Whether a sequence of so many tokens, of queries (N, H, K), is faster so; not while it is compiled."""
    return (
        q.device.type == "cpu"
        and q.dtype == torch.float32
        and tokens >= max(LEAST_TOKENS, LEAST_ROWS / q.shape[1])
        and not torch.compiler.is_compiling()
        and onednn_is_faster()
    )


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, bias: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """softmax(QKᵀ / √K + bias) V, with dropout of the weights: q, k and v are (H, L, K), the bias is (H, L, L)."""
    if torch.is_grad_enabled():
        out: Tensor = _Attention.apply(q, k, v, bias, causal, dropout)  # type: ignore[no-untyped-call]
        return out
    return _forward(q, k, v, bias, causal, dropout)[0]


def _forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, dropout: float
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The result (H, L, K), the weights (H, P, P), and what dropout multiplies them by."""
    length = q.shape[1]
    padded = _padded_length(length)
    with OneDnn(padded):
        w = _weights(_pad(q, padded), _pad(k, padded), length, bias, causal)
        kept = factors(w, dropout) if dropout > 0 else None
        return ((w if kept is None else w * kept) @ _pad(v, padded))[:, :length], w, kept


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, dropout: float) -> Tensor:
        out, w, kept = _forward(q, k, v, bias, causal, dropout)
        keep = kept is not None or q.shape[1] <= KEPT_TOKENS
        ctx.causal = causal
        ctx.save_for_backward(q, k, v, bias, out, w if keep else None, kept)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """With weights w = softmax(s): the gradient of s is w · (the gradient of w - its mean under w), and that mean
        is the product of a token's result with the gradient of it.
        """
        q, k, v, bias, out, w, kept = ctx.saved_tensors
        length = q.shape[1]
        padded = _padded_length(length)
        q, k, v, g = (_pad(x, padded) for x in (q, k, v, gradient))
        with OneDnn(padded):
            if w is None:
                w = _weights(q, k, length, bias, ctx.causal)
            v_grad = (w if kept is None else w * kept).mT @ g
            s_grad = g @ v.mT
            if kept is not None:
                s_grad *= kept
            s_grad[:, :length] -= (gradient * out).sum(-1, keepdim=True)
            s_grad *= w
            scale = 1 / math.sqrt(q.shape[-1])
            q_grad, k_grad = (s_grad @ k).mul_(scale), (s_grad.mT @ q).mul_(scale)
        bias_grad = s_grad[:, :length, :length] if ctx.needs_input_grad[3] else None
        return *(x[:, :length] for x in (q_grad, k_grad, v_grad)), bias_grad, None, None


def _weights(q: Tensor, k: Tensor, length: int, bias: Tensor | None, causal: bool) -> Tensor:
    """softmax(QKᵀ / √K + bias): (H, P, K), (H, P, K) → (H, P, P), zero at keys that are padding or lie ahead."""
    s = (q * (1 / math.sqrt(q.shape[-1]))) @ k.mT
    if bias is not None:
        s[:, :length, :length] += bias
    if causal:
        s += _later_keys(len(s[0]))
    elif length < s.shape[-1]:
        s[:, :, length:] = -math.inf
    return torch.softmax(s, -1, out=s)


def _pad(x: Tensor, length: int) -> Tensor:
    """(H, L, K) → (H, P, K) in one piece, zeros for padding."""
    return F.pad(x, (0, 0, 0, length - x.shape[1])).contiguous()


def _padded_length(length: int) -> int:
    """The next length of which oneDNN takes every row.

    >>> [_padded_length(length) for length in (96, 100, 200, 300, 600)]
    [96, 112, 208, 320, 640]
    """
    while onednn_rows(length) != length:
        length += 1
    return length


@cache
def _later_keys(length: int) -> Tensor:
    """(P, P): -inf where a key lies after its query, else 0."""
    return torch.full((length, length), -math.inf).triu(1)
