"""Every finding in a set made for it, and not in a sound one; the known faults of real sets; cleaning."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from itertools import groupby, permutations
from operator import itemgetter
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from headstart.doctor.clean import clean, write_splits
from headstart.doctor.examine import examine, leaked_rows
from headstart.doctor.findings import Finding, Report, excerpt
from headstart.doctor.label_checks import _shuffled_runs
from headstart.errors import ConfigError, DataError
from headstart.reading.examples import Example, Examples, read_examples
from headstart.reading.split import split
from headstart.tokenizers.tokenizer import Tokenizer

Row = tuple[str, str | None] | tuple[str, str | None, str]  # text, label, and the second text of a pair


def make_examples(rows: Sequence[Row], path: str = "train.csv") -> Examples:
    """A set of rows on lines 1, 2, 3 …"""
    return Examples(
        tuple(
            Example(text=row[0], label=row[1], second=row[2] if len(row) > 2 else None, path=path, line=line)
            for line, row in enumerate(rows, 1)
        )
    )


def sound_rows(count: int, name: str = "a", labels: str = "01") -> list[tuple[str, str]]:
    """Rows with nothing wrong: no word in common, the labels in an order drawn at random."""
    draw = random.Random(name)
    chosen = [labels[number % len(labels)] for number in range(count)]
    draw.shuffle(chosen)
    return [(" ".join(f"{name}r{i}w{k}" for k in range(8)), label) for i, label in enumerate(chosen)]


def of_kind(report: Report, kind: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.kind == kind]


def only_finding(report: Report, kind: str) -> Finding:
    (finding,) = of_kind(report, kind)
    return finding


def example_lines(finding: Finding) -> list[int]:
    return [row.line for row in finding.examples]


class OneWordOneToken:
    """A tokenizer whose tokens can be counted by eye: words, between a start and an end; Greek is unknown to it."""

    unknown = 9

    def encode(self, text: str) -> list[int]:
        return [self.unknown if any("α" <= letter <= "ω" for letter in word) else 5 for word in text.split()]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def wrap(self, ids: Sequence[int], second: Sequence[int] | None = None) -> tuple[list[int], list[int]]:
        wrapped = [0, *ids, 2] if second is None else [0, *ids, 2, *second, 2]
        return wrapped, [0] * len(wrapped)


def word_tokenizer(unknown: int | None = 9) -> Tokenizer:
    tokenizer = OneWordOneToken()
    if unknown is None:
        tokenizer.unknown = None  # type: ignore[assignment]
    return cast(Tokenizer, tokenizer)


# --- a sound set ---


def test_a_sound_set_has_no_findings() -> None:
    report = examine(
        make_examples(sound_rows(400)),
        make_examples(sound_rows(100, "b")),
        make_examples(sound_rows(100, "c")),
        tokenizer=word_tokenizer(),
        window=10,
    )
    assert report.findings == ()
    assert report.unexamined == ()


def test_what_was_not_looked_at_is_said() -> None:
    report = examine(make_examples(sound_rows(10)))
    assert [line.split(":")[0] for line in report.unexamined] == [
        "leaks between splits",
        "rows longer than the model's window, and unknown tokens",
    ]


def test_the_summary_of_a_split() -> None:
    rows: list[Row] = [("one", "b"), ("one two", "a"), ("one two three four five", "b"), ("one two, three!", "10")]
    summary = examine(make_examples(rows), tokenizer=word_tokenizer()).splits[0]
    assert (summary.name, summary.rows) == ("train", 4)
    assert list(summary.labels.items()) == [("10", 1), ("a", 1), ("b", 2)]  # numbers first, then words
    assert summary.balance == {"10": 0.25, "a": 0.25, "b": 0.5}
    assert (summary.words.mean, summary.words.median, summary.words.longest) == (2.75, 2, 5)
    assert summary.tokens is not None
    assert (summary.tokens.mean, summary.tokens.longest) == (4.75, 7)


# --- duplicates and leaks ---


def test_a_leak_is_found_whatever_its_case_and_punctuation() -> None:
    train = make_examples([*sound_rows(20), ("It's  the BEST book, ever!", "1")])
    test = make_examples([("Its the best book ever", "1"), *sound_rows(20, "c")], "test.csv")
    finding = only_finding(examine(train, test=test), "leak")
    assert (finding.severity, finding.count, finding.of) == ("error", 1, 21)
    assert finding.message == "1 of 21 test rows is also in train (1 row there)"
    assert finding.rows == {"test": 1, "train": 1}
    (row,) = finding.examples
    assert (row.split, row.path, row.line, row.excerpt) == ("test", "test.csv", 1, "Its the best book ever")
    assert row.partner is not None
    assert (row.partner.split, row.partner.line) == ("train", 21)
    assert "drop them from train" in finding.advice


def test_one_other_word_is_no_leak() -> None:
    train = make_examples([*sound_rows(20), ("the best book ever", "1")])
    test = make_examples([*sound_rows(20, "c"), ("the worst book ever", "1")])
    assert examine(train, test=test).findings == ()


def test_leaks_are_counted_on_both_sides() -> None:
    """Two copies in train of a row that stands three times in test: three rows of test are known."""
    train = make_examples([*sound_rows(20), ("seen before", "1"), ("seen before", "1")])
    test = make_examples([*sound_rows(20, "c"), ("Seen before.", "1"), ("seen, before", "1"), ("SEEN BEFORE", "1")])
    finding = only_finding(examine(train, test=test), "leak")
    assert (finding.count, finding.of, finding.rows) == (3, 23, {"test": 3, "train": 2})
    assert example_lines(finding) == [21, 22, 23]


def test_each_two_splits_have_a_leak_of_their_own() -> None:
    train = make_examples([*sound_rows(20), ("in train and valid", "1"), ("in train and test", "1")])
    valid = make_examples([*sound_rows(20, "b"), ("in train and valid", "1"), ("in valid and test", "1")])
    test = make_examples([*sound_rows(20, "c"), ("in train and test", "1"), ("in valid and test", "1")])
    findings = of_kind(examine(train, valid, test), "leak")
    assert [finding.rows for finding in findings] == [
        {"test": 1, "train": 1},
        {"valid": 1, "train": 1},
        {"valid": 1, "test": 1},
    ]
    assert [row.excerpt for finding in findings for row in finding.examples] == [
        "in train and test",
        "in train and valid",
        "in valid and test",
    ]
    assert "drop them from valid" in findings[2].advice


def test_duplicates_count_every_row_but_the_first() -> None:
    train = make_examples(
        [*sound_rows(20), ("again and again", "1"), ("Again and again!", "1"), ("again, and again", "1")]
    )
    valid = make_examples([*sound_rows(10, "b"), ("twice here", "0"), ("twice here", "0")])
    finding = only_finding(examine(train, valid), "duplicate")
    assert (finding.count, finding.of, finding.rows) == (3, 35, {"train": 2, "valid": 1})
    assert [(row.split, row.line) for row in finding.examples] == [("train", 22), ("valid", 12), ("train", 23)]
    assert [row.partner.line for row in finding.examples if row.partner] == [21, 11, 21]


LONG = "we took it along on the train to the sea and read it to each other until the light was gone and then some more"


def test_a_near_leak() -> None:
    train = make_examples([*sound_rows(20), (LONG, "1")])
    test = make_examples([*sound_rows(20, "c"), (f"{LONG} again", "0"), (f"{LONG} again", "0")])
    report = examine(train, test=test)
    finding = only_finding(report, "near-leak")
    assert (finding.severity, finding.count, finding.of, finding.rows) == ("warning", 2, 22, {"test": 2})
    assert "2 of them under another label" in finding.message
    assert finding.examples[0].partner is not None
    assert finding.examples[0].partner.line == 21
    assert of_kind(report, "leak") == []


def test_an_exact_leak_is_no_near_leak_too() -> None:
    train = make_examples([*sound_rows(20), (LONG, "1"), (f"{LONG} again", "1")])
    report = examine(train, test=make_examples([*sound_rows(20, "c"), (LONG, "1")]))
    assert only_finding(report, "leak").count == 1
    assert of_kind(report, "near-leak") == []


def test_near_duplicates_within_a_split() -> None:
    train = make_examples([*sound_rows(20), (LONG, "1"), (f"{LONG} again", "1"), (LONG.upper(), "1")])
    report = examine(train)
    finding = only_finding(report, "near-duplicate")
    assert (finding.severity, finding.count, example_lines(finding)) == ("note", 1, [22])
    assert "another label" not in finding.message
    assert only_finding(report, "duplicate").count == 1  # the shouted copy


def test_half_a_text_is_no_near_duplicate() -> None:
    half = " ".join(LONG.split()[:12])
    assert examine(make_examples([*sound_rows(20), (LONG, "1"), (half, "1")])).findings == ()


def test_the_nearest_partner_is_shown() -> None:
    train = make_examples([*sound_rows(20), (f"{LONG} once more", "1"), (LONG, "1")])
    test = make_examples([*sound_rows(20, "c"), (f"{LONG} once", "1")])
    (row,) = only_finding(examine(train, test=test), "near-leak").examples
    assert row.partner is not None
    assert row.partner.line == 21  # 23 shingles of 24, and 22 of 23 with line 22


def test_pairs_are_the_same_only_where_both_sides_are() -> None:
    pairs: list[Row] = [(f"{text} first", label, f"{text} second") for text, label in sound_rows(20)]
    train = make_examples([*pairs, (LONG, "1", "it was fun"), (LONG, "1", "it was dull")])
    other: list[Row] = [(f"{text} first", label, f"{text} second") for text, label in sound_rows(20, "c")]
    assert examine(train, test=make_examples([*other, (LONG, "1", "nobody knows")])).findings == ()
    report = examine(train, test=make_examples([*other, (LONG, "1", "It was dull.")]))
    assert only_finding(report, "leak").count == 1
    report = examine(train, test=make_examples([*other, (f"{LONG} today", "1", "It was dull.")]))
    assert only_finding(report, "near-leak").count == 1


# --- labels ---


def test_one_text_under_two_labels() -> None:
    train = make_examples([*sound_rows(20), ("so so", "1"), ("So, so.", "0"), ("so so", "0")])
    test = make_examples([*sound_rows(20, "c"), ("fine by me", "1"), ("so so", "1")])
    finding = only_finding(examine(train, test=test), "conflict")
    assert (finding.severity, finding.count, finding.of) == ("warning", 4, 45)
    assert finding.rows == {"train": 3, "test": 1}
    assert "1 text in all" in finding.message
    for row in finding.examples:
        assert row.partner is not None
        assert {row.label, row.partner.label} == {"0", "1"}


def test_one_text_twice_under_one_label_is_no_conflict() -> None:
    report = examine(make_examples([*sound_rows(20), ("so so", "1"), ("So, so.", "1")]))
    assert of_kind(report, "conflict") == []


@pytest.mark.parametrize("name", ["train", "valid", "test"])
def test_a_split_of_one_label(name: str) -> None:
    splits = {
        "train": make_examples(sound_rows(60)),
        "valid": make_examples(sound_rows(60, "b")),
        "test": make_examples(sound_rows(60, "c")),
    }
    splits[name] = make_examples([(text, "0") for text, _ in sound_rows(60, "d")])
    finding = only_finding(examine(splits["train"], splits["valid"], splits["test"]), "one-label")
    assert (finding.severity, finding.rows) == ("error", {name: 60})
    assert finding.message == f"all 60 {name} rows have the label '0'"
    assert ("nothing to learn" in finding.advice) == (name == "train")


def test_one_row_of_another_label_is_enough() -> None:
    test = make_examples([(text, "0") for text, _ in sound_rows(60, "d")] + [("a last one here", "1")])
    assert of_kind(examine(make_examples(sound_rows(60)), test=test), "one-label") == []


def test_a_label_that_train_never_shows() -> None:
    valid = make_examples(
        [*sound_rows(20, "b"), ("spelt another way", "Good"), ("never seen at all", "2"), ("and again two", "2")]
    )
    report = examine(make_examples(sound_rows(40)), valid, make_examples(sound_rows(20, "c")))
    finding = only_finding(report, "new-label")
    assert (finding.severity, finding.count, finding.of, example_lines(finding)) == ("error", 3, 23, [21, 22, 23])
    assert finding.message.endswith("train never shows: '2', 'Good'")


@pytest.mark.parametrize(("common", "is_rare"), [(99, False), (100, True)])
def test_strong_imbalance_begins_at_ten_to_one(common: int, is_rare: bool) -> None:
    rows = [(text, "1" if number < 10 else "0") for number, (text, _) in enumerate(sound_rows(common + 10))]
    random.Random(0).shuffle(rows)
    findings = of_kind(examine(make_examples(rows)), "imbalance")
    assert bool(findings) == is_rare
    if findings:
        assert (findings[0].count, findings[0].of) == (10, 110)
        assert "always answering '0' is right 90.9% of the time" in findings[0].message


@pytest.mark.parametrize(
    ("rows", "ones", "differs"),
    [
        (200, 160, True),  # 80% against 50%
        (2000, 1160, False),  # 58%: not by chance, and yet too little to matter
        (10, 8, False),  # too few rows to tell it from chance
    ],
)
def test_another_balance(rows: int, ones: int, differs: bool) -> None:
    test = [(text, "1" if number < ones else "0") for number, (text, _) in enumerate(sound_rows(rows, "c"))]
    random.Random(1).shuffle(test)
    findings = of_kind(examine(make_examples(sound_rows(2000)), test=make_examples(test)), "drift")
    assert bool(findings) == differs
    if findings:
        assert (findings[0].severity, findings[0].count, findings[0].of) == ("warning", 60, 200)
        assert "'0' is 50% of train and 20% of test" in findings[0].message


def test_a_file_sorted_by_label() -> None:
    rows = sorted(sound_rows(100), key=itemgetter(1), reverse=True)
    finding = only_finding(examine(make_examples(rows)), "sorted")
    assert (finding.severity, finding.count, finding.of) == ("warning", 50, 100)
    assert "the first 50 rows are all '1'" in finding.message
    assert "2 runs of one label where a shuffled file has about 51" in finding.message  # 1 + 100 · (1 - ½)
    assert finding.examples[0].line == 1
    assert finding.examples[0].partner is not None
    assert finding.examples[0].partner.line == 50


def test_the_longest_run_is_named_where_it_is_not_the_first() -> None:
    texts = [text for text, _ in sound_rows(60)]
    rows = list(zip(texts, "a" * 10 + "b" * 30 + "c" * 20, strict=True))
    assert "rows 11 to 40 are all 'b'" in only_finding(examine(make_examples(rows)), "sorted").message


def test_a_sorted_split_that_is_only_scored_is_a_note() -> None:
    test = make_examples(sorted(sound_rows(100, "c"), key=itemgetter(1)))
    assert only_finding(examine(make_examples(sound_rows(100)), test=test), "sorted").severity == "note"


@pytest.mark.parametrize(
    "labels",
    ["01" * 50, "0011" * 25, "0" * 5 + "1" * 5],  # by turns; two by two, as shuffling would; too few to tell
)
def test_files_that_are_not_sorted(labels: str) -> None:
    texts = [text for text, _ in sound_rows(len(labels))]
    assert of_kind(examine(make_examples(list(zip(texts, labels, strict=True)))), "sorted") == []


@given(st.lists(st.sampled_from("aabc"), min_size=1, max_size=6))
def test_the_runs_of_a_shuffled_file(labels: list[str]) -> None:
    """The formula against every order there is."""
    runs = [sum(1 for _ in groupby(order)) for order in permutations(labels)]
    mean = sum(runs) / len(runs)
    deviation = (sum((run - mean) ** 2 for run in runs) / len(runs)) ** 0.5
    counts = [labels.count(label) for label in set(labels)]
    assert _shuffled_runs(counts) == pytest.approx((mean, deviation), abs=1e-6)


# --- texts ---


def test_empty_rows() -> None:
    train = make_examples([*sound_rows(20), ("", "1"), (" \t", "0"), ("\u200b\x00", "1"), ("?", "0")])
    finding = only_finding(examine(train), "empty")
    assert (finding.severity, finding.count, example_lines(finding)) == ("warning", 3, [21, 22, 23])
    assert of_kind(examine(train), "duplicate") == of_kind(examine(train), "conflict") == []  # nothing twice is nothing


def test_half_of_a_pair_missing_is_an_empty_row() -> None:
    pairs: list[Row] = [(text, label, text.replace("a", "b")) for text, label in sound_rows(20)]
    assert of_kind(examine(make_examples(pairs)), "empty") == []
    assert example_lines(only_finding(examine(make_examples([*pairs, ("a premise", "1", " ")])), "empty")) == [21]


def test_very_short_rows() -> None:
    finding = only_finding(
        examine(make_examples([*sound_rows(20), ("quite good", "1"), ("good", "1"), ("It is good.", "1"), ("", "1")])),
        "short",
    )
    assert (finding.severity, finding.count, example_lines(finding)) == ("note", 2, [21, 22])


@pytest.mark.parametrize(
    ("kind", "damaged", "sound"),
    [
        ("replacement-characters", "un caf\ufffd au lait", "un café au lait"),
        ("mojibake", "un cafÃ© au lait", "un café au lait"),
        ("mojibake", "lâ€™Ã©tÃ© est lÃ ", "l’été est là"),
        ("mojibake", "itâ\u0080\u0099s fine by me", "it’s fine by me"),
        ("mojibake", "ÐŸÑ€Ð¸Ð²ÐµÑ‚ to all", "Привет to all"),
        ("mojibake", "so funny ðŸ˜€ to read", "so funny 😀 to read"),
        ("mojibake", "a pound, Â£5 in all", "a pound, £5 in all"),
        ("mojibake", "NoÃ«l et PÃ¢ques enfin", "“IRMÃ” disse a avó… não"),
        ("control-characters", "a bell \x07 in the text", "a tab \t in\r\nthe text"),
        ("control-characters", "a dash \x96 from Windows", "a dash – from Windows"),
        ("lost-characters", "un chagrin d?amour de plus", "un chagrin ? amour de plus? Oui?Oui"),
        ("lost-characters", "l?été dernier à Lyon", "see http://x.org/page?id=3 for more"),
        ("html", "the end.<br /><br />Or not", "the end. 3 < 5 and b > a"),
        ("html", 'a <a href="http://x.org">link</a> here', "a <placeholder> of no tag"),
        ("html", "the end . < br /> or not", "if a < b and b > c it is"),
        ("html", "salt &amp; pepper on it", "AT&T; salt & pepper; R&D"),
        ("html", "it&#39;s all mine now", "it's #39; all mine now"),
        ("html", "caf&eacute; au lait", "café &nosuchentity; au lait"),
    ],
)
def test_damage(kind: str, damaged: str, sound: str) -> None:
    assert of_kind(examine(make_examples([*sound_rows(20), (sound, "1")])), kind) == []
    finding = only_finding(examine(make_examples([*sound_rows(20), (damaged, "1")])), kind)
    assert (finding.count, finding.of, example_lines(finding)) == (1, 21, [21])


def test_damage_in_the_second_text_and_far_from_the_beginning() -> None:
    pairs: list[Row] = [(text, label, text.replace("a", "b")) for text, label in sound_rows(20)]
    report = examine(make_examples([*pairs, ("quite sound", "1", "word " * 50 + "caf\ufffd" + " word" * 50)]))
    (row,) = only_finding(report, "replacement-characters").examples
    assert "caf\ufffd" in row.excerpt
    assert len(row.excerpt) <= 80


# --- tokens ---


def test_rows_longer_than_the_window() -> None:
    """Lengths with start and end: 12, 10 and twenty of 10; of 222 tokens 2 go."""
    rows = [*sound_rows(20), ("one two three four five six seven eight nine ten", "1"), ("eight " * 8, "0")]
    finding = only_finding(examine(make_examples(rows), tokenizer=word_tokenizer(), window=10), "cut")
    assert (finding.count, finding.of, example_lines(finding)) == (1, 22, [21])
    assert "longer than the window of 10 tokens: 16.7% of their tokens are cut, 0.9% of all" in finding.message
    assert finding.severity == "note"
    assert of_kind(examine(make_examples(rows), tokenizer=word_tokenizer(), window=12), "cut") == []
    assert only_finding(examine(make_examples(rows), tokenizer=word_tokenizer(), window=9), "cut").severity == "warning"


def test_a_pair_is_cut_as_one() -> None:
    pairs: list[Row] = [(text, label, "a word or two") for text, label in sound_rows(20)]  # 8 + 4 + 3 tokens
    assert of_kind(examine(make_examples(pairs), tokenizer=word_tokenizer(), window=15), "cut") == []
    assert only_finding(examine(make_examples(pairs), tokenizer=word_tokenizer(), window=14), "cut").count == 20


def test_unknown_tokens() -> None:
    rows = [*sound_rows(20), ("the word λόγος and the word νοῦς", "1")]  # 2 of 167
    finding = only_finding(examine(make_examples(rows), tokenizer=word_tokenizer()), "unknown")
    assert (finding.severity, finding.count, finding.of) == ("warning", 1, 21)
    assert "1.2% of all tokens" in finding.message
    assert (
        only_finding(
            examine(make_examples([*rows, *sound_rows(20, "b")]), tokenizer=word_tokenizer()), "unknown"
        ).severity
        == "note"
    )
    assert of_kind(examine(make_examples(rows), tokenizer=word_tokenizer(unknown=None)), "unknown") == []


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="window is 0 tokens, expected at least 1"):
        examine(make_examples(sound_rows(3)), window=0)


# --- the report ---


def test_findings_come_gravest_first_with_five_rows_at_most() -> None:
    train = make_examples([*sound_rows(20), *(("nine times over", "1") for _ in range(9)), ("x", "0"), ("", "1")])
    test = make_examples(
        [*sorted(sound_rows(40, "c"), key=itemgetter(1)), *(("nine times over", "1") for _ in range(9))]
    )
    report = examine(train, test=test)
    severities = [finding.severity for finding in report.findings]
    assert severities == sorted(severities, key=["error", "warning", "note"].index)
    assert set(severities) == {"error", "warning", "note"}
    assert max(len(finding.examples) for finding in report.findings) == 5


def test_the_report_as_json() -> None:
    report = examine(
        make_examples([*sound_rows(20), ("so so", "1")]), test=make_examples([*sound_rows(20, "c"), ("so so", "0")])
    )
    plain_report = json.loads(json.dumps(report.to_json()))
    assert plain_report == report.to_json()
    assert [split["name"] for split in plain_report["splits"]] == ["train", "test"]
    leak = plain_report["findings"][0]
    assert (leak["kind"], leak["count"], leak["of"]) == ("leak", 1, 21)
    assert leak["examples"][0]["partner"]["line"] == 21
    assert leak["examples"][0]["partner"]["partner"] is None


@given(st.text(max_size=300), st.integers(0, 300))
def test_an_excerpt_is_short_and_safe_to_print(text: str, at: int) -> None:
    shown = excerpt(text, at)
    assert len(shown) <= 80
    assert shown.isprintable()


def test_a_text_that_fits_is_shown_whole() -> None:
    assert excerpt("x" * 80) == "x" * 80
    assert excerpt("x" * 81) == "x" * 79 + "…"
    assert excerpt("a\x1b[31mb\n c") == "a\\x1b[31mb  c"


texts = st.sampled_from(["", " ", "a", "A!", "b", "b b", "a b c d e f g", "a b c d e f g h", "?", "é", "\x07"])
examples = st.builds(Example, text=texts | st.text(max_size=20), label=st.sampled_from("01"), second=st.none(),
                     path=st.just("f.csv"), line=st.integers(1, 9))  # fmt: skip
sets = st.lists(examples, min_size=1, max_size=12).map(lambda rows: Examples(tuple(rows)))


@given(sets, st.none() | sets, st.none() | sets)
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_any_set_can_be_examined(train: Examples, valid: Examples | None, test: Examples | None) -> None:
    report = examine(train, valid, test, tokenizer=word_tokenizer(), window=3)
    for finding in report.findings:
        assert 1 <= finding.count <= finding.of
        assert len(finding.examples) <= 5
        assert finding.message
        assert finding.advice
    json.dumps(report.to_json())


@given(sets)
@settings(max_examples=50, deadline=None)
def test_what_is_split_by_content_has_no_leaks(rows: Examples) -> None:
    try:
        sides = split(rows, valid=0.3, test=0.3)
    except DataError:  # no row came to one of the sides
        assume(False)
    assert of_kind(examine(sides["train"], sides["valid"], sides["test"]), "leak") == []
    assert leaked_rows(sides["train"], sides["valid"], sides["test"]) == set()


# --- leaks left out, and cleaning ---


def test_leaked_rows() -> None:
    train = make_examples([("in train", "1"), ("", "0")])
    valid = make_examples([("in valid", "1")])
    test = make_examples([("new", "0"), ("In train!", "1"), ("", "0"), ("in valid", "0"), ("in train", "1")])
    assert leaked_rows(train, valid, test) == {1, 3, 4}
    assert leaked_rows(train, None, test) == {1, 4}


def kept_lines(examples: Examples) -> list[int]:
    return [row.line for row in examples.rows]


def test_cleaning_keeps_a_row_where_it_is_scored() -> None:
    train = make_examples([("in test", "1"), ("in valid", "1"), ("in all", "0"), ("mine", "0")])
    valid = make_examples([("In valid.", "1"), ("in all", "0"), ("also in test", "1")])
    test = make_examples([("In test.", "1"), ("in all", "0"), ("also in test", "1")])
    cleaned, removed = clean(train, valid, test)
    assert [kept_lines(cleaned[name]) for name in ("train", "valid", "test")] == [[4], [1], [1, 2, 3]]
    assert removed == {"train": {"leak": 3}, "valid": {"leak": 2}, "test": {}}


def test_cleaning_keeps_the_first_of_the_same_and_none_of_the_conflicting() -> None:
    train = make_examples(
        [
            ("same", "1"),
            ("Same!", "1"),
            ("conflicting", "1"),
            ("conflicting", "0"),
            ("", "1"),
            ("conflicting", "1"),
            ("fine", "0"),
        ]
    )
    cleaned, removed = clean(train)
    assert kept_lines(cleaned["train"]) == [1, 7]
    assert removed == {"train": {"duplicate": 1, "conflict": 3, "empty": 1}}


@given(sets, st.none() | sets, st.none() | sets)
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_a_cleaned_set_is_clean(train: Examples, valid: Examples | None, test: Examples | None) -> None:
    cleaned, removed = clean(train, valid, test)
    given_splits = {"train": train, "valid": valid, "test": test}
    for name, rows in cleaned.items():
        before = given_splits[name]
        assert before is not None
        assert len(before.rows) == len(rows.rows) + sum(removed[name].values())
        remaining = iter(before.rows)
        assert all(row in remaining for row in rows.rows)  # the same rows, in the same order
    again, removed_again = clean(**cleaned)
    assert again == cleaned
    assert not any(removed_again.values())
    report = examine(cleaned["train"], cleaned.get("valid"), cleaned.get("test"))
    kinds = {finding.kind for finding in report.findings}
    assert kinds.isdisjoint({"leak", "duplicate", "conflict", "empty"})


def test_a_row_taken_from_train_is_still_in_test() -> None:
    train, test = make_examples([("both", "1"), ("mine", "0")]), make_examples([("both", "1")])
    cleaned, _ = clean(train, test=test)
    assert leaked_rows(cleaned["train"], None, cleaned["test"]) == set()
    assert len(cleaned["test"].rows) == 1


@given(sets)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, rows: Examples) -> None:
    out = tmp_path_factory.mktemp("set") / "deep" / "clean"
    rows = Examples(tuple(row for row in rows.rows if "\0" not in row.text and row.text))
    assume(rows.rows)
    write_splits({"train": rows}, out)
    back = read_examples(out / "train.jsonl")
    assert [(row.text, row.label) for row in back.rows] == [(row.text, row.label) for row in rows.rows]
    assert [path.name for path in out.parent.iterdir()] == ["clean"]


def test_pairs_are_written_with_their_second_text(tmp_path: Path) -> None:
    write_splits({"test": make_examples([("a premise", "yes", "a claim")])}, tmp_path / "out")
    written = (tmp_path / "out" / "test.jsonl").read_text(encoding="utf-8")
    assert json.loads(written) == {"text": "a premise", "second": "a claim", "label": "yes"}
    assert read_examples(tmp_path / "out" / "test.jsonl", second="second").rows[0].second == "a claim"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious.txt").write_text("mine")
    with pytest.raises(DataError, match="holds 1 files or folders, and nothing is ever overwritten"):
        write_splits({"train": make_examples(sound_rows(3))}, tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["precious.txt"]
    with pytest.raises(DataError, match="a file is there, expected a new folder"):
        write_splits({"train": make_examples(sound_rows(3))}, tmp_path / "full" / "precious.txt")
    (tmp_path / "empty").mkdir()
    write_splits({"train": make_examples(sound_rows(3))}, tmp_path / "empty")
    assert len((tmp_path / "empty" / "train.jsonl").read_text().splitlines()) == 3


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    unwritable = make_examples([("fine", "1"), ("half a character: \ud83d", "1")])
    with pytest.raises(UnicodeEncodeError):
        write_splits({"train": unwritable}, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


# --- real sets: the counts are those of the data's own README ---


def read_three(folder: Path, *names: str) -> tuple[Examples, Examples, Examples]:
    train, valid, test = (read_examples(folder / name) for name in names)
    return train, valid, test


@pytest.fixture(scope="module")
def books(data: Path) -> tuple[Examples, Examples, Examples]:
    return read_three(data / "cls-books", "train.review.spm", "valid.review.spm", "test.review.spm")


@pytest.fixture(scope="module")
def books_report(data: Path, books: tuple[Examples, Examples, Examples]) -> Report:
    return examine(*books, tokenizer=Tokenizer.load(data / "cls-books"))


def test_the_book_reviews(books_report: Report) -> None:
    report = books_report
    leaks = {tuple(finding.rows): (finding.count, finding.of) for finding in of_kind(report, "leak")}
    assert leaks == {("test", "train"): (43, 2000), ("valid", "train"): (13, 400), ("valid", "test"): (10, 400)}
    train_sorted = of_kind(report, "sorted")[0]
    assert "the first 800 rows are all '1'" in train_sorted.message
    # Longer than 511 pieces; `<sos>` before them makes more than the window of 512.
    assert only_finding(report, "cut").rows == {"train": 26, "valid": 13, "test": 40}


def test_the_leaked_book_reviews(books: tuple[Examples, Examples, Examples]) -> None:
    assert len(leaked_rows(books[0], None, books[2])) == 43
    assert leaked_rows(*books) >= leaked_rows(books[0], None, books[2])


def test_the_book_reviews_cleaned(books: tuple[Examples, Examples, Examples]) -> None:
    cleaned, _ = clean(*books)
    assert of_kind(examine(cleaned["train"], cleaned["valid"], cleaned["test"]), "leak") == []
    assert leaked_rows(cleaned["train"], cleaned["valid"], cleaned["test"]) == set()


def test_the_dummy_labels_of_cfimdb(data: Path) -> None:
    report = examine(*read_three(data / "cfimdb", "train.txt", "dev.txt", "test.txt"))
    finding = only_finding(report, "one-label")
    assert finding.message == "all 488 test rows have the label '0'"
    assert of_kind(report, "leak") == of_kind(report, "sorted") == []
    assert of_kind(report, "html")  # contains `<br />`


def test_the_sentences_of_sst(data: Path) -> None:
    leaks = of_kind(examine(*read_three(data / "sst", "train.txt", "dev.txt", "test.txt")), "leak")
    assert {tuple(finding.rows): (finding.count, finding.of) for finding in leaks} == {
        ("valid", "train"): (3, 1101),
        ("test", "train"): (2, 2210),
    }


def test_the_doctor_needs_no_torch() -> None:
    script = "import sys, headstart.doctor.examine; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
