"""Windows of documents, against windows cut by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.batches.sampler import BatchSampler
from headstart.batches.windows import Windows
from headstart.errors import DataError, ModelError
from tests.batches.helpers import epoch_by_hand, epochs, few, numbered, seeds, store, windows_by_hand


def check_span(
    windows: Windows, row: Sequence[tuple[int, bool]], seed: int | None, epoch: int, low: int, high: int
) -> None:
    sampler = BatchSampler(windows.length, 1, seed or 0, evaluation=seed is None).epoch(epoch)
    ids = windows.span(sampler.order, sampler.starts, low, high)
    assert ids.tolist() == [token for token, _ in row[low:high]]


@pytest.mark.parametrize("longest", [None, 1, 2, 3, 4, 5, 8, 100])
@pytest.mark.parametrize("wrap_each", [True, False])
@pytest.mark.parametrize(("prefix", "suffix"), [((), ()), ((1,), ()), ((), (2,)), ((1,), (2,)), ((1, 3), (2, 4))])
@pytest.mark.parametrize("seed", [None, 5])
def test_a_span_is_that_part_of_an_epoch_laid_out_by_hand(
    longest: int | None, wrap_each: bool, prefix: tuple[int, ...], suffix: tuple[int, ...], seed: int | None
) -> None:
    rows = numbered([0, 3, 1, 0, 0, 7, 1, 4, 0])
    if wrap_each and longest is not None and longest <= len(prefix) + len(suffix):
        with pytest.raises(ModelError, match=f"window of {longest} tokens"):
            Windows.cut(store(rows), prefix, suffix, longest, wrap_each=wrap_each)
        return
    windows = Windows.cut(store(rows), prefix, suffix, longest, wrap_each=wrap_each)
    by_hand = windows_by_hand(rows, prefix, suffix, longest, wrap_each)
    ids, starts = windows.sequences(np.arange(len(windows)))
    assert [ids[low:high].tolist() for low, high in pairwise(starts)] == by_hand
    backwards, _ = windows.sequences(np.arange(len(windows))[::-1])
    assert backwards.tolist() == [token for window in by_hand[::-1] for token in window]
    assert windows.tokens == sum(map(len, by_hand))
    assert longest is None or max(map(len, by_hand)) <= longest
    row = epoch_by_hand(by_hand, seed, 3)
    for low in range(len(row)):
        for high in range(low + 1, len(row) + 1):
            check_span(windows, row, seed, 3, low, high)


@few
@given(
    rows=st.lists(st.lists(st.integers(0, 60000), max_size=9), max_size=9).filter(any),
    prefix=st.lists(st.integers(0, 60000), max_size=3).map(tuple),
    suffix=st.lists(st.integers(0, 60000), max_size=3).map(tuple),
    longest=st.none() | st.integers(7, 12) | st.integers(1, 6),
    wrap_each=st.booleans(),
    seed=st.none() | seeds,
    epoch=epochs,
    data=st.data(),
)
def test_a_span_of_any_documents_is_that_made_by_hand(
    rows: list[list[int]],
    prefix: tuple[int, ...],
    suffix: tuple[int, ...],
    longest: int | None,
    wrap_each: bool,
    seed: int | None,
    epoch: int,
    data: st.DataObject,
) -> None:
    if wrap_each and longest is not None:
        longest += len(prefix) + len(suffix)
    windows = Windows.cut(store(rows), prefix, suffix, longest, wrap_each=wrap_each)
    row = epoch_by_hand(windows_by_hand(rows, prefix, suffix, longest, wrap_each), seed, epoch)
    for _ in range(8):
        low = data.draw(st.integers(0, len(row) - 1))
        check_span(windows, row, seed, epoch, low, data.draw(st.integers(low + 1, len(row))))


@pytest.mark.parametrize("rows", [[], [[]], [[], [], []]])
@pytest.mark.parametrize("wrap_each", [True, False])
def test_a_store_without_a_token_is_refused(rows: list[list[int]], wrap_each: bool) -> None:
    with pytest.raises(DataError, match="no token"):
        Windows.cut(store(rows), (1,), (2,), 8, wrap_each=wrap_each)
    with pytest.raises(DataError, match="no token"):
        Windows.cut(store(rows), (1,), (2,), None, wrap_each=wrap_each)
