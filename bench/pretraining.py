"""Pretraining from a token store: how fast batches are made, and what training loses by making them.

    python -m bench pretraining               batches and the whole command; on a GPU the loop too
    python -m bench.pretraining --tiny        a smoke test: nothing to be learned from its figures

`batches`: tokens a second that one core makes, for each objective and documents of several lengths.
`command`: seconds of `headstart pretrain CORPUS` from the command to the prompt, tokenizer and store included, and the
part of them that is training.
`train`: tokens a second of the loop over a store, against the same loop over batches that were made before: at 1 the
device never waits for a batch. Time includes everything between two steps, as in `headstart pretrain`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import tokenizers
from bench.report import report
from bench.training import DEVICE, Given
from headstart.batches.batch import Batches
from headstart.model.model import Model
from headstart.model.presets import preset, usual_head
from headstart.runs.events import Step
from headstart.runs.run import RunFolder
from headstart.store.store import Documents
from headstart.studies.pretrain import HEAD_OF, OBJECTIVES, make_batches
from headstart.studies.settings import PretrainSettings
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.training.hardware import choose_precision
from headstart.training.loop import Loop
from headstart.training.settings import TrainingSettings

VOCABULARY = 16_000
LENGTHS = (10, 40, 70, 200, 1000)  # mean tokens of a document
WINDOW, TOKENS = 256, 65_536
MODELS: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "heads": 2, "feed_forward": 512, "layers": 4},
    "small": {},
    "wide": {"width": 768, "heads": 12, "feed_forward": 3072, "layers": 12},
}

CASES = (  # model, objective, mean tokens of a document
    ("tiny", "masked", 20),
    ("tiny", "masked", 200),
    ("small", "masked", 20),
    ("small", "masked", 200),
    ("small", "causal", 200),
    ("small", "masked+next-sentence", 70),
    ("wide", "masked", 200),
)


def word_tokenizer() -> Tokenizer:
    """A tokenizer of as many words as the vocabulary has; no text is cut here, so their spelling does not matter."""
    names = ["<pad>", "<unk>", "<start>", "<end>", "<separator>", "<mask>"]
    names += [f"▁w{number}" for number in range(VOCABULARY - len(names))]
    return Tokenizer(
        tokenizers.Tokenizer(
            tokenizers.models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="<unk>")
        )
    )


def documents(folder: Path, length: int, tokens: int) -> Documents:
    """Random documents of `length` tokens on average (geometric, two at least), mapped from a file as a store's are."""
    draw = np.random.default_rng(length)
    lengths = 2 + draw.geometric(1 / (length - 1), size=tokens // length) - 1
    path = folder / f"{length}.ids"
    draw.integers(6, VOCABULARY, size=lengths.sum(), dtype=np.uint16).tofile(path)
    return Documents(np.memmap(path, np.uint16, mode="r"), np.append(0, np.cumsum(lengths)), 5 * lengths)


def batches_of(objective: Any, text: Documents, tokenizer: Tokenizer, batch_size: int, **changes: Any) -> Batches:
    settings = PretrainSettings(store="-", objective=objective, batch_size=batch_size, steps=10**6, **changes)
    return make_batches(settings, text, tokenizer, WINDOW)


def seconds_a_batch(batches: Batches, count: int) -> float:
    """Of one thread, the first batch left out: it draws the order of the epoch."""
    batches.batch(0, 0)
    took = []
    for step in range(1, min(count, batches.steps(0) - 1) + 1):
        began = time.perf_counter()
        batches.batch(0, step)
        took.append(time.perf_counter() - began)
    return median(took)


def batch_rates(folder: Path, tiny: bool) -> dict[str, float]:
    tokenizer, rates = word_tokenizer(), {}
    cases = [("causal", {}), ("causal", {"across": True}), ("masked", {}), ("masked", {"whole_words": True})]
    for objective, changes in [*cases, ("masked+next-sentence", {})]:
        for length in LENGTHS:
            text = documents(folder, length, 200_000 if tiny else 4_000_000)
            batches = batches_of(objective, text, tokenizer, 16 if tiny else TOKENS // WINDOW, **changes)
            tokens = len(batches.batch(0, 1).ids)
            name = " ".join([objective, *changes])
            rates[f"{name}, documents of {length}: M tokens/s"] = tokens / seconds_a_batch(batches, 20) / 1e6
    return rates


def built(name: str, objective: str) -> Model:
    pairs = {"pooler": True, "segments": 2} if objective == "masked+next-sentence" else {}
    direction = "causal" if objective == "causal" else "bidirectional"
    config = preset("small", vocabulary=VOCABULARY, direction=direction, **MODELS[name], **pairs)
    return Model.build(config, usual_head(config, HEAD_OF[objective]))


def run_steps(model: Model, objective: str, batches: Batches, warm: int, steps: int) -> Iterator[float]:
    """Tokens a second of each of a few runs of `steps` steps, in one loop."""
    precision = choose_precision("auto", DEVICE)
    settings = TrainingSettings(steps=10**6, lr=1e-4, schedule="constant", save_every=10**9, evaluate_every=10**9)
    events = Loop(model.to(DEVICE), OBJECTIVES[objective], batches, settings, precision=precision).run()

    def train(count: int) -> int:
        tokens = done = 0
        while done < count:
            event = next(events)
            if isinstance(event, Step):
                tokens, done = event.tokens, done + 1
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        return tokens

    before = train(warm)
    while True:
        began = time.perf_counter()
        after = train(steps)
        yield (after - before) / (time.perf_counter() - began)
        before = after


def train_rates(folder: Path, tiny: bool) -> dict[str, float]:
    tokenizer = word_tokenizer()
    rates: dict[str, float] = {}
    warm, steps, repeats, batch = (2, 2, 1, 2) if tiny else (96, 64, 3, TOKENS // WINDOW)
    for name, objective, length in CASES[:1] if tiny else CASES:
        text = documents(folder, length, 200_000 if tiny else 20_000_000)
        batches = batches_of(objective, text, tokenizer, batch)
        given = Given([batches.batch(0, step) for step in range(2 if tiny else 24)])
        sides = [run_steps(built(name, objective), objective, source, warm, steps) for source in (batches, given)]
        speeds = [(next(sides[0]), next(sides[1])) for _ in range(repeats)]
        stored, ready = (median(side) for side in zip(*speeds, strict=True))
        case = f"{name}, {objective}, documents of {length}"
        rates |= {f"{case}: M tokens/s": stored / 1e6, f"{case}: of ready-made": stored / ready}
        print(f"{case:48} {stored / 1e6:7.3f} M tokens/s  {stored / ready:.3f} of ready-made", flush=True)
    return rates


def command(folder: Path, tiny: bool) -> dict[str, float]:
    draw = np.random.default_rng(0)
    words = np.array(
        ["".join(draw.choice(list("abcdefghijklmnop"), size=length)) for length in draw.integers(2, 9, 5000)]
    )
    chosen = words[(5000 * draw.random((2_000 if tiny else 100_000, 30)) ** 3).astype(int)]  # the first are common
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(" ".join(row) for row in chosen) + "\n", encoding="utf-8")
    steps = 3 if tiny or DEVICE.type == "cpu" else 2000
    arguments = ["pretrain", str(corpus), "--objective", "masked", "--vocabulary", "4000", "--window", "128"]
    arguments += [
        "--steps",
        str(steps),
        "--batch-size",
        "8" if DEVICE.type == "cpu" else "512",
        "--out",
        str(folder / "run"),
    ]
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "headstart", *arguments], check=True, capture_output=True)
    whole = time.perf_counter() - began
    training = sum(event.seconds for event in RunFolder(folder / "run").events() if isinstance(event, Step))
    return {"command, s": whole, "of it training": training / whole}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"batches": batch_rates, "command": command, "train": train_rates}
    usual = [part for part in parts if part != "train" or DEVICE.type == "cuda"]
    parser.add_argument("parts", nargs="*", default=usual)
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1 if DEVICE.type == "cpu" else torch.get_num_threads())
    with tempfile.TemporaryDirectory() as folder:
        rows: dict[str, float] = {}
        for part in asked.parts:
            rows |= parts[part](Path(folder), asked.tiny)
    report("pretraining", rows)


if __name__ == "__main__":
    main()
