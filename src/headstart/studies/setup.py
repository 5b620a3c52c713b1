"""What every study does before it trains: find the model, the device and the window."""

from __future__ import annotations

from pathlib import Path

import torch

from headstart.config import ModelConfig
from headstart.errors import ConfigError, ModelError


def model_folder(source: str) -> str:
    """A run folder stands for the model in it."""
    inside = Path(source) / "model"
    return str(inside) if (inside / "config.json").is_file() else source


def pick_window(asked: int | None, config: ModelConfig) -> int:
    """The longest sequence in tokens, which the model's positions must cover."""
    if asked is not None and asked > config.window:
        raise ModelError(f"a window of {asked} tokens is longer than the {config.window} positions that the model has")
    return asked or config.window


def pick_device(asked: str) -> torch.device:
    """The device by its name; auto is a GPU where there is one."""
    if asked == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if asked.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("device", ["cuda was asked for, and this machine has none: use --device cpu"])
    return torch.device(asked)
