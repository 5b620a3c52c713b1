"""How much the service accepts, and the error of a request that asks for more.

Every error has one form:

    {"error": {"code": "too_many_texts", "message": "300 texts, and 256 are taken at once: …", "field": "texts"}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headstart.config import Settings


@dataclass(frozen=True)
class Limits(Settings):
    """What a service accepts; `headstart serve --limit texts=64 --limit deadline=10` changes it."""

    body: int = field(default=1 << 20, metadata={"least": 1})  # bytes of a request's body
    texts: int = field(default=256, metadata={"least": 1})  # in a request
    characters: int = field(default=20_000, metadata={"least": 1})  # in a text
    new_tokens: int = field(default=200, metadata={"least": 1})  # that /continue writes
    requests: int = field(default=512, metadata={"least": 1})  # at the same time
    connections: int = field(default=1024, metadata={"least": 1})  # open at the same time, if there are descriptors
    queue: int = field(default=4096, metadata={"least": 1})  # texts that wait for a prediction
    deadline: float = field(default=30.0, metadata={"above": 0.0, "below": 3600.0})  # seconds, for a request
    idle: float = field(default=20.0, metadata={"above": 0.0, "below": 3600.0})  # seconds until a request's headers
    wait: float = field(default=0.003, metadata={"least": 0.0, "below": 1.0})  # seconds a batch waits for more
    tokens: int | None = field(default=None, metadata={"least": 1})  # in a batch; None: what suits the device

    memory: int = field(default=4 << 30, metadata={"least": 1})  # bytes of a study's weights that stay open


class ApiError(Exception):
    """A request that is not answered: an HTTP status, a code for programs, a message for people."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.field = status, code, message, field
        self.headers = dict(headers or {})

    def to_json(self) -> dict[str, Any]:
        """
        >>> ApiError(422, "empty", "there is no text", field="texts").to_json()
        {'error': {'code': 'empty', 'message': 'there is no text', 'field': 'texts'}}
        """
        error = {"code": self.code, "message": self.message}
        return {"error": error if self.field is None else error | {"field": self.field}}
