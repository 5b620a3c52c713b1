"""Runs and arms by names that people understand; folders have names for programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headstart.errors import HeadstartError
from headstart.runs.run import RUN, RunFolder

BASELINES = {
    "tfidf": "Linear model (TF-IDF)",
    "tfidf+self": "Self-trained linear model (TF-IDF)",
    "majority": "Always the most frequent label",
}
OBJECTIVES = {
    "causal": "Causal language model",
    "masked": "Masked language model",
    "causal+masked": "Causal and masked language model",
    "replaced": "Model that detects replaced tokens",
    "masked+next-sentence": "Masked language model with next-sentence prediction",
}


def arm_title(mode: str, base: str | None = None, kind: str | None = None, *, trained_head: bool = False) -> str:
    """One way to make a classifier. `kind` is that of a baseline.

    >>> arm_title("full", "debat-fr"), arm_title("frozen", "debat-fr"), arm_title("baseline", kind="tfidf")
    ('Fine-tuned from debat-fr', 'Linear probe on debat-fr', 'Linear model (TF-IDF)')
    """
    if mode == "baseline":
        return BASELINES.get(str(kind), str(kind))
    if mode == "ensemble":
        return "Ensemble with the linear model"
    frozen = "New head on frozen" if trained_head else "Linear probe on"
    beginnings = {
        "full": "Fine-tuned from",
        "full+self": "Self-trained from",
        "full+teacher": "Distilled into",
        "contrastive": "Contrastive from",
    }
    beginning = {**beginnings, "frozen": frozen}.get(mode)
    return "Trained from scratch" if beginning is None or base is None else f"{beginning} {base}"


def run_title(settings: Mapping[str, Any], labels: int | None = None) -> str:
    """A run by its settings, as `run.toml` has them; `labels` is how many labelled texts it learned from.

    >>> run_title({"study": "finetune", "mode": "full", "init": "bases/debat-fr", "seed": 0}, 600)
    'Fine-tuned from debat-fr, 600 labels, seed 0'
    """
    study = settings.get("study")
    if study == "pretrain":
        return OBJECTIVES.get(str(settings.get("objective")), "Language model")
    probe = settings.get("frozen_head") == "probe"
    mode = arm_mode(settings)
    parts = [arm_title(mode, base_name(settings.get("init")), settings.get("kind"), trained_head=not probe)]
    labels = settings.get("labels", labels)
    parts += [] if labels is None else [f"{labels:,} label{'' if labels == 1 else 's'}"]
    drawn = "labels" in settings or not (study == "baseline" or probe)  # whether a seed has a part in it
    return ", ".join([*parts, *([f"seed {settings['seed']}"] if drawn and "seed" in settings else [])])


def arm_mode(settings: Mapping[str, Any]) -> str:
    """The mode of the arm that a run is of, by its settings; with a teacher or unlabelled texts it is another."""
    if settings.get("study") not in (None, "finetune"):
        return str(settings["study"])
    mode = str(settings["mode"])
    return f"{mode}+teacher" if "teacher" in settings else f"{mode}+self" if "unlabelled" in settings else mode


def folder_title(folder: Path) -> str | None:
    """The title of the run in a folder; None where it holds no run, or one that does not say what it is."""
    if not (folder / RUN).is_file():
        return None
    run = RunFolder(folder)
    try:
        return run_title(run.settings(), run.result().rows.get("train") if run.done else None)
    except (HeadstartError, KeyError, TypeError, ValueError):
        return None


def base_name(init: object) -> str | None:
    """The last part of a path that means something.

    >>> base_name("runs/base/model"), base_name("small"), base_name(None)
    ('base', 'small', None)
    """
    path = Path(str(init))
    return None if init is None else path.parent.name if path.name == "model" and path.parent.name else path.name
