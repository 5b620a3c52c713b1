"""Positions, each against its formula written another way or against the function of the model it comes from."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder
from transformers.models.t5.modeling_t5 import T5Attention

from headstart.model.positions import relative_buckets, rotary, rotate, sinusoidal

from .strategies import SEEDS


@pytest.mark.parametrize(("length", "width"), [(1, 2), (7, 6), (512, 200), (1024, 64)])
def test_sinusoidal_is_the_formula_of_the_paper(length: int, width: int) -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i / D)) and PE(pos, 2i + 1) = cos of the same, in float64."""
    expected = np.empty((length, width))
    for pos in range(length):
        for i in range(width // 2):
            expected[pos, 2 * i] = math.sin(pos / 10_000 ** (2 * i / width))
            expected[pos, 2 * i + 1] = math.cos(pos / 10_000 ** (2 * i / width))
    # An angle of up to 1,024 in float32 is known to about 6e-5.
    np.testing.assert_allclose(sinusoidal(length, width).numpy(), expected, rtol=0, atol=2e-4)


def test_sinusoidal_starts_at_sine_0_and_cosine_1() -> None:
    assert sinusoidal(3, 6)[0].tolist() == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("head_width", [2, 6, 64])
def test_rotary_angles_grow_with_the_place_and_slow_with_the_pair(head_width: int) -> None:
    table = rotary(9, head_width)
    for position in range(9):
        for pair in range(head_width // 2):
            angle = position * 10_000 ** (-2 * pair / head_width)
            assert table[position, 0, pair].item() == pytest.approx(math.cos(angle), abs=1e-5)
            assert table[position, 1, pair].item() == pytest.approx(math.sin(angle), abs=1e-5)


@given(SEEDS, st.sampled_from([2, 4, 10]), st.integers(1, 30))
def test_turning_keeps_every_length(seed: int, head_width: int, length: int) -> None:
    x = torch.randn(length, 3, head_width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    turned = rotate(x, rotary(length, head_width).double())
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-6, atol=0)


@given(SEEDS, st.sampled_from([2, 4, 10]))
def test_turning_is_multiplying_complex_numbers(seed: int, head_width: int) -> None:
    """Entry i and entry i + K / 2 are the real and the imaginary part, for every head alike."""
    x = torch.randn(5, 2, head_width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    a, b = x.numpy()[..., : head_width // 2], x.numpy()[..., head_width // 2 :]
    angle = np.arange(5)[:, None, None] * 10_000.0 ** (-2 * np.arange(head_width // 2) / head_width)
    expected = (a + 1j * b) * np.exp(1j * angle)
    turned = rotate(x, rotary(5, head_width)).numpy()
    np.testing.assert_allclose(turned, np.concatenate([expected.real, expected.imag], -1), atol=1e-5)


def test_nothing_is_turned_at_place_0() -> None:
    x = torch.randn(1, 2, 6)
    assert torch.equal(rotate(x, rotary(1, 6)), x)


@given(SEEDS, st.integers(0, 20), st.integers(0, 20), st.integers(0, 40))
def test_a_score_of_turned_vectors_depends_on_their_distance_alone(seed: int, i: int, j: int, shift: int) -> None:
    drawn = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, 1, 8, generator=drawn, dtype=torch.float64)
    angles = rotary(64, 8).double()

    def score(query_place: int, key_place: int) -> float:
        return float((rotate(q, angles[query_place]) * rotate(k, angles[key_place])).sum())

    assert score(i + shift, j + shift) == pytest.approx(score(i, j), abs=1e-4)


def test_a_score_of_turned_vectors_does_depend_on_their_distance() -> None:
    q = torch.ones(1, 8)
    angles = rotary(8, 8)
    scores = [float((rotate(q, angles[0]) * rotate(q, angles[position])).sum()) for position in range(8)]
    assert scores[0] == pytest.approx(8)
    assert all(scores[0] - score > 0.1 for score in scores[1:])


def test_turning_keeps_the_precision_of_what_it_turns() -> None:
    assert rotate(torch.zeros(3, 1, 4, dtype=torch.bfloat16), rotary(3, 4)).dtype == torch.bfloat16
    assert rotate(torch.zeros(3, 1, 4, dtype=torch.float64), rotary(3, 4)).dtype == torch.float64


@pytest.mark.parametrize("buckets", [4, 8, 16, 32, 64])
@pytest.mark.parametrize("length", [1, 2, 9, 130, 512])
def test_relative_buckets_are_those_of_mpnet_and_t5(length: int, buckets: int) -> None:
    position = torch.arange(length)
    offset = position[None, :] - position[:, None]
    ours = relative_buckets(length, buckets)
    assert torch.equal(ours, MPNetEncoder.relative_position_bucket(offset, num_buckets=buckets, max_distance=128))
    assert torch.equal(ours, T5Attention._relative_position_bucket(offset, num_buckets=buckets, max_distance=128))


@given(st.integers(1, 300), st.integers(1, 127))
def test_a_relative_bucket_is_a_row_of_the_table_and_never_shrinks_with_distance(length: int, quarter: int) -> None:
    buckets = 4 * quarter
    table = relative_buckets(length, buckets)
    assert table.min() >= 0
    assert table.max() < buckets
    assert (table[0].diff() >= 0).all()
    assert (table[:, 0].diff() >= 0).all()
    right, left = table[0, 1:], table[1:, 0]
    assert torch.equal(right, left + buckets // 2)
