"""Training, ours against a peer on the same weights, the same tokens and in the same precision, in turns.

    python -m bench training     what two CPU cores can show: `lab` and `finetune`
    python -m bench.gpu          the same and more on a GPU

lab       the lab's causal language model, against nn.TransformerEncoder with full logits
sampled   the same with a sampled softmax over 4,096 words, against our own loss over all 50,001
finetune  MiniLM-L6 fine-tuned on texts like SST's at batch 8, against the Trainer of transformers

Losses of both sides on the first batch are compared before anything is timed: a fast wrong answer is a failure. Only a
sampled softmax has a loss of its own.
"""

from __future__ import annotations

import gc
import math
import re
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

from bench.report import report
from headstart.batches.batch import Batch, Batches
from headstart.batches.candidates import CandidateBatches
from headstart.checkpoints.exchange import open_model
from headstart.checkpoints.lab import write_lab
from headstart.config import ModelConfig, NextTokenConfig
from headstart.model.model import Model
from headstart.model.positions import sinusoidal
from headstart.model.presets import preset
from headstart.runs.events import Step
from headstart.training.hardware import autocast, choose_precision
from headstart.training.loop import Loop
from headstart.training.memory import keep_freed_memory
from headstart.training.objectives import Causal, Classification
from headstart.training.settings import TrainingSettings

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CLOSE = 0.02 if DEVICE.type == "cuda" else 1e-4  # of the first loss, in bf16 and in float32
GOALS = {"lab": 2.5, "finetune": 2.0}

Row = dict[str, Any]
Inputs = Sequence[dict[str, Tensor]]


# --- both sides -------------------------------------------------------------------------------------------------------


@dataclass
class Given:
    """The same few batches over and over."""

    batches: Sequence[Batch]

    def steps(self, epoch: int) -> int:
        return len(self.batches)

    def batch(self, epoch: int, step: int) -> Batch:
        return self.batches[step % len(self.batches)]


@dataclass
class Side:
    """One contender: `loss` on the first batch before any training, `run(steps)` trains so many."""

    loss: Callable[[], float]
    run: Callable[[int], object]
    seconds: list[float] = field(default_factory=list)
    memory: float = 0.0  # GiB, at most, beyond what was there before


def ours(model: Model, objective: Any, batches: Batches, steps: int = 10**6, **settings: Any) -> Side:
    """Our loop, as `headstart` runs it; `steps` of the whole run decide whether it compiles."""
    model.to(DEVICE)
    first = batches.batch(0, 0)
    precision = choose_precision("auto", DEVICE)

    def loss() -> float:
        model.eval()
        with torch.no_grad(), autocast(precision, DEVICE):
            total = sum(objective.sums(model, first.to(DEVICE)).values())
        model.train()
        return float(total) / float(sum(objective.counts(first).values()))

    asked = TrainingSettings(
        steps=steps, lr=1e-4, schedule="constant", save_every=10**9, evaluate_every=10**9, **settings
    )
    events = Loop(model, objective, batches, asked, precision=precision).run()

    def run(steps: int) -> None:
        done = 0
        with keep_freed_memory(DEVICE):  # as the commands do
            while done < steps:
                done += isinstance(next(events), Step)

    return Side(loss, run)


def peer(
    module: nn.Module, forward: Callable[[nn.Module, Any], Tensor], inputs: Inputs, *, compiled: bool = False
) -> Side:
    """A plain loop with a fused AdamW, as one would write it."""
    module.to(DEVICE).train()
    inputs = [{name: value.to(DEVICE) for name, value in each.items()} for each in inputs]
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)
    called: Any = torch.compile(forward) if compiled and DEVICE.type == "cuda" else forward
    index = 0

    def cast() -> Any:
        return torch.autocast(DEVICE.type, torch.bfloat16, enabled=DEVICE.type == "cuda")

    def loss() -> float:
        module.eval()
        with torch.no_grad(), cast():
            value = forward(module, inputs[0])
        module.train()
        return float(value)

    def run(steps: int) -> None:
        nonlocal index
        for _ in range(steps):
            with cast():
                value = called(module, inputs[index % len(inputs)])
            value.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            index += 1

    return Side(loss, run)


