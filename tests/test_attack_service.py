"""tools/attack/service.py: a short share of the attack on the service, and that it would see what it looks for."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headstart.use.classifier import calibrated

TOOLS = Path(__file__).parents[1] / "tools"


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(TOOLS)
    monkeypatch.setattr("headstart.serve.server.GRACE", 1.0)
    return importlib.import_module("attack.service")


def test_a_short_share_of_the_attack(service: ModuleType) -> None:
    outcomes = service.run(requests=150, cycles=2, seed=7)
    assert service.failures(outcomes) == []
    assert outcomes["ordinary request", "answered"] >= 150 and outcomes["end", "ended"] == 2
    assert len({test for test, _ in outcomes}) > 5


def test_what_is_wrong_is_seen(service: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def wrong(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise RuntimeError("broken")
        return calibrated(*given)[:, ::-1]

    monkeypatch.setattr("headstart.serve.models.calibrated", wrong)
    outcomes = service.run(requests=30, cycles=1, seed=7)
    wanted = {("ordinary request", "wrong answer"), ("ordinary request", "500"), ("log", "traceback")}
    assert wanted <= set(service.failures(outcomes))


def test_connections_that_are_reset_are_counted(service: ModuleType) -> None:
    asked, reset = ("ordinary request", "answered"), ("ordinary request", "reset at the end")
    assert service.failures(Counter({asked: 5000, reset: 3})) == []
    assert service.failures(Counter({asked: 5000, reset: 30})) == [reset]
    assert service.failures(Counter({("ordinary request", "reset"): 1})) == [("ordinary request", "reset")]
