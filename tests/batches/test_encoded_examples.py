"""A labelled set as token ids."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenizers
from headstart.batches.examples import EncodedExamples, EncodingCache, ExampleBatches, length_sorted_batches
from headstart.errors import ConfigError, DataError
from headstart.tokenizers.tokenizer import Tokenizer
from tests.batches.helpers import encoded, examples, few, sentences, sequences_of, some_lengths


@given(lengths=some_lengths, budget=st.integers(1, 120))
def test_length_sorted_batches_have_each_row_once_and_in_order_of_length(lengths: list[int], budget: int) -> None:
    groups = length_sorted_batches(encoded(lengths), budget)
    rows = [int(row) for group in groups for row in group]
    assert sorted(rows) == list(range(len(lengths)))
    assert [lengths[row] for row in rows] == sorted(lengths)
    assert all(len(group) > 0 for group in groups)
    assert all(sum(lengths[row] for row in group) < budget + max(lengths) for group in groups)
    assert len(groups) <= math.ceil(sum(lengths) / budget)


def test_length_sorted_batches_of_no_rows_are_none() -> None:
    assert length_sorted_batches(encoded([]), 100) == []


def rows_of(data: EncodedExamples) -> list[list[int]]:
    return [data.ids[low:high].tolist() for low, high in pairwise(data.starts.tolist())]


def test_a_rowsis_encoded_row_by_row(tokenizer: Tokenizer) -> None:
    texts = [*sentences(12, "encoded"), ""]
    window = 12
    labels = ["good", "bad", None, "fair"] * 3 + ["bad"]
    rows = examples([(text, None, label) for text, label in zip(texts, labels, strict=True)])
    data = EncodedExamples.of(rows, tokenizer, ("bad", "fair", "good"), window)
    bare = [tokenizer.encode(text) for text in texts]
    assert rows_of(data) == [[tokenizer.start, *ids[: window - 2], tokenizer.end] for ids in bare]
    assert data.lengths.tolist() == [min(len(ids) + 2, window) for ids in bare]
    assert data.labels.tolist() == [2, 0, -1, 1] * 3 + [0]
    assert data.segments is None
    assert 0 < data.truncated < len(data)
    assert data.truncated == sum(len(ids) + 2 > window for ids in bare)
    assert len(data) == len(texts)


def test_a_row_that_just_fits_is_not_truncated(tokenizer: Tokenizer) -> None:
    text = sentences(1, "fits")[0]
    whole = len(tokenizer.encode(text)) + 2
    rows = examples([(text, None, "0")])
    assert [EncodedExamples.of(rows, tokenizer, ["0"], whole + more).truncated for more in (1, 0, -1)] == [0, 0, 1]


def test_a_rowsof_pairs_has_segments(tokenizer: Tokenizer) -> None:
    one, two, three, four = sentences(4, "pairs")
    rows = examples([(one, two, "0"), (three, None, "1"), (four, "", "1")])
    data = EncodedExamples.of(rows, tokenizer, "01", 1000)
    a, b, c, d = (tokenizer.encode(text) for text in (one, two, three, four))
    start, end, separator = tokenizer.start, tokenizer.end, tokenizer.separator
    expected = [[start, *a, separator, *b, end], [start, *c, end], [start, *d, separator, end]]
    assert rows_of(data) == expected
    assert data.segments is not None
    segments = [[0] * (len(a) + 2) + [1] * (len(b) + 1), [0] * (len(c) + 2), [0] * (len(d) + 2) + [1]]
    assert data.segments.tolist() == [segment for row in segments for segment in row]
    assert data.truncated == 0
    batch = sequences_of(data.batch(np.array([2, 0])))
    assert [(row.ids, row.segments, row.label, row.row) for row in batch] == [
        (expected[2], segments[2], 1, 2),
        (expected[0], segments[0], 0, 0),
    ]


@few
@given(window=st.integers(4, 60), first=st.integers(0, 6), second=st.integers(0, 6))
def test_no_pair_is_longer_than_the_window(trained: dict[str, Tokenizer], window: int, first: int, second: int) -> None:
    words = trained["unigram"]
    text = sentences(6, "window")
    rows = examples([(" ".join(text[:first]), " ".join(text[6 - second :]), "0")])
    whole = len(words.encode(rows.rows[0].text)) + len(words.encode(rows.rows[0].second or "")) + 3
    data = EncodedExamples.of(rows, words, "0", window)
    assert data.lengths.tolist() == [min(whole, window)]
    assert data.truncated == (whole > window)
    (row,) = rows_of(data)
    assert (row[0], row[-1], row.count(words.separator or -1)) == (words.start, words.end, 1)


def test_a_label_that_the_class_names_lack_is_named_with_its_line(trained: dict[str, Tokenizer]) -> None:
    rows = examples([("ba", None, "good"), ("be", None, None), ("bi", None, "odd")], path="some/valid.tsv")
    with pytest.raises(DataError, match=r"'odd'.*bad, good") as caught:
        EncodedExamples.of(rows, trained["bpe"], ("bad", "good"), 16)
    assert (caught.value.path, caught.value.line) == ("some/valid.tsv", 4)
    assert caught.value.fix


def test_a_window_without_room_for_text_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="2"):
        EncodedExamples.of(examples([("ba", None, "0")]), tokenizer, "0", 2)


def test_an_empty_text_with_no_special_tokens_is_one_end_token(like_gpt2: Tokenizer) -> None:
    """GPT-2 puts no special tokens around a text, and no model takes an empty sequence."""
    rows = examples([("w0", None, "0"), ("", None, "1"), ("w3 w1", None, "0")])
    assert like_gpt2.end == 0
    data = EncodedExamples.of(rows, like_gpt2, "01", 8)
    assert rows_of(data) == [[2], [0], [5, 3]]
    assert data.truncated == 0


def test_an_empty_text_without_an_end_is_one_unknown_or_the_first_token() -> None:
    rows = examples([("a", None, "0"), ("", None, "1")])
    unknown = tokenizers.models.WordLevel({"b": 0, "a": 1, "<unk>": 2}, unk_token="<unk>")
    neither = tokenizers.models.BPE(vocab={"b": 0, "a": 1}, merges=[])
    for model, expected in ((unknown, 2), (neither, 0)):
        bare = Tokenizer(tokenizers.Tokenizer(model))
        assert bare.end is None
        assert rows_of(EncodedExamples.of(rows, bare, "01", 8)) == [[1], [expected]]


def test_no_row_is_empty(tokenizer: Tokenizer, like_gpt2: Tokenizer) -> None:
    for any_tokenizer in (tokenizer, like_gpt2):
        for second in (None, ""):
            assert EncodedExamples.of(examples([("", second, "1")]), any_tokenizer, "01", 8).lengths.min() > 0


def test_an_empty_rowsis_encoded_and_cannot_be_trained_on(trained: dict[str, Tokenizer]) -> None:
    data = EncodedExamples.of(examples([]), trained["bpe"], "01", 16)
    assert (len(data), len(data.ids), data.truncated, data.starts.tolist()) == (0, 0, 0, [0])
    with pytest.raises(DataError, match="no rows"):
        ExampleBatches(data, 0)


def test_a_set_that_is_asked_for_again_is_not_encoded_again(trained: dict[str, Tokenizer]) -> None:
    one, *_ = trained.values()
    other = trained["unigram"] if one is not trained["unigram"] else list(trained.values())[1]
    sets = [examples([(text, None, "0")]) for text in sentences(4, "kept")]
    encode = EncodingCache(keep=3)
    first, seconds = encode(sets[0], one, ["0"], 12)
    assert rows_of(first) == rows_of(EncodedExamples.of(sets[0], one, ["0"], 12))
    assert seconds > 0
    assert encode(sets[0], one, ["0"], 12) == (first, seconds)
    for changed in ((sets[1], one, ["0"], 12), (sets[0], other, ["0"], 12), (sets[0], one, ["0", "1"], 12)):
        assert encode(*changed)[0] is not first
    again = encode(sets[0], one, ["0"], 12)[0]
    assert again is not first  # three others were asked for since, and no more are kept
    encode(sets[1], one, ["0"], 12)
    assert encode(sets[0], one, ["0"], 12)[0] is again  # but one that is asked for stays
    encode(sets[2], one, ["0"], 12)
    encode(sets[3], one, ["0"], 12)
    assert encode(sets[0], one, ["0"], 12)[0] is again
    assert EncodingCache()(sets[0], one, ["0"], 12)[0] is not again