def race(
    name: str, sides: dict[str, Side], tokens: float, *, warm: int, steps: int, repeats: int, same_loss: bool = True
) -> Row:
    """Compare losses, warm up, then time in turns: a row of figures. The first side is ours."""
    losses = {label: side.loss() for label, side in sides.items()}
    mine = next(iter(losses.values()))
    if same_loss and not all(math.isclose(mine, loss, rel_tol=CLOSE) for loss in losses.values()):
        raise SystemExit(f"{name}: first losses differ, {losses}: nothing was timed")
    for side in sides.values():
        before = _forget()
        side.run(warm)
        side.memory = _peak() - before
    for _ in range(repeats):
        for side in sides.values():
            began = time.perf_counter()
            side.run(steps)
            _wait()
            side.seconds.append((time.perf_counter() - began) / steps)
    row: Row = {"first loss": mine}
    took = {label: median(side.seconds) for label, side in sides.items()}
    for label, side in sides.items():
        row |= {f"{label}, ms a step": 1000 * took[label], f"{label}, tokens/s": tokens / took[label]}
        row |= {f"{label}, GiB": side.memory}
    first, *others = sides
    for other in others:
        row |= {f"ratio to {other}": took[other] / took[first]}
        row |= {f"memory to {other}": sides[first].memory / max(sides[other].memory, 1e-9)}
    return row


def _forget() -> float:
    """Begin to measure memory anew; GiB that are in use."""
    gc.collect()
    if DEVICE.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return 0.0
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _resident("VmRSS")


def _peak() -> float:
    _wait()
    return torch.cuda.max_memory_allocated() / 2**30 if DEVICE.type == "cuda" else _resident("VmHWM")


