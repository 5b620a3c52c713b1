"""Random numbers for many items at once, each a pure function of a key and of the item's own number.

The numbers are those of SplitMix64 (Steele, Lea and Flood 2014), which can be entered anywhere: draw i of a stream is a
hash of `stream + i * STEP`. So the masks of a window do not depend on what else is in its batch, and a batch is drawn
in a few operations on whole arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint64]  # 64 random bits each
STEP = np.uint64(0x9E3779B97F4A7C15)
MULTIPLIERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def streams(key: tuple[int, ...], items: NDArray[Any]) -> Bits:
    """(S,): a stream for each of these items; another key gives other streams."""
    first = np.random.SeedSequence(key).generate_state(1, np.uint64)
    return draw(first.astype(np.uint64), items)


def draw(streams: Bits, number: NDArray[Any] | int) -> Bits:
    """The draw of this number from each stream."""
    bits = streams + np.atleast_1d(number).astype(np.uint64) * STEP
    for shift, multiplier in zip((30, 27), MULTIPLIERS, strict=True):
        bits ^= bits >> np.uint64(shift)
        bits *= multiplier
    bits ^= bits >> np.uint64(31)
    return bits


def below(bits: Bits, limit: NDArray[Any] | int) -> NDArray[np.int64]:
    """A whole number from 0 to `limit` - 1 from each. Limits are far below 2³², so that the bias cannot be measured."""
    high = bits >> np.uint64(32)
    high *= np.asarray(limit).astype(np.uint64)
    return (high >> np.uint64(32)).astype(np.int64)


def uniform(bits: Bits) -> NDArray[np.float64]:
    """A number from 0 to below 1 from each."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def threshold(chance: float) -> np.uint64:
    """Bits are below this with that chance, which is less than 1."""
    return np.uint64(int(chance * 2**64))
