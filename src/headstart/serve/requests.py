"""The bodies of requests: a JSON schema for each route, which documents it and checks it.

Every error names the field that it is about.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NoReturn

from headstart.errors import did_you_mean
from headstart.reading.examples import Text
from headstart.serve.limits import ApiError, Limits

Schema = dict[str, Any]
MAX_TEMPERATURE = 5.0


def predict_schema(limits: Limits, models: Sequence[str]) -> Schema:
    """Exactly one of `text` and `texts`."""
    abstain_below = _number(1, description="Give no label where the highest probability is below this.")
    options = {"model": _model(models), "abstain_below": abstain_below}
    texts = {"type": "array", "minItems": 1, "maxItems": limits.texts, "items": _text(limits)}
    return {
        "oneOf": [_object({"text": _text(limits), **options}, "text"), _object({"texts": texts, **options}, "texts")]
    }


def explain_schema(limits: Limits, models: Sequence[str]) -> Schema:
    faithfulness = {
        "type": "boolean",
        "default": True,
        "description": "Whether to measure the faithfulness of the weights, which takes most of the time.",
    }
    return _object({"text": _text(limits), "model": _model(models), "faithfulness": faithfulness}, "text")


def continue_schema(limits: Limits, models: Sequence[str]) -> Schema:
    temperature = _number(MAX_TEMPERATURE, description="0: always the most probable token. Higher: more random.")
    numbers = {
        "max_tokens": _number(limits.new_tokens, 1, kind="integer"),
        "temperature": temperature,
        "seed": _number(2**32 - 1, kind="integer"),
    }
    return _object({"text": _string(limits), "model": _model(models), **numbers}, "text")


def compare_schema(limits: Limits, studies: Sequence[str]) -> Schema:
    largest = "How many labels the arms learned from; by default the most there are."
    only = {"type": ["string", "null"], "description": "Only this arm, by its name in /info."}
    words = {
        "type": "boolean",
        "default": True,
        "description": "Whether to weigh the words, which takes most of the time.",
    }
    options = {"budget": _number(2**53, 1, kind="integer", description=largest), "arm": only, "words": words}
    return _object({"text": _text(limits), "model": _model(studies), **options}, "text")


def _object(properties: Schema, required: str) -> Schema:
    return {"type": "object", "properties": properties, "required": [required], "additionalProperties": False}


def _model(names: Sequence[str]) -> Schema:
    if not names:
        return {
            "type": ["string", "null"],
            "description": "Which model, by its name in /info.",
        }
    return {"enum": [*names, None], "description": f"Which model; {names[0]} where none is named."}


def _number(most: float, least: int = 0, kind: str = "number", **description: str) -> Schema:
    return {"type": [kind, "null"], "minimum": least, "maximum": most, **description}


def _string(limits: Limits) -> Schema:
    return {"type": "string", "maxLength": limits.characters}


def _text(limits: Limits) -> Schema:
    string = _string(limits)
    pair = {"type": "array", "items": string, "minItems": 2, "maxItems": 2, "description": "A pair of texts."}
    return {"oneOf": [string, pair]}


def parse_body(raw: bytes, schema: Schema) -> dict[str, Any]:
    """A JSON object that follows one of the schemas above.

    >>> parse_body(b'{"texts": ["Dull.", ["A", "pair"]]}', predict_schema(Limits(), ["reviews"]))
    {'texts': ['Dull.', ['A', 'pair']]}
    """
    try:
        body = json.loads(raw, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise ApiError(400, "bad_json", f"the body cannot be read as JSON: {reason}") from None
    if not isinstance(body, dict):
        raise ApiError(422, "not_an_object", f"the body is {_shown(body)}, expected a JSON object", field="")
    choices = schema.get("oneOf", [schema])
    properties = {name: field for choice in choices for name, field in choice["properties"].items()}
    for name in body:
        if name not in properties:
            short = name[:40].encode(errors="backslashreplace").decode()  # half of a surrogate pair cannot be sent back
            raise ApiError(422, "unknown_field", f"unknown: {short!r}; {did_you_mean(short, properties)}", field=short)
    required = [name for choice in choices for name in choice["required"]]
    given = [name for name in required if name in body]
    if len(given) != 1 and len(required) > 1:
        both = "both text and texts, expected one of them" if given else "neither text nor texts"
        raise ApiError(422, "no_text", f"found {both}: give text (one) or texts (a list)", field="texts")
    if not given:
        raise ApiError(422, "missing", f"{required[0]} is missing", field=required[0])
    for name, value in body.items():
        _check(value, name, properties[name])
    return body


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _check(value: Any, field: str, schema: Schema) -> None:
    """Raise an `ApiError` unless the value follows its schema."""
    kinds = schema.get("type", [])
    if field in ("model", "arm"):  # one that is not served is a 404
        if not isinstance(value, str | None):
            _unfit(field, value, f"the name of {'a model' if field == 'model' else 'an arm'}")
    elif "oneOf" in schema:
        string, pair = schema["oneOf"]
        if isinstance(value, list) and len(value) == 2:
            _check(value, field, pair)
        elif isinstance(value, str):
            _check(value, field, string)
        else:
            _unfit(field, value, "a string, or a pair of them")
    elif kinds == "array":
        if not isinstance(value, list) or not value:
            _unfit(field, value, "a list of at least one text")
        if len(value) > schema["maxItems"]:
            message = f"{len(value)} texts, and {schema['maxItems']} are taken in one request: send them in several"
            raise ApiError(422, "too_many_texts", message, field=field)
        for number, item in enumerate(value):
            _check(item, f"{field}[{number}]", schema["items"])
    elif kinds == "string":
        _check_string(value, field, schema["maxLength"])
    elif kinds == "boolean":
        if not isinstance(value, bool):
            _unfit(field, value, "true or false")
    elif value is not None:
        _check_number(value, field, schema, whole="integer" in kinds)


def _check_string(value: Any, field: str, longest: int) -> None:
    if not isinstance(value, str):
        _unfit(field, value, "a string")
    if len(value) > longest:
        message = f"{len(value):,} characters, and {longest:,} are read of a text: shorten it"
        raise ApiError(422, "text_too_long", message, field=field)
    try:
        value.encode()
    except UnicodeEncodeError:
        message = "it has half of a surrogate pair, which is no character: send the pair"
        raise ApiError(422, "unreadable_text", message, field=field) from None


def _check_number(value: Any, field: str, schema: Schema, *, whole: bool) -> None:
    """2.0 is a whole number in JSON, as 2 is."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not schema["minimum"] <= value <= schema["maximum"] or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        _unfit(field, value, f"{kind} from {schema['minimum']} to {schema['maximum']:.10g}")


def _unfit(field: str, value: Any, expected: str) -> NoReturn:
    raise ApiError(422, "unfit", f"{field} is {_shown(value)}, expected {expected}", field=field)


def _shown(value: Any) -> str:
    """A value in a few characters, however large it is.

    >>> _shown([1, 2, 3]), _shown("a" * 100), _shown(None)
    ('a list of 3', "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…'", 'null')
    """
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:40] + "…")
    return json.dumps(value)[:40]


def texts_of(body: dict[str, Any]) -> tuple[list[Text], list[str]]:
    """The texts of a body, and the field that each stands in."""
    values = body["texts"] if "texts" in body else [body["text"]]
    fields = [f"texts[{number}]" for number in range(len(values))] if "texts" in body else ["text"]
    return [value if isinstance(value, str) else (value[0], value[1]) for value in values], fields


def sampling_of(body: dict[str, Any], limits: Limits) -> dict[str, float]:
    """The settings of `Sampling` that a body has."""
    given = {name: int(body[name]) for name in ("max_tokens", "seed") if body.get(name) is not None}
    temperature = float(body.get("temperature") or 0.0)
    return {"max_tokens": min(50, limits.new_tokens), **given, "temperature": temperature}
