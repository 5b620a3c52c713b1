"""Runs by names that people understand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headstart.config import to_toml
from headstart.runs.titles import folder_title, run_title

FINETUNE = {"study": "finetune", "seed": 1}
PROBE = {**FINETUNE, "mode": "frozen", "init": "b/debat-fr", "frozen_head": "probe"}
TFIDF = {"study": "baseline", "kind": "tfidf"}


@pytest.mark.parametrize(
    ("settings", "labels", "title"),
    [
        ({**FINETUNE, "mode": "scratch", "init": "small"}, 1396, "Trained from scratch, 1,396 labels, seed 1"),
        ({**FINETUNE, "mode": "full", "init": "b/debat-fr"}, 600, "Fine-tuned from debat-fr, 600 labels, seed 1"),
        ({**FINETUNE, "mode": "frozen", "init": "runs/base/model"}, None, "New head on frozen base, seed 1"),
        (PROBE, 600, "Linear probe on debat-fr, 600 labels"),  # no seed has a part in it
        ({**PROBE, "labels": 60}, 60, "Linear probe on debat-fr, 60 labels, seed 1"),
        (TFIDF, 600, "Linear model (TF-IDF), 600 labels"),
        ({**TFIDF, "labels": 1, "seed": 4}, 1, "Linear model (TF-IDF), 1 label, seed 4"),
        ({"study": "ensemble", "of": ["a", "b"], "seed": 0}, 60, "Ensemble with the linear model, 60 labels, seed 0"),
        ({"study": "pretrain", "objective": "masked", "store": "s"}, None, "Masked language model"),
    ],
)
def test_what_a_run_is_called(settings: dict[str, Any], labels: int | None, title: str) -> None:
    assert run_title(settings, labels) == title


def test_a_folder_that_says_too_little_has_none(tmp_path: Path) -> None:
    assert folder_title(tmp_path) is None
    (tmp_path / "run.toml").write_text(to_toml({"study": "finetune"}), encoding="utf-8")
    assert folder_title(tmp_path) is None
    (tmp_path / "run.toml").write_text("study = [", encoding="utf-8")
    assert folder_title(tmp_path) is None
