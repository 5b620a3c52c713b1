"""What a request may say, read strictly: every refusal names its field."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NoReturn

from headstart.errors import did_you_mean
from headstart.reading.examples import Text
from headstart.serve.limits import Limits, Refusal
from headstart.use.generate import Sampling

WARMEST = 5.0  # temperature


@dataclass(frozen=True)
class Asked:
    """The texts of a request, how each is named in it, and the model that should answer."""

    texts: list[Text]
    fields: list[str]
    model: str | None


@dataclass(frozen=True)
class Predict(Asked):
    abstain_below: float | None


@dataclass(frozen=True)
class Explain(Asked):
    faithfulness: bool


@dataclass(frozen=True)
class Continue(Asked):
    settings: Sampling


def read_predict(raw: bytes, limits: Limits) -> Predict:
    """
    >>> read_predict(b'{"texts": ["Dull.", ["A", "pair"]], "abstain_below": 0.8}', Limits())
    Predict(texts=['Dull.', ('A', 'pair')], fields=['texts[0]', 'texts[1]'], model=None, abstain_below=0.8)
    """
    body = _object(raw, ("text", "texts", "model", "abstain_below"))
    if ("text" in body) == ("texts" in body):
        both = "both text and texts, expected one of them" if "text" in body else "neither text nor texts"
        raise Refusal(422, "no_text", f"found {both}: give text (one) or texts (a list)", field="texts")
    if "text" in body:
        texts, fields = [_text(body["text"], "text", limits)], ["text"]
    else:
        texts, fields = _texts(body["texts"], limits)
    sure = body.get("abstain_below")
    if sure is not None and not (_is_number(sure) and 0 <= sure <= 1):
        _unfit("abstain_below", sure, "a number from 0 to 1")
    return Predict(texts, fields, _model(body), sure)


def read_explain(raw: bytes, limits: Limits) -> Explain:
    """One text or pair, and whether its explanation should be put to the test."""
    body = _object(raw, ("text", "model", "faithfulness"))
    text = _text(_required(body, "text"), "text", limits)
    tested = body.get("faithfulness", True)
    if not isinstance(tested, bool):
        _unfit("faithfulness", tested, "true or false")
    return Explain([text], ["text"], _model(body), tested)


def read_continue(raw: bytes, limits: Limits) -> Continue:
    """One text, and how to go on from it."""
    body = _object(raw, ("text", "model", "max_tokens", "temperature", "seed"))
    text = _text(_required(body, "text"), "text", limits, pairs=False)
    most = body.get("max_tokens")
    if most is not None and not (_is_whole(most) and 1 <= most <= limits.new_tokens):
        _unfit("max_tokens", most, f"a whole number from 1 to {limits.new_tokens}")
    warmth = body.get("temperature")
    if warmth is not None and not (_is_number(warmth) and 0 <= warmth <= WARMEST):
        _unfit("temperature", warmth, f"a number from 0 to {WARMEST:g}")
    seed = body.get("seed")
    if seed is not None and not (_is_whole(seed) and 0 <= seed < 2**32):
        _unfit("seed", seed, "a whole number from 0 to 4294967295")
    tokens = int(most or min(50, limits.new_tokens))
    settings = Sampling(max_tokens=tokens, temperature=float(warmth or 0.0), seed=int(seed or 0))
    return Continue([text], ["text"], _model(body), settings)


def _object(raw: bytes, known: Collection[str]) -> dict[str, Any]:
    try:
        body = json.loads(raw, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise Refusal(400, "bad_json", f"the body cannot be read as JSON: {why}") from None
    if not isinstance(body, dict):
        raise Refusal(422, "not_an_object", f"the body is {_shown(body)}, expected a JSON object", field="")
    for name in body:
        if name not in known:
            short = name[:40]
            raise Refusal(422, "unknown_field", f"unknown: {short!r}; {did_you_mean(short, known)}", field=short)
    return body


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _required(body: dict[str, Any], name: str) -> Any:
    if name not in body:
        raise Refusal(422, "missing", f"{name} is missing", field=name)
    return body[name]


def _texts(found: Any, limits: Limits) -> tuple[list[Text], list[str]]:
    if not isinstance(found, list) or not found:
        _unfit("texts", found, "a list of at least one text")
    if len(found) > limits.texts:
        message = f"{len(found)} texts, and {limits.texts} are taken in one request: send them in several"
        raise Refusal(422, "too_many_texts", message, field="texts")
    fields = [f"texts[{number}]" for number in range(len(found))]
    return [_text(text, field, limits) for text, field in zip(found, fields, strict=True)], fields


def _text(found: Any, field: str, limits: Limits, *, pairs: bool = True) -> Text:
    if pairs and isinstance(found, list) and len(found) == 2:
        first, second = (_string(part, f"{field}[{number}]", limits) for number, part in enumerate(found))
        return first, second
    if not isinstance(found, str):
        _unfit(field, found, "a string, or a pair of them" if pairs else "a string")
    return _string(found, field, limits)


def _string(found: Any, field: str, limits: Limits) -> str:
    if not isinstance(found, str):
        _unfit(field, found, "a string")
    if len(found) > limits.characters:
        message = f"{len(found):,} characters, and {limits.characters:,} are read of a text: shorten it"
        raise Refusal(422, "text_too_long", message, field=field)
    try:
        found.encode()
    except UnicodeEncodeError:
        message = "half of a surrogate pair stands alone in it, which is no character: send the pair"
        raise Refusal(422, "unreadable_text", message, field=field) from None
    return str(found)


def _model(body: dict[str, Any]) -> str | None:
    name = body.get("model")
    if name is not None and not isinstance(name, str):
        _unfit("model", name, "the name of a model")
    return name


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    """2.0 is a whole number in JSON, as 2 is."""
    return _is_number(value) and (isinstance(value, int) or value.is_integer())


def _unfit(field: str, value: Any, expected: str) -> NoReturn:
    raise Refusal(422, "unfit", f"{field} is {_shown(value)}, expected {expected}", field=field)


def _shown(value: Any) -> str:
    """A value as a person would point at it, however large it is.

    >>> _shown([1, 2, 3]), _shown("a" * 100), _shown(None)
    ('a list of 3', "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…'", 'null')
    """
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:40] + "…")
    return json.dumps(value)[:40]
