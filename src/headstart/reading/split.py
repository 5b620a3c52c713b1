"""The split of a labelled set into train, valid and test, by a hash of what each row says."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace
from hashlib import blake2b

from headstart.errors import ConfigError, DataError
from headstart.reading.examples import Example, Examples

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


def split(examples: Examples, *, valid: float, test: float) -> dict[str, Examples]:
    """Split into "train" and, where their share is above 0, "valid" and "test".

    The split of a row depends on its content alone (see `content_hash`): it stays the same when rows are added, removed
    or moved, and two copies of a text are always in the same split. Test is the lower end of `split_position` and valid
    the upper, so changing one share moves no row of the other.

        splits = split(examples, valid=0.1, test=0.2)
        len(splits["test"].rows)
    """
    problems = [
        f"{name} is {share}, expected a share from 0 up to (not including) 1"
        for name, share in (("valid", valid), ("test", test))
        if not 0 <= share < 1
    ]
    if not problems and valid + test >= 1:
        problems = [f"valid + test is {valid + test}, which leaves nothing to train on: keep it below 1"]
    if problems:
        raise ConfigError("split", problems)
    shares = {"train": 1 - valid - test, "valid": valid, "test": test}
    splits: dict[str, list[Example]] = {name: [] for name, share in shares.items() if share > 0}
    for row in examples.rows:
        position = split_position(row.content)
        splits["test" if position < test else "valid" if position >= 1 - valid else "train"].append(row)
    for name, rows in splits.items():
        if not rows:
            path = examples.rows[0].path if examples.rows else "the set"
            problem = f"none of {len(examples.rows)} rows came to the {name} split, whose share is {shares[name]:g}"
            raise DataError(path, problem, fix="give more rows, a larger share, or a file for each split")
    return {name: replace(examples, rows=tuple(rows)) for name, rows in splits.items()}
