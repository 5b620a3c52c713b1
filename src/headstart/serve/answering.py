"""What every route does: read a body, find the model, wait for its answer until the deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from fastapi import Request

from headstart.errors import ConfigError, TokenizerError, did_you_mean
from headstart.serve.limits import ApiError, Limits
from headstart.serve.requests import Schema, parse_body

T = TypeVar("T")
M = TypeVar("M")


async def read_body(request: Request, schema: Schema) -> dict[str, Any]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        found = f"content type {kind[:60]!r}" if kind else "no content type"
        raise ApiError(415, "not_json", f"{found}, expected application/json: say so in the header Content-Type")
    return parse_body(await request.body(), schema)


def find_model(name: str | None, models: Mapping[str, M], kind: str) -> M:
    if not models:
        raise ApiError(404, "no_model", f"no {kind} is served here")
    if name is None:
        return next(iter(models.values()))
    if name not in models:
        short = name[:60]
        message = f"no {kind} is called {short!r}: {did_you_mean(short, models)}"
        raise ApiError(404, "no_model", message, field="model")
    return models[name]


async def wait_for(request: Request, future: Future[T], limits: Limits) -> T:
    """The result of a future, unless the client disconnects or the deadline passes first."""
    result: asyncio.Future[T] = asyncio.wrap_future(future)
    disconnected: asyncio.Future[None] = asyncio.ensure_future(_disconnected(request))
    seconds = request.state.began + limits.deadline - time.monotonic()
    try:
        both: set[asyncio.Future[Any]] = {result, disconnected}
        await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if result.done():
            return result.result()
        if disconnected.done():
            raise ApiError(499, "client_gone", "the client left")
        message = f"there was no answer within {limits.deadline:g} s: send fewer or shorter texts"
        raise ApiError(504, "deadline", message)
    except (ConfigError, TokenizerError) as error:
        raise ApiError(422, "unfit", str(error), field="text") from None
    finally:
        future.cancel()  # the worker skips it
        disconnected.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
