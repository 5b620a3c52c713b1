"""The log of the service, to stderr, of which no client can make a flood."""

from __future__ import annotations

import logging
import time
from typing import Any

RECORDS, SECONDS = 5, 60.0  # at most so many from one place of the code in so long


class Limited(logging.Filter):
    """A few records a minute from each place of the code; the first of the next minute says how many were left out.

    >>> limited = Limited()
    >>> record = logging.LogRecord("uvicorn", logging.WARNING, "server.py", 7, "invalid request", None, None)
    >>> [limited.filter(record) for _ in range(7)]
    [True, True, True, True, True, False, False]
    """

    def __init__(self) -> None:
        super().__init__()
        self._minutes: dict[tuple[str, int], tuple[float, int]] = {}  # when it began, how many records so far

    def filter(self, record: logging.LogRecord) -> bool:
        place, now = (record.pathname, record.lineno), time.monotonic()
        began, seen = self._minutes.get(place, (now, 0))
        if now - began >= SECONDS:
            if seen > RECORDS:
                record.msg, record.args = f"{record.getMessage()} ({seen - RECORDS} more were not logged)", None
            began, seen = now, 0
        self._minutes[place] = began, seen + 1
        return seen < RECORDS


def log_config() -> dict[str, Any]:
    """For `logging.config.dictConfig`: the loggers of uvicorn, asyncio and the service itself."""
    logger = {"handlers": ["stderr"], "level": "WARNING"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"limited": {"()": Limited}},
        "formatters": {"plain": {"format": "%(levelname)s: %(message)s"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "filters": ["limited"], "formatter": "plain"}},
        "loggers": dict.fromkeys(("uvicorn", "asyncio", "headstart.serve"), logger),
    }
