"""The answers of the API, and how FastAPI documents them."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import Depends
from fastapi.security import HTTPBearer
from pydantic import BaseModel, Field

from headstart.serve.requests import Schema

SUMMARY = "Predictions of the models that are served here, for one text or many."
STATUSES = {
    400: "The body is not JSON.",
    401: "The token is missing or wrong.",
    404: "There is no such model.",
    408: "The body came too slowly.",
    413: "The body is too long.",
    415: "The content type is not application/json.",
    421: "The Host header names another machine than this one.",
    422: "A field is missing, unknown, too long or of the wrong type.",
    429: "Too many requests or texts are waiting: try again after Retry-After seconds.",
    500: "The model could not answer.",
    503: "The service is shutting down.",
    504: "There was no answer before the deadline.",
}
Probability = dict[str, float]
PROBABILITIES = Field(description="The probability of each label; they sum to 1.")


class Error(BaseModel):
    code: str = Field(description="For programs.")
    message: str = Field(description="For people: what was found, and what to do.")
    field: str | None = Field(None, description="Which part of the request it is about.")


class ErrorResponse(BaseModel):
    error: Error


class Prediction(BaseModel):
    label: str | None = Field(description="null where the highest probability is below `abstain_below`.")
    probabilities: Probability = PROBABILITIES


class PredictResponse(BaseModel):
    model: str
    predictions: list[Prediction] = Field(description="One for each text, in order.")


class Word(BaseModel):
    text: str
    start: int = Field(description="Index of its first character in the text.")
    end: int
    weight: float = Field(description="Above 0: for the label. Below 0: against it.")
    alone: float = Field(0.0, description="What the word adds to the label's logit in a text without other words.")
    left_out: float = Field(0.0, description="What the text loses of the label's logit without the word.")
    second: bool = Field(False, description="Of a pair: whether it is in the second text.")


class ExplainResponse(BaseModel):
    model: str
    label: str
    probabilities: Probability = PROBABILITIES
    words: list[Word]
    completeness: dict[str, float] = Field(
        description="`total`, the sum of the weights, and `change`: `logit` of the text less `baseline`, without words."
    )
    faithfulness: float | None = Field(
        None, description="How much faster the probability falls without the top words than without random ones."
    )
    cut: int = Field(0, description="Tokens at the end that did not fit into the model's window.")


class ContinueResponse(BaseModel):
    model: str
    text: str = Field(description="What comes after the given text.")
    stopped: Literal["end", "length"] = Field(description="The model ended the text, or max_tokens did.")


class Accuracy(BaseModel):
    value: float = Field(description="The mean over the runs of this arm, on test.")
    runs: int
    low: float | None = Field(description="Of the 95 % interval; null while the comparison is not finished.")
    high: float | None


class Arm(BaseModel):
    name: str
    mode: Literal["scratch", "frozen", "full", "contrastive", "full+self", "full+teacher", "baseline"]
    title: str
    run: str = Field(description="The run that answers: the first seed whose model was kept.")
    accuracy: Accuracy | None


class ArmAnswer(Arm):
    label: str | None = None
    probabilities: Probability | None = Field(None, description="The probability of each label; they sum to 1.")
    words: list[Word] | None = Field(None, description="Exact for the linear model; for the others as in /explain.")
    cut: int | None = Field(None, description="Tokens at the end that did not fit into the model's window.")
    error: str | None = Field(None, description="Why this arm did not answer.")


class CompareResponse(BaseModel):
    model: str
    budget: int = Field(description="How many labels these arms learned from.")
    arms: list[ArmAnswer]


class HealthResponse(BaseModel):
    status: Literal["ok"]


class ModelInfo(BaseModel):
    name: str
    title: str
    kind: Literal["classifier", "language model"]
    labels: list[str]
    parameters: int
    window: int = Field(description="Tokens of a text that the model reads.")


class ArmInfo(Arm):
    budget: int


class MissingArm(BaseModel):
    name: str
    budget: int
    reason: str


class StudyInfo(BaseModel):
    name: str
    title: str
    kind: Literal["study"]
    labels: list[str]
    budgets: list[int] = Field(description="How many labels the arms learned from, the fewest first.")
    arms: list[ArmInfo]
    missing: list[MissingArm] = Field(description="The arms that cannot be tried, and why.")


class InfoResponse(BaseModel):
    version: str
    models: list[ModelInfo | StudyInfo]
    limits: dict[str, float]


def operation(*, body: Schema | None = None, example: Any = None, token: bool = False) -> dict[str, Any]:
    """Arguments of a route's decorator: its request body, its possible errors, and whether it needs the token."""
    statuses = STATUSES if body is not None else {status: STATUSES[status] for status in (401, 421, 429, 503)}
    arguments: dict[str, Any] = {
        "response_description": "The answer.",
        "responses": {status: {"description": text, "model": ErrorResponse} for status, text in statuses.items()},
        # The middleware checks the token; this only documents it.
        "dependencies": [Depends(HTTPBearer(scheme_name="token", auto_error=False))] if token else [],
    }
    if body is not None:
        content = {"application/json": {"schema": body, "example": example}}
        arguments["openapi_extra"] = {"requestBody": {"required": True, "content": content}}
    return arguments


def inlined(value: Any, schemas: Schema) -> Any:
    """A part of the description with every reference replaced by its schema."""
    if isinstance(value, list):
        return [inlined(item, schemas) for item in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        return inlined(schemas[value["$ref"].rpartition("/")[2]], schemas)
    return {name: inlined(item, schemas) for name, item in value.items()}


def in_words(schema: Schema) -> str:
    """A schema in a few words.

    >>> in_words({"type": ["integer", "null"], "minimum": 1, "maximum": 200})
    'integer, 1 to 200'
    >>> in_words({"type": "array", "maxItems": 2, "items": {"type": "string", "maxLength": 9}})
    'list of up to 2: string, up to 9 characters'
    """
    choices = schema.get("oneOf") or schema.get("anyOf")
    if choices:
        return " or ".join(in_words(choice) for choice in choices if choice.get("type") != "null")
    if "enum" in schema or "const" in schema:
        return " or ".join(str(value) for value in schema.get("enum", [schema.get("const")]) if value is not None)
    kind = schema["type"] if isinstance(schema["type"], str) else schema["type"][0]
    if kind == "array":
        if schema.get("minItems") == schema.get("maxItems") == 2:
            return "a pair of them"
        most = f" of up to {schema['maxItems']}" if "maxItems" in schema else ""
        return f"list{most}: {in_words(schema['items'])}"
    if "maxLength" in schema:
        return f"{kind}, up to {schema['maxLength']:,} characters"
    if "minimum" in schema:
        return f"{kind}, {schema['minimum']:,.10g} to {schema['maximum']:,.10g}"
    return "true or false" if kind == "boolean" else str(kind)
