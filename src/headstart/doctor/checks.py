"""The doctor's checks: each takes the splits and yields what it finds in them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html.entities import name2codepoint
from itertools import groupby, islice, zip_longest
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc

from headstart.doctor.findings import (
    SHOWN,
    Finding,
    Part,
    Place,
    Severity,
    Tokens,
    number,
    percent,
    quoted,
    rows_of,
    shown_text,
    some,
    verb,
)
from headstart.doctor.near_duplicates import THRESHOLD, Near, near, similarity

if TYPE_CHECKING:
    from headstart.tokenizers.tokenizer import Tokenizer

SHORT = 3  # a row of fewer words than this is very short
SORTED = 4.0  # standard deviations that the number of label runs lies below that of a shuffled file
RARE = 10  # a class this many times smaller than the largest is strongly outnumbered
DRIFT = 0.1  # share of rows whose label would have to change for two splits to have one balance
DRIFT_CHANCE = 0.001  # …and how seldom chance alone may do as much
MANY = 0.01  # a share of tokens cut or unknown that is more than a note


# --- findings about rows: the same check in every split, one finding in all ---


def everywhere(
    kind: str,
    severity: Severity,
    hits: Sequence[tuple[Part, Sequence[int]]],
    problem: str,
    advice: str,
    place: Callable[[Part, int], Place] = Part.place,
) -> Iterator[Finding]:
    """One finding for the rows hit in all splits, or none. `problem` begins with its verb, as in "has|have no text"."""
    count = sum(len(rows) for _, rows in hits)
    if not count:
        return
    of = sum(len(part.rows) for part, _ in hits)
    by_split = {part.name: len(rows) for part, rows in hits if rows}
    where = ", ".join(f"{name} {number}" for name, number in by_split.items())
    rows_of = f"rows ({where})" if len(hits) > 1 else "rows"
    verbs, _, rest = problem.partition(" ")
    message = f"{count} of {of} {rows_of} {verbs.split('|')[count > 1]} {rest}"
    turns = zip_longest(*([(part, row) for row in rows[:SHOWN]] for part, rows in hits))  # some of each split
    chosen = islice((hit for turn in turns for hit in turn if hit is not None), SHOWN)
    places = tuple(place(part, row) for part, row in chosen)
    yield Finding(kind, severity, count, of, message, advice, places, by_split)


def _empty(parts: Sequence[Part]) -> Iterator[Finding]:
    hits = [(part, [row for row, key in enumerate(part.keys) if key is None]) for part in parts]
    advice = "drop them (--clean does), or find out where their text was lost"
    yield from everywhere("empty", "warning", hits, "has|have no text", advice)


def _short(parts: Sequence[Part]) -> Iterator[Finding]:
    hits = [
        (part, [row for row, n in enumerate(part.words) if n < SHORT and part.keys[row] is not None]) for part in parts
    ]
    advice = "read a few: is there enough in them to tell the label?"
    yield from everywhere("short", "note", hits, f"has|have fewer than {SHORT} words", advice)


def _duplicates(parts: Sequence[Part]) -> Iterator[Finding]:
    hits = [(part, sorted(row for rows in part.places.values() for row in rows[1:])) for part in parts]

    def place(part: Part, row: int) -> Place:
        return part.place(row, partner=part.place(part.twins(row, part)[0]))

    problem = "repeats|repeat an earlier row of the same split"
    advice = "keep one of each (--clean does): a row that stands twice counts twice"
    yield from everywhere("duplicate", "warning", hits, problem, advice, place)


def _conflicts(parts: Sequence[Part]) -> Iterator[Finding]:
    labels: dict[int, set[str | None]] = defaultdict(set)
    for part in parts:
        for key in part.places:
            labels[key] |= part.labels_of(key)
    torn = {key for key, found in labels.items() if len(found) > 1}
    hits = [(part, [row for row, key in enumerate(part.keys) if key in torn]) for part in parts]

    def place(part: Part, row: int) -> Place:
        twins = ((other, twin) for other in parts for twin in part.twins(row, other))
        against = (other.place(twin) for other, twin in twins if other.rows[twin].label != part.rows[row].label)
        return part.place(row, partner=next(against))

    problem = f"stands|stand under another label elsewhere, {number(len(torn), 'text')} in all"
    advice = "settle the label of each text, or drop it (--clean drops those that conflict within a split)"
    yield from everywhere("conflict", "warning", hits, problem, advice, place)


# --- findings about one split, or two ---


def _finding(
    part: Part,
    kind: str,
    severity: Severity,
    rows: Sequence[int],
    message: str,
    advice: str,
    place: Callable[[int], Place] | None = None,
    shown: int = SHOWN,
    others: Mapping[str, int] | None = None,
) -> Finding:
    """A finding about some rows of one split, and a number of rows in others."""
    places = tuple(map(place or part.place, rows[:shown]))
    counts = {part.name: len(rows), **(others or {})}
    return Finding(kind, severity, len(rows), len(part.rows), message, advice, places, counts)


def _two(parts: Sequence[Part]) -> Iterator[tuple[Part, Part]]:
    """Splits two by two, the one whose rows are counted first: test in train, valid in train, valid in test."""
    named = {part.name: part for part in parts}
    for name, other in (("test", "train"), ("valid", "train"), ("valid", "test")):
        if name in named and other in named:
            yield named[name], named[other]


def _leaks(parts: Sequence[Part]) -> Iterator[Finding]:
    for part, other in _two(parts):
        rows = [row for row, key in enumerate(part.keys) if key in other.places]
        there = sum(key in part.places for key in other.keys)
        giving, scored = (other, part) if other.name == "train" else (part, other)
        message = f"{rows_of(rows, part)} {verb(rows, 'is', 'are')} also in {other.name} ({number(there, 'row')} there)"
        advice = (
            f"a score on them measures memory: drop them from {giving.name} (--clean does), "
            f"or leave them out when you score {scored.name}"
        )

        def place(row: int, part: Part = part, other: Part = other) -> Place:
            return part.place(row, partner=other.place(part.twins(row, other)[0]))

        if rows:
            yield _finding(part, "leak", "error", rows, message, advice, place, others={other.name: there})


def _near_leaks(parts: Sequence[Part]) -> Iterator[Finding]:
    for part, other in _two(parts):
        best: dict[int, Near] = {}
        for pair in _near(part, other):
            if not part.twins(part.firsts[pair.left], other):  # an exact leak is told already
                _keep_best(best, part.firsts[pair.left], pair)
        partners = {row: other.firsts[pair.right] for row, pair in best.items()}
        yield from _near_finding("near-leak", "warning", part, other, partners, f"one in {other.name}")


def _near_duplicates(parts: Sequence[Part]) -> Iterator[Finding]:
    for part in parts:
        best: dict[int, Near] = {}
        for pair in _near(part, None):
            _keep_best(best, part.firsts[pair.right], pair)
        partners = {row: part.firsts[pair.left] for row, pair in best.items()}
        yield from _near_finding("near-duplicate", "note", part, part, partners, "an earlier one")


def _near(part: Part, other: Part | None) -> Iterator[Near]:
    """Near duplicates among the first rows of each key. Of a sentence pair, both sides must be near."""
    others = part if other is None else other
    sketches = None if other is None else other.sketches
    if all(row.second is None for row in part.rows):
        yield from near(part.sketches, sketches)
        return
    # A sketch holds both sides as one text; the shingles over their border may lower the Jaccard a little.
    for pair in near(part.sketches, sketches, threshold=THRESHOLD - 0.1):
        one, two = part.rows[part.firsts[pair.left]], others.rows[others.firsts[pair.right]]
        sides = ((one.text, two.text), (one.second or "", two.second or ""))
        if all(similarity(left, right) >= THRESHOLD for left, right in sides):
            yield pair


def _keep_best(best: dict[int, Near], row: int, pair: Near) -> None:
    if row not in best or pair.jaccard > best[row].jaccard:
        best[row] = pair


def _near_finding(
    kind: str, severity: Severity, part: Part, other: Part, partners: Mapping[int, int], what: str
) -> Iterator[Finding]:
    """The finding for rows (each the first of its key) and the row of `other` that each is nearest to."""
    partner_of = {row: partner for first, partner in partners.items() for row in part.twins(first, part)}
    rows = sorted(partner_of)
    torn = sum(part.rows[row].label != other.rows[partner_of[row]].label for row in rows)
    labels = f", {torn} of them under another label" if torn else ""
    message = f"{rows_of(rows, part)} {verb(rows, 'is', 'are')} nearly the same as {what}{labels}"
    advice = "read a few pairs: drop the copies, unless the small difference is what the label is about"

    def place(row: int) -> Place:
        return part.place(row, partner=other.place(partner_of[row]))

    if rows:
        yield _finding(part, kind, severity, rows, message, advice, place)


# --- findings about labels ---


def _one_label(parts: Sequence[Part]) -> Iterator[Finding]:
    for part in parts:
        if len(part.labels) != 1 or len(part.rows) < 2:
            continue
        message = f"all {len(part.rows)} {part.name} rows have the label {quoted(*part.labels)}"
        if part.name == "train":
            advice = "there is nothing to learn: look for the rows of the other labels"
        else:
            advice = f"if these are placeholders, no score on {part.name} means anything: get the true labels"
        yield _finding(part, "one-label", "error", range(len(part.rows)), message, advice, shown=1)


def _new_labels(parts: Sequence[Part]) -> Iterator[Finding]:
    known = parts[0].labels
    for part in parts[1:]:
        new = [label for label in part.labels if label not in known]
        rows = [number for number, row in enumerate(part.rows) if row.label is not None and row.label not in known]
        message = f"{rows_of(rows, part)} {verb(rows, 'has', 'have')} a label that train never shows: {some(new)}"
        advice = "no model can predict it: mend the spelling, or add such rows to train"
        if rows:
            yield _finding(part, "new-label", "error", rows, message, advice)


def _imbalance(parts: Sequence[Part]) -> Iterator[Finding]:
    train = parts[0]
    if len(train.labels) < 2:
        return
    (most, largest), *_, (least, smallest) = train.labels.most_common()
    message = (
        f"{quoted(most)} has {largest} of {len(train.rows)} train rows and {quoted(least)} {smallest}: "
        f"always answering {quoted(most)} is right {percent(largest, len(train.rows))} of the time"
    )
    rows = [number for number, row in enumerate(train.rows) if row.label == least]
    advice = "judge by macro-F1 or by each class, not by accuracy, and look for more rows of the rare classes"
    if largest >= RARE * smallest:
        yield _finding(train, "imbalance", "warning", rows, message, advice)


def _drift(parts: Sequence[Part]) -> Iterator[Finding]:
    train = parts[0]
    for part in parts[1:]:
        if min(len(train.labels), len(part.labels)) < 2:
            continue  # told by one-label
        names = list(train.labels | part.labels)
        table = np.array([[labels[name] for name in names] for labels in (train.labels, part.labels)])  # (2, C)
        share = table / table.sum(axis=1, keepdims=True)
        apart = np.abs(share[0] - share[1])
        moved = float(apart.sum() / 2)
        widest = int(apart.round(9).argmax())  # of equals the first, whatever the last bit says
        message = (
            f"{part.name} has another balance than train: {quoted(names[widest])} is "
            f"{share[0][widest]:.0%} of train and {share[1][widest]:.0%} of {part.name}"
        )
        advice = "if the splits come from two sources, say so beside every score; if not, split again at random"
        if moved >= DRIFT and _chance(table) <= DRIFT_CHANCE:
            count = round(moved * len(part.rows))
            yield Finding("drift", "warning", count, len(part.rows), message, advice, (), {part.name: count})


def _chance(table: NDArray[np.int64]) -> float:
    """How often two samples of one source differ at least so much (a χ² test)."""
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0, keepdims=True) / table.sum()
    statistic = ((table - expected) ** 2 / expected).sum()
    return float(chdtrc(table.shape[1] - 1, statistic))


def _sorted(parts: Sequence[Part]) -> Iterator[Finding]:
    for part in parts:
        labels = [row.label for row in part.rows]
        runs = [len(list(run)) for _, run in groupby(labels)]
        mean, deviation = _shuffled_runs(list(Counter(labels).values()))
        if len(runs) < 2 or len(runs) > min(mean / 2, mean - SORTED * deviation):
            continue
        longest = max(range(len(runs)), key=runs.__getitem__)
        begin = sum(runs[:longest])
        end = begin + runs[longest]
        which = f"the first {end} rows" if begin == 0 else f"rows {begin + 1} to {end}"
        message = (
            f"{part.name} is sorted by label: {which} are all {quoted(str(labels[begin]))}, and there are "
            f"{len(runs)} runs of one label where a shuffled file has about {mean:.0f}"
        )
        severity: Severity = "warning" if part.name == "train" else "note"
        first = "shuffle it before training, and " if part.name == "train" else ""
        advice = f"{first}never take the first rows as a sample of it"
        last = part.place(end - 1)

        def place(row: int, part: Part = part, last: Place = last) -> Place:
            return part.place(row, partner=last)

        yield _finding(part, "sorted", severity, range(begin, end), message, advice, place, shown=1)


def _shuffled_runs(counts: Sequence[int]) -> tuple[float, float]:
    """The mean number of runs of one label in a shuffled file, and its standard deviation.

    >>> _shuffled_runs([1, 1])
    (2.0, 0.0)
    """
    n, squares, cubes = sum(counts), sum(c**2 for c in counts), sum(c**3 for c in counts)
    if n < 2:
        return float(n), 0.0
    mean = 1 + n - squares / n
    variance = (squares * (squares + n * (n + 1)) - 2 * n * cubes - n**3) / (n**2 * (n - 1))
    return mean, max(0.0, variance) ** 0.5


# --- findings about characters ---


@dataclass(frozen=True)
class _Damage:
    kind: str
    severity: Severity
    pattern: re.Pattern[str]
    problem: str
    advice: str


# UTF-8 read as Windows-1252 or Latin-1: "é" becomes "Ã©", "’" becomes "â€™". A capital before Ã is let off: in
# Portuguese a word may end in Ã and a quotation mark follow.
_AFTER = "\u0080-\u00bf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"
_MOJIBAKE = rf"(?<![A-ZÀ-Þ])Ã[{_AFTER}]|Â[\u00a0-\u00bf]|â€|â\u0080|ðŸ|ð\u009f|Å“|(?:[ÐÑ][{_AFTER}]){{3}}"
_TAGS = "a|b|br|blockquote|code|div|em|font|h[1-6]|hr|i|img|li|ol|p|pre|span|strong|table|td|th|tr|u|ul"
_HTML = (
    rf"</?(?:{_TAGS})\b[^<>]{{0,500}}>|<\s*br\s*\\?/?\s*>"
    rf"|&(?:#\d{{2,7}}|#x[0-9a-f]{{2,6}}|apos|{'|'.join(name2codepoint)});"
)

_DAMAGES = (
    _Damage(
        "replacement-characters",
        "warning",
        re.compile("\ufffd"),
        "has|have U+FFFD, where a character was lost in decoding",
        "go back to the source and decode it in its own encoding; the characters cannot be had from here",
    ),
    _Damage(
        "mojibake",
        "warning",
        re.compile(_MOJIBAKE),
        "has|have UTF-8 read as another encoding, as in 'Ã©' for 'é'",
        "go back to the source and read it as UTF-8, or mend the text (the package ftfy does)",
    ),
    _Damage(
        "control-characters",
        "warning",
        re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"),
        "has|have control characters",
        r"drop them; those from \x80 to \x9f are quotes and dashes of Windows-1252: decode the source as that",
    ),
    _Damage(
        "lost-characters",
        "note",
        re.compile(r"(?<=[^\W\d_])\?(?=[a-zà-öø-ÿ])(?!\w*=)"),  # not the query of a web address
        "has|have a question mark inside a word, where an apostrophe or an accent may have been",
        "look at the source: it may still have the character",
    ),
    _Damage(
        "html",
        "note",
        re.compile(_HTML, re.IGNORECASE),
        "has|have HTML left over",
        "strip the tags and unescape the entities (html.unescape), the same way in every split",
    ),
)


def _damage(parts: Sequence[Part]) -> Iterator[Finding]:
    for damage in _DAMAGES:
        hits = [
            (part, [n for n, row in enumerate(part.rows) if damage.pattern.search(shown_text(row))]) for part in parts
        ]

        def place(part: Part, row: int, pattern: re.Pattern[str] = damage.pattern) -> Place:
            match = pattern.search(shown_text(part.rows[row]))
            return part.place(row, at=match.start() if match else 0)

        yield from everywhere(damage.kind, damage.severity, hits, damage.problem, damage.advice, place)


# --- findings about tokens ---


def cut_rows(parts: Sequence[Part], counted: Sequence[Tokens], window: int) -> Iterator[Finding]:
    hits = [
        (part, np.flatnonzero(tokens.lengths > window).tolist()) for part, tokens in zip(parts, counted, strict=True)
    ]
    lengths = np.concatenate([tokens.lengths for tokens in counted])
    long = lengths[lengths > window]
    cut = int((long - window).sum())
    if not cut:
        return
    share = cut / int(lengths.sum())
    problem = (
        f"is|are longer than the window of {window} tokens: {percent(cut, int(long.sum()))} of their tokens are cut, "
        f"{percent(cut, int(lengths.sum()))} of all"
    )
    advice = "take a longer window if the model has one, or see whether the cut end is where the label is told"
    yield from everywhere("cut", "warning" if share >= MANY else "note", hits, problem, advice)


def unknown_tokens(parts: Sequence[Part], counted: Sequence[Tokens], tokenizer: Tokenizer) -> Iterator[Finding]:
    hits = [(part, np.flatnonzero(tokens.unknown).tolist()) for part, tokens in zip(parts, counted, strict=True)]
    unknown = sum(int(tokens.unknown.sum()) for tokens in counted)
    pieces = sum(tokens.pieces for tokens in counted)

    def place(part: Part, row: int) -> Place:
        text = shown_text(part.rows[row])
        first = (word.start() for word in re.finditer(r"\S+", text) if tokenizer.unknown in tokenizer.encode(word[0]))
        return part.place(row, at=next(first, 0))

    problem = f"has|have tokens unknown to the tokenizer, {percent(unknown, pieces)} of all tokens"
    advice = "if they matter, train a tokenizer on this text, or take one with a byte fallback"
    severity: Severity = "warning" if unknown >= MANY * pieces else "note"
    yield from everywhere("unknown", severity, hits, problem, advice, place)


CHECKS: tuple[Callable[[Sequence[Part]], Iterator[Finding]], ...] = (
    _leaks,
    _one_label,
    _new_labels,
    _near_leaks,
    _conflicts,
    _duplicates,
    _sorted,
    _imbalance,
    _drift,
    _empty,
    _damage,
    _near_duplicates,
    _short,
)
