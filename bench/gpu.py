"""Training on one GPU, ours against the peer on the same weights and the same tokens, in turns.

    python -m bench.gpu            every case
    python -m bench.gpu lab mlm    some
    python -m bench.gpu --tiny     a smoke test, on a CPU too: tiny models, nothing to be learned from its figures

lab       the lab's causal language model, 128 × 256 tokens, against nn.TransformerEncoder with full logits in bf16:
          compiled (`plain`), and with its loss compiled into it (`whole`)
sampled   the same model with a sampled softmax over 8,192 words, against our own loss over all 50,001
mlm       BERT-base's masked language model, 256 × 128 tokens, against transformers, bf16, compiled
finetune  BERT-base fine-tuned on texts of 6 to 50 tokens at batch 8, against transformers, bf16
compiled  the same with `--compile yes`, which a run so short does not do by itself
many      the same at batch 64
minilm    MiniLM-L6 fine-tuned on such texts at batch 16

Losses of both sides on the same batch are compared first: a fast wrong answer is a failure. `share` is the part of our
step that each kind of work has on the card; `nothing` is the time in which the card waited.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bench.training import (
    DEVICE,
    Given,
    Row,
    Side,
    lab_batches,
    lab_loss,
    lab_pair,
    ours,
    peer,
    race,
    ragged,
    sampled_sides,
)
from headstart.batches.batch import IGNORE_INDEX, Batch
from headstart.checkpoints.exchange import open_model
from headstart.training.objectives import Causal, Classification, MaskedTokens

SPEEDS = {"warm": 24, "steps": 24, "repeats": 3}
TINY = {"warm": 2, "steps": 2, "repeats": 1}
EPOCHS = 10_680  # steps of ten epochs of SST at batch 8: too short a run to be compiled

# what a kernel is for, by its name: the first that fits
WORK = {
    "gradients of the loss": r"^_kernel$",
    "attention": r"flash|sdpa|fmha",
    "products": r"gemm|nvjet|cutlass|splitK",
    "optimizer": r"multi_tensor|adam",
    "copies": r"Memcpy|Memset|direct_copy|bfloat16_copy",
    "the rest": r"",
}


def measured(
    name: str, sides: dict[str, Side], tokens: float, tiny: bool, *, same_loss: bool = True, **speeds: int
) -> Row:
    """The race, and what our own step is made of."""
    row = race(name, sides, tokens, **(TINY if tiny else SPEEDS | speeds), same_loss=same_loss)
    first = next(iter(sides))
    if DEVICE.type == "cuda":
        row |= shares(sides[first], row[f"{first}, ms a step"])
    return row


def shares(side: Side, milliseconds: float, steps: int = 16) -> Row:
    """The parts of a step of so many milliseconds that kernels of each kind take."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        side.run(steps)
        torch.cuda.synchronize()
    took = dict.fromkeys(WORK, 0.0)
    for kernel in profile.key_averages():
        kind = next(kind for kind, pattern in WORK.items() if re.search(pattern, kernel.key))
        took[kind] += kernel.self_device_time_total / 1000 / steps
    took["nothing"] = max(0.0, milliseconds - sum(took.values()))
    return {f"share: {kind}": value / milliseconds for kind, value in took.items()}


def lab(tiny: bool) -> Row:
    rows, length = (2, 16) if tiny else (128, 256)
    model, other = lab_pair(500 if tiny else None)
    flat, blocks = lab_batches(model.config.vocabulary, rows, length, count=4)
    _, another = lab_pair(500 if tiny else None)
    another.load_state_dict(other.state_dict())
    compiled: Any = other if tiny else torch.compile(other)
    sides = {
        "ours": ours(model, Causal(), Given(flat)),
        "plain": peer(compiled, lab_loss, blocks),
        "whole": peer(another, lab_loss, blocks, compiled=True),
    }
    return measured("lab", sides, rows * length, tiny)


def sampled(tiny: bool) -> Row:
    rows, length = (2, 16) if tiny else (128, 256)
    sides = sampled_sides(500 if tiny else None, rows, length, 128 if tiny else 8192)
    return measured("sampled", sides, rows * length, tiny, same_loss=False)


def published(folder: Path, tiny: bool, head: str, sizes: dict[str, int] | None = None) -> Any:
    """A BERT of `transformers` with random weights, and its folder."""
    import transformers

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.BertConfig(**(small if tiny else sizes or {}))
    torch.manual_seed(0)
    model: Any = getattr(transformers, head)(config)
    model.save_pretrained(folder)
    return model


def their_loss(module: nn.Module, given: dict[str, torch.Tensor]) -> torch.Tensor:
    loss: torch.Tensor = module(**given).loss
    return loss


def mlm(tiny: bool) -> Row:
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
        labels = torch.full((rows * length,), IGNORE_INDEX).index_copy(0, masked, targets)
        flat.append(Batch(ids, starts, length, segments=torch.zeros_like(ids), targets=targets, masked=masked))
        inputs.append({"input_ids": ids.view(rows, length), "labels": labels.view(rows, length)})
    sides = {
        "ours": ours(model, MaskedTokens(), Given(flat)),
        "transformers": peer(other, their_loss, inputs, compiled=True),
    }
    return measured("mlm", sides, rows * length, tiny)


def tuned(name: str, tiny: bool, batch: int, sizes: dict[str, int] | None = None, **settings: str) -> Row:
    """A classifier of BERT's shape on texts of 6 to 50 tokens."""
    with tempfile.TemporaryDirectory() as folder:
        other = published(Path(folder), tiny, "BertForSequenceClassification", sizes)
        model = open_model(folder).model
    flat, padded = ragged(64, lambda draw: draw.integers(6, 51, size=batch), 30000)
    sides = {
        "ours": ours(model, Classification(), Given(flat), EPOCHS, **settings),
        "transformers": peer(other, their_loss, padded),
    }
    return measured(name, sides, batch * 28.0, tiny, warm=128, steps=64)


def finetune(tiny: bool) -> Row:
    return tuned("finetune", tiny, 8)


def compiled(tiny: bool) -> Row:
    return tuned("compiled", tiny, 8, compile="no" if tiny else "yes")


def many(tiny: bool) -> Row:
    return tuned("many", tiny, 64)


def minilm(tiny: bool) -> Row:
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    return tuned("minilm", tiny, 16, sizes)


CASES = {
    "lab": lab,
    "sampled": sampled,
    "mlm": mlm,
    "finetune": finetune,
    "compiled": compiled,
    "many": many,
    "minilm": minilm,
}


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("cases", nargs="*", default=list(CASES))
    given.add_argument("--tiny", action="store_true")
    given.add_argument("--out", type=Path)
    asked = given.parse_args()
    torch.manual_seed(0)
    rows = []
    for name in asked.cases:
        rows.append({"case": name, **CASES[name](asked.tiny)})
        print(json.dumps(rows[-1]), flush=True)
    if asked.out:
        asked.out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
