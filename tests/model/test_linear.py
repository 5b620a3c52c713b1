"""Linear layers are F.linear, whichever library multiplies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headstart.model import linear as module
from headstart.model.linear import LEAST_ROWS, Linear, OneDnn, linear, onednn_is_faster, onednn_rows

NEEDS_SETTING = pytest.mark.skipif(module.SETTINGS is None, reason="this torch cannot hand float32 products to oneDNN")
NEEDS_ONEDNN = pytest.mark.skipif(not onednn_is_faster(), reason="oneDNN is not the faster library here")


@pytest.fixture
def always_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN multiplies here, on any processor: whole numbers below 256 are the same in bf16, should it round."""
    monkeypatch.setattr(module, "onednn_is_faster", lambda: True)


def whole_numbers(*shape: int, seed: int = 0) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randint(-7, 8, shape, generator=source).float()


def with_gradients(function: object, x: Tensor, weight: Tensor, bias: Tensor | None) -> list[Tensor]:
    """The result of a linear function, and the gradients of a sum of it in which every entry counts otherwise."""
    inputs = [part.clone().requires_grad_() for part in (x, weight, bias) if part is not None]
    out: Tensor = function(*inputs)  # type: ignore[operator]
    out.backward(whole_numbers(*out.shape, seed=1))  # type: ignore[no-untyped-call]
    return [out.detach(), *(part.grad for part in inputs if part.grad is not None)]


@NEEDS_SETTING
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 33, 100, 128, 300, 1030])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.usefixtures("always_onednn")
def test_results_and_gradients_are_those_of_torch(rows: int, bias: bool) -> None:
    x, weight = whole_numbers(rows, 24), whole_numbers(40, 24, seed=2)
    b = whole_numbers(40, seed=3) if bias else None
    ours, theirs = with_gradients(linear, x, weight, b), with_gradients(F.linear, x, weight, b)
    assert len(ours) == len(theirs) == (4 if bias else 3)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@NEEDS_SETTING
@pytest.mark.usefixtures("always_onednn")
def test_inputs_of_other_shapes_and_strides() -> None:
    weight, bias = whole_numbers(8, 24), whole_numbers(8)
    dense = whole_numbers(5, 13, 24)  # sequences, tokens, width
    assert torch.equal(linear(dense, weight, bias), F.linear(dense, weight, bias))
    strided = whole_numbers(24, 70).T
    assert torch.equal(linear(strided, weight, bias), F.linear(strided, weight, bias))
    with torch.no_grad():
        assert torch.equal(linear(strided, weight, bias), F.linear(strided, weight, bias))
    assert linear(torch.zeros(0, 24), weight, bias).shape == (0, 8)
    x = whole_numbers(37, 24).requires_grad_()
    linear(x, weight, bias).sum().backward()  # type: ignore[no-untyped-call]  # an expanded gradient, of stride 0
    assert x.grad is not None
    assert torch.equal(x.grad, weight.sum(0).expand(37, 24))


@NEEDS_SETTING
@pytest.mark.usefixtures("always_onednn")
def test_what_does_not_train_gets_no_gradient() -> None:
    layer = Linear(24, 8)
    layer.weight.requires_grad_(False)
    x = whole_numbers(40, 24)
    layer(x).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is not None


@NEEDS_SETTING
@pytest.mark.usefixtures("always_onednn")
def test_the_setting_is_given_back() -> None:
    before = module.SETTINGS.fp32_precision
    with OneDnn(64):
        assert module.SETTINGS.fp32_precision == "bf16"
    assert module.SETTINGS.fp32_precision == before
    with OneDnn(63):  # sizes that do not recur stay with MKL
        assert module.SETTINGS.fp32_precision == before
    with pytest.raises(RuntimeError):
        linear(torch.ones(64, 3), torch.ones(5, 4))
    assert module.SETTINGS.fp32_precision == before


@NEEDS_SETTING
@pytest.mark.usefixtures("always_onednn")
def test_the_setting_is_given_back_by_the_last_of_several_threads() -> None:
    before = module.SETTINGS.fp32_precision
    first, second = OneDnn(64), OneDnn(64)
    first.__enter__()
    second.__enter__()
    first.__exit__()  # as where two threads overlap
    assert module.SETTINGS.fp32_precision == "bf16"
    second.__exit__()
    assert module.SETTINGS.fp32_precision == before


@NEEDS_ONEDNN
def test_float32_stays_float32() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(192, 384), torch.randn(1536, 384)
    exact = x.double() @ weight.double().T
    assert (linear(x, weight) - exact).norm() < 1e-6 * exact.norm()  # in bf16 3e-3
    assert not torch.equal(linear(x, weight), F.linear(x, weight))  # so it was oneDNN


@given(st.integers(0, 10**6))
@settings(max_examples=200, deadline=None)
def test_rows_come_in_few_sizes_and_few_are_left(rows: int) -> None:
    given_to_onednn = onednn_rows(rows)
    assert given_to_onednn <= rows < given_to_onednn + max(LEAST_ROWS, rows / 8)
    assert onednn_rows(given_to_onednn) == given_to_onednn or given_to_onednn == 0


def test_a_run_has_few_sizes() -> None:
    assert len({onednn_rows(rows) for rows in range(100, 400)}) <= 20
    assert len({onednn_rows(rows) for rows in range(3000, 6000)}) <= 16


@pytest.fixture
def fresh() -> Iterator[None]:
    onednn_is_faster.cache_clear()
    yield
    onednn_is_faster.cache_clear()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("reason", ["_is_amd", "_is_exact"])
def test_other_processors_keep_mkl(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    monkeypatch.setattr(module, reason, lambda: False)
    assert not onednn_is_faster()
    x, weight = torch.randn(64, 24), torch.randn(8, 24)
    assert torch.equal(linear(x, weight), F.linear(x, weight))


@pytest.mark.parametrize(("vendor", "expected"), [("AuthenticAMD", True), ("GenuineIntel", False)])
def test_processors_by_vendor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendor: str, expected: bool) -> None:
    monkeypatch.setattr(module, "CPUINFO", tmp_path / "cpuinfo")
    assert not module._is_amd()  # there is no such file
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: 25\nmodel\t\t: 17\n")
    assert module._is_amd() is expected


@pytest.mark.usefixtures("fresh")
def test_a_processor_without_avx512_keeps_mkl(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of AMD before Zen 4."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert not onednn_is_faster()


@pytest.mark.usefixtures("fresh")
def test_a_product_that_is_rounded_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with AMX units: the probe multiplies in bf16."""
    exact = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: exact(a.bfloat16(), b.bfloat16()).float())
    assert not module._is_exact()
