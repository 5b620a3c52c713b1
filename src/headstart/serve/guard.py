"""What stands before every route: who may ask, how much at once, and what goes with every answer.

A plain ASGI layer: it reads the body itself, up to its limit, and hands it on whole. What a client says about the
length of its body is believed only where it is too long.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headstart.serve.limits import Limits, Refusal
from headstart.serve.metrics import Metrics

LOG = logging.getLogger(__name__)
ROUTES = frozenset({"/", "/predict", "/explain", "/continue", "/health", "/info", "/metrics", "/docs", "/openapi.json"})
LOCKED = frozenset({"/predict", "/explain", "/continue", "/info", "/metrics"})  # where there is a token
LINGER_BYTES, LINGER_SECONDS = 8 << 20, 1.0  # of a body that is too long: read on, so that its sender sees the answer
SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass
class Gate:
    """Whether requests are let in, and how many are under way."""

    closing: bool = False
    under_way: int = 0


class Guard:
    """The layer around the app."""

    def __init__(self, app: ASGIApp, limits: Limits, metrics: Metrics, gate: Gate, token: str | None) -> None:
        self.app, self.limits, self.metrics, self.gate = app, limits, metrics, gate
        self.token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.monotonic(), 499  # where the client left before there was an answer

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _dress(message, closing=self.gate.closing)
            await send(message)

        scope.setdefault("state", {})["began"] = began
        self.gate.under_way += 1
        try:
            await self._let_in(scope, receive, answer, began)
        except ClientDisconnect:
            pass
        except Exception:
            if status != 499:
                raise  # the answer has begun, and cannot be taken back
            LOG.exception("%s %s could not be answered", scope["method"], scope["path"])
            words = "the service could not answer: its own output says why"
            await refused(Refusal(500, "internal", words))(scope, receive, answer)
        finally:
            self.gate.under_way -= 1
            route = scope["path"] if scope["path"] in ROUTES else "other"
            self.metrics.request(route, status, time.monotonic() - began)

    async def _let_in(self, scope: Scope, receive: Receive, send: Send, began: float) -> None:
        try:
            self._check(scope)
            body = await self._body(scope, receive, began)
        except Refusal as refusal:
            await refused(refusal)(scope, receive, send)
            return

        async def replay() -> Message:
            nonlocal body
            if body is None:
                return await receive()
            whole, body = body, None
            return {"type": "http.request", "body": whole, "more_body": False}

        await self.app(scope, replay, send)

    def _check(self, scope: Scope) -> None:
        if self.gate.closing:
            raise Refusal(503, "closing", "the service is ending: ask another", headers={"Connection": "close"})
        if self.gate.under_way > self.limits.requests:
            message = f"{self.limits.requests} requests are under way already: try again in a second"
            raise Refusal(429, "too_many_requests", message, headers={"Retry-After": "1"})
        if self.token is not None and scope["path"] in LOCKED:
            scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
            right = hmac.compare_digest(given.strip().encode("latin-1"), self.token)
            if scheme.lower() != "bearer" or not right:
                message = "this service wants its token: send it as `Authorization: Bearer TOKEN`"
                raise Refusal(401, "unauthorised", message, headers={"WWW-Authenticate": 'Bearer realm="headstart"'})

    async def _body(self, scope: Scope, receive: Receive, began: float) -> bytes | None:
        """The whole body, in so far as it is not too long and comes before the deadline."""
        if scope["method"] != "POST":
            return None
        headers, limit = Headers(scope=scope), self.limits.body
        said = headers.get("content-length", "")
        if said.isdecimal() and int(said) > limit:
            if "expect" not in headers:
                await _linger(receive)
            raise _too_long(limit)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(began + self.limits.deadline - time.monotonic()):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect
                    size += len(message.get("body", b""))
                    if size > limit:
                        parts.clear()
                        if message.get("more_body"):
                            await _linger(receive)
                        raise _too_long(limit)
                    parts.append(message.get("body", b""))
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            words = f"the body was not there after {self.limits.deadline:g} s"
            raise Refusal(408, "body_too_slow", words, headers={"Connection": "close"}) from None


def refused(refusal: Refusal) -> JSONResponse:
    """A refusal as an answer."""
    return JSONResponse(refusal.to_json(), refusal.status, refusal.headers)


def _too_long(limit: int) -> Refusal:
    message = f"the body is longer than {limit:,} bytes: send fewer texts at once"
    return Refusal(413, "body_too_long", message, headers={"Connection": "close"})


async def _linger(receive: Receive) -> None:
    """Read on and forget it: a connection that is closed on a sender takes the answer with it."""
    size = 0
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            while size < LINGER_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body"):
                    return
    except TimeoutError:
        pass


def _dress(message: Any, *, closing: bool) -> None:
    headers = MutableHeaders(scope=message)
    for name, value in SECURITY.items():
        headers[name] = value
    headers.setdefault("Cache-Control", "no-store")
    if closing:
        headers["Connection"] = "close"
