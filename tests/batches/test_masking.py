"""Masking, and batches for masked language models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.batches.draws import streams
from headstart.batches.language import MaskedBatches
from headstart.batches.masking import Masking
from headstart.batches.replaced import ReplacedBatches
from headstart.batches.sampler import RunLength, epoch_order
from headstart.errors import DataError, ModelError
from headstart.tokenizers.tokenizer import Tokenizer
from tests.batches.helpers import (
    check_sizes,
    encoded_documents,
    epochs,
    near,
    seeds,
    sentences,
    sequences_in,
    sequences_of,
    steps_by_hand,
    steps_of,
    store,
    tokens_in,
    windows_by_hand,
)
from tests.tokenizers.example_tokenizers import word_starts


def specials_of(tokenizer: Tokenizer) -> set[int]:
    """The tokens that are never masked: to guess that something is unknown teaches nothing either."""
    roles = (
        tokenizer.start,
        tokenizer.end,
        tokenizer.pad,
        tokenizer.mask,
        tokenizer.separator,
        tokenizer.unknown,
    )
    return {role for role in roles if role is not None}


def masked_batches(
    rows: Sequence[Sequence[int]],
    tokenizer: Tokenizer,
    rate: float = 0.15,
    *,
    whole_words: bool = False,
    window: int = 40,
    batch_size: int = 8,
    evaluation: bool = False,
    seed: int = 11,
) -> MaskedBatches:
    return MaskedBatches(
        store(rows),
        tokenizer,
        window=window,
        batch_size=batch_size,
        seed=seed,
        masking=Masking.of(tokenizer, rate, whole_words),
        evaluation=evaluation,
    )


@settings(max_examples=10, deadline=None)
@given(
    window=st.integers(3, 30),
    size=st.integers(1, 6),
    seed=seeds,
    rate=st.floats(0.05, 0.95),
    whole_words=st.booleans(),
    evaluation=st.booleans(),
)
def test_with_its_masks_taken_off_a_step_is_windows_of_the_text(
    tokenizer: Tokenizer, window: int, size: int, seed: int, rate: float, whole_words: bool, evaluation: bool
) -> None:
    rows = encoded_documents(tokenizer, 6)
    data = masked_batches(
        rows, tokenizer, rate, whole_words=whole_words, window=window, batch_size=size, evaluation=evaluation, seed=seed
    )
    by_hand = windows_by_hand(rows, (tokenizer.start or 0,), (tokenizer.end or 0,), window, wrap_each=True)
    expected = steps_by_hand(by_hand, window * size, None if evaluation else seed, 1)
    steps = steps_of(data, 1)
    assert [[sequence.text for sequence in step] for step in steps] == [
        [by_hand[n] for n in order] for order in expected
    ]
    assert sorted(sequence.text for sequence in sequences_in(steps)) == sorted(by_hand)
    for sequence in sequences_in(steps):  # as they are seen, too
        assert (sequence.ids[0], sequence.ids[-1]) == (tokenizer.start, tokenizer.end)
        assert 3 <= len(sequence.ids) <= window
    check_sizes(steps, window, size)


@pytest.mark.parametrize("whole_words", [True, False])
@pytest.mark.parametrize("evaluation", [True, False])
def test_the_masks_of_a_window_depend_on_seed_epoch_and_its_number_alone(
    tokenizer: Tokenizer, evaluation: bool, whole_words: bool
) -> None:
    """Not on the size of a step nor on the step; in an evaluation not on seed and epoch either."""
    rows = encoded_documents(tokenizer, 6)
    masking = Masking.of(tokenizer, 0.4, whole_words)
    by_hand = windows_by_hand(rows, (tokenizer.start or 0,), (tokenizer.end or 0,), 14, wrap_each=True)
    for seed, epoch in ((11, 0), (11, 3), (4, 3)):
        key = (0, 0) if evaluation else (seed, epoch)
        order = range(len(by_hand)) if evaluation else epoch_order(len(by_hand), seed, epoch).tolist()
        expected = []
        for number in order:  # each window by itself
            ids = np.array(by_hand[number])
            one = masking.apply(ids, np.array([0, len(ids)]), streams((*key, 1), np.array([number])))
            expected.append((one.ids.tolist(), dict(zip(one.masked.tolist(), one.targets.tolist(), strict=True))))
        for size in (1, 3, 1000):
            data = masked_batches(
                rows,
                tokenizer,
                0.4,
                whole_words=whole_words,
                window=14,
                batch_size=size,
                evaluation=evaluation,
                seed=seed,
            )
            assert [(sequence.ids, sequence.masked) for sequence in sequences_in(steps_of(data, epoch))] == expected


@settings(max_examples=10, deadline=None)
@given(seed=seeds, epoch=epochs, whole_words=st.booleans(), data=st.data())
def test_no_special_token_is_ever_masked(
    tokenizer: Tokenizer, seed: int, epoch: int, whole_words: bool, data: st.DataObject
) -> None:
    """Nor those that a text spells out."""
    anything = st.lists(st.integers(0, tokenizer.size - 1) | st.sampled_from(sorted(specials_of(tokenizer))))
    rows = data.draw(st.lists(anything, min_size=1, max_size=5).filter(any))
    batch = masked_batches(rows, tokenizer, 0.9, whole_words=whole_words, window=9, seed=seed)
    for sequence in sequences_in(steps_of(batch, epoch)):
        assert sequence.masked is not None
        assert not specials_of(tokenizer) & set(sequence.masked.values())
        shown = [token for position, token in enumerate(sequence.ids) if position not in sequence.masked]
        assert shown == [token for position, token in enumerate(sequence.text) if position not in sequence.masked]


@pytest.mark.parametrize("rate", [0.15, 0.4])
def test_a_share_is_masked_and_its_replacement_is_80_10_10(tokenizer: Tokenizer, rate: float) -> None:
    """Counts over about 50,000 tokens, each within five standard deviations.

    A random token may happen to be the mask, or the token itself, one time in V each.
    """
    data = masked_batches(encoded_documents(tokenizer, 60), tokenizer, rate, batch_size=64)
    steps = [step for epoch in range(12) for step in steps_of(data, epoch)]
    special = specials_of(tokenizer)
    text = sum(token not in special for token in tokens_in(steps))
    pairs = [(s.ids[position], token) for s in sequences_in(steps) if s.masked for position, token in s.masked.items()]
    assert text > 20_000
    assert near(len(pairs), text, rate)
    by_luck = 0.1 / tokenizer.size
    assert near(sum(seen == tokenizer.mask for seen, _ in pairs), len(pairs), 0.8 + by_luck)
    assert near(sum(seen == token for seen, token in pairs), len(pairs), 0.1 + by_luck)
    others = [seen for seen, token in pairs if seen not in (tokenizer.mask, token)]
    assert near(len(others), len(pairs), 0.1 - 2 * by_luck)
    below = sum(seen < tokenizer.size / 2 for seen in others)  # the vocabulary's two segments: both are as likely
    assert abs(below - len(others) / 2) <= 5 * math.sqrt(len(others) / 4) + 1
    assert {0, tokenizer.size - 1} <= set(others) or len(others) < 10 * tokenizer.size


def test_each_position_is_masked_as_often_as_another(trained: dict[str, Tokenizer]) -> None:
    """At the beginning and at the end of a window alike, and whatever became of the position before."""
    words = trained["wordpiece"]
    trials = 3000
    data = masked_batches([list(range(20, 30))], words, 0.3, window=12)
    (positions,) = zip(
        *([set(step[0].masked or ()) for step in steps_of(data, epoch)] for epoch in range(trials)), strict=True
    )
    for position in range(1, 11):
        assert near(sum(position in masked for masked in positions), trials, 0.3)
        assert near(sum({position, position % 10 + 1} <= masked for masked in positions), trials, 0.09)


def test_masks_are_fresh_in_every_epoch_step_and_seed(trained: dict[str, Tokenizer]) -> None:
    """The same text in every step, so that masks alone can differ."""
    words = trained["wordpiece"]
    rows = [list(range(20, 38))] * 4
    positions = [
        tuple(sorted(step[0].masked or ()))
        for seed in (0, 1)
        for epoch in (0, 1, 2)
        for step in steps_of(masked_batches(rows, words, 0.5, window=20, batch_size=1, seed=seed), epoch)
    ]
    assert len(positions) == 24
    assert len(set(positions)) == 24


def words_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[list[int]]:
    """The positions of each word of a sequence, special tokens left out."""
    words: list[list[int]] = []
    for position, begins in enumerate(word_starts(tokenizer, ids)):
        if begins or not words:
            words.append([])
        words[-1].append(position)
    return [word for word in words if ids[word[0]] not in specials_of(tokenizer)]


def check_whole_words(tokenizer: Tokenizer, rows: Sequence[Sequence[int]], rate: float, epochs: int) -> None:
    """A word is masked as a whole or not at all, as often as the rate says, whatever became of the word before."""
    data = masked_batches(rows, tokenizer, rate, whole_words=True, window=60, batch_size=20)
    outcomes: list[bool] = []
    sizes: list[int] = []
    both = neighbours = 0
    for step in [step for epoch in range(epochs) for step in steps_of(data, epoch)]:
        words = [
            [position in (sequence.masked or ()) for position in word]
            for sequence in step
            for word in words_of(tokenizer, sequence.text)
        ]
        assert all(all(word) or not any(word) for word in words), "a word is masked in part"
        outcomes += [word[0] for word in words]
        sizes += [len(word) for word in words]
        neighbours += len(words) - 1
        both += sum(one[0] and two[0] for one, two in pairwise(words))
    assert sum(size > 1 for size in sizes) > 1000
    assert near(sum(outcomes), len(outcomes), rate)
    masked_tokens = sum(size for size, was_masked in zip(sizes, outcomes, strict=True) if was_masked)
    spread = rate * (1 - rate) * sum(size * size for size in sizes)
    assert near(masked_tokens, sum(sizes), rate, spread)
    # Two pairs that share a word are not independent: their covariance is rate³ − rate⁴, twice for each pair.
    spread = neighbours * (rate**2 - rate**4 + 2 * (rate**3 - rate**4))
    assert near(both, neighbours, rate**2, spread)


@pytest.mark.parametrize("rate", [0.15, 0.5])
def test_whole_words_are_masked(tokenizer: Tokenizer, rate: float) -> None:
    check_whole_words(tokenizer, encoded_documents(tokenizer, 40), rate, epochs=4)


def test_the_words_of_two_documents_are_masked_independently(tokenizer: Tokenizer) -> None:
    """A document that begins within a word, as a window of a longer one may, does not belong to the one before."""
    rows = [tokenizer.encode(word)[1:] for text in sentences(60, "words") for word in text.split() if len(word) > 7]
    check_whole_words(tokenizer, rows, 0.3, epochs=12)


def test_without_the_option_words_may_be_masked_in_part(tokenizer: Tokenizer) -> None:
    sequences = sequences_in(steps_of(masked_batches(encoded_documents(tokenizer, 20), tokenizer, 0.5), 0))
    words = [
        [position in (s.masked or ()) for position in word] for s in sequences for word in words_of(tokenizer, s.text)
    ]
    assert any(any(word) and not all(word) for word in words)


def test_a_word_and_the_mark_after_it_are_masked_together(trained: dict[str, Tokenizer]) -> None:
    """A byte-level '!' belongs to the word before it, as '.' does."""
    byte_level = trained["bpe"]
    rows = [byte_level.encode(text.replace(" ", "! ")) for text in sentences(40, "marks")]
    check_whole_words(byte_level, rows, 0.3, epochs=4)


def test_the_first_word_of_a_line_is_masked_on_its_own(trained: dict[str, Tokenizer]) -> None:
    byte_level = trained["bpe"]
    rows = [byte_level.encode(text.replace(" ", "\n")) for text in sentences(40, "lines")]
    check_whole_words(byte_level, rows, 0.3, epochs=4)


def test_the_table_of_special_tokens(tokenizer: Tokenizer) -> None:
    masking = Masking.of(tokenizer, 0.2, whole_words=True)
    assert set(np.flatnonzero(masking.special).tolist()) == specials_of(tokenizer)
    assert (masking.mask, masking.size, masking.rate, masking.whole_words) == (
        tokenizer.mask,
        tokenizer.size,
        0.2,
        True,
    )


def test_masking_does_not_change_the_given_ids(trained: dict[str, Tokenizer]) -> None:
    ids = np.arange(20, 120)
    masking = Masking.of(trained["wordpiece"], 0.5, whole_words=True)
    sequence = masking.apply(ids, np.array([0, 30, 100]), streams((1, 2, 3), np.arange(2)))
    assert ids.tolist() == list(range(20, 120))
    positions = sequence.masked.tolist()
    assert positions == sorted(set(positions))
    assert 0 < len(positions) < len(ids)
    assert sequence.targets.tolist() == [20 + position for position in positions]
    assert len(sequence.ids) == len(ids)
    assert {position for position in range(100) if sequence.ids[position] != ids[position]} < set(positions)


@pytest.mark.parametrize("whole_words", [True, False])
def test_an_empty_sequence_has_no_masks(trained: dict[str, Tokenizer], whole_words: bool) -> None:
    """Beside one that has some, and by itself."""
    masking = Masking.of(trained["bpe"], 0.95, whole_words)  # these tokens are one word
    empty = masking.apply(np.zeros(0, dtype=np.int64), np.array([0, 0]), streams((1,), np.arange(1)))
    assert (len(empty.ids), len(empty.masked), len(empty.targets)) == (0, 0, 0)
    ids = np.arange(20, 60)
    alone = masking.apply(ids, np.array([0, 40]), streams((1,), np.array([1])))
    beside = masking.apply(ids, np.array([0, 0, 40, 40]), streams((1,), np.array([0, 1, 2])))
    assert [a.tolist() for a in alone] == [b.tolist() for b in beside]
    assert len(alone.masked)


def test_the_rate_goes_in_a_line_from_the_first_step_of_the_run_to_the_last(tokenizer: Tokenizer) -> None:
    """Over the border of an epoch too; a step that is asked for by itself, as after a resume, has the same masks."""
    rows = encoded_documents(tokenizer, 30)
    common: dict[str, Any] = {"window": 14, "batch_size": 20, "seed": 5}
    falling = Masking.of(tokenizer, 0.6, rate_end=0.2)
    for length in (RunLength(epochs=3), RunLength(steps=20)):
        run = MaskedBatches(store(rows), tokenizer, masking=falling, run_length=length, **common)
        total = length.steps or sum(run.steps(epoch) for epoch in range(3))
        places = [(epoch, step) for epoch in range(3) for step in range(run.steps(epoch))][:total]
        assert len(places) == total > run.steps(0) > 2
        for number, (epoch, step) in enumerate(places):
            rate = 0.6 + (0.2 - 0.6) * number / (total - 1)
            constant = MaskedBatches(store(rows), tokenizer, masking=Masking.of(tokenizer, rate), **common)
            again = MaskedBatches(store(rows), tokenizer, masking=falling, run_length=length, **common)
            for data in (run, again):
                assert sequences_of(data.batch(epoch, step)) == sequences_of(constant.batch(epoch, step))


def test_evaluations_have_the_last_rate(tokenizer: Tokenizer) -> None:
    rows = encoded_documents(tokenizer, 6)
    common: dict[str, Any] = {"window": 14, "batch_size": 4, "seed": 5, "evaluation": True}
    falling, last = (
        MaskedBatches(store(rows), tokenizer, masking=masking, run_length=RunLength(epochs=4), **common)
        for masking in (Masking.of(tokenizer, 0.6, rate_end=0.2), Masking.of(tokenizer, 0.2))
    )
    assert steps_of(falling, 0) == steps_of(falling, 2) == steps_of(last, 0)


@pytest.mark.parametrize("evaluation", [True, False])
def test_what_replacements_depend_on_is_in_the_batch(tokenizer: Tokenizer, evaluation: bool) -> None:
    """Hidden tokens are all the mask, each with a draw of its own; draws depend on seed, epoch and window alone."""
    rows, masking = encoded_documents(tokenizer, 30), Masking.of(tokenizer, 0.4)
    passes = []
    for size in (2, 50):
        common: dict[str, Any] = {"window": 14, "batch_size": size, "seed": 5, "evaluation": evaluation}
        data = ReplacedBatches(store(rows), tokenizer, masking=masking, **common)
        masked = MaskedBatches(store(rows), tokenizer, masking=masking, **common)
        found: list[float] = []
        for step in range(data.steps(1)):
            batch, same = data.batch(1, step), masked.batch(1, step)
            assert batch.masked is not None and batch.targets is not None and same.masked is not None
            assert batch.draws is not None and batch.text is not None
            assert torch.equal(batch.masked, same.masked) and torch.equal(batch.starts, same.starts)
            assert set(batch.ids[batch.masked].tolist()) == {tokenizer.mask}
            text = batch.ids.index_copy(0, batch.masked, batch.targets)
            assert batch.text.tolist() == [token not in specials_of(tokenizer) for token in text.tolist()]
            found += batch.draws.tolist()
        passes.append(found)
    assert passes[0] == passes[1]
    draws = np.array(passes[0])
    assert len(np.unique(draws)) == len(draws) > 300
    assert 0 <= draws.min() < 0.05 and 0.95 < draws.max() < 1
    assert abs(draws.mean() - 0.5) < 5 * math.sqrt(1 / 12 / len(draws))


def test_masking_that_is_impossible_is_refused(like_gpt2: Tokenizer, tokenizer: Tokenizer) -> None:
    with pytest.raises(ModelError, match="no mask token"):
        Masking.of(like_gpt2)
    for rate in (0.0, 1.0, -0.1, 1.5, math.nan):
        with pytest.raises(ModelError, match=f"rate of {rate} "):
            Masking.of(tokenizer, rate)
        with pytest.raises(ModelError, match=f"rate of {rate} "):
            Masking.of(tokenizer, 0.3, rate_end=rate)
    with pytest.raises(ModelError, match="window of 2 tokens"):
        masked_batches([[10]], tokenizer, window=2)
    with pytest.raises(DataError, match="no token"):
        masked_batches([[]], tokenizer)
