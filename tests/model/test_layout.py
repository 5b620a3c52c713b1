"""Layouts: what lies where, the way into a block and back, and which vector speaks for a sequence."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headstart.config import Pool
from headstart.model.layout import Cached, Dense, Flat

LENGTHS = st.lists(st.integers(1, 7), min_size=1, max_size=6)
TRAILING = st.integers(0, 3)


def vectors(lengths: list[int]) -> Tensor:
    """(N, 2): row i is (i, -i), so that every row says which token it is."""
    index = torch.arange(sum(lengths), dtype=torch.float64)
    return torch.stack([index, -index], dim=1)


@given(LENGTHS, TRAILING)
def test_a_flat_layout_says_for_each_token_its_sequence_and_its_place(lengths: list[int], empty: int) -> None:
    layout = Flat.from_lengths(lengths + [0] * empty)
    expected = [(s, place) for s, length in enumerate(lengths) for place in range(length)]
    assert list(zip(layout.sequence.tolist(), layout.position.tolist(), strict=True)) == expected
    assert layout.longest == max(lengths)
    assert [layout.starts[s].item() for s in range(len(lengths))] == [sum(lengths[:s]) for s in range(len(lengths))]
    assert layout.starts[len(lengths) :].tolist() == [sum(lengths)] * (empty + 1)


def test_starts_are_what_the_varlen_kernel_takes() -> None:
    assert Flat.from_lengths([3, 2]).starts.dtype == torch.int32


def test_of_puts_everything_on_the_device_it_is_told() -> None:
    layout = Flat.from_lengths([3, 2], device="meta")
    assert {layout.starts.device.type, layout.sequence.device.type, layout.position.device.type} == {"meta"}


def test_an_empty_sequence_may_stand_anywhere() -> None:
    layout = Flat.from_lengths([2, 0, 1])
    assert layout.sequence.tolist() == [0, 0, 2]
    assert layout.position.tolist() == [0, 1, 0]
    assert layout.unpad(layout.pad(vectors([2, 0, 1]))).tolist() == vectors([3]).tolist()


@given(LENGTHS, TRAILING)
def test_a_block_holds_each_token_in_its_cell_and_zeros_elsewhere(lengths: list[int], empty: int) -> None:
    layout = Flat.from_lengths(lengths + [0] * empty)
    block = layout.pad(vectors(lengths) + 1)
    assert block.shape == (len(lengths) + empty, max(lengths), 2)
    for s, rows in enumerate(torch.split(vectors(lengths) + 1, lengths)):
        assert torch.equal(block[s, : lengths[s]], rows)
        assert not block[s, lengths[s] :].any()
    assert not block[len(lengths) :].any()


@given(LENGTHS, TRAILING)
def test_flatten_is_the_way_back_from_block(lengths: list[int], empty: int) -> None:
    layout = Flat.from_lengths(lengths + [0] * empty)
    assert torch.equal(layout.unpad(layout.pad(vectors(lengths))), vectors(lengths))


@given(LENGTHS, TRAILING)
def test_block_and_flatten_carry_gradients_back_to_the_tokens(lengths: list[int], empty: int) -> None:
    layout = Flat.from_lengths(lengths + [0] * empty)
    x = vectors(lengths).requires_grad_()
    weight = vectors(lengths) + 1
    torch.autograd.backward((layout.unpad(layout.pad(x)) * weight).sum())
    assert x.grad is not None
    assert torch.equal(x.grad, weight)


@given(LENGTHS, TRAILING)
def test_real_marks_the_cells_that_hold_a_token(lengths: list[int], empty: int) -> None:
    layout = Flat.from_lengths(lengths + [0] * empty)
    expected = [[cell < length for cell in range(max(lengths))] for length in lengths + [0] * empty]
    if layout.real is None:
        assert all(map(all, expected))
    else:
        assert layout.real.tolist() == expected


def test_real_is_none_only_where_no_cell_is_empty() -> None:
    assert Flat.from_lengths([4, 4]).real is None
    assert Flat.from_lengths([4, 4, 0]).real is not None
    assert Flat.from_lengths([4, 3]).real is not None


def test_longest_may_be_a_limit_that_no_sequence_reaches() -> None:
    layout = Flat.from_starts(Flat.from_lengths([3, 2]).starts, longest=8, tokens=5)
    assert layout.pad(vectors([3, 2])).shape == (2, 8, 2)
    assert torch.equal(layout.unpad(layout.pad(vectors([3, 2]))), vectors([3, 2]))
    assert layout.real is not None
    assert layout.real.sum(1).tolist() == [3, 2]


@pytest.mark.parametrize(
    ("how", "expected"),
    [("first", [0.0, 3.0, 5.0]), ("last", [2.0, 4.0, 5.0]), ("mean", [1.0, 3.5, 5.0])],
)
def test_pools_by_hand(how: Pool, expected: list[float]) -> None:
    """Tokens 0 1 2 | 3 4 | 5."""
    lengths = [3, 2, 1]
    pooled = Flat.from_lengths(lengths).pool(vectors(lengths), how)
    assert pooled.tolist() == [[value, -value] for value in expected]


@given(LENGTHS, TRAILING, st.sampled_from(get_args(Pool)))
def test_empty_sequences_at_the_end_change_no_pool(lengths: list[int], empty: int, how: Pool) -> None:
    x = vectors(lengths)
    filled = Flat.from_lengths(lengths + [0] * empty).pool(x, how)
    assert filled.shape == (len(lengths) + empty, 2)
    assert torch.equal(filled[: len(lengths)], Flat.from_lengths(lengths).pool(x, how))
    assert filled.isfinite().all()


@given(LENGTHS, st.sampled_from(get_args(Pool)), st.integers(0, 3))
def test_a_padded_block_pools_to_the_same_vectors(lengths: list[int], how: Pool, padding: int) -> None:
    """`last` is the last real token: what stands in the padding is far off and must not be seen."""
    x = vectors(lengths)
    mask = torch.arange(max(lengths) + padding) < torch.tensor(lengths)[:, None]
    block = torch.full((*mask.shape, 2), 1e6, dtype=x.dtype)
    block[mask] = x
    torch.testing.assert_close(
        Dense(mask).pool(block, how), Flat.from_lengths(lengths).pool(x, how), rtol=0, atol=1e-12
    )


def test_a_dense_layout_counts_its_cells_from_the_left() -> None:
    layout = Dense(torch.tensor([[True, True, False], [True, True, True]]))
    assert layout.longest == 3
    assert layout.position.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert layout.real.tolist() == layout.mask.tolist()


def test_a_dense_block_stays_as_it_is() -> None:
    layout = Dense(torch.ones(2, 3, dtype=torch.bool))
    x = torch.randn(2, 3, 4)
    assert layout.pad(x) is x
    assert layout.unpad(x) is x


@pytest.mark.parametrize(
    "layout", [Flat.from_lengths([3, 1]), Dense(torch.tensor([[True, True, True], [True, False, False]]))]
)
@pytest.mark.parametrize("how", get_args(Pool))
def test_a_pool_gives_gradients_to_the_tokens_it_took(layout: Flat | Dense, how: Pool) -> None:
    x = torch.zeros(*layout.position.shape, 1, requires_grad=True)
    torch.autograd.backward(layout.pool(x, how).sum())
    assert x.grad is not None
    third = pytest.approx(1 / 3)
    taken = {"first": [1, 0, 0, 1], "last": [0, 0, 1, 1], "mean": [third, third, third, 1]}[how]
    assert x.grad[layout.mask if isinstance(layout, Dense) else ...].flatten().tolist() == taken
    assert x.grad.sum() == pytest.approx(2)  # and none to the padding


def test_a_cached_layout_counts_on_from_what_was_read_before() -> None:
    prompt = Cached(torch.ones(2, 3, dtype=torch.bool))
    assert (prompt.longest, prompt.position.tolist()) == (3, [[0, 1, 2]] * 2)
    step = prompt.next(2)
    assert (step.longest, step.position.tolist()) == (5, [[3, 4]] * 2)
    assert (step.next(1).longest, step.next(1).position.tolist()) == (6, [[5]] * 2)


def test_a_new_token_may_look_at_all_that_was_read_and_not_ahead() -> None:
    prompt = Cached(torch.ones(1, 2, dtype=torch.bool))
    assert prompt.causal_mask.int().tolist() == [[1, 0], [1, 1]]
    assert prompt.next(2).causal_mask.int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
