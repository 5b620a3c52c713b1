"""What every study does before it trains: choose the window, the device and the precision."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from headstart.config import ModelConfig
from headstart.errors import ConfigError, ModelError
from headstart.training.distributed import team
from headstart.training.precision import Precision, choose_precision
from headstart.training.settings import TrainingSettings


def pick_window(asked: int | None, config: ModelConfig) -> int:
    """The longest sequence in tokens, which the model's positions must cover."""
    if asked is not None and asked > config.window:
        raise ModelError(f"a window of {asked} tokens is longer than the {config.window} positions that the model has")
    return asked or config.window


def pick_device(asked: str) -> torch.device:
    """The device by its name; auto is a GPU where there is one."""
    if asked in ("auto", "cuda") and torch.cuda.is_available() and team().world_size > 1:
        return torch.device("cuda", torch.cuda.current_device())  # its own, of those that this machine has
    if asked == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if asked.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("device", ["cuda was asked for, and this machine has none: use --device cpu"])
    return torch.device(asked)


def pick_precision(
    settings: TrainingSettings, device: torch.device, log: Callable[[str], None], *, exact: bool = False
) -> Precision:
    """What to multiply in, float32 where it must be `exact`; and, where asked, the same bits each time."""
    if exact and settings.precision == "bf16":
        log("a frozen backbone runs once, in float32: bf16 is not used")
    precision = choose_precision("float32" if exact else settings.precision, device)
    if precision.note:
        log(precision.note)
    if settings.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS wants to be told before its first product
        torch.use_deterministic_algorithms(True)
    return precision
