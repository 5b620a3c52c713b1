"""Which documents hold a text that a model is to be tested on: they may not be pretrained on."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from hashlib import blake2b

from headstart.reading.split import content_hash

WORDS = 8  # a held-out text of so many words is looked for inside of documents; a shorter one may stand there by chance
_WORD = re.compile(r"\w+")
_PART = re.compile(r"\n|\|\|\|")  # lines, and the sides of `label ||| text`


class HeldOutTexts:
    """The texts of valid and test, in a form in which a document can be asked for them.

    >>> held_out = HeldOutTexts(["Too long.", "We waited an hour, and the soup was cold!"])
    >>> held_out.are_in("Too long, said the editor"), held_out.are_in("too  LONG")
    (False, True)
    >>> held_out.are_in("He wrote: we waited an hour and the soup was cold. I agree.")
    True
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self.hashes: set[int] = set()  # of whole texts, whatever their case, white space and punctuation
        self.by_beginning: dict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)  # first words: all words
        for text in texts:
            self.hashes.add(content_hash(text))
            words = _words(text)
            if len(words) >= WORDS:
                self.by_beginning[words[:WORDS]].add(words)

    def are_in(self, document: str) -> bool:
        """Whether the document, or a line of it, is one of the texts, or has all words of one in a row."""
        parts = {document, *_PART.split(document)}
        if any(content_hash(part) in self.hashes for part in parts if part.strip()):
            return True
        words = _words(document)
        for start, beginning in enumerate(zip(*(words[i:] for i in range(WORDS)), strict=False)):
            for text in self.by_beginning.get(beginning, ()):
                if words[start : start + len(text)] == text:
                    return True
        return False

    @property
    def fingerprint(self) -> str:
        """Equal for the same texts."""
        return blake2b(repr(sorted(self.hashes)).encode(), digest_size=8).hexdigest()


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text.casefold()))
