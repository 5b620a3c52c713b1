"""Folders as `headstart compare`, `sweep`, `finetune` and `pretrain` leave them, made up: no model is trained."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from headstart.config import ClassifierConfig, ModelConfig, NextTokenConfig, to_toml
from headstart.runs.comparison import ArmResult, Comparison, Cost, RunScores, WorthResult
from headstart.runs.sweep import Sweep, Trial
from headstart.runs.tuning import ArmTuning, Tried
from headstart.studies import statistics
from headstart.studies.contrasts import choose_contrasts
from headstart.studies.differences import compare_pairs
from headstart.studies.scores import scores
from headstart.studies.statistics import ArmPredictions
from headstart.studies.verdict import title, verdict
from headstart.studies.worth import least_worth

MODEL = ModelConfig(vocabulary=8000, width=64, layers=2, heads=2, feed_forward=128)
COSTS = {
    "scratch": Cost(180.0, 5.1, 2.4),
    "full": Cost(187.0, 5.1, 2.4),
    "frozen": Cost(8.2, 5.0, 2.4),
    "majority": Cost(0.02, 0.0001, 0.0),
}
WORDS = ["story", "novel", "essay", "voice", "reader", "page", "the", "of", "this", "like", "with", "every", "last"]


@dataclass(frozen=True)
class Plan:
    """What to make up."""

    classes: tuple[str, ...] = ("negative", "positive")
    skills: tuple[tuple[str, float], ...] = (("scratch", 1.45), ("frozen", 1.2), ("full", 1.6))
    seeds: int = 3
    rows: int = 400
    budgets: tuple[int, ...] = (50, 100, 200, 400)  # the last is all labels
    epochs: int = 8
    gpu: bool = False
    samples: int = 300
    text: str | None = None  # of every test row
    leaked: tuple[int, ...] = (3, 17)
    tuned: bool = True


def make_study(folder: Path, plan: Plan = Plan(), *, pretraining: Path | None = None) -> Path:  # noqa: B008
    """A whole study folder: runs, data.json, comparison.json and study.toml."""
    random_ = np.random.default_rng(7)
    truth = random_.integers(len(plan.classes), size=plan.rows)
    hard = random_.normal(size=plan.rows)  # a text that is hard for one is hard for all
    init = "base" if pretraining is None else str(pretraining)
    predictions: dict[tuple[str, int], ArmPredictions] = {}
    runs: dict[tuple[str, int], tuple[RunScores, ...]] = {}
    for budget in plan.budgets:
        for number, (arm, skill) in enumerate((*plan.skills, ("tfidf", 1.35), ("majority", 0.0))):
            baseline = arm in ("tfidf", "majority")
            seeds = 1 if baseline and budget == plan.budgets[-1] else plan.seeds
            share = math.log(budget) / math.log(plan.budgets[-1])
            grown = skill * (share**4 if arm == "scratch" else 0.1 + 0.9 * share)  # pretraining helps most with few
            probabilities = []
            of_runs = []
            for seed in range(seeds):
                draw = np.random.default_rng((number, budget, seed))
                found = _answers(truth, hard, grown + draw.normal(scale=0.03), len(plan.classes), draw)
                if arm == "majority":
                    found = np.tile(np.linspace(0.45, 0.55, len(plan.classes)) / 1, (plan.rows, 1))
                    found /= found.sum(1, keepdims=True)
                path = f"runs/{arm.replace(':', '-')}-{budget}-{seed}"
                valid = {"accuracy": float((found[::2].argmax(1) == truth[::2]).mean()), "macro_f1": 0.5, "loss": 0.6}
                test = scores(found, truth)
                _write_run(folder / path, plan, arm, budget, seed, init, found, truth, valid, test, draw)
                odd = "one class only" if arm == "scratch" and seed == 1 else None
                of_runs.append(RunScores(path, seed, valid, test, odd))
                probabilities.append(found)
            predictions[arm, budget] = ArmPredictions(np.stack(probabilities), truth)
            runs[arm, budget] = tuple(of_runs)
    comparison = _compare(plan, predictions, runs)
    _write_json(folder / "comparison.json", comparison.to_json())
    _write_json(folder / "data.json", _data(plan))
    settings = {"study": "compare", "init": [init], "data": "books/train.csv", "test": "books/test.csv", "lr": 1e-4}
    settings |= {"epochs": plan.epochs, "seeds": plan.seeds, "labels": ",".join(map(str, plan.budgets))}
    (folder / "study.toml").write_text(to_toml(settings), encoding="utf-8")
    return folder


def _answers(
    truth: NDArray[np.int64], hard: NDArray[np.float64], skill: float, classes: int, draw: np.random.Generator
) -> NDArray[np.float64]:
    """(rows, classes) probabilities; the greater the skill, the more often right and the surer."""
    logits = draw.normal(size=(len(truth), classes))
    logits[np.arange(len(truth)), truth] += skill * 1.3 + 0.5 * hard
    raised = np.exp(logits * 1.4)
    return np.asarray(raised / raised.sum(1, keepdims=True), np.float64)


def _compare(
    plan: Plan,
    predictions: Mapping[tuple[str, int], ArmPredictions],
    runs: Mapping[tuple[str, int], tuple[RunScores, ...]],
) -> Comparison:
    last = plan.budgets[-1]
    names = [name for name, budget in predictions if budget == last]
    made = {key: _arm(plan, *key, predictions[key], runs[key]) for key in predictions}
    reference = names[0]
    arms = tuple(made[name, last] for name in names)
    contrasts = choose_contrasts(arms, reference)
    with_all = {name: predictions[name, last] for name in names}
    leak_free = {name: each.without(plan.leaked) for name, each in with_all.items()} if plan.leaked else {}
    differences = compare_pairs(contrasts, with_all, leak_free, dict.fromkeys(names, ()))
    curves = tuple(made[key] for key in made) if len(plan.budgets) > 1 else ()
    worth = []
    for budget in plan.budgets[:-1]:
        curve = [(labels, predictions[reference, labels]) for labels in plan.budgets]
        low = least_worth(curve, predictions[names[2], budget])
        worth.append(WorthResult(names[2], reference, budget, low, beyond=low == plan.budgets[-1]))
    comparison = Comparison(
        plan.classes, plan.rows, len(plan.leaked), reference, arms, differences, curves, tuple(worth)
    )
    return replace(comparison, verdict=verdict(comparison, contrasts), title=title(comparison, contrasts))


def _arm(plan: Plan, name: str, labels: int, predictions: ArmPredictions, runs: tuple[RunScores, ...]) -> ArmResult:
    mode: Any = "baseline" if name in ("tfidf", "majority") else name.split(":")[0]
    leak_free = statistics.estimate(predictions.without(plan.leaked)) if plan.leaked else None
    base = None if mode == "baseline" else name.partition(":")[2] or "base"
    return ArmResult(
        name=name,
        mode=mode,
        base=base,
        budget=labels,
        runs=runs,
        scores=statistics.estimate(predictions),
        leak_free=leak_free,
        cost=COSTS.get(name.split(":")[0], Cost(2.9, 0.21, 12.3)),
        tuning=tuning_of(mode) if plan.tuned and name != "majority" else None,
    )


def tuning_of(mode: str) -> ArmTuning:
    """A search over learning rates, one of which diverged; of the linear model, over strengths."""
    if mode == "baseline":
        tried = [Tried({"features": "words", "strength": c}, 0.7 + c / 100, 0.5, 400, 1.2) for c in (1.0, 3.0, 10.0)]
        return ArmTuning(tried[-1].settings, tuple(tried), 3.6, as_good=1)
    rates = [(1e-5, 0.61), (3e-5, 0.68), (1e-4, 0.74), (3e-4, 0.77), (1e-3, 0.76), (3e-3, 0.55)]
    tried = [Tried({"lr": lr, "epochs": 2}, accuracy, 0.6, 400, 14.0) for lr, accuracy in rates]
    tried.append(Tried({"lr": 1e-2, "epochs": 2}, None, None, 400, 3.0, "the loss became nan at step 11: <lower> it"))
    tried.append(Tried({"lr": 3e-4, "epochs": 6}, 0.79, 0.5, 800, 40.0))
    notes = ("1 of 8 trials diverged",)
    return ArmTuning(tried[-1].settings, tuple(tried), sum(each.seconds for each in tried), as_good=2, notes=notes)


def _write_run(
    folder: Path,
    plan: Plan,
    arm: str,
    budget: int,
    seed: int,
    init: str,
    found: NDArray[np.float64],
    truth: NDArray[np.int64],
    valid: Mapping[str, float],
    test: Mapping[str, float],
    draw: np.random.Generator,
) -> None:
    folder.mkdir(parents=True)
    baseline = arm in ("tfidf", "majority")
    mode = arm.split(":")[0]
    settings: dict[str, Any] = {"study": "baseline", "kind": arm, "data": "books/train.csv"}
    if not baseline:
        settings = {"study": "finetune", "seed": seed, "epochs": plan.epochs, "batch_size": 16}
        settings |= {"lr": 1e-3 if mode == "frozen" else 1e-4, "data": "books/train.csv", "init": init, "mode": mode}
        _write_events(folder, plan, valid["accuracy"], draw)
    if budget != plan.budgets[-1]:
        settings |= {"labels": budget}
    (folder / "run.toml").write_text(to_toml(settings), encoding="utf-8")
    _write_predictions(folder, plan, found, truth, short=budget != plan.budgets[-1])
    result = {"valid": valid, "test": test, "mode": mode, "labels": list(plan.classes), "best": None}
    result["rows"] = {"train": budget, "valid": len(truth) // 2, "test": len(truth)}
    _write_json(folder / "result.json", result)
    manifest = _manifest(plan, mode, draw)
    if not baseline and seed == 0:
        head = ClassifierConfig(classes=len(plan.classes))
        config = {"format": "headstart", "version": 1, "model": MODEL.to_mapping(), "head": head.to_mapping()}
        (folder / "model").mkdir()
        _write_json(folder / "model" / "config.json", {**config, "labels": list(plan.classes)})
    _write_json(folder / "manifest.json", manifest)


def _manifest(plan: Plan, mode: str, draw: np.random.Generator) -> dict[str, Any]:
    scale = {"scratch": 1.0, "full": 1.04, "frozen": 0.22}.get(mode, 0.03)
    made: dict[str, Any] = {
        "format": 1, "headstart": "0.1.0", "python": "3.11.7", "torch": "2.13.0", "numpy": "2.4.6",
        "platform": "Linux-6.1-x86_64", "processor": "A processor", "cores": 8, "finished": "2026-11-15T07:11:47Z",
        "command": ["headstart", "compare"], "seconds": float(180 * scale + draw.uniform(0, 4)),
        "peak_memory": {"resident": int(9e8 + 7e8 * scale)},
    }  # fmt: skip
    if plan.gpu:
        made |= {"gpu": "A graphics card", "peak_memory": {"resident": int(9e8), "gpu": int(2.1e9 * scale)}}
    if mode not in ("tfidf", "majority"):
        total = 586_000
        made |= {
            "parameters": {"total": total, "trainable": 130 if mode == "frozen" else total},
            "tokens": 230_000, "flops": 1e12, "precision": "float32", "tokenizer": "1b48840a" * 8,
            "data": {"train": "d0d36a08" * 8, "valid": "55559a65" * 8, "test": "fc3bab4d" * 8},
        }  # fmt: skip
    return made


def _write_events(folder: Path, plan: Plan, last: float, draw: np.random.Generator) -> None:
    events: list[dict[str, Any]] = []
    for epoch in range(1, plan.epochs + 1):
        for step in range(3):
            number = 3 * (epoch - 1) + step + 1
            events.append(
                {"event": "step", "epoch": epoch - 1, "step": number, "total": 3 * plan.epochs, "loss": 0.6,
                 "parts": {}, "lr": 1e-4, "gradient": 1.0, "tokens": 900 * number, "seconds": 0.25}
            )  # fmt: skip
        accuracy = last - (last - 0.5) * math.exp(-epoch / 2.5) + float(draw.normal(scale=0.008))
        scores = {"accuracy": min(accuracy, 1.0), "macro_f1": accuracy, "loss": 0.5}
        events.append({"event": "evaluated", "epoch": float(epoch), "step": 3 * epoch, "scores": scores, "best": True})
    _write_lines(folder / "events.jsonl", events)


def _write_predictions(
    folder: Path, plan: Plan, found: NDArray[np.float64], truth: NDArray[np.int64], *, short: bool
) -> None:
    """Every row of test, and every other one as valid; `short` has no texts to speak of, which saves time."""
    known = "a text" if short else plan.text
    places = [("valid", row) for row in range(0, len(truth), 2)] + [("test", row) for row in range(len(truth))]
    rows = np.array([row for _, row in places])
    columns: dict[str, Any] = {
        "split": [split for split, _ in places],
        "row": list(range(len(places))),
        "path": [f"books/{split}.csv" for split, _ in places],
        "line": [row + 2 for _, row in places],
        "text": [text_of(int(row)) if known is None else known for row in rows],
        "second": pa.array([None] * len(places), pa.string()),
        "label": [plan.classes[k] for k in truth[rows]],
        "predicted": [plan.classes[k] for k in found[rows].argmax(1)],
    }
    columns |= {f"probability:{label}": found[rows, k] for k, label in enumerate(plan.classes)}
    pyarrow.parquet.write_table(pa.table(columns), folder / "predictions.parquet")


def text_of(row: int) -> str:
    draw = random.Random(row)
    return " ".join(draw.choices(WORDS, k=draw.randint(8, 160))).capitalize() + "."


def make_pretraining(folder: Path, *, steps: int = 400, objective: str = "causal") -> Path:
    """The run folder of a small pretraining, with a model description and no weights."""
    folder.mkdir(parents=True)
    (folder / "run.toml").write_text(
        to_toml({"study": "pretrain", "seed": 0, "objective": objective, "lr": 1e-3, "store": "books/store"}),
        encoding="utf-8",
    )
    draw = random.Random(3)
    events: list[dict[str, Any]] = []
    scores: dict[str, float] = {}
    for step in range(1, steps + 1):
        loss = 3.2 + 6.0 * math.exp(-step / 90) + draw.gauss(0, 0.15)
        events.append({"event": "step", "epoch": 0, "step": step, "total": steps, "loss": loss, "parts": {}, "lr": 1e-3,
                       "gradient": 1.0, "tokens": 8000 * step, "seconds": 0.4})  # fmt: skip
        if step % 50 == 0:
            loss = 3.35 + 6.0 * math.exp(-step / 90)
            scores = {"loss": loss, "perplexity": math.exp(loss)}
            scores |= {"bits_per_byte": loss * 0.32} if objective == "causal" else {}
            events.append({"event": "evaluated", "epoch": step / steps, "step": step, "scores": scores, "best": True})
    _write_lines(folder / "events.jsonl", events)
    result = {"valid": scores, "objective": objective, "weights": "fresh", "steps": steps, "tokens": 8000 * steps}
    _write_json(folder / "result.json", result)
    (folder / "model").mkdir()
    config = {"format": "headstart", "version": 1, "model": MODEL.to_mapping(), "head": NextTokenConfig().to_mapping()}
    _write_json(folder / "model" / "config.json", {**config, "labels": []})
    manifest = _manifest(Plan(), "full", np.random.default_rng(0))
    _write_json(folder / "manifest.json", manifest | {"tokens": 8000 * steps})
    return folder


def make_sweep(
    folder: Path, swept: Mapping[str, Sequence[Any]], *, kind: str = "grid", failed: int = 0, pruned: int = 0
) -> Path:
    """A study folder of `headstart sweep`: every combination, the last ones of which failed or were pruned."""
    usual = {"epochs": 3, "mode": "full", "batch_size": 8, "dropout": 0.1, "lr": 1e-4}
    chosen = [dict(zip(swept, values, strict=True)) for values in itertools.product(*swept.values())]
    trials = []
    for number, each in enumerate(chosen):
        draw = np.random.default_rng(number)
        settings = {**usual, **each}
        run = f"runs/{settings['mode']}-{number}"
        (folder / run).mkdir(parents=True)
        recipe = {"study": "finetune", "seed": 0, "init": "base", "data": "books/train.csv", "window": 256, **settings}
        (folder / run / "run.toml").write_text(to_toml(recipe), encoding="utf-8")
        left = len(chosen) - number
        if left <= failed:
            trials.append(
                Trial(run, settings, error=f"the loss became nan at step {number}: <lower> the learning rate")
            )
        elif left <= failed + pruned:
            trials.append(Trial(run, settings, pruned=2))
        else:
            accuracy = 0.9 - 0.05 * abs(math.log10(settings["lr"] / 1e-4)) - float(draw.uniform(0, 0.1))
            manifest = _manifest(Plan(), settings["mode"], draw)
            _write_json(folder / run / "manifest.json", manifest)
            valid, test = ({"accuracy": accuracy - off, "loss": 0.5} for off in (0.0, 0.02))
            memory = manifest["peak_memory"]["resident"]
            trials.append(Trial(run, settings, valid, test, manifest["seconds"], memory))
    best = max(trials, key=lambda trial: trial.score)
    trials = [replace(trial, best=trial is best and trial.valid is not None) for trial in trials]
    _write_json(folder / "sweep.json", Sweep(kind, tuple(swept), tuple(trials)).to_json())  # type: ignore[arg-type]
    _write_json(folder / "data.json", {**_data(Plan()), "doctor": None})
    axes = [f"{name}={','.join(map(str, values))}" for name, values in swept.items()]
    recipe = {"study": "sweep", "init": "base", "data": "books/train.csv", kind: axes}
    (folder / "study.toml").write_text(to_toml(recipe), encoding="utf-8")
    return folder


def _data(plan: Plan) -> dict[str, Any]:
    share = 1 / len(plan.classes)
    length = {"mean": 84.0, "median": 80.0, "most": 150.0, "longest": 160}
    splits = [
        {"name": name, "rows": rows, "labels": {label: int(rows * share) for label in plan.classes},
         "balance": dict.fromkeys(plan.classes, share), "words": length, "tokens": None}
        for name, rows in (("train", plan.budgets[-1]), ("valid", 100), ("test", plan.rows))
    ]  # fmt: skip
    place = {"split": "test", "path": "books/test.csv", "line": 5, "label": plan.classes[0], "excerpt": "The story of"}
    partner = {**place, "split": "train", "path": "books/train.csv", "line": 41, "partner": None}
    finding = {
        "kind": "leak", "severity": "error", "count": 2, "of": plan.rows, "message": "2 test rows also stand in train",
        "advice": "leave them out of train", "examples": [{**place, "partner": partner}], "rows": {"test": 2},
    }  # fmt: skip
    note = {
        **finding,
        "severity": "note",
        "message": "the rows of train are in the order of their labels",
        "examples": [],
    }
    return {
        "format": 1,
        "fingerprint": {"train": "aa11" * 16, "valid": "bb22" * 16, "test": "cc33" * 16},
        "rows": {"train": plan.budgets[-1], "valid": 100, "test": plan.rows},
        "labels": list(plan.classes),
        "leaked": list(plan.leaked),
        "doctor": {"splits": splits, "findings": [finding, note], "unexamined": ["tokens: no tokenizer was given"]},
    }


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def _write_lines(path: Path, values: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
