"""Pairs of segments for the next-sentence objective."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokenizers
from headstart.batches.language import PairBatches
from headstart.batches.masking import Masking
from headstart.errors import DataError, ModelError, TokenizerError
from headstart.tokenizers.tokenizer import Tokenizer
from tests.batches.helpers import (
    FIRST,
    PlainSequence,
    document_of_token,
    few,
    near,
    numbered,
    seeds,
    sequences_in,
    steps_of,
    store,
    windows_by_hand,
)


def any_ids() -> Masking:
    """Masks for ids that say where they come from, more than a small vocabulary has."""
    special = np.zeros(1 << 16, dtype=bool)
    special[:6] = True
    return Masking(mask=5, size=1 << 16, special=special, begins=~special, ends=special)


def next_sentence(
    rows: Sequence[Sequence[int]],
    tokenizer: Tokenizer,
    *,
    window: int,
    size: int = 4,
    seed: int = 0,
    evaluation: bool = False,
) -> PairBatches:
    return PairBatches(
        store(rows), tokenizer, window=window, batch_size=size, seed=seed, masking=any_ids(), evaluation=evaluation
    )


def segments_of(tokenizer: Tokenizer, pair: PlainSequence) -> tuple[list[int], list[int]]:
    """The two texts of a pair, with the special tokens around them checked and taken off."""
    text = pair.text
    middle = text.index(tokenizer.separator or -1)
    assert (text[0], text[-1]) == (tokenizer.start, tokenizer.end)
    assert pair.segments == [0] * (middle + 1) + [1] * (len(text) - middle - 1)
    return text[1:middle], text[middle + 1 : -1]


long_documents = (
    st.lists(st.integers(0, 40), min_size=2, max_size=12)
    .filter(lambda lengths: sum(length > 1 for length in lengths) > 1)
    .map(numbered)
)


@few
@given(
    rows=long_documents, text_window=st.integers(2, 20), size=st.integers(1, 6), seed=seeds, evaluation=st.booleans()
)
def test_a_pair_is_a_window_or_its_beginning_and_the_middle_of_another_document(
    trained: dict[str, Tokenizer], rows: list[list[int]], text_window: int, size: int, seed: int, evaluation: bool
) -> None:
    words = trained["unigram"]
    data = next_sentence(rows, words, window=text_window + 3, size=size, seed=seed, evaluation=evaluation)
    document = document_of_token(rows)
    windows = {
        window[0]: window for window in windows_by_hand(rows, (), (), text_window, wrap_each=True) if len(window) > 1
    }
    window_of = {token: window for window in windows.values() for token in window}
    steps = steps_of(data, 3)
    seen = []
    for pair in sequences_in(steps):
        assert len(pair.ids) <= text_window + 3
        first, second = segments_of(words, pair)
        window = windows[first[0]]
        seen.append(first[0])
        assert first == window[: len(first)]
        following = window[len(first) :]
        assert following
        if pair.label == 0:
            assert second == following
            continue
        theirs = window_of[second[0]]
        offset = theirs.index(second[0])
        assert offset >= 1, "a beginning gives it away"
        assert second == theirs[offset : offset + len(second)]
        assert document[second[0]] != document[first[0]]
        others = [len(other) for begin, other in windows.items() if document[begin] != document[first[0]]]
        assert min(len(following), min(others) - 1) <= len(second) <= min(len(following), max(others) - 1)
    assert seen == list(windows) if evaluation else sorted(seen) == list(windows)
    before = np.cumsum([0, *(len(windows[first]) + 3 for first in seen)])[:-1]
    # A step holds the pairs that begin in its span of tokens.
    spans = (before // (size * (text_window + 3))).tolist()
    assert [len(step) for step in steps] == [spans.count(span) for span in sorted(set(spans))]


@pytest.mark.parametrize("evaluation", [True, False])
def test_a_pair_and_its_masks_are_the_same_for_every_batch_size(
    trained: dict[str, Tokenizer], evaluation: bool
) -> None:
    """In an evaluation, for every seed and epoch too."""
    rows, words = numbered([9, 30, 0, 14, 2, 21]), trained["bpe"]
    passes = {
        (seed, epoch, size): sequences_in(
            steps_of(next_sentence(rows, words, window=12, size=size, seed=seed, evaluation=evaluation), epoch)
        )
        for seed, epoch in ((0, 0), (0, 5), (6, 5))
        for size in (1, 3, 4, 100)
    }
    for (seed, epoch, _), pairs in passes.items():
        assert pairs == passes[seed, epoch, 1]
        assert (pairs == passes[0, 0, 1]) == (evaluation or (seed, epoch) == (0, 0))


@pytest.mark.parametrize("evaluation", [True, False])
def test_fewer_pairs_than_a_batch_are_one_step(trained: dict[str, Tokenizer], evaluation: bool) -> None:
    steps = steps_of(next_sentence(numbered([9, 9, 0, 9]), trained["bpe"], window=12, size=4, evaluation=evaluation), 0)
    assert [len(step) for step in steps] == [3]


def test_half_of_the_pairs_follow_and_the_length_does_not_tell_which(trained: dict[str, Tokenizer]) -> None:
    """Every window is 15 tokens, so that one long enough is always found."""
    words = trained["wordpiece"]
    data = next_sentence(numbered([30] * 40), words, window=18, size=20)  # two windows a document
    pairs = sequences_in([step for epoch in range(40) for step in steps_of(data, epoch)])
    assert len(pairs) == 80 * 40
    assert near(sum(pair.label == 1 for pair in pairs), len(pairs), 0.5)
    assert {pair.label for pair in pairs} == {0, 1}
    texts = [(pair.label, *segments_of(words, pair)) for pair in pairs]
    assert all(len(first) + len(second) == 15 for _, first, second in texts)
    for label in (0, 1):  # the position of the cut is a fair draw from 1 to 14, whatever the label
        lengths = [len(second) for found_label, _, second in texts if found_label == label]
        assert set(lengths) == set(range(1, 15))
        assert all(near(lengths.count(length), len(lengths), 1 / 14) for length in range(1, 15))


def test_a_window_that_is_long_enough_is_drawn_up_to_eight_times(trained: dict[str, Tokenizer]) -> None:
    """For the 20 windows of the first document there are five others, and four of them have two tokens only."""
    words = trained["wordpiece"]
    data = next_sentence(numbered([300, 15, 2, 2, 2, 2]), words, window=18, size=25)
    texts = [
        segments_of(words, pair)
        for epoch in range(450)
        for pair in sequences_in(steps_of(data, epoch))
        if pair.label == 1
    ]
    wanted = [(15 - len(first), len(second)) for first, second in texts if first[0] < FIRST + 300 and len(first) < 14]
    short = [length for wanted_length, length in wanted if length != wanted_length]
    assert set(short) == {1}
    assert near(len(short), len(wanted), 0.8**8)


def test_other_documents_are_drawn_uniformly(trained: dict[str, Tokenizer]) -> None:
    """Every window of another document is as likely, and every position in it but its beginning."""
    words = trained["wordpiece"]
    rows = numbered([12, 36, 24, 12])  # windows 0 | 1, 2, 3 | 4, 5 | 6
    owners = [0, 1, 1, 1, 2, 2, 3]
    data = next_sentence(rows, words, window=15, size=7)
    pairs = [pair for epoch in range(600) for pair in sequences_in(steps_of(data, epoch)) if pair.label == 1]
    drawn = []
    for pair in pairs:
        first, second = segments_of(words, pair)
        drawn.append(((first[0] - FIRST) // 12, *divmod(second[0] - FIRST, 12), len(second)))
    for mine in range(7):
        theirs = [other for first, other, _, _ in drawn if first == mine]
        unrelated = {number for number in range(7) if owners[number] != owners[mine]}
        assert set(theirs) == unrelated
        assert all(near(theirs.count(other), len(theirs), 1 / len(unrelated)) for other in unrelated)
    for length in range(1, 12):
        offsets = [offset for _, _, offset, drawn_length in drawn if drawn_length == length]
        assert set(offsets) == set(range(1, 13 - length))
        assert all(near(offsets.count(offset), len(offsets), 1 / (12 - length)) for offset in set(offsets))


@pytest.mark.parametrize("lengths", [[300, 6], [6, 300], [5, 300, 4]])
def test_the_other_document_is_never_the_same_though_one_holds_nearly_all(
    trained: dict[str, Tokenizer], lengths: list[int]
) -> None:
    words = trained["wordpiece"]
    rows = numbered(lengths)
    document = document_of_token(rows)
    data = next_sentence(rows, words, window=9, size=10)
    texts = [segments_of(words, p) for epoch in range(10) for p in sequences_in(steps_of(data, epoch)) if p.label == 1]
    assert len(texts) > 200
    assert all(document[first[0]] not in {document[token] for token in second} for first, second in texts)


def test_pairs_and_their_masks_are_fresh_in_every_epoch_and_seed(trained: dict[str, Tokenizer]) -> None:
    words = trained["wordpiece"]
    data = [next_sentence(numbered([20] * 6), words, window=23, size=6, seed=seed) for seed in (0, 1)]
    # In the order of the file, so that the pairs and masks alone can differ.
    epochs_of_pairs = [
        sorted(sequences_in(steps_of(batches, epoch)), key=lambda pair: pair.text[1])
        for batches in data
        for epoch in range(200)
    ]
    texts = [tuple((*map(tuple, segments_of(words, pair)),) for pair in epoch) for epoch in epochs_of_pairs]
    assert len(set(texts)) == len(texts)
    for number in range(6):  # the first token of each pair is text in every epoch, and masked in some
        assert near(sum(1 in (epoch[number].masked or ()) for epoch in epochs_of_pairs), len(epochs_of_pairs), 0.15)


def test_a_pair_is_masked_as_any_text(trained: dict[str, Tokenizer]) -> None:
    words = trained["wordpiece"]
    data = next_sentence(numbered([30] * 40), words, window=33, size=20)
    pairs = sequences_in([step for epoch in range(10) for step in steps_of(data, epoch)])
    text = sum(len(pair.ids) - 3 for pair in pairs)
    tokens = [(pair.ids[position], token) for pair in pairs for position, token in (pair.masked or {}).items()]
    assert near(len(tokens), text, 0.15)
    assert all(token >= FIRST for _, token in tokens)
    assert near(sum(seen == 5 for seen, _ in tokens), len(tokens), 0.8)


def test_pairs_that_are_impossible_are_refused(trained: dict[str, Tokenizer]) -> None:
    words = trained["wordpiece"]
    with pytest.raises(ModelError, match="window of 4 tokens"):
        next_sentence(numbered([9, 9]), words, window=4)
    next_sentence(numbered([9, 9]), words, window=5)
    for lengths in ([30], [30, 0], [30, 1, 1]):
        with pytest.raises(DataError, match="two documents"):
            next_sentence(numbered(lengths), words, window=9)
    with pytest.raises(DataError, match="no token"):
        next_sentence([[], []], words, window=9)
    no_separator = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    with pytest.raises(TokenizerError, match="between two texts"):
        next_sentence(numbered([9, 9]), Tokenizer(no_separator), window=9)
