"""Checks of the texts: empty or short ones, damaged characters, and with a tokenizer truncation and unknown tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html.entities import name2codepoint
from typing import TYPE_CHECKING

import numpy as np

from headstart.doctor.findings import Finding, Severity, percent
from headstart.doctor.splits import SHOWN, Hit, Split, rows_finding, shown_text

if TYPE_CHECKING:
    from headstart.tokenizers.tokenizer import Tokenizer

SHORT = 3  # a row of fewer words than this is very short
MANY = 0.01  # share of tokens truncated or unknown from which on it is a warning, not a note


def empty(splits: Sequence[Split]) -> Iterator[Finding]:
    hits = [Hit(split, row) for split in splits for row, key in enumerate(split.keys) if key is None]
    advice = "drop them (--clean does), or find out where their text was lost"
    yield from rows_finding("empty", "warning", splits, hits, "has|have no text", advice)


def short(splits: Sequence[Split]) -> Iterator[Finding]:
    hits = [
        Hit(split, row)
        for split in splits
        for row, count in enumerate(split.word_counts)
        if count < SHORT and split.keys[row] is not None
    ]
    advice = "read a few: is there enough in them to tell the label?"
    yield from rows_finding("short", "note", splits, hits, f"has|have fewer than {SHORT} words", advice)


# UTF-8 read as Windows-1252 or Latin-1: "é" becomes "Ã©", "’" becomes "â€™". A capital before Ã is excepted: in
# Portuguese a word may end in Ã and a quotation mark follow.
_AFTER = "\u0080-\u00bf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"
_MOJIBAKE = rf"(?<![A-ZÀ-Þ])Ã[{_AFTER}]|Â[\u00a0-\u00bf]|â€|â\u0080|ðŸ|ð\u009f|Å“|(?:[ÐÑ][{_AFTER}]){{3}}"
_TAGS = "a|b|br|blockquote|code|div|em|font|h[1-6]|hr|i|img|li|ol|p|pre|span|strong|table|td|th|tr|u|ul"
_HTML = (
    rf"(?i)</?(?:{_TAGS})\b[^<>]{{0,500}}>|<\s*br\s*\\?/?\s*>"
    rf"|&(?:#\d{{2,7}}|#x[0-9a-f]{{2,6}}|apos|{'|'.join(name2codepoint)});"
)
_DAMAGE: tuple[tuple[str, Severity, str, str, str], ...] = (  # kind, severity, pattern, problem, advice
    (
        "replacement-characters",
        "warning",
        "\ufffd",
        "has|have U+FFFD, where a character was lost in decoding",
        "go back to the source and decode it in its own encoding; the characters cannot be had from here",
    ),
    (
        "mojibake",
        "warning",
        _MOJIBAKE,
        "has|have UTF-8 read as another encoding, as in 'Ã©' for 'é'",
        "go back to the source and read it as UTF-8, or mend the text (the package ftfy does)",
    ),
    (
        "control-characters",
        "warning",
        r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]",
        "has|have control characters",
        r"drop them; those from \x80 to \x9f are quotes and dashes of Windows-1252: decode the source as that",
    ),
    (
        "lost-characters",
        "note",
        r"(?<=[^\W\d_])\?(?=[a-zà-öø-ÿ])(?!\w*=)",  # not the query of a web address
        "has|have a question mark inside a word, where an apostrophe or an accent may have been",
        "look at the source: it may still have the character",
    ),
    (
        "html",
        "note",
        _HTML,
        "has|have HTML left over",
        "strip the tags and unescape the entities (html.unescape), the same way in every split",
    ),
)


def damaged_characters(splits: Sequence[Split]) -> Iterator[Finding]:
    for kind, severity, pattern, problem, advice in _DAMAGE:
        search = re.compile(pattern).search
        hits = [
            Hit(split, i, at=match.start())
            for split in splits
            for i, row in enumerate(split.rows)
            if (match := search(shown_text(row)))
        ]
        yield from rows_finding(kind, severity, splits, hits, problem, advice)


# Tokens


def truncated_rows(splits: Sequence[Split], window: int) -> Iterator[Finding]:
    lengths = np.concatenate([split.tokens.lengths for split in splits])
    long = lengths[lengths > window]
    truncated, total = int((long - window).sum()), int(lengths.sum())
    hits = [Hit(split, row) for split in splits for row in np.flatnonzero(split.tokens.lengths > window).tolist()]
    problem = (
        f"is|are longer than the window of {window} tokens: {percent(truncated, int(long.sum()))} of their tokens "
        f"are cut, {percent(truncated, total)} of all"
    )
    advice = "take a longer window if the model has one, or see whether the cut end is where the label is told"
    severity: Severity = "warning" if truncated / max(1, total) >= MANY else "note"
    yield from rows_finding("cut", severity, splits, hits, problem, advice)


def unknown_tokens(splits: Sequence[Split], tokenizer: Tokenizer) -> Iterator[Finding]:
    unknown = sum(int(split.tokens.unknown.sum()) for split in splits)
    total = sum(int(split.tokens.content.sum()) for split in splits)
    hits = [
        Hit(split, row, at=_first_unknown(shown_text(split.rows[row]), tokenizer) if i < SHOWN else 0)
        for split in splits
        for i, row in enumerate(np.flatnonzero(split.tokens.unknown).tolist())
    ]
    problem = f"has|have tokens unknown to the tokenizer, {percent(unknown, total)} of all tokens"
    advice = "if they matter, train a tokenizer on this text, or take one with a byte fallback"
    severity: Severity = "warning" if unknown >= MANY * total else "note"
    yield from rows_finding("unknown", severity, splits, hits, problem, advice)


def _first_unknown(text: str, tokenizer: Tokenizer) -> int:
    """Where the first word with an unknown token begins."""
    words = re.finditer(r"\S+", text)
    return next((word.start() for word in words if tokenizer.unknown in tokenizer.encode(word[0])), 0)
