"""Four ways to encode positions, each a small pure function.

sinusoidal  added to the embedding; nothing learned (Vaswani et al. 2017, the lab)
learned     a table added to the embedding (BERT, GPT-2): it is an `nn.Embedding` in backbone.py
rotary      queries and keys rotated by an angle that grows with the position (Su et al. 2021)
relative    a learned bias on the attention scores, by distance (Raffel et al. 2020, MPNet)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sinusoidal(length: int, width: int) -> Tensor:
    """(L, D): sines in the even columns, cosines in the odd ones, wavelengths from 2π to 10,000 · 2π.

    >>> [round(x, 2) for x in sinusoidal(2, 4)[1].tolist()]
    [0.84, 0.54, 0.01, 1.0]
    """
    position = torch.arange(length, dtype=torch.float32)[:, None]  # (L, 1)
    rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))  # (D / 2,)
    table = torch.zeros(length, width)
    table[:, 0::2] = torch.sin(position * rate)
    table[:, 1::2] = torch.cos(position * rate)
    return table


def rotary(length: int, head_width: int, base: float = 10_000.0) -> Tensor:
    """(L, 2, K / 2): cosine and sine of the angle of each pair at each position."""
    rate = base ** (-torch.arange(0, head_width, 2, dtype=torch.float32) / head_width)  # (K / 2,)
    angle = torch.arange(length, dtype=torch.float32)[:, None] * rate  # (L, K / 2)
    return torch.stack([angle.cos(), angle.sin()], dim=1)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate each pair (x[i], x[i + K / 2]) of the last dimension by its angle; norms do not change.

    x is (…, H, K) and angles (…, 2, K / 2), one entry for each token.
    """
    cos, sin = angles[..., None, 0, :].to(x.dtype), angles[..., None, 1, :].to(x.dtype)  # (…, 1, K / 2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def relative_buckets(length: int, buckets: int, furthest: int = 128) -> Tensor:
    """(L, L): the bucket of key j as seen from query i.

    Half of the buckets are for keys to the right. In each half the first half holds one distance each, the rest
    widen logarithmically up to `furthest`; everything beyond shares the last.

    >>> relative_buckets(4, 8)[0].tolist()  # looking right: distances 0, 1, 2, 3
    [0, 5, 6, 6]
    >>> relative_buckets(4, 8)[3].tolist()  # looking left: distances 3, 2, 1, 0
    [2, 2, 1, 0]
    """
    offset = torch.arange(1 - length, length)  # (2 L - 1,): every j - i there is
    half, exact = buckets // 2, buckets // 4
    distance = offset.abs()
    growth = torch.log(distance.clamp(min=1).float() / exact) / math.log(furthest / exact)
    wide = exact + (growth * (half - exact)).long()
    bucket = torch.where(distance < exact, distance, wide.clamp(max=half - 1))
    bucket = bucket + half * (offset > 0)
    return bucket.unfold(0, length, 1).flip(0)  # row i begins at offset -i
