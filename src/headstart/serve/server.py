"""The server around the app: a socket, signals, and a graceful shutdown."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Sequence
from types import FrameType

import uvicorn

from headstart.errors import OutputError
from headstart.serve.app import create_app
from headstart.serve.limits import Limits
from headstart.serve.middleware import ServerState
from headstart.serve.models import Served


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(1024)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        reason = error.strerror or error
        raise OutputError(f"cannot listen on {host}, port {port}: {reason}; try another --host or --port") from None
    return listener


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "192.168.1.7")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Server(uvicorn.Server):
    """uvicorn's server, whose `run` answers until SIGINT or SIGTERM, and then shuts down gracefully.

    New requests get a 503 while open ones are finished.
    """

    def __init__(self, models: Sequence[Served], limits: Limits, token: str | None) -> None:
        self.state, self.timeout, self.signalled = ServerState(), limits.deadline + 5, 0.0
        config = uvicorn.Config(
            create_app(models, limits, token, self.state),
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
            timeout_keep_alive=30,
            timeout_graceful_shutdown=5,
        )
        super().__init__(config)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal shuts down gracefully, a second at once. Neither is raised again: the exit code is 0."""
        if self.state.closing:
            self.should_exit = self.force_exit = True
        self.signalled = self.signalled or time.monotonic()
        self.state.closing = True

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second: whether to end."""
        if self.state.closing and (not self.state.in_flight or time.monotonic() > self.signalled + self.timeout):
            self.should_exit = True
        return await super().on_tick(counter)
