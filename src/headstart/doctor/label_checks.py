"""Checks of the labels: missing classes, unknown labels, imbalance, drift between splits, files sorted by label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from headstart.doctor.findings import Finding, Severity, list_labels, percent, quote_label
from headstart.doctor.splits import Hit, Split, rows_finding, split_finding

IMBALANCE = 10  # how many times smaller than the largest class the smallest may not be
DRIFT = 0.1  # share of rows whose label would have to change for two splits to have the same balance
DRIFT_P_VALUE = 0.001
SORTED = 4.0  # standard deviations by which the number of label runs is below that of a shuffled file


def one_label(splits: Sequence[Split]) -> Iterator[Finding]:
    for split in splits:
        if len(split.label_counts) != 1 or len(split.rows) < 2:
            continue
        message = f"all {len(split.rows)} {split.name} rows have the label {quote_label(*split.label_counts)}"
        if split.name == "train":
            advice = "there is nothing to learn: look for the rows of the other labels"
        else:
            advice = f"if these are placeholders, no score on {split.name} means anything: get the true labels"
        yield split_finding("one-label", "error", split, len(split.rows), message, advice, [Hit(split, 0)])


def new_labels(splits: Sequence[Split]) -> Iterator[Finding]:
    known = splits[0].label_counts
    for split in splits[1:]:
        new = [label for label in split.label_counts if label not in known]
        hits = [Hit(split, i) for i, row in enumerate(split.rows) if row.label is not None and row.label not in known]
        problem = f"has|have a label that train never shows: {list_labels(new)}"
        advice = "no model can predict it: mend the spelling, or add such rows to train"
        yield from rows_finding("new-label", "error", [split], hits, problem, advice)


def imbalance(splits: Sequence[Split]) -> Iterator[Finding]:
    train = splits[0]
    if len(train.label_counts) < 2:
        return
    (most, largest), *_, (least, smallest) = train.label_counts.most_common()
    if largest >= IMBALANCE * smallest:
        message = (
            f"{quote_label(most)} has {largest} of {len(train.rows)} train rows and {quote_label(least)} {smallest}: "
            f"always answering {quote_label(most)} is right {percent(largest, len(train.rows))} of the time"
        )
        advice = "judge by macro-F1 or by each class, not by accuracy, and look for more rows of the rare classes"
        hits = [Hit(train, i) for i, row in enumerate(train.rows) if row.label == least]
        yield split_finding("imbalance", "warning", train, smallest, message, advice, hits)


def drift(splits: Sequence[Split]) -> Iterator[Finding]:
    train = splits[0]
    for split in splits[1:]:
        if min(len(train.label_counts), len(split.label_counts)) < 2:
            continue  # reported by `one_label`
        names = list(train.label_counts | split.label_counts)
        counts = np.array([[part.label_counts[name] for name in names] for part in (train, split)])  # (2, C)
        shares = counts / counts.sum(axis=1, keepdims=True)
        differences = np.abs(shares[0] - shares[1])
        moved = float(differences.sum() / 2)
        if moved < DRIFT or _homogeneity_p_value(counts) > DRIFT_P_VALUE:
            continue
        widest = int(differences.round(9).argmax())  # of equals the first, whatever the last bit says
        message = (
            f"{split.name} has another balance than train: {quote_label(names[widest])} is "
            f"{shares[0][widest]:.0%} of train and {shares[1][widest]:.0%} of {split.name}"
        )
        advice = "if the splits come from two sources, say so beside every score; if not, split again at random"
        yield split_finding("drift", "warning", split, round(moved * len(split.rows)), message, advice)


def _homogeneity_p_value(counts: NDArray[np.int64]) -> float:
    """The p-value of a χ² test that two samples, (2, C) counts, come from one distribution."""
    from scipy.special import chdtrc

    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0, keepdims=True) / counts.sum()
    statistic = ((counts - expected) ** 2 / expected).sum()
    return float(chdtrc(counts.shape[1] - 1, statistic))


def sorted_by_label(splits: Sequence[Split]) -> Iterator[Finding]:
    for split in splits:
        labels = [row.label for row in split.rows]
        runs = [len(list(run)) for _, run in groupby(labels)]
        mean, deviation = _shuffled_runs(list(Counter(labels).values()))
        if len(runs) < 2 or len(runs) > min(mean / 2, mean - SORTED * deviation):
            continue
        longest = max(range(len(runs)), key=runs.__getitem__)
        begin = sum(runs[:longest])
        end = begin + runs[longest]
        which = f"the first {end} rows" if begin == 0 else f"rows {begin + 1} to {end}"
        message = (
            f"{split.name} is sorted by label: {which} are all {quote_label(str(labels[begin]))}, and there are "
            f"{len(runs)} runs of one label where a shuffled file has about {mean:.0f}"
        )
        severity: Severity = "warning" if split.name == "train" else "note"
        shuffle = "shuffle it before training, and " if split.name == "train" else ""
        advice = f"{shuffle}never take the first rows as a sample of it"
        shown = [Hit(split, begin, partner=Hit(split, end - 1))]
        yield split_finding("sorted", severity, split, end - begin, message, advice, shown)


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
