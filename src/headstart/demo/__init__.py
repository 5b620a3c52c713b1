"""What ships with the package, for a first look without a download: book reviews in French.

>>> sorted(path.name for path in REVIEWS.iterdir() if path.suffix == ".csv")
['test.csv', 'train.csv', 'valid.csv']
"""

from __future__ import annotations

import hashlib
from pathlib import Path

REVIEWS = Path(__file__).parent / "reviews"  # described in DATASHEET.md there


def split_of(text: str) -> str:
    """Which split a review is in: its own text decides, so that a review that is added moves no other.

    >>> split_of("Un livre.")
    'train'
    """
    place = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
    return "train" if place < 0.6 else "valid" if place < 0.75 else "test"
