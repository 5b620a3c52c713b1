"""Linear layers, and which library multiplies matrices of float32 on a CPU.

torch calls MKL for them. On AMD's processors MKL keeps to AVX2; oneDNN, which torch brings along for bf16, has AVX-512.
On Zen 5 it takes half the time, on Zen 4, which does AVX-512 in two halves, a tenth less, in float32 with the same
accuracy. torch has no switch for that, only one that permits products of float32 to be rounded to bf16, and it hands
these products to oneDNN. Without matrix units for bf16 (AMX) oneDNN does not round. Whether it does is found out by a
product that would show it.

oneDNN compiles a kernel for each shape, half a millisecond and up to a megabyte each, and no two batches of texts have
the same number of tokens. So oneDNN gets a multiple of 16 or more of them, of which a run has few, and MKL the rest.
"""

from __future__ import annotations

import threading
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CPUINFO = Path("/proc/cpuinfo")
LEAST_ROWS = 16  # of a product that oneDNN gets
SETTINGS: Any = getattr(torch.backends.mkldnn, "matmul", None)  # None in a torch that has no such setting


class Linear(nn.Linear):
    """nn.Linear, by the library that is faster."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (…, I), weight (O, I), bias (O,) → (…, O), as F.linear has it.

    >>> linear(torch.ones(2, 3), torch.eye(3), torch.tensor([0.0, 1.0, 2.0])).tolist()
    [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]
    """
    if not _supports(x):
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    if torch.is_grad_enabled():
        out: Tensor = _Linear.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
    else:
        out = _product(rows, weight, bias)
    return out.view(*x.shape[:-1], -1)


# --- which library ----------------------------------------------------------------------------------------------------


class OneDnn:
    """A block in which float32 products of `rows` rows on a CPU are oneDNN's, where that is exact and faster.

    The setting is the process's: a product of another thread in the meantime is oneDNN's too, and as exact. So the
    first block of all threads changes it, and the last one gives it back.
    """

    lock: ClassVar[threading.Lock] = threading.Lock()
    inside: ClassVar[int] = 0  # blocks of all threads
    before: ClassVar[str] = ""

    def __init__(self, rows: int) -> None:
        self.on = onednn_is_faster() and rows == onednn_rows(rows)

    def __enter__(self) -> None:
        if self.on:
            with OneDnn.lock:
                if OneDnn.inside == 0:
                    OneDnn.before = SETTINGS.fp32_precision
                    SETTINGS.fp32_precision = "bf16"
                OneDnn.inside += 1

    def __exit__(self, *error: object) -> None:
        if self.on:
            with OneDnn.lock:
                OneDnn.inside -= 1
                if OneDnn.inside == 0:
                    SETTINGS.fp32_precision = OneDnn.before


def onednn_rows(rows: int) -> int:
    """How many of the rows oneDNN gets: at least seven eighths of them, if there are 128, in one of few sizes.

    >>> [onednn_rows(rows) for rows in (10, 100, 200, 1000, 10_000)]
    [0, 96, 192, 960, 9216]
    """
    multiple = LEAST_ROWS
    while multiple * 16 < rows:
        multiple *= 2
    return rows - rows % multiple


@cache
def onednn_is_faster() -> bool:
    """Whether this is a processor on which MKL keeps to AVX2, and oneDNN does not round."""
    has_mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return has_mkl and torch.backends.cpu.get_cpu_capability() == "AVX512" and _is_amd() and _is_exact()


def _is_amd() -> bool:
    """A processor of AMD. Those with AVX-512 are of Zen 4 and later."""
    try:
        return "AuthenticAMD" in CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return False


def _is_exact() -> bool:
    """Whether oneDNN multiplies 1 + 2⁻¹² as it is; rounded to bf16 it is 1."""
    if not hasattr(SETTINGS, "fp32_precision"):
        return False
    x = torch.full((64, 64), 1 + 2**-12)
    with OneDnn.lock:
        before = SETTINGS.fp32_precision
        try:
            SETTINGS.fp32_precision = "bf16"
            return torch.equal(x @ torch.eye(64), x)
        except RuntimeError:
            return False
        finally:
            SETTINGS.fp32_precision = before


def _supports(x: Tensor) -> bool:
    """Many rows of float32 on a CPU; neither compiled nor exported, where F.linear is what is known."""
    return (
        not torch.compiler.is_compiling()
        and x.device.type == "cpu"
        and x.dtype == torch.float32
        and x.numel() >= LEAST_ROWS * x.shape[-1]
        and not torch.is_autocast_enabled("cpu")
        and onednn_is_faster()
    )


# --- the products -----------------------------------------------------------------------------------------------------


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(N, I), (O, I), (O,) → (N, O): x weightᵀ + bias."""
    rows = onednn_rows(len(x))
    if rows == len(x):
        with OneDnn(rows):
            return F.linear(x, weight, bias)
    out = x.new_empty(len(x), len(weight))
    with OneDnn(rows):
        _multiply(x[:rows], weight, bias, out[:rows])
    _multiply(x[rows:], weight, bias, out[rows:])
    return out


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    if bias is None:
        torch.mm(x, weight.T, out=out)
    else:
        torch.addmm(bias, x, weight.T, out=out)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        x_gradient = _product(gradient, weight.T, None) if ctx.needs_input_grad[0] else None
        weight_gradient = _weight_gradient(gradient, x) if ctx.needs_input_grad[1] else None
        return x_gradient, weight_gradient, gradient.sum(0) if ctx.needs_input_grad[2] else None


def _weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """(N, O), (N, I) → (O, I)"""
    rows = onednn_rows(len(x))
    with OneDnn(rows):
        total = gradient[:rows].T @ x[:rows]
    return total if rows == len(x) else total.addmm_(gradient[rows:].T, x[rows:])
