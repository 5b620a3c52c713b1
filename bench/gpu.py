"""Training on one GPU, ours against the peer on the same weights and the same tokens, in turns.

    python -m bench.gpu            every case
    python -m bench.gpu lab mlm    some
    python -m bench.gpu --tiny     a smoke test, on a CPU too: tiny models, nothing to be learned from its figures

lab       the lab's causal language model, 128 × 256 tokens, against nn.TransformerEncoder with full logits in bf16:
          compiled (`plain`), and with its loss compiled into it (`whole`)
mlm       BERT-base's masked language model, 256 × 128 tokens, against transformers, bf16, compiled
finetune  BERT-base fine-tuned on texts of 6 to 50 tokens at batch 8, against transformers, bf16

Losses of both sides on the same batch are compared first: a fast wrong answer is a failure.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bench.training import Row, lab_batches, lab_loss, lab_pair, ours, peer, race, ragged
from headstart.checkpoints.exchange import open_model
from headstart.text.batches import IGNORE, Batch
from headstart.training.objectives import Causal, Classification, MaskedTokens

SPEEDS = {"warm": 24, "steps": 24, "repeats": 3}
TINY = {"warm": 2, "steps": 2, "repeats": 1}


def lab(tiny: bool) -> Row:
    rows, length = (2, 16) if tiny else (128, 256)
    model, other = lab_pair(500 if tiny else None)
    flat, blocks = lab_batches(model.config.vocabulary, rows, length, count=4)
    _, another = lab_pair(500 if tiny else None)
    another.load_state_dict(other.state_dict())
    compiled: Any = other if tiny else torch.compile(other)
    sides = {
        "ours": ours(model, Causal(), flat),
        "plain": peer(compiled, lab_loss, blocks),
        "whole": peer(another, lab_loss, blocks, compiled=True),
    }
    return race("lab", sides, rows * length, **(TINY if tiny else SPEEDS))


def published(folder: Path, tiny: bool, head: str) -> Any:
    """A BERT of `transformers` with random weights, and its folder."""
    import transformers

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.BertConfig(**(small if tiny else {}))
    torch.manual_seed(0)
    made: Any = getattr(transformers, head)(config)
    made.save_pretrained(folder)
    return made


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
        labels = torch.full((rows * length,), IGNORE).index_copy(0, masked, targets)
        flat.append(Batch(ids, starts, length, segments=torch.zeros_like(ids), targets=targets, masked=masked))
        inputs.append({"input_ids": ids.view(rows, length), "labels": labels.view(rows, length)})
    sides = {
        "ours": ours(model, MaskedTokens(), flat),
        "transformers": peer(other, their_loss, inputs, compiled=True),
    }
    return race("mlm", sides, rows * length, **(TINY if tiny else SPEEDS))


def finetune(tiny: bool) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        other = published(Path(folder), tiny, "BertForSequenceClassification")
        model = open_model(folder).model
    flat, padded = ragged(64, lambda draw: draw.integers(6, 51, size=8), 30000)
    sides = {
        "ours": ours(model, Classification(), flat),
        "transformers": peer(other, their_loss, padded),
    }
    return race("finetune", sides, 8 * 28.0, **(TINY if tiny else {**SPEEDS, "warm": 64, "steps": 64}))


CASES = {"lab": lab, "mlm": mlm, "finetune": finetune}


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
