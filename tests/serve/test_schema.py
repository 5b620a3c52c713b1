"""The description against the service: requests drawn from it are answered as it says, and broken ones are refused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from headstart.serve.app import create_app
from headstart.serve.limits import Limits
from headstart.serve.models import ServedClassifier, ServedLanguageModel
from headstart.serve.study import open_study

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import schemathesis

LIMITS = Limits(texts=4, characters=60, new_tokens=3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("path", ["/predict", "/explain", "/continue", "/compare", "/health", "/info", "/metrics"])
def test_the_description_holds(
    served: ServedClassifier, topics: ServedClassifier, writer: ServedLanguageModel, study: Path, path: str, mode: str
) -> None:
    if mode == "negative" and path in ("/health", "/info", "/metrics"):
        return  # nothing is asked there that could be wrong
    app = create_app([served, topics, writer, open_study("books", study, "cpu", 1 << 30)], LIMITS)
    whole = schemathesis.openapi.from_asgi("/openapi.json", app)
    (operation,) = whole[path].values()
    seen: set[int] = set()

    @settings(
        max_examples=25, derandomize=True, database=None, deadline=None, phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
    def hold(case: Any) -> None:
        answer = case.call_and_validate()
        seen.add(answer.status_code)
        if answer.status_code >= 400:
            assert set(answer.json()) == {"error"}

    hold()
    assert 200 in seen if mode == "positive" else 422 in seen
    assert max(seen) < 500
