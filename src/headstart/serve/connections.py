"""Connections: how many may be open, and for how long one may wait for its client.

A connection waits for its client unless the service owes it an answer. Where there is no place for a further connection
or request, the one that has waited the longest is closed: clients that send or read nothing cannot keep others out.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from headstart.serve.limits import Limits

LOG = logging.getLogger(__name__)
ACCEPTED_AT_ONCE = 64
SLOW = 1.0  # seconds that a request may wait for its client before another takes its place
Phase = Literal["headers", "body", "answer", "sending"]


class Capacity(NamedTuple):
    """What the process can hold open."""

    connections: int
    accepted_at_once: int

    @classmethod
    def of_process(cls, wanted: int) -> Capacity:
        """As many connections as wanted, if there are file descriptors for them.

        Some are left for connections that are accepted before others are closed: without a free descriptor
        accepting fails, and asyncio logs a traceback for every try.
        """
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = (1 << 20 if soft == resource.RLIM_INFINITY else soft) - sum(1 for _ in Path("/dev/fd").iterdir())
        at_once = max(1, min(ACCEPTED_AT_ONCE, free // 8))
        return cls(max(1, min(wanted, free - 4 * at_once)), at_once)


class Connections(ServerState):
    """The open connections, those that wait for their clients in the order in which they began to."""

    def __init__(self, limits: Limits, most: int) -> None:
        super().__init__()
        self.limits, self.most = limits, most
        self.waiting: dict[Connection, None] = {}

    def make_room(self, new: Connection) -> None:
        """Close one connection if there is one too many; the new one only if no other waits for its client."""
        if len(self.connections) > self.most:
            LOG.warning("all %d connections are taken: those that wait longest are closed for new ones", self.most)
            self._close(next(iter(self.waiting), new))

    def close_slow(self) -> bool:
        """Close the connection whose request has waited for its client the longest; False if none is slow."""
        found = next(self._slow(SLOW), None)
        if found is not None:
            self._close(found)
        return found is not None

    def close_all_slow(self, seconds: float) -> None:
        for connection in list(self._slow(seconds)):
            self._close(connection)

    def _slow(self, seconds: float) -> Iterator[Connection]:
        """Connections whose requests have waited for their clients for so long, the longest first."""
        latest = time.monotonic() - seconds
        return (found for found in self.waiting if found.phase != "headers" and found.since <= latest)

    def close_overdue(self) -> None:
        now = time.monotonic()
        for connection in list(self.connections):
            if isinstance(connection, Connection) and now - connection.since > connection.longest:
                self._close(connection)

    def end_idle(self) -> None:
        for connection in list(self.waiting):
            if connection.phase == "headers":
                connection.end()

    def close_all(self) -> None:
        for connection in list(self.connections):
            connection.transport.abort()

    def _close(self, connection: Connection) -> None:
        self.waiting.pop(connection, None)
        connection.transport.abort()  # `close` would wait until the client has read everything


class Connection(H11Protocol):
    """uvicorn's connection, which knows what it waits for, and since when."""

    server_state: Connections
    since = 0.0
    _ended = False
    _noted: tuple[Phase, object] | None = None

    @property
    def phase(self) -> Phase:
        """What is awaited: a request's headers, its body, the service's answer, or that the client reads."""
        if self.cycle is None or self.cycle.response_complete:
            return "headers"
        if self.cycle.more_body:
            return "body"
        return "sending" if self.flow.write_paused else "answer"

    @property
    def longest(self) -> float:
        """Seconds that the phase may take; the middleware ends bodies and answers by itself before that."""
        limits = self.server_state.limits
        unread = self.transport.get_write_buffer_size()
        return limits.idle if self.phase == "headers" and not unread else limits.deadline + limits.idle

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.server_state.make_room(self)
        self._note_phase()

    def end(self) -> None:
        """Tell the client that no answer will come; it closes, and what it sends meanwhile is not looked at."""
        if not self.transport.is_closing():
            self._ended = True
            self.transport.write_eof()

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        super().data_received(data)
        self._note_phase()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._note_phase()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._note_phase()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note_phase()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.server_state.waiting.pop(self, None)

    def _note_phase(self) -> None:
        noted = self.phase, self.cycle
        if noted != self._noted and not self.transport.is_closing():
            self._noted, self.since = noted, time.monotonic()
            self.server_state.waiting.pop(self, None)
            if self.phase != "answer":
                self.server_state.waiting[self] = None