def _resident(what: str) -> float:
    value = re.search(rf"{what}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert value is not None
    return int(value[1]) / 2**20


def _wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


# --- the lab's language model -----------------------------------------------------------------------------------------


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

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[0]  # (L, S): the lab's layers take the sequence first
        mask = torch.full((length, length), -math.inf, device=ids.device).triu(1)
        x = self.base["encoder"](ids) * math.sqrt(self.width) + self.get_buffer("positions")[:length, None]
        x = self.base["transformer_encoder"](F.dropout(x, self.dropout, self.training), mask=mask, is_causal=True)
        logits: Tensor = self.classifier["decoder"](x)
        return logits


def lab_pair(vocabulary: int | None = None) -> tuple[Model, LabPeer]:
    """The lab's language model twice, with the same fresh weights."""
    config = preset("lab") if vocabulary is None else preset("lab", vocabulary=vocabulary)
    model, other = Model.build(config, NextTokenConfig()), LabPeer(config)
    with tempfile.TemporaryDirectory() as folder:
        write_lab(model, Path(folder) / "lab.pt")
        state = torch.load(Path(folder) / "lab.pt", weights_only=True)
    state = state.get("model_state_dict", state)
    other.load_state_dict({name: value for name, value in state.items() if not name.endswith("pos_encoder.pe")})
    return model, other


def lab_batches(vocabulary: int, rows: int, length: int, count: int) -> tuple[list[Batch], Inputs]:
    """The same random windows, end to end for us and as blocks for the peer."""
    ids = torch.from_numpy(np.random.default_rng(0).integers(5, vocabulary, size=(count, rows, length)))
    starts = torch.arange(0, rows * length + 1, length, dtype=torch.int32)
    flat = [Batch(each.flatten(), starts, length, targets=each.roll(-1, 1).flatten()) for each in ids]
    blocks = [{"ids": each.T.contiguous(), "targets": each.roll(-1, 1).T.contiguous()} for each in ids]
    return flat, blocks


def lab_loss(module: nn.Module, given: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(module(given["ids"]).flatten(0, 1), given["targets"].flatten())


def lab() -> Row:
    rows, length = 16, 256
    model, other = lab_pair()
    flat, blocks = lab_batches(model.config.vocabulary, rows, length, count=2)
    sides = {"ours": ours(model, Causal(), Given(flat)), "plain": peer(other, lab_loss, blocks)}
    return race("lab", sides, rows * length, warm=1, steps=2, repeats=3)


def sampled_sides(vocabulary: int | None, rows: int, length: int, size: int) -> dict[str, Side]:
    """The lab's model with a loss over `size` words and over all, on words as frequent as those of a language."""
    (model, _), (whole, _) = lab_pair(vocabulary), lab_pair(vocabulary)
    words = model.config.vocabulary
    shares = 1 / np.arange(10, words + 10)
    shares /= shares.sum()
    ids = torch.from_numpy(np.random.default_rng(0).choice(words, size=(4, rows * length), p=shares))
    starts = torch.arange(0, rows * length + 1, length, dtype=torch.int32)
    batches = Given([Batch(each, starts, length, targets=each.roll(-1)) for each in ids])
    return {
        "sampled": ours(model, Causal(), CandidateBatches(batches, size, shares, seed=0)),
        "whole": ours(whole, Causal(), batches),
    }


def sampled() -> Row:
    rows, length = 16, 256
    sides = sampled_sides(None, rows, length, 4096)
    return race("sampled", sides, rows * length, warm=1, steps=2, repeats=3, same_loss=False)


# --- fine-tuning ---


def ragged(count: int, lengths: Callable[[np.random.Generator], Any], vocabulary: int) -> tuple[list[Batch], Inputs]:
    """Random rows with two labels, end to end for us and padded for the peer."""
    draw = np.random.default_rng(0)
    flat, padded = [], []
    for _ in range(count):
        sizes = lengths(draw)
        rows = [torch.from_numpy(draw.integers(1000, vocabulary, size=n)) for n in sizes]
        labels = torch.from_numpy(draw.integers(2, size=len(sizes)))
        starts = torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
        ids = torch.cat(rows)
        flat.append(Batch(ids, starts, int(max(sizes)), segments=torch.zeros_like(ids), labels=labels))
        block = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        padded.append({"input_ids": block, "attention_mask": (block > 0).long(), "labels": labels})
    return flat, padded


def like_sst(draw: np.random.Generator) -> Any:
    """Eight lengths, 26 pieces on average."""
    return np.clip(np.round(draw.lognormal(np.log(23.5), 0.45, size=8)), 4, 66).astype(int)


def trainer(module: Any, inputs: Inputs, folder: Path) -> Side:
    """The Trainer of transformers with its own defaults, on these batches in their order."""
    import transformers

    class InOrder(torch.utils.data.Dataset[dict[str, Tensor]]):
        def __len__(self) -> int:
            return len(inputs)

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            return inputs[index]

    def loss() -> float:
        module.eval()
        with torch.no_grad():
            value = module(**inputs[0]).loss
        module.train()
        return float(value)

    def run(steps: int) -> None:
        arguments = transformers.TrainingArguments(
            output_dir=str(folder),
            per_device_train_batch_size=1,  # a row of the data set is a batch of eight, padded as its collator would
            max_steps=steps,
            learning_rate=1e-4,
            lr_scheduler_type="constant",
            use_cpu=DEVICE.type == "cpu",
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        transformers.Trainer(module, arguments, train_dataset=InOrder(), data_collator=lambda rows: rows[0]).train()

    return Side(loss, run)


def finetune() -> Row:
    from transformers.utils import logging

    from bench.predict import prepare

    logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name) / "hf")
        import transformers

        other: Any = transformers.AutoModelForSequenceClassification.from_pretrained(Path(name) / "hf")
        model = open_model(str(Path(name) / "hf")).model
        flat, padded = ragged(64, like_sst, 30000)
        tokens = float(np.mean([len(each.ids) for each in flat]))
        sides = {
            "ours": ours(model, Classification(), Given(flat)),
            "Trainer": trainer(other, padded, Path(name) / "out"),
        }
        return race("finetune", sides, tokens, warm=8, steps=48, repeats=3)


def main() -> None:
    torch.manual_seed(0)
    rows: Row = {}
    for name, case in {"lab": lab, "sampled": sampled, "finetune": finetune}.items():
        rows |= {f"{name}: {what}": value for what, value in case().items()}
        rows |= {f"{name}: goal": GOALS[name]} if name in GOALS else {}
    report("training", rows)


if __name__ == "__main__":
    main()
