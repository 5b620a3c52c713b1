"""Content: a hash of what a text says, by which copies are recognised and rows are split."""

from __future__ import annotations

import re
import unicodedata
from hashlib import blake2b

_UNICODE_PUNCTUATION = re.compile("[\u0080-\u00bf\u2000-\u206f\u3000-\u303f\uff00-\uff0f\uff1a-\uff20]+")
_ASCII_PUNCTUATION = bytes(code for code in range(128) if not chr(code).isalnum())


def content_hash(text: str) -> int:
    """A 64-bit hash of a text that ignores case, white space and punctuation; the same on every machine.

    >>> content_hash("Don't miss it!") == content_hash("don ’ t  miss it")
    True
    """
    normalized = unicodedata.normalize("NFC", text).casefold()
    if not normalized.isascii():
        normalized = _UNICODE_PUNCTUATION.sub("", normalized)
    # `bytes.translate` drops characters an order of magnitude faster than `str.translate` does.
    stripped = normalized.encode("utf-8", "surrogatepass").translate(None, _ASCII_PUNCTUATION)
    hashed = blake2b(stripped or text.encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(hashed.digest(), "big")


def split_position(content: str) -> float:
    """A position in [0, 1) that depends on the content alone: splits are intervals of it.

    >>> 0 <= split_position("a text") < 1
    True
    """
    return (content_hash(content) >> 11) / (1 << 53)  # the 53 bits of a float, so that 1.0 is never reached
