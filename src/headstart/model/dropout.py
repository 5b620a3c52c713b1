"""Dropout, with random numbers that a CPU draws fast.

torch draws one number after the other on one core, which takes longer than most of what lies between the products. Here
the generator gives a seed, and the numbers are those of SplitMix64 (Steele, Lea and Flood 2014): number i is a hash of
seed + i · STEP, so that all of them are computed at once, on all cores, and each decides over four elements.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEAST = 2**14  # elements: below, torch's own takes less time
STEP = 0x9E3779B97F4A7C15 - 2**64  # as signed integers, which is what torch has
MULTIPLIERS = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


class Dropout(nn.Dropout):
    """nn.Dropout, by these numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x


def dropout(x: Tensor, p: float) -> Tensor:
    """Each element zero with probability p, else divided by 1 - p.

    >>> _ = torch.manual_seed(0)
    >>> dropped = dropout(torch.ones(20_000), 0.2)
    >>> [round(value, 3) for value in sorted(set(dropped.tolist()))], round(dropped.mean().item(), 2)
    ([0.0, 1.25], 1.0)
    """
    if torch.compiler.is_compiling() or x.device.type != "cpu" or x.numel() < LEAST or not 0 < p < 1:
        return F.dropout(x, p)
    out: Tensor = _Dropout.apply(x, p)  # type: ignore[no-untyped-call]
    return out


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        kept = factors(x, p)
        ctx.save_for_backward(kept)
        return x * kept

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.saved_tensors[0], None


def factors(x: Tensor, p: float) -> Tensor:
    """In the shape of x: 0 with probability p, else 1 / (1 - p)."""
    numbers = random_bits(-(-x.numel() // 4)).view(torch.int16)[: x.numel()]  # each from -2¹⁵ to 2¹⁵ - 1
    kept = min(max(round((1 - p) * 2**16), 1), 2**16 - 1)  # of 2¹⁶ numbers
    return (numbers < kept - 2**15).view(x.shape).to(x.dtype).mul_(2**16 / kept)


def random_bits(count: int) -> Tensor:
    """(count,) int64, all bits random: a function of the state of torch's generator for the CPU."""
    bits = torch.arange(count).mul_(STEP).add_(torch.randint(2**62, (1,)))
    for shift, multiplier in zip((30, 27), MULTIPLIERS, strict=True):
        bits.bitwise_xor_(_shifted(bits, shift)).mul_(multiplier)
    return bits.bitwise_xor_(_shifted(bits, 31))


def _shifted(bits: Tensor, by: int) -> Tensor:
    """Shifted to the right, zeros from the left: torch would repeat the sign."""
    return (bits >> by).bitwise_and_(2 ** (64 - by) - 1)
