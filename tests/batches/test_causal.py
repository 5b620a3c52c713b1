"""Batches for causal language models."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.batches.batch import IGNORE_INDEX
from headstart.batches.language import CausalBatches
from headstart.errors import DataError, ModelError
from headstart.tokenizers.tokenizer import Tokenizer
from tests.batches.helpers import (
    FIRST,
    check_sizes,
    epoch_by_hand,
    epochs,
    few,
    numbered,
    seeds,
    sequences_in,
    steps_by_hand,
    steps_of,
    store,
    tokens_in,
    windows_by_hand,
)

some_documents = st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any).map(numbered)


Borders = tuple[Tokenizer, bool]  # a tokenizer, and whether one token is its start and its end


@pytest.fixture(scope="session")
def borders(trained: dict[str, Tokenizer], like_gpt2: Tokenizer) -> dict[str, Borders]:
    return {"two tokens": (trained["unigram"], False), "one token": (like_gpt2, True)}


def special_tokens(case: Borders, across: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What stands before and after a document; a token that is both is once between two that follow one another."""
    tokenizer, one_token = case
    assert tokenizer.start is not None
    assert tokenizer.end is not None
    assert (tokenizer.start == tokenizer.end) == one_token
    return (tokenizer.start,), () if one_token and across else (tokenizer.end,)


both_borders = pytest.mark.parametrize("name", ["two tokens", "one token"])


@both_borders
@few
@given(rows=some_documents, window=st.integers(1, 12), size=st.integers(1, 5), seed=seeds, evaluation=st.booleans())
def test_across_documents_every_window_of_tokens_is_a_sequence(
    borders: dict[str, Borders], name: str, rows: list[list[int]], window: int, size: int, seed: int, evaluation: bool
) -> None:
    prefix, suffix = special_tokens(borders[name], across=True)
    data = CausalBatches(
        store(rows), borders[name][0], window=window, batch_size=size, seed=seed, across=True, evaluation=evaluation
    )
    row = epoch_by_hand(windows_by_hand(rows, prefix, suffix, None, wrap_each=False), None if evaluation else seed, 4)
    # A start that follows an end is always the same, so it is no target.
    following = [IGNORE_INDEX if begins and suffix else token for token, begins in row[1:]] + [IGNORE_INDEX]
    step_size = min(window * size, len(row))
    steps = steps_of(data, 4)
    assert len(steps) == (math.ceil(len(row) / step_size) if evaluation else len(row) // step_size)
    for number, step in enumerate(steps):
        low = number * step_size
        high = min(low + step_size, len(row))
        assert [sequence.ids for sequence in step] == [
            [token for token, _ in row[begin : min(begin + window, high)]] for begin in range(low, high, window)
        ]
        assert [target for sequence in step for target in sequence.targets or ()] == following[low:high]


@both_borders
@few
@given(rows=some_documents, window=st.integers(1, 12), size=st.integers(1, 5), seed=seeds, evaluation=st.booleans())
def test_within_documents_every_sequence_is_one_window_that_predicts_itself_alone(
    borders: dict[str, Borders], name: str, rows: list[list[int]], window: int, size: int, seed: int, evaluation: bool
) -> None:
    """Every token but the last has the next as its target: an end too, where its token is the start as well."""
    prefix, suffix = special_tokens(borders[name], across=False)
    data = CausalBatches(
        store(rows), borders[name][0], window=window, batch_size=size, seed=seed, across=False, evaluation=evaluation
    )
    windows = windows_by_hand(rows, prefix, suffix, window, wrap_each=False)
    expected = steps_by_hand(windows, window * size, None if evaluation else seed, 2)
    steps = steps_of(data, 2)
    assert [[sequence.ids for sequence in step] for step in steps] == [
        [windows[n] for n in order] for order in expected
    ]
    assert all(sequence.targets == [*sequence.ids[1:], IGNORE_INDEX] for sequence in sequences_in(steps))


@both_borders
@few
@given(
    rows=some_documents,
    window=st.integers(1, 12),
    size=st.integers(1, 5),
    seed=seeds,
    epoch=epochs,
    evaluation=st.booleans(),
)
def test_within_documents_an_epoch_has_every_window_once_in_steps_of_about_equal_size(
    borders: dict[str, Borders],
    name: str,
    rows: list[list[int]],
    window: int,
    size: int,
    seed: int,
    epoch: int,
    evaluation: bool,
) -> None:
    prefix, suffix = special_tokens(borders[name], across=False)
    data = CausalBatches(
        store(rows), borders[name][0], window=window, batch_size=size, seed=seed, across=False, evaluation=evaluation
    )
    windows = windows_by_hand(rows, prefix, suffix, window, wrap_each=False)
    steps = steps_of(data, epoch)
    assert sorted(sequence.ids for sequence in sequences_in(steps)) == sorted(windows)
    check_sizes(steps, window, size)


@both_borders
@few
@given(rows=some_documents, window=st.integers(1, 12), size=st.integers(1, 5), seed=seeds, epoch=epochs)
def test_across_an_evaluation_has_every_token_once_in_the_order_of_the_file(
    borders: dict[str, Borders], name: str, rows: list[list[int]], window: int, size: int, seed: int, epoch: int
) -> None:
    prefix, suffix = special_tokens(borders[name], across=True)
    data = CausalBatches(
        store(rows), borders[name][0], window=window, batch_size=size, seed=seed, across=True, evaluation=True
    )
    steps = steps_of(data, epoch)
    assert tokens_in(steps) == [token for row in rows if row for token in (*prefix, *row, *suffix)]
    assert [len(tokens_in([step])) for step in steps[:-1]] == [window * size] * (len(steps) - 1)
    assert 0 < len(tokens_in(steps[-1:])) <= window * size


@both_borders
@few
@given(rows=some_documents, window=st.integers(1, 12), size=st.integers(1, 5), seed=seeds)
def test_across_an_epoch_has_no_token_twice_and_leaves_less_than_a_step(
    borders: dict[str, Borders], name: str, rows: list[list[int]], window: int, size: int, seed: int
) -> None:
    prefix, suffix = special_tokens(borders[name], across=True)
    data = CausalBatches(store(rows), borders[name][0], window=window, batch_size=size, seed=seed, across=True)
    steps = steps_of(data, 0)
    epoch_tokens = [token for row in rows if row for token in (*prefix, *row, *suffix)]
    step_size = min(window * size, len(epoch_tokens))
    assert all(len(tokens_in([step])) == step_size for step in steps)
    assert 0 <= len(epoch_tokens) - len(tokens_in(steps)) < step_size
    text = [token for token in tokens_in(steps) if token >= FIRST]
    assert len(set(text)) == len(text)


def test_documents_are_kept_apart_by_default(trained: dict[str, Tokenizer]) -> None:
    rows = store(numbered([3, 9, 4, 20, 1]))
    default = CausalBatches(rows, trained["bpe"], window=8, batch_size=2, seed=3)
    within, across = (
        CausalBatches(rows, trained["bpe"], window=8, batch_size=2, seed=3, across=across) for across in (False, True)
    )
    assert steps_of(default, 0) == steps_of(within, 0) != steps_of(across, 0)


def test_a_causal_model_of_nothing_is_refused(trained: dict[str, Tokenizer]) -> None:
    for across in (True, False):
        with pytest.raises(DataError, match="no token"):
            CausalBatches(store([[], []]), trained["bpe"], window=8, batch_size=2, seed=0, across=across)
    with pytest.raises(ModelError, match="window of 0"):
        CausalBatches(store([[10]]), trained["bpe"], window=0, batch_size=2, seed=0, across=False)
