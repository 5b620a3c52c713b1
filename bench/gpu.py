"""Training on one GPU, ours against the peer on the same weights and the same tokens, in turns.

    python -m bench.gpu            every case
    python -m bench.gpu lab mlm    some
    python -m bench.gpu --tiny     a smoke test, on a CPU too: tiny models, nothing to be learned from its figures

lab       the lab's causal language model, against nn.TransformerEncoder with full logits, bf16, compiled
mlm       BERT-base's masked language model, against transformers, bf16, compiled
finetune  BERT-base fine-tuned on texts of 6 to 50 tokens at batch 8, against transformers, bf16

Losses of both sides on the same batch are compared first: a fast wrong answer is a failure.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.checkpoints.exchange import open_model
from headstart.checkpoints.lab import write_lab
from headstart.config import Classifier, ModelConfig, NextToken
from headstart.model.model import Model
from headstart.model.positions import sinusoidal
from headstart.model.presets import preset
from headstart.text.batches import IGNORE, Batch
from headstart.training.loop import Loop, Step
from headstart.training.objectives import Causal, Classification, MaskedTokens
from headstart.training.precision import autocast, choose_precision
from headstart.training.settings import TrainingSettings

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WARM, STEPS, REPEATS = 8, 24, 3
CLOSE = 0.02  # of the first loss, in bf16


# --- both sides ---


@dataclass
class Given:
    """The same few batches over and over."""

    made: Sequence[Batch]

    def steps(self, epoch: int) -> int:
        return len(self.made)

    def batch(self, epoch: int, step: int) -> Batch:
        return self.made[step % len(self.made)]


@dataclass
class Side:
    """One contender: `loss` on the first batch before any training, `run(steps)` trains so many."""

    loss: Callable[[], float]
    run: Callable[[int], None]
    seconds: list[float] = field(default_factory=list)
    memory: int = 0


def ours(model: Model, objective: Any, batches: Sequence[Batch]) -> Side:
    model.to(DEVICE)
    precision = choose_precision("auto", DEVICE)

    def loss() -> float:
        model.eval()
        batch = batches[0].to(DEVICE)
        with torch.no_grad(), autocast(precision, DEVICE):
            total = sum(objective.sums(model, batch).values())
        model.train()
        return float(total) / float(sum(objective.counts(batches[0]).values()))

    settings = TrainingSettings(steps=10**6, lr=1e-4, schedule="constant", save_every=10**9, evaluate_every=10**9)
    events = Loop(model, objective, Given(batches), settings, precision=precision).run()

    def run(steps: int) -> None:
        done = 0
        while done < steps:
            done += isinstance(next(events), Step)

    return Side(loss, run)


def peer(module: nn.Module, forward: Callable[[nn.Module, Any], Tensor], inputs: Sequence[Any], compiled: bool) -> Side:
    module.to(DEVICE).train()
    inputs = [{name: value.to(DEVICE) for name, value in each.items()} for each in inputs]
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)
    kind = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
    called: Any = torch.compile(forward) if compiled and DEVICE.type == "cuda" else forward
    place = 0

    def cast() -> Any:
        return torch.autocast(DEVICE.type, kind, enabled=DEVICE.type == "cuda")

    def loss() -> float:
        module.eval()
        with torch.no_grad(), cast():
            found = forward(module, inputs[0])
        module.train()
        return float(found)

    def run(steps: int) -> None:
        nonlocal place
        for _ in range(steps):
            with cast():
                found = called(module, inputs[place % len(inputs)])
            found.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            place += 1

    return Side(loss, run)


def race(name: str, sides: dict[str, Side], tokens: float, tiny: bool) -> dict[str, Any]:
    """Compare losses, warm up, then time in turns."""
    losses = {side: each.loss() for side, each in sides.items()}
    first, second = losses.values()
    if not math.isclose(first, second, rel_tol=CLOSE):
        raise SystemExit(f"{name}: first losses differ, {losses}: nothing was timed")
    steps = 2 if tiny else STEPS
    for each in sides.values():
        _forget()
        each.run(2 if tiny else WARM)
        _wait()
        each.memory = torch.cuda.max_memory_allocated() if DEVICE.type == "cuda" else 0
    for _ in range(1 if tiny else REPEATS):
        for each in sides.values():
            began = time.perf_counter()
            each.run(steps)
            _wait()
            each.seconds.append((time.perf_counter() - began) / steps)
    a, b = (median(each.seconds) for each in sides.values())
    mine, theirs = sides.values()
    row = {
        "case": name,
        "losses": losses,
        "ours, ms a step": 1000 * a,
        "peer, ms a step": 1000 * b,
        "ours, tokens/s": tokens / a,
        "peer, tokens/s": tokens / b,
        "ratio": b / a,
        "ours, GiB": mine.memory / 2**30,
        "peer, GiB": theirs.memory / 2**30,
    }
    print(json.dumps(row), flush=True)
    return row


def _forget() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


# --- the lab's language model ---


class LabPeer(nn.Module):
    """The lab's transformer as PyTorch's own layers have it; the names are those of its checkpoint."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(config.width, config.heads, config.feed_forward, config.dropout)
        self.base = nn.ModuleDict(
            {
                "encoder": nn.Embedding(config.vocabulary, config.width),
                "transformer_encoder": nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False),
            }
        )
        self.classifier = nn.ModuleDict({"decoder": nn.Linear(config.width, config.vocabulary)})
        self.register_buffer("positions", sinusoidal(config.window, config.width), persistent=False)
        self.dropout, self.width = config.dropout, config.width

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        length = ids.shape[0]  # (L, S): the lab's layers take the sequence first
        mask = torch.full((length, length), -math.inf, device=ids.device).triu(1)
        x = self.base["encoder"](ids) * math.sqrt(self.width) + self.get_buffer("positions")[:length, None]
        x = self.base["transformer_encoder"](F.dropout(x, self.dropout, self.training), mask=mask, is_causal=True)
        return F.cross_entropy(self.classifier["decoder"](x).flatten(0, 1), targets.flatten())


