"""The server around the app: a socket, signals, and an end that leaves nobody without an answer."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Sequence
from types import FrameType

import uvicorn

from headstart.errors import OutputError
from headstart.serve.app import create_app
from headstart.serve.guard import Gate
from headstart.serve.limits import Limits
from headstart.serve.models import Served


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            found.listen(1024)
        except OSError:
            found.close()
            raise
    except OSError as error:
        why = error.strerror or error
        raise OutputError(f"cannot listen on {host}, port {port}: {why}; try another --host or --port") from None
    return found


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "192.168.1.7")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def make_server(models: Sequence[Served], limits: Limits, token: str | None) -> Server:
    """A server whose `run` answers until SIGINT or SIGTERM, then what is under way, and returns."""
    gate = Gate()
    config = uvicorn.Config(
        create_app(models, limits, token, gate),
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        timeout_keep_alive=30,
        timeout_graceful_shutdown=5,
    )
    return Server(config, gate, limits.deadline + 5)


class Server(uvicorn.Server):
    """uvicorn's server, which closes the door before it leaves: new requests are told so while others end."""

    def __init__(self, config: uvicorn.Config, gate: Gate, patience: float) -> None:
        super().__init__(config)
        self.gate, self.patience = gate, patience
        self.asked = 0.0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal closes the door, a second ends at once. Neither is raised again: the exit code is 0."""
        if self.gate.closing:
            self.should_exit = self.force_exit = True
        self.asked = self.asked or time.monotonic()
        self.gate.closing = True

    async def on_tick(self, counter: int) -> bool:
        """Asked ten times a second: whether to end."""
        if self.gate.closing and (not self.gate.under_way or time.monotonic() > self.asked + self.patience):
            self.should_exit = True
        return await super().on_tick(counter)
