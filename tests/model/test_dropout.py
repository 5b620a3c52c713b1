"""Dropout is what it says, whichever numbers decide over it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from headstart.batches.draws import draw
from headstart.model import dropout as module
from headstart.model.dropout import LEAST, Dropout, dropout, random_bits

SIZES = [7, LEAST - 1, LEAST, LEAST + 3, 10 * LEAST]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("p", [0.1, 0.5, 0.73])
def test_elements_are_zero_or_scaled_and_so_is_their_gradient(size: int, p: float) -> None:
    torch.manual_seed(size)
    x = (torch.rand(size) + 1).requires_grad_()
    out = dropout(x, p)
    out.backward(torch.full((size,), 3.0))  # type: ignore[no-untyped-call]
    kept = out.detach() != 0
    assert torch.allclose(out.detach()[kept], x.detach()[kept] / (1 - p), rtol=1e-4)
    assert x.grad is not None
    assert torch.allclose(x.grad, kept * 3.0 / (1 - p), rtol=1e-4)


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9])
def test_so_many_are_dropped(p: float) -> None:
    """Within five standard deviations; in every one of the four numbers that 64 bits make, and from call to call."""
    torch.manual_seed(0)
    count = 200_000
    first, second = (dropout(torch.ones(count), p) == 0 for _ in range(2))
    for which in (first, first[::4], first[1::4], first[2::4], first[3::4], second):
        assert abs(which.float().mean() - p) < 5 * math.sqrt(p * (1 - p) / len(which))
    together = (first & second).float().mean()  # calls know nothing of each other
    assert abs(together - p * p) < 5 * math.sqrt(p * p * (1 - p * p) / count)
    neighbours = (first[1:] & first[:-1]).float().mean()
    assert abs(neighbours - p * p) < 5 * math.sqrt(p * p * (1 - p * p) / count)


def test_the_sum_is_kept_on_average() -> None:
    """The factor is that of the probability as it was rounded to 16 bits."""
    torch.manual_seed(0)
    mean = torch.stack([dropout(torch.ones(2**18), 1e-4).double().mean() for _ in range(20)]).mean()
    assert abs(mean - 1) < 3e-5


def test_numbers_are_those_of_splitmix() -> None:
    torch.manual_seed(3)
    found = random_bits(1000).numpy().view(np.uint64)
    torch.manual_seed(3)
    seed = np.array([torch.randint(2**62, (1,)).item()], dtype=np.uint64)
    assert (found == draw(seed, np.arange(1000))).all()


@pytest.mark.parametrize("size", SIZES)
def test_the_generator_decides(size: int) -> None:
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(dropout(torch.ones(size), 0.5))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(dropout(torch.ones(size), 0.5), dropout(torch.ones(size), 0.5))


def test_a_forward_pass_that_is_run_again_drops_the_same() -> None:
    """Activation checkpointing restores torch's generator, and nothing else."""
    torch.manual_seed(0)
    x = torch.ones(2, LEAST, requires_grad=True)
    out = checkpoint(lambda y: dropout(y * y, 0.5), x, use_reentrant=False)
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad != 0, out != 0)


def test_evaluation_and_the_edges() -> None:
    x = torch.randn(2, LEAST)
    layer = Dropout(0.5)
    assert torch.equal(layer.eval()(x), x)
    assert torch.equal(Dropout(0.0).train()(x), x)
    assert (Dropout(1.0).train()(x) == 0).all()
    assert (dropout(x.T, 0.5) == 0).any()  # strided
    assert dropout(x.bfloat16(), 0.5).dtype == torch.bfloat16
    assert dropout(x.double(), 0.5).dtype == torch.float64


def test_compiled_code_has_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(module, "_Dropout", None)  # would be an error
    assert (dropout(torch.ones(LEAST), 0.5) == 0).any()