def lab(tiny: bool) -> dict[str, Any]:
    rows, length = (2, 16) if tiny else (128, 256)
    config = preset("lab", vocabulary=500) if tiny else preset("lab")
    model = Model.build(config, NextToken())
    other = LabPeer(config)
    with tempfile.TemporaryDirectory() as folder:
        write_lab(model, Path(folder) / "lab.pt")
        state = torch.load(Path(folder) / "lab.pt", weights_only=True)
    state = state.get("model_state_dict", state)
    other.load_state_dict({name: value for name, value in state.items() if not name.endswith("pos_encoder.pe")})
    draw = np.random.default_rng(0)
    ids = torch.from_numpy(draw.integers(5, config.vocabulary, size=(4, rows, length)))
    starts = torch.arange(0, rows * length + 1, length, dtype=torch.int32)
    flat = [Batch(each.flatten(), starts, length, targets=each.roll(-1, 1).flatten()) for each in ids]
    inputs = [{"ids": each.T.contiguous(), "targets": each.roll(-1, 1).T.contiguous()} for each in ids]
    sides = {
        "ours": ours(model, Causal(), flat),
        "peer": peer(other, lambda module, given: module(**given), inputs, compiled=True),
    }
    return race("lab", sides, rows * length, tiny)


# --- BERT-base ---


def published(folder: Path, tiny: bool, head: str) -> Any:
    """A BERT of `transformers` with random weights, and its folder."""
    import transformers

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.BertConfig(**(small if tiny else {}))
    torch.manual_seed(0)
    made: Any = getattr(transformers, head)(config)
    made.save_pretrained(folder)
    return made


def mlm(tiny: bool) -> dict[str, Any]:
    rows, length = (2, 16) if tiny else (256, 128)
    with tempfile.TemporaryDirectory() as folder:
        other = published(Path(folder), tiny, "BertForMaskedLM")
        model = open_model(folder).model
    draw = np.random.default_rng(0)
    flat, inputs = [], []
    starts = torch.arange(0, rows * length + 1, length, dtype=torch.int32)
    for _ in range(4):
        ids = torch.from_numpy(draw.integers(1000, 30000, size=(rows, length)))
        masked = torch.from_numpy(np.sort(draw.permutation(rows * length)[: round(0.15 * rows * length)]))
        targets = ids.flatten()[masked].clone()
        ids = ids.flatten().index_fill(0, masked, 103)
        labels = torch.full((rows * length,), IGNORE).index_copy(0, masked, targets)
        zero = torch.zeros_like(ids)
        flat.append(Batch(ids, starts, length, segments=zero, targets=targets, masked=masked))
        inputs.append({"input_ids": ids.view(rows, length), "labels": labels.view(rows, length)})
    sides = {
        "ours": ours(model, MaskedTokens(), flat),
        "peer": peer(other, lambda module, given: module(**given).loss, inputs, compiled=True),
    }
    return race("mlm", sides, rows * length, tiny)


def finetune(tiny: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        other = published(Path(folder), tiny, "BertForSequenceClassification")
        found = open_model(folder).model
    assert isinstance(found.head_config, Classifier)
    draw = np.random.default_rng(0)
    flat, inputs = [], []
    for _ in range(16):
        lengths = draw.integers(6, 51, size=8)
        rows = [torch.from_numpy(draw.integers(1000, 30000, size=n)) for n in lengths]
        labels = torch.from_numpy(draw.integers(2, size=8))
        starts = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        ids = torch.cat(rows)
        flat.append(Batch(ids, starts, int(lengths.max()), segments=torch.zeros_like(ids), labels=labels))
        padded = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        inputs.append({"input_ids": padded, "attention_mask": (padded > 0).long(), "labels": labels})
    sides = {
        "ours": ours(found, Classification(), flat),
        "peer": peer(other, lambda module, given: module(**given).loss, inputs, compiled=False),
    }
    return race("finetune", sides, 8 * 28.0, tiny)


CASES = {"lab": lab, "mlm": mlm, "finetune": finetune}


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("cases", nargs="*", default=list(CASES))
    given.add_argument("--tiny", action="store_true")
    given.add_argument("--out", type=Path)
    asked = given.parse_args()
    torch.manual_seed(0)
    rows = [CASES[name](asked.tiny) for name in asked.cases]
    if asked.out:
        asked.out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
