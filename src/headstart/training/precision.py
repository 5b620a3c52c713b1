"""Which numbers to multiply in: float32 everywhere, bf16 where the hardware really can.

bf16 keeps the range of float32 in half the bits, so weights and sums stay in float32 and only products are taken in it
(autocast). Some machines say that they have bf16 and fail at the first product; so we ask them for one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, assert_never

import torch

Asked = Literal["auto", "float32", "bf16"]


@dataclass(frozen=True)
class Precision:
    """What products are taken in, and a line for the user where it is not what was asked for."""

    dtype: torch.dtype | None = None  # None: float32
    note: str | None = None


def choose_precision(asked: Asked, device: torch.device | str) -> Precision:
    """bf16 where it was asked for and works; `auto` asks for it on a GPU, and for float32 on a CPU.

    >>> choose_precision("auto", "cpu")
    Precision(dtype=None, note=None)
    """
    device = torch.device(device)
    match asked:
        case "float32":
            return Precision()
        case "auto" if device.type == "cpu":  # few CPUs are faster in bf16, and many are slower
            return Precision()
        case "auto" | "bf16":
            trouble = bf16_trouble(device)
            if trouble is None:
                return Precision(torch.bfloat16)
            machine = "CPU" if device.type == "cpu" else "GPU"
            cannot = f"this {machine} cannot multiply in bf16"
            if asked == "bf16":
                cannot = f"bf16 was asked for, and this {machine} cannot multiply in it"
            return Precision(None, f"{cannot} ({trouble}): going on in float32")
        case _:
            assert_never(asked)


def bf16_trouble(device: torch.device | str) -> str | None:
    """What goes wrong with a small product in bf16, forward and backward; None where nothing does."""
    device = torch.device(device)
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return "it has no bf16 units and would imitate them slowly"
    x = torch.ones(16, 32, device=device, requires_grad=True)
    weight = torch.ones(8, 32, device=device, requires_grad=True)
    try:
        with torch.autocast(device.type, torch.bfloat16):
            product = torch.nn.functional.linear(x, weight)  # (16, 8), every entry 32
        by_x, by_weight = torch.autograd.grad(product.sum(), (x, weight))
        right = bool((product == 32).all() and (by_x == 8).all() and (by_weight == 16).all())
    except RuntimeError as error:
        return str(error).split("\n", 1)[0]
    return None if right else "the product was wrong"


def autocast(precision: Precision, device: torch.device | str) -> AbstractContextManager[object]:
    """A `with` block in which products are taken in this precision."""
    if precision.dtype is None:
        return nullcontext()
    return torch.autocast(torch.device(device).type, precision.dtype)
