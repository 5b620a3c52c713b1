"""The HTTP API: routes that read a request, give it to the batcher, and wait for the result until the deadline.

app = create_app([open_served("reviews", Path("runs/reviews"))])
# POST /predict {"texts": ["A tender, witty book."]}
# {"model": "reviews", "predictions": [{"label": "pos", "probabilities": {"neg": 0.03, "pos": 0.97}}]}
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape
from starlette.exceptions import HTTPException

from headstart.errors import ConfigError
from headstart.serve import openapi
from headstart.serve.answering import find_model, read_body, wait_for
from headstart.serve.batching import Batcher
from headstart.serve.limits import ApiError, Limits
from headstart.serve.metrics import Metrics
from headstart.serve.middleware import LimitMiddleware, error_response
from headstart.serve.models import Served, ServedClassifier, ServedLanguageModel
from headstart.serve.requests import (
    compare_schema,
    continue_schema,
    explain_schema,
    predict_schema,
    sampling_of,
    texts_of,
)
from headstart.serve.state import ServerState
from headstart.serve.study import ServedStudy
from headstart.version import __version__

PAGE = Path(__file__).parent / "page"
FILES = {
    "style.css": "text/css",
    "app.js": "text/javascript",
    "shared.js": "text/javascript",
    "study.js": "text/javascript",
    "table.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Service:
    """What the routes share."""

    models: Sequence[Served]
    limits: Limits
    token: bool
    metrics: Metrics
    batcher: Batcher
    state: ServerState

    def shown(self, names: Iterable[str]) -> list[str]:
        """The models that /docs and /openapi.json name: none if a token is needed, as these two are for everybody."""
        return [] if self.token else list(names)


def create_app(
    models: Sequence[Served],
    limits: Limits = DEFAULT_LIMITS,
    token: str | None = None,
    state: ServerState | None = None,
) -> FastAPI:
    """The app for some models; the first of its kind answers where a request names none."""
    _check_names(models)
    metrics = Metrics()
    service = Service(models, limits, token is not None, metrics, Batcher(limits, metrics), state or ServerState())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.batcher.stop)

    app = FastAPI(
        title="headstart",
        summary=openapi.SUMMARY,
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        separate_input_output_schemas=False,
    )
    app.add_middleware(LimitMiddleware, limits=limits, metrics=metrics, state=service.state, token=token)
    app.state.batcher = service.batcher
    _add_error_handlers(app)
    _add_pages(app)
    _add_classifier_routes(app, service)
    _add_language_model_route(app, service)
    _add_study_route(app, service)
    _add_status_routes(app, service)
    return app


def _add_classifier_routes(app: FastAPI, service: Service) -> None:
    limits, batcher = service.limits, service.batcher
    classifiers = {model.name: model for model in service.models if isinstance(model, ServedClassifier)}
    shown = service.shown(classifiers)
    predict_body, explain_body = predict_schema(limits, shown), explain_schema(limits, shown)

    @app.post(
        "/predict",
        summary="Labels and probabilities",
        include_in_schema=bool(classifiers),
        response_model=openapi.PredictResponse,
        **openapi.operation(body=predict_body, example={"texts": ["A tender, witty book."]}, token=service.token),
    )
    async def predict(request: Request) -> Response:
        """The label of each text, and the probability of every label. A pair of texts is a list of two."""
        body = await read_body(request, predict_body)
        served = find_model(body.get("model"), classifiers, "classifier")
        rows = await wait_for(request, batcher.submit(served, *texts_of(body)), limits)
        predictions = [asdict(served.classifier.prediction(row, body.get("abstain_below"))) for row in rows]
        return JSONResponse({"model": served.name, "predictions": predictions})

    @app.post(
        "/explain",
        summary="The words that decided",
        include_in_schema=bool(classifiers),
        response_model=openapi.ExplainResponse,
        **openapi.operation(body=explain_body, example={"text": "A tender, witty book."}, token=service.token),
    )
    async def explain(request: Request) -> Response:
        """The weight of each word of a text, for its label or against it."""
        body = await read_body(request, explain_body)
        served = find_model(body.get("model"), classifiers, "classifier")
        [text], _ = texts_of(body)
        steps = served.explain(text, faithfulness=body.get("faithfulness", True))
        return JSONResponse({"model": served.name, **await wait_for(request, batcher.run(steps), limits)})


def _add_language_model_route(app: FastAPI, service: Service) -> None:
    limits = service.limits
    models = {model.name: model for model in service.models if isinstance(model, ServedLanguageModel)}
    schema = continue_schema(limits, service.shown(models))

    @app.post(
        "/continue",
        summary="A text, continued",
        include_in_schema=bool(models),
        response_model=openapi.ContinueResponse,
        **openapi.operation(body=schema, example={"text": "Once upon a", "max_tokens": 20}, token=service.token),
    )
    async def continue_text(request: Request) -> Response:
        """What a causal language model writes after a text."""
        body = await read_body(request, schema)
        served = find_model(body.get("model"), models, "language model")
        steps = served.generate(body["text"], **sampling_of(body, limits))
        answer = await wait_for(request, service.batcher.run(steps), limits)
        return JSONResponse({"model": served.name, **answer})


def _add_study_route(app: FastAPI, service: Service) -> None:
    studies = {model.name: model for model in service.models if isinstance(model, ServedStudy)}
    schema = compare_schema(service.limits, service.shown(studies))

    @app.post(
        "/compare",
        summary="What each arm of a comparison says",
        include_in_schema=bool(studies),
        response_model=openapi.CompareResponse,
        **openapi.operation(body=schema, example={"text": "A tender, witty book."}, token=service.token),
    )
    async def compare(request: Request) -> Response:
        """The label, the probabilities and the words of every arm, in the order of the report."""
        body = await read_body(request, schema)
        study = find_model(body.get("model"), studies, "comparison")
        [text], _ = texts_of(body)
        budget = body.get("budget")
        arms = study.select(None if budget is None else int(budget), body.get("arm"))
        steps = study.compare(arms, text, words=body.get("words", True))
        return JSONResponse(await wait_for(request, service.batcher.run(steps), service.limits))


def _add_status_routes(app: FastAPI, service: Service) -> None:
    document = openapi.operation(token=service.token)

    @app.get(
        "/health",
        summary="Whether it answers",
        response_model=openapi.HealthResponse,
        **openapi.operation(),
    )
    async def health() -> Response:
        """`ok`; a service that is shutting down answers 503."""
        return JSONResponse({"status": "ok"})

    @app.get("/info", summary="Models and limits", response_model=openapi.InfoResponse, **document)
    async def info() -> Response:
        """The models by name, the default first, and the limits on a request."""
        limits = {name: value for name, value in asdict(service.limits).items() if value is not None}
        models = [model.info() for model in service.models]
        return JSONResponse({"version": __version__, "models": models, "limits": limits})

    @app.get("/metrics", summary="Counts", response_class=PlainTextResponse, **document)
    async def metrics() -> Response:
        """Requests, seconds, batches and the queue, in the text format of Prometheus."""
        text = service.metrics.text(waiting=service.batcher.waiting, in_flight=service.state.in_flight)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


def _check_names(models: Sequence[Served]) -> None:
    names = [model.name for model in models]
    problems = [
        f"the name {name!r} is given twice: write NAME=FOLDER" for name in sorted(set(names)) if names.count(name) > 1
    ]
    if not models:
        problems.append("there is no model to serve")
    if problems:
        raise ConfigError("serve", problems)


def _add_error_handlers(app: FastAPI) -> None:
    """Every error has one form."""

    @app.exception_handler(ApiError)
    async def api_error(_: Request, error: ApiError) -> Response:
        return error_response(error)

    @app.exception_handler(HTTPException)
    async def router_error(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405:
            code, message = "wrong_method", f"{request.method} is not answered here: see /docs"
        else:
            code, message = "not_found", "there is nothing here: see /docs"
        return error_response(ApiError(error.status_code, code, message, headers=error.headers))


def _add_pages(app: FastAPI) -> None:
    """The page, its files, and the documentation for people; all of it from memory."""
    headers = {"Cache-Control": "no-cache"}
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["code"] = lambda text: Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))
    docs = environment.from_string((PAGE / "docs.html").read_text(encoding="utf-8"))

    @app.get("/docs", include_in_schema=False)
    async def documentation(request: Request) -> Response:
        api = app.openapi()
        page = docs.render(
            api=openapi.inlined(api, api["components"]["schemas"]),
            base=str(request.base_url).rstrip("/"),
            in_words=openapi.in_words,
            statuses=openapi.STATUSES,
        )
        return HTMLResponse(page, headers=headers)

    def serve_file(path: str, name: str, kind: str) -> None:
        content = (PAGE / name).read_bytes()

        @app.get(path, include_in_schema=False)
        async def file() -> Response:
            return Response(content, media_type=kind, headers=headers)

    serve_file("/", "index.html", "text/html")
    for name, kind in FILES.items():
        serve_file(f"/{name}", name, kind)
