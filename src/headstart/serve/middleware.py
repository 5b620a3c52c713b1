"""Middleware before every route: token, Host header, limits on requests and bodies, security headers, request metrics.

Plain ASGI: it reads the body itself, up to the limit, and passes it on whole. A Content-Length header is believed
only where it is too large.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from contextlib import suppress
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headstart.serve.hosts import names_loopback
from headstart.serve.limits import ApiError, Limits
from headstart.serve.metrics import Metrics
from headstart.serve.state import ServerState

LOG = logging.getLogger(__name__)
PROTECTED = frozenset({"/predict", "/explain", "/continue", "/compare", "/info", "/metrics"})  # by the token, if any
ROUTES = PROTECTED | {"/", "/health", "/docs", "/openapi.json"}
DRAIN_BYTES, DRAIN_SECONDS = 8 << 20, 1.0  # read of a body that is too long, so that its sender sees the error
SECURITY_HEADERS = {
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


class LimitMiddleware:
    def __init__(self, app: ASGIApp, limits: Limits, metrics: Metrics, state: ServerState, token: str | None) -> None:
        self.app, self.limits, self.metrics, self.state = app, limits, metrics, state
        self.token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.monotonic(), 499  # 499: the client left before there was an answer

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _add_headers(message, closing=self.state.closing)
            await send(message)

        scope.setdefault("state", {})["began"] = began
        self.state.in_flight += 1
        try:
            await self._answer(scope, receive, send_with_headers, began)
        except ClientDisconnect:
            pass
        except Exception:
            if status != 499:
                raise  # the answer has begun and cannot be taken back
            LOG.exception("%s %s could not be answered", scope["method"], scope["path"])
            message = "the service could not answer: its own output says why"
            await error_response(ApiError(500, "internal", message))(scope, receive, send_with_headers)
        finally:
            self.state.in_flight -= 1
            route = scope["path"] if scope["path"] in ROUTES else "other"
            self.metrics.request(route, status, time.monotonic() - began)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, began: float) -> None:
        try:
            self._check_admission(scope)
        except ApiError as error:
            await _drain(scope, receive)
            await error_response(error)(scope, receive, send)
            return
        try:
            body = await self._read_body(scope, receive, began)
        except ApiError as error:
            await error_response(error)(scope, receive, send)
            return

        async def replay() -> Message:
            nonlocal body
            if body is None:
                return await receive()
            whole, body = body, None
            return {"type": "http.request", "body": whole, "more_body": False}

        await self.app(scope, replay, send)

    def _check_admission(self, scope: Scope) -> None:
        if self.state.closing:
            message = "the service is shutting down: ask another"
            raise ApiError(503, "closing", message, headers={"Connection": "close"})
        if scope["path"] == "/health":  # answered however much there is to do
            return
        if self.state.in_flight > self.limits.requests and not self.state.close_slow():
            message = f"{self.limits.requests} requests are being answered already: try again in a second"
            raise ApiError(429, "too_many_requests", message, headers={"Retry-After": "1"})
        headers = Headers(scope=scope)
        if self.token is None and self.state.loopback and not names_loopback(headers.get("host", "")):
            message = "only localhost and 127.0.0.1 are answered here: use one of them as the host, or set a token"
            raise ApiError(421, "wrong_host", message)
        if self.token is not None and scope["path"] in PROTECTED:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            equal = hmac.compare_digest(given.strip().encode("latin-1"), self.token)
            if scheme.lower() != "bearer" or not equal:
                message = "this service needs a token: send it as `Authorization: Bearer TOKEN`"
                raise ApiError(401, "unauthorised", message, headers={"WWW-Authenticate": 'Bearer realm="headstart"'})

    async def _read_body(self, scope: Scope, receive: Receive, began: float) -> bytes | None:
        """The whole body; an error where it is too long or not there before the deadline."""
        if scope["method"] != "POST":
            return None
        headers, limit = Headers(scope=scope), self.limits.body
        declared = headers.get("content-length", "")
        too_long, more, body = declared.isdecimal() and int(declared) > limit, True, bytearray()
        try:
            async with asyncio.timeout_at(began + self.limits.deadline):
                while more and not too_long:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect
                    more = message.get("more_body", False)
                    body += message.get("body", b"")
                    too_long = len(body) > limit
        except TimeoutError:
            text = f"the body was not there after {self.limits.deadline:g} s"
            raise ApiError(408, "body_too_slow", text, headers={"Connection": "close"}) from None
        if not too_long:
            return bytes(body)
        if more:
            started = bool(body)
            body.clear()
            await _drain(scope, receive, started)
        text = f"the body is longer than {limit:,} bytes: send fewer texts at once"
        raise ApiError(413, "body_too_long", text, headers={"Connection": "close"})


def error_response(error: ApiError) -> JSONResponse:
    return JSONResponse(error.to_json(), error.status, error.headers)


async def _drain(scope: Scope, receive: Receive, started: bool = False) -> None:
    """Read a body and discard it: closing the connection on a sender would lose the answer."""
    if not started and "expect" in Headers(scope=scope):  # who waits for a 100 has sent nothing yet
        return
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while size < DRAIN_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body"):
                    return


def _add_headers(message: Any, *, closing: bool) -> None:
    headers = MutableHeaders(scope=message)
    headers.update(SECURITY_HEADERS)
    headers.setdefault("Cache-Control", "no-store")
    if closing:
        headers["Connection"] = "close"
