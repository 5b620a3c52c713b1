from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.report.example_folders import Plan, make_pretraining, make_study, make_sweep


@pytest.fixture(scope="session")
def books(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three arms and two baselines, three seeds, four label budgets, two classes; base/ is beside it."""
    folder = tmp_path_factory.mktemp("books")
    return make_study(folder / "books", pretraining=make_pretraining(folder / "base"))


@pytest.fixture(scope="session")
def five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five classes, two bases with names that are long, a GPU, no budgets and no tuning."""
    labels = ("very negative", "negative", "neutral", "positive", "very positive")
    skills = (("scratch", 0.8), ("frozen:causal", 1.2), ("full:causal", 1.7), ("full:masked-long-name", 1.75))
    plan = Plan(classes=labels, skills=skills, seeds=2, rows=200, budgets=(400,), gpu=True, leaked=(), tuned=False)
    return make_study(tmp_path_factory.mktemp("five") / "five", plan)


@pytest.fixture(scope="session")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grid of three settings, one of them no number: twelve trials, of which one failed and two were pruned."""
    swept: dict[str, list[Any]] = {"lr": [1e-5, 1e-4, 1e-3], "batch_size": [8, 16], "mode": ["full", "frozen"]}
    return make_sweep(tmp_path_factory.mktemp("tuned") / "tuned", swept, failed=1, pruned=2)
