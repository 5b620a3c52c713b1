"""bf16 is used where it was asked for and works, and nowhere else; a change of plan is said in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from headstart.errors import ConfigError
from headstart.training import hardware
from headstart.training.hardware import autocast, bf16_problem, choose_precision, pick_device

PRIMITIVE = "could not create a primitive"


def broken(*args: Any, **kwargs: Any) -> Tensor:
    raise RuntimeError(PRIMITIVE + "\nand a long tale of where")


@pytest.mark.parametrize("asked", ["", " ", "gpu", "cpu:x", "-1", "meta", "\ud800", "cuda:77"])
def test_a_device_that_is_none_is_refused(asked: str) -> None:
    with pytest.raises(ConfigError, match="device"):
        pick_device(asked)


def test_float32_asks_nothing_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.functional, "linear", broken)
    assert choose_precision("float32", "cpu") == torch.float32
    assert choose_precision("auto", "cpu") == torch.float32


def test_bf16_where_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "bf16_problem", lambda device: None)
    assert choose_precision("bf16", "cpu") == torch.bfloat16
    assert choose_precision("bf16", "cuda") == torch.bfloat16
    assert choose_precision("auto", "cuda:1") == torch.bfloat16


def test_a_cpu_that_cannot_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.functional, "linear", broken)
    lines: list[str] = []
    assert choose_precision("bf16", "cpu", lines.append) == torch.float32
    assert lines == [
        "bf16 was asked for, and this CPU cannot multiply in bf16 (could not create a primitive): going on in float32"
    ]


def test_a_gpu_that_cannot_is_said_even_when_nobody_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "bf16_problem", lambda device: "no")
    lines: list[str] = []
    assert choose_precision("auto", "cuda", lines.append) == torch.float32
    assert lines == ["this GPU cannot multiply in bf16 (no): going on in float32"]


def test_a_gpu_that_would_only_imitate_bf16_is_not_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert "imitate" in (bf16_problem("cuda") or "")


def test_a_failure_on_the_way_back_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.autograd, "grad", broken)
    assert bf16_problem("cpu") == PRIMITIVE


@pytest.mark.parametrize("wrong", [lambda y: y + 1, lambda y: 2 * y - y.detach()])
def test_a_wrong_number_counts(wrong: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Once in the product alone, once in its gradients alone."""
    linear = torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "linear", lambda x, weight: wrong(linear(x, weight)))
    assert bf16_problem("cpu") == "the product was wrong"


def test_the_probe_multiplies_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves the random numbers of the run as they were."""
    linear, seen = torch.nn.functional.linear, []

    def watched(x: Tensor, weight: Tensor) -> Tensor:
        product = linear(x, weight)
        seen.append(product.dtype)
        return product

    monkeypatch.setattr(torch.nn.functional, "linear", watched)
    before = torch.get_rng_state()
    bf16_problem("cpu")
    assert seen == [torch.bfloat16]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_covers_its_block_and_no_more(dtype: torch.dtype) -> None:
    x = torch.ones(2, 2)
    with autocast(dtype, "cpu"):
        inside = x @ x
    assert inside.dtype == dtype
    assert (x @ x).dtype == torch.float32
