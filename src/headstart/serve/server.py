"""The server around the app: a socket, signals, and a graceful shutdown."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

import uvicorn

from headstart.errors import OutputError
from headstart.serve.app import create_app
from headstart.serve.batching import Batcher
from headstart.serve.connections import Capacity, Connection, Connections
from headstart.serve.hosts import is_loopback
from headstart.serve.limits import Limits
from headstart.serve.logs import log_config
from headstart.serve.models import Served
from headstart.serve.state import ServerState

BACKLOG = 1024  # connections that the system holds until they are accepted
GRACE = 2.0  # seconds from a signal until requests that wait for their clients are closed
LONGEST = 5.0  # seconds from a signal until nothing is answered any more
LINGER = 0.25  # seconds for clients that have just connected, and again for those that have just been answered


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        reason = error.strerror or error
        raise OutputError(f"cannot listen on {host}, port {port}: {reason}; try another --host or --port") from None
    return listener


class Server(uvicorn.Server):
    """uvicorn's server, whose `run` answers until SIGINT or SIGTERM, and then shuts down gracefully.

    New requests get a 503 while open ones are finished, for a few seconds at most.
    """

    def __init__(self, models: Sequence[Served], limits: Limits, token: str | None) -> None:
        self.state, capacity = ServerState(), Capacity.of_process(limits.connections)
        app = create_app(models, limits, token, self.state)
        self.batcher: Batcher = app.state.batcher
        config = uvicorn.Config(
            app,
            http=Connection,
            backlog=capacity.accepted_at_once,
            log_config=log_config(),
            access_log=False,
            server_header=False,
            ws="none",
            timeout_keep_alive=math.ceil(limits.idle),
        )
        super().__init__(config)
        self.server_state: Connections = Connections(limits, capacity.connections)
        self.state.close_slow = self.server_state.close_slow

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal shuts down gracefully, a second at once. Neither is raised again: the exit code is 0."""
        if self.state.closing:
            self.should_exit = self.force_exit = True
        self.state.signalled = self.state.signalled or time.monotonic()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.state.loopback = all(is_loopback(listener.getsockname()[0]) for listener in sockets or ())
        await super().startup(sockets)
        for listener in sockets or ():  # uvicorn has made its backlog as small as what is accepted at once
            listener.listen(BACKLOG)

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second: whether to end."""
        self.server_state.close_overdue()
        if self.state.signalled is not None:
            seconds = time.monotonic() - self.state.signalled
            if seconds > GRACE:
                self.server_state.close_all_slow(GRACE)
            if seconds > LONGEST or not self.state.in_flight:
                self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse who has just connected, and close what is open so that no client sees its connection reset.

        The system resets a connection that is closed while it has something to read, or has not been accepted.
        """
        if not self.force_exit:
            await self._stop_listening(sockets or [])
            await self._wait_for_clients()  # a request may be on its way: it gets a 503
            self.server_state.end_idle()
            await self._wait_for_clients()  # until they have read the end
        self.server_state.close_all()
        await super().shutdown(sockets)

    async def _stop_listening(self, listeners: list[socket.socket]) -> None:
        accepted: list[socket.socket] = []
        with suppress(OSError):  # where there is none to accept
            for listener in listeners:
                while len(accepted) < BACKLOG:
                    accepted.append(listener.accept()[0])
        for server in self.servers:
            server.close()
        for accepted_one in accepted:
            accepted_one.setblocking(False)
            await asyncio.get_running_loop().connect_accepted_socket(self._connection, accepted_one)

    def _connection(self) -> Connection:
        return Connection(self.config, self.server_state, self.lifespan.state)

    async def _wait_for_clients(self) -> None:
        end = time.monotonic() + LINGER
        while self.server_state.connections and time.monotonic() < end and not self.force_exit:
            await asyncio.sleep(0.01)
