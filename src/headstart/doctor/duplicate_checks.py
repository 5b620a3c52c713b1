"""Checks for copies: within a split, between splits (leaks), under two labels; exact or nearly so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headstart.doctor.findings import Finding, Severity
from headstart.doctor.near_duplicates import THRESHOLD, near_duplicates, similarity
from headstart.doctor.splits import Hit, Split, rows_finding


def duplicates(splits: Sequence[Split]) -> Iterator[Finding]:
    hits = [
        Hit(split, row, partner=Hit(split, split.rows_by_key[key][0]))
        for split in splits
        for row, key in enumerate(split.keys)
        if key is not None and split.rows_by_key[key][0] != row
    ]
    problem = "repeats|repeat an earlier row of the same split"
    advice = "keep one of each (--clean does): a row that stands twice counts twice"
    yield from rows_finding("duplicate", "warning", splits, hits, problem, advice)


def conflicts(splits: Sequence[Split]) -> Iterator[Finding]:
    first_hits: dict[int, dict[str | None, Hit]] = {}  # by key, the first row of each label
    for split in splits:
        for row, key in enumerate(split.keys):
            if key is not None:
                first_hits.setdefault(key, {}).setdefault(split.rows[row].label, Hit(split, row))
    conflicting = {key: by_label for key, by_label in first_hits.items() if len(by_label) > 1}
    hits = [
        Hit(split, row, partner=next(hit for label, hit in conflicting[key].items() if label != split.rows[row].label))
        for split in splits
        for row, key in enumerate(split.keys)
        if key in conflicting
    ]
    texts = f"{len(conflicting)} {'text' if len(conflicting) == 1 else 'texts'}"
    problem = f"stands|stand under another label elsewhere, {texts} in all"
    advice = "settle the label of each text, or drop it (--clean drops those that conflict within a split)"
    yield from rows_finding("conflict", "warning", splits, hits, problem, advice)


def leaks(splits: Sequence[Split]) -> Iterator[Finding]:
    for split, other in _split_pairs(splits):
        hits = [
            Hit(split, row, partner=Hit(other, other.rows_by_key[key][0]))
            for row, key in enumerate(split.keys)
            if key in other.rows_by_key
        ]
        count = sum(key in split.rows_by_key for key in other.keys)
        problem = f"is|are also in {other.name} ({count} {'row' if count == 1 else 'rows'} there)"
        cleaned, scored = (other, split) if other.name == "train" else (split, other)
        advice = (
            f"a score on them measures memory: drop them from {cleaned.name} (--clean does), "
            f"or leave them out when you score {scored.name}"
        )
        yield from rows_finding("leak", "error", [split], hits, problem, advice, {other.name: count})


def near_leaks(splits: Sequence[Split]) -> Iterator[Finding]:
    for split, other in _split_pairs(splits):
        yield from _near_finding("near-leak", "warning", split, other, f"one in {other.name}")


def near_duplicates_within(splits: Sequence[Split]) -> Iterator[Finding]:
    for split in splits:
        yield from _near_finding("near-duplicate", "note", split, split, "an earlier one")


def _split_pairs(splits: Sequence[Split]) -> Iterator[tuple[Split, Split]]:
    """Each two splits, the one whose rows are counted first: test in train, valid in train, valid in test."""
    by_name = {split.name: split for split in splits}
    for name, other in (("test", "train"), ("valid", "train"), ("valid", "test")):
        if name in by_name and other in by_name:
            yield by_name[name], by_name[other]


def _near_finding(kind: str, severity: Severity, split: Split, other: Split, what: str) -> Iterator[Finding]:
    """The finding about rows of `split` that have a near duplicate in `other`, which may be the split itself."""
    nearest = _nearest(split, other)
    partners = {row: partner for first, partner in nearest.items() for row in split.rows_by_key[split.keys[first]]}
    hits = [Hit(split, row, partner=Hit(other, partners[row])) for row in sorted(partners)]
    conflicting = sum(split.rows[row].label != other.rows[partner].label for row, partner in partners.items())
    labels = f", {conflicting} of them under another label" if conflicting else ""
    problem = f"is|are nearly the same as {what}{labels}"
    advice = "read a few pairs: drop the copies, unless the small difference is what the label is about"
    yield from rows_finding(kind, severity, [split], hits, problem, advice)


def _nearest(split: Split, other: Split) -> dict[int, int]:
    """The nearest duplicate in `other` for the first row of each key. Of a sentence pair, both texts must be near."""
    pairs = any(row.second is not None for row in split.rows)
    # A sketch holds both texts as one; the shingles across their border may lower the similarity a little.
    threshold = THRESHOLD - 0.1 if pairs else THRESHOLD
    within = other is split
    nearest: dict[int, tuple[float, int]] = {}
    for near in near_duplicates(split.sketches, None if within else other.sketches, threshold=threshold):
        row, partner = (near.right, near.left) if within else (near.left, near.right)
        row, partner = split.first_rows[row], other.first_rows[partner]
        if not within and split.keys[row] in other.rows_by_key:
            continue  # a leak, reported as such
        one, two = split.rows[row], other.rows[partner]
        texts = ((one.text, two.text), (one.second or "", two.second or ""))
        if pairs and any(similarity(*both) < THRESHOLD for both in texts):
            continue
        if row not in nearest or near.jaccard > nearest[row][0]:
            nearest[row] = near.jaccard, partner
    return {row: partner for row, (_, partner) in nearest.items()}
