"""The API's description: schemas of what is asked and answered, with this service's own limits and names in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headstart.serve.bodies import WARMEST
from headstart.serve.limits import Limits

Schema = dict[str, Any]

SUMMARY = "Answers of the models that are served here, for one text or many."
ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {
                "code": {"type": "string", "description": "For programs."},
                "message": {"type": "string", "description": "For people: what was found, and what to do."},
                "field": {"type": "string", "description": "Which part of the request it is about."},
            },
        }
    },
}
PROBABILITIES: Schema = {
    "type": "object",
    "additionalProperties": {"type": "number", "minimum": 0, "maximum": 1},
    "description": "The probability of each label; together 1.",
}
PREDICTED: Schema = {
    "type": "object",
    "required": ["model", "predictions"],
    "properties": {
        "model": {"type": "string"},
        "predictions": {
            "type": "array",
            "description": "One for each text, in the order asked.",
            "items": {
                "type": "object",
                "required": ["label", "probabilities"],
                "properties": {
                    "label": {
                        "type": ["string", "null"],
                        "description": "null where the likeliest label is below `abstain_below`.",
                    },
                    "probabilities": PROBABILITIES,
                },
            },
        },
    },
}
EXPLAINED: Schema = {
    "type": "object",
    "required": ["model", "label", "probabilities", "words"],
    "properties": {
        "model": {"type": "string"},
        "label": {"type": "string"},
        "probabilities": PROBABILITIES,
        "words": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["text", "start", "end", "weight"],
                "properties": {
                    "text": {"type": "string"},
                    "start": {"type": "integer", "description": "Its first character's place in the text."},
                    "end": {"type": "integer"},
                    "weight": {"type": "number", "description": "Above 0: for the label. Below 0: against it."},
                    "second": {"type": "boolean", "description": "Of a pair: whether it stands in the second text."},
                },
            },
        },
        "completeness": {
            "type": ["object", "null"],
            "description": "`total`, the sum of the weights, and `change`, the logit's change that it should equal.",
        },
        "faithfulness": {
            "type": ["number", "null"],
            "description": "How much faster the probability falls without the top words than without random ones.",
        },
        "cut": {"type": "integer", "description": "Tokens at the end that the model's window had no room for."},
    },
}
CONTINUED: Schema = {
    "type": "object",
    "required": ["model", "text", "stopped"],
    "properties": {
        "model": {"type": "string"},
        "text": {"type": "string", "description": "What comes after the text that was given."},
        "stopped": {"enum": ["end", "length"], "description": "The model ended the text, or max_tokens did."},
    },
}
HEALTH: Schema = {
    "type": "object",
    "required": ["status"],
    "properties": {"status": {"const": "ok"}},
}
INFO: Schema = {
    "type": "object",
    "required": ["version", "models", "limits"],
    "properties": {
        "version": {"type": "string"},
        "models": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "kind", "labels", "parameters", "window"],
                "properties": {
                    "name": {"type": "string"},
                    "kind": {"enum": ["classifier", "language model"]},
                    "labels": {"type": "array", "items": {"type": "string"}},
                    "parameters": {"type": "integer"},
                    "window": {"type": "integer", "description": "Tokens of a text that the model reads."},
                },
            },
        },
        "limits": {"type": "object", "additionalProperties": {"type": "number"}},
    },
}
STATUSES = {
    400: "The body is no JSON.",
    401: "The token is missing or wrong.",
    404: "There is no such model.",
    408: "The body came too slowly.",
    413: "The body is too long.",
    415: "The body is not said to be JSON.",
    422: "A field is missing, unknown, too long or of the wrong kind.",
    429: "Too much is waiting: try again after Retry-After seconds.",
    500: "The model could not answer.",
    503: "The service is ending.",
    504: "The answer was not there before the deadline.",
}


def predict_body(limits: Limits, names: Sequence[str]) -> Schema:
    """Exactly one of `text` and `texts`."""
    text = _text(limits)
    common = {
        "model": _model(names),
        "abstain_below": {
            "type": ["number", "null"],
            "minimum": 0,
            "maximum": 1,
            "description": "Give no label where the likeliest is less probable than this.",
        },
    }
    many = {"type": "array", "minItems": 1, "maxItems": limits.texts, "items": text}
    return {"oneOf": [_closed({"text": text, **common}, "text"), _closed({"texts": many, **common}, "texts")]}


def explain_body(limits: Limits, names: Sequence[str]) -> Schema:
    tested = {
        "type": "boolean",
        "default": True,
        "description": "Whether to measure how far the weights can be believed, which takes most of the time.",
    }
    return _closed({"text": _text(limits), "model": _model(names), "faithfulness": tested}, "text")


def continue_body(limits: Limits, names: Sequence[str]) -> Schema:
    numbers = {
        "max_tokens": {"type": ["integer", "null"], "minimum": 1, "maximum": limits.new_tokens},
        "temperature": {
            "type": ["number", "null"],
            "minimum": 0,
            "maximum": WARMEST,
            "description": "0: always the likeliest token. Higher: more by chance.",
        },
        "seed": {"type": ["integer", "null"], "minimum": 0, "maximum": 2**32 - 1},
    }
    return _closed({"text": _string(limits), "model": _model(names), **numbers}, "text")


def operation(
    answer: Schema, *, body: Schema | None = None, example: Any = None, kind: str = "application/json"
) -> dict[str, Any]:
    """What FastAPI is told beside a route: its body, its answer, and each way of being refused."""
    told: dict[str, Any] = {"responses": {200: {"description": "The answer.", "content": {kind: {"schema": answer}}}}}
    refusals = STATUSES if body is not None else {code: STATUSES[code] for code in (401, 429, 503)}
    for status, words in refusals.items():
        told["responses"][status] = {"description": words, "content": {"application/json": {"schema": ERROR}}}
    if body is not None:
        content = {"application/json": {"schema": body, "example": example}}
        told["openapi_extra"] = {"requestBody": {"required": True, "content": content}}
    return told


def takes(schema: Schema) -> str:
    """A schema in a few words.

    >>> takes({"type": ["integer", "null"], "minimum": 1, "maximum": 200})
    'integer, 1 to 200'
    >>> takes({"type": "array", "maxItems": 2, "items": {"type": "string", "maxLength": 9}})
    'list of up to 2: string, up to 9 characters'
    """
    if "oneOf" in schema:
        return " or ".join(takes(choice) for choice in schema["oneOf"])
    if "enum" in schema or "const" in schema:
        return " or ".join(str(value) for value in schema.get("enum", [schema.get("const")]) if value is not None)
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    kind = next(kind for kind in kinds if kind != "null")
    if kind == "array":
        if schema.get("minItems") == schema.get("maxItems") == 2:
            return "a pair of them"
        most = f" of up to {schema['maxItems']}" if "maxItems" in schema else ""
        return f"list{most}: {takes(schema['items'])}"
    if "maxLength" in schema:
        return f"{kind}, up to {schema['maxLength']:,} characters"
    if "minimum" in schema:
        return f"{kind}, {schema['minimum']:,.10g} to {schema['maximum']:,.10g}"
    return "true or false" if kind == "boolean" else str(kind)


def _closed(properties: Schema, *required: str) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _model(names: Sequence[str]) -> Schema:
    return {"enum": [*names, None], "description": f"Which model; {names[0]} where none is named." if names else ""}


def _string(limits: Limits) -> Schema:
    return {"type": "string", "maxLength": limits.characters}


def _text(limits: Limits) -> Schema:
    string = _string(limits)
    pair = {"type": "array", "items": string, "minItems": 2, "maxItems": 2, "description": "A pair of texts."}
    return {"oneOf": [string, pair]}
