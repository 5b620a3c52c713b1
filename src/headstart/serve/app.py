"""The service: routes that read a request, hand it to the batcher, and wait for the answer until the deadline.

app = create_app([open_served("reviews", Path("runs/reviews"))])
# POST /predict {"texts": ["A tender, witty book."]}
# {"model": "reviews", "predictions": [{"label": "pos", "probabilities": {"neg": 0.03, "pos": 0.97}}]}
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape
from starlette.exceptions import HTTPException

from headstart.errors import ConfigError, TokenizerError, did_you_mean
from headstart.serve import description
from headstart.serve.batching import Batcher
from headstart.serve.bodies import read_continue, read_explain, read_predict
from headstart.serve.guard import Gate, Guard, refused
from headstart.serve.limits import Limits, Refusal
from headstart.serve.metrics import Metrics
from headstart.serve.models import Served, ServedClassifier, ServedLanguageModel
from headstart.version import __version__

T = TypeVar("T")
M = TypeVar("M", ServedClassifier, ServedLanguageModel)
PAGE = Path(__file__).parent / "page"
FILES = {
    "style.css": "text/css",
    "app.js": "text/javascript",
    "table.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
STANDARD = Limits()


def create_app(
    models: Sequence[Served], limits: Limits = STANDARD, token: str | None = None, gate: Gate | None = None
) -> FastAPI:
    """The app for some models, of which the first of its kind answers where a request names none."""
    _check_names(models)
    gate = gate or Gate()
    metrics = Metrics()
    batcher = Batcher(limits, metrics)
    classifiers = {m.name: m for m in models if isinstance(m, ServedClassifier)}
    writers = {m.name: m for m in models if isinstance(m, ServedLanguageModel)}

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(batcher.stop)

    app = FastAPI(
        title="headstart",
        summary=description.SUMMARY,
        version=__version__,
        lifespan=life,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_middleware(Guard, limits=limits, metrics=metrics, gate=gate, token=token)
    app.state.batcher = batcher
    _refusals(app)
    _pages(app)

    asked_names = list(classifiers)
    bodies = {
        "predict": description.predict_body(limits, asked_names),
        "explain": description.explain_body(limits, asked_names),
        "continue": description.continue_body(limits, list(writers)),
    }

    @app.post(
        "/predict",
        summary="Labels and probabilities",
        include_in_schema=bool(classifiers),
        **description.operation(
            description.PREDICTED, body=bodies["predict"], example={"texts": ["A tender, witty book."]}
        ),
    )
    async def predict(request: Request) -> Response:
        """The likeliest label of each text, and the probability of every label. A pair of texts is a list of two."""
        asked = read_predict(await _json(request), limits)
        served = _named(asked.model, classifiers, "classifier")
        rows = await _answer(request, batcher.submit(served, asked.texts, asked.fields), limits)
        return JSONResponse({"model": served.name, "predictions": served.answers(rows, asked.abstain_below)})

    @app.post(
        "/explain",
        summary="The words that decided",
        include_in_schema=bool(classifiers),
        **description.operation(
            description.EXPLAINED, body=bodies["explain"], example={"text": "A tender, witty book."}
        ),
    )
    async def explain(request: Request) -> Response:
        """How much each word of a text spoke for its label, or against it."""
        asked = read_explain(await _json(request), limits)
        served = _named(asked.model, classifiers, "classifier")
        found = await _answer(
            request, batcher.run(served.explain(asked.texts[0], faithfulness=asked.faithfulness)), limits
        )
        return JSONResponse({"model": served.name, **found})

    @app.post(
        "/continue",
        summary="A text, continued",
        include_in_schema=bool(writers),
        **description.operation(
            description.CONTINUED, body=bodies["continue"], example={"text": "Once upon a", "max_tokens": 20}
        ),
    )
    async def go_on(request: Request) -> Response:
        """What a causal language model writes after a text."""
        asked = read_continue(await _json(request), limits)
        served = _named(asked.model, writers, "language model")
        (text,) = asked.texts
        assert isinstance(text, str)
        found = await _answer(request, batcher.run(served.go_on(text, asked.settings)), limits)
        return JSONResponse({"model": served.name, **found})

    @app.get("/health", summary="Whether it answers", **description.operation(description.HEALTH))
    async def health() -> Response:
        """`ok`; a service that is ending answers 503."""
        return JSONResponse({"status": "ok"})

    @app.get("/info", summary="Models and limits", **description.operation(description.INFO))
    async def info() -> Response:
        """The models by name, the default first, and how much a request may ask for."""
        numbers = {name: value for name, value in asdict(limits).items() if value is not None}
        return JSONResponse({"version": __version__, "models": [m.info() for m in models], "limits": numbers})

    @app.get("/metrics", summary="Counts", **description.operation({"type": "string"}, kind="text/plain"))
    async def counts() -> Response:
        """Requests, seconds, batches and the queue, in the text format of Prometheus."""
        text = metrics.text(waiting=batcher.waiting, under_way=gate.under_way)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    if token is not None:
        _describe_token(app)
    return app


async def _json(request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        found = "no content type" if not kind else f"content type {kind[:60]!r}"
        raise Refusal(415, "not_json", f"{found}, expected application/json: say so in the header Content-Type")
    return await request.body()


def _named(name: str | None, models: Mapping[str, M], kind: str) -> M:
    if not models:
        raise Refusal(404, "no_model", f"no {kind} is served here")
    if name is None:
        return next(iter(models.values()))
    if name not in models:
        short = name[:60]
        message = f"no {kind} is called {short!r}: {did_you_mean(short, models)}"
        raise Refusal(404, "no_model", message, field="model")
    return models[name]


async def _answer(request: Request, future: Future[T], limits: Limits) -> T:
    """The outcome of a future, while the client is there and the deadline is ahead."""
    coming: asyncio.Future[T] = asyncio.wrap_future(future)
    gone: asyncio.Future[None] = asyncio.ensure_future(_gone(request))
    seconds = request.state.began + limits.deadline - time.monotonic()
    try:
        both: set[asyncio.Future[Any]] = {coming, gone}
        await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if coming.done():
            return coming.result()
        if gone.done():
            raise Refusal(499, "client_gone", "the client left")
        message = f"there was no answer within {limits.deadline:g} s: send fewer or shorter texts"
        raise Refusal(504, "deadline", message)
    except (ConfigError, TokenizerError) as error:
        raise Refusal(422, "unfit", str(error), field="text") from None
    finally:
        future.cancel()  # the worker passes over what nobody waits for
        gone.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _check_names(models: Sequence[Served]) -> None:
    names = [model.name for model in models]
    problems = [
        f"the name {name!r} is given twice: write NAME=FOLDER" for name in sorted(set(names)) if names.count(name) > 1
    ]
    if not models:
        problems.append("there is no model to serve")
    if problems:
        raise ConfigError("serve", problems)


def _refusals(app: FastAPI) -> None:
    """Every answer that is not what was asked for has one form."""

    @app.exception_handler(Refusal)
    async def refusal(_: Request, error: Refusal) -> Response:
        return refused(error)

    @app.exception_handler(HTTPException)
    async def by_the_router(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405:
            code, message = "wrong_method", f"{request.method} is not answered here: see /docs"
        else:
            code, message = "not_found", "there is nothing here: see /docs"
        return refused(Refusal(error.status_code, code, message, headers=error.headers))


def _pages(app: FastAPI) -> None:
    """The page, its files, and the description for people; all of it from memory."""
    keep = {"Cache-Control": "no-cache"}
    index = (PAGE / "index.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template.filters["code"] = lambda words: Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(words))))
    docs = template.from_string((PAGE / "docs.html").read_text(encoding="utf-8"))

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return HTMLResponse(index, headers=keep)

    @app.get("/docs", include_in_schema=False)
    async def documentation(request: Request) -> Response:
        base = str(request.base_url).rstrip("/")
        words = docs.render(api=app.openapi(), base=base, takes=description.takes, statuses=description.STATUSES)
        return HTMLResponse(words, headers=keep)

    def serve_file(name: str, kind: str) -> None:
        content = (PAGE / name).read_bytes()

        @app.get(f"/{name}", include_in_schema=False)
        async def file() -> Response:
            return Response(content, media_type=kind, headers=keep)

    for name, kind in FILES.items():
        serve_file(name, kind)


def _describe_token(app: FastAPI) -> None:
    """Say in the description that a token is wanted, and where."""
    whole = app.openapi()
    whole.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, operations in whole["paths"].items():
        if path != "/health":
            for operation in operations.values():
                operation["security"] = [{"token": []}]
