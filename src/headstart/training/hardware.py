"""What a run is computed on: the device, and the precision of products.

float32 works everywhere; bf16 is used where the hardware really can. It keeps the range of float32 in half the bits, so
weights and sums stay in float32 and only products are taken in bf16 (autocast). Some machines say that they have bf16
and fail at the first product; so we ask them for one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

from headstart.errors import ConfigError, shown
from headstart.parallel import SINGLE, Parallel
from headstart.training.settings import HardwareSettings
from headstart.wording import reason

Asked = Literal["auto", "float32", "bf16"]


def pick_device(asked: str, parallel: Parallel = SINGLE) -> torch.device:
    """The device by its name; auto is a GPU where there is one."""
    if asked in ("auto", "cuda") and torch.cuda.is_available() and parallel.world_size > 1:
        return torch.device("cuda", torch.cuda.current_device())  # of those on this machine, the one of this process
    if asked == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if asked.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("device", ["cuda was asked for, and this machine has none: use --device cpu"])
    try:
        device = torch.device(asked)
        torch.zeros(1, device=device).item()  # `meta` holds no values; cuda:7 may be one GPU too many
    except (RuntimeError, AssertionError, ValueError) as error:
        problem = f"{shown(asked)} is no device that this machine can use ({reason(error)}): use auto, cpu or cuda"
        raise ConfigError("device", [problem]) from None
    return device


def pick_precision(
    settings: HardwareSettings, device: torch.device, log: Callable[[str], None], *, exact: bool = False
) -> torch.dtype:
    """What to multiply in, float32 where it must be `exact`; and, where asked, the same bits each time."""
    if settings.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it before its first product
        torch.use_deterministic_algorithms(True)
    if exact and settings.precision == "bf16":
        log("a frozen backbone runs once, in float32: bf16 is not used")
    return choose_precision("float32" if exact else settings.precision, device, log)


def choose_precision(
    asked: Asked, device: torch.device | str, log: Callable[[str], None] = lambda text: None
) -> torch.dtype:
    """bf16 where it was asked for and works; `auto` asks for it on a GPU, and for float32 on a CPU.

    >>> choose_precision("auto", "cpu")
    torch.float32
    """
    device = torch.device(device)
    if asked == "float32" or (asked == "auto" and device.type == "cpu"):  # few CPUs are faster in bf16
        return torch.float32
    problem = bf16_problem(device)
    if problem is None:
        return torch.bfloat16
    machine = "CPU" if device.type == "cpu" else "GPU"
    request = "bf16 was asked for, and " if asked == "bf16" else ""
    log(f"{request}this {machine} cannot multiply in bf16 ({problem}): going on in float32")
    return torch.float32


def bf16_problem(device: torch.device | str) -> str | None:
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
        return reason(error)
    return None if right else "the product was wrong"


def autocast(precision: torch.dtype, device: torch.device | str) -> AbstractContextManager[object]:
    """A `with` block in which products are taken in this precision."""
    return nullcontext() if precision == torch.float32 else torch.autocast(torch.device(device).type, precision)
