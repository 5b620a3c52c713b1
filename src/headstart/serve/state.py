"""What the server and its app tell each other: whether it shuts down, and which requests are under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class ServerState:
    in_flight: int = 0  # requests that are being read or answered
    loopback: bool = False  # whether only this machine can reach it
    signalled: float | None = None  # when the server began to shut down
    close_slow: Callable[[], bool] = lambda: False  # close a connection whose request is slow by its client's fault

    @property
    def closing(self) -> bool:
        return self.signalled is not None
