"""Attention for a whole batch in the plain form: what the fast layouts must come to."""

from __future__ import annotations

import torch
from torch import Tensor

from headstart.model.attention import plain_attention, square_mask


def one_at_a_time(
    q: Tensor, k: Tensor, v: Tensor, lengths: list[int], *, causal: bool, bias: Tensor | None = None
) -> Tensor:
    """(N, H, K): plain attention for each sequence by itself; `bias` is (H, L, L), of which each takes its corner."""
    results = []
    start = 0
    for n in filter(None, lengths):
        mask = torch.zeros(n, n, dtype=q.dtype, device=q.device)
        if causal:
            mask = mask + square_mask(n, q.device)
        if bias is not None:
            mask = mask + bias[:, :n, :n]
        mine = [x[start : start + n].transpose(0, 1) for x in (q, k, v)]  # each (H, n, K)
        out, _ = plain_attention(mine[0], mine[1], mine[2], mask)
        results.append(out.transpose(0, 1))
        start += n
    return torch.cat(results)
