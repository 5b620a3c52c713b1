"""What the square mask and the positions do, measured: small models trained with and without each.

    python tools/questions.py     trains them all, writes docs/experiments.json, and then the page

Two kinds, of the lab's design and 64 wide, on the book reviews that ship with the package: language models that guess
the next piece, and classifiers, which are then asked about the same reviews with their words shuffled. Whatever is
trained here, the mask is taken off by hand (`take_off_the_mask`): headstart itself refuses to train such a model.

All of it in float64, one thread a model: another machine rounds otherwise, and in float32 a text that was drawn from a
trained model shows it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from headstart.batches.batch import IGNORE_INDEX, rng
from headstart.batches.encoding import EncodedExamples
from headstart.batches.examples import ExampleBatches
from headstart.batches.language import CausalBatches
from headstart.config import ClassifierConfig, NextTokenConfig
from headstart.demo import REVIEWS
from headstart.metrics import score
from headstart.model.attention import Attention, plain_attention, square_mask
from headstart.model.layout import Flat
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.reading.examples import Examples, read_examples
from headstart.runs.events import Step
from headstart.store.store import Documents
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.training.inference import classify
from headstart.training.loop import Loop
from headstart.training.objectives import Causal, Classification
from headstart.training.precision import Precision
from headstart.training.settings import TrainingSettings
from headstart.use.generate import Sampling, generate

Row = NDArray[np.int32]
PLAIN = Precision(None, None)
LABELS = ("négatif", "positif")


@dataclass(frozen=True)
class Size:
    """How much is trained; the tests have a smaller one."""

    pieces: int = 512
    width: int = 64
    window: int = 64  # of the language models
    steps: int = 1000
    batch: int = 16  # sequences a step
    lr: float = 4e-3
    review: int = 200  # pieces of a review that a classifier reads: all of them
    epochs: int = 4
    class_lr: float = 2e-3
    asked: int = 32  # pieces of unseen reviews of which every beginning is continued
    rows: int | None = None  # of each split; None is all


PROMPT = "Ce roman"
SENTENCE = "On ne lit pas un livre pour la fin."
DRAWN = Sampling(max_tokens=48, temperature=0.5, seed=0)
SHOWN = 5  # steps whose mean is a point of the curve


@dataclass(frozen=True)
class Arm:
    mask: bool
    positions: bool

    @property
    def name(self) -> str:
        return f"{'mask' if self.mask else 'no mask'}, {'positions' if self.positions else 'no positions'}"


ARMS = tuple(Arm(mask, positions) for mask in (True, False) for positions in (True, False))


# --- the text ---------------------------------------------------------------------------------------------------------


@cache
def examples(split: str, rows: int | None) -> Examples:
    return Examples(read_examples(REVIEWS / f"{split}.csv").rows[:rows])


@cache
def tokenizer(size: Size) -> Tokenizer:
    """Byte-level pairs, which are counted in whole numbers: the same pieces on every machine."""
    texts = [row.text for row in examples("train", size.rows).rows]
    return Tokenizer.train(texts, kind="bpe", size=size.pieces)


def documents(split: str, size: Size) -> Documents:
    texts = [row.text for row in examples(split, size.rows).rows]
    ids = tokenizer(size).encode_batch(texts)
    starts = np.concatenate([[0], np.cumsum([len(row) for row in ids])])
    return Documents(np.concatenate(ids).astype(np.uint16), starts, np.array([len(text.encode()) for text in texts]))


# --- the models -------------------------------------------------------------------------------------------------------


def build(arm: Arm, size: Size, head: NextTokenConfig | ClassifierConfig, window: int) -> Model:
    """The lab's model at a small size, with the same drawn weights for each arm."""
    torch.manual_seed(0)
    changes = {"width": size.width, "feed_forward": size.width, "layers": 2, "window": window}
    where = "sinusoidal" if arm.positions else "none"
    model = Model.build(preset("lab", vocabulary=tokenizer(size).size, positions=where, **changes), head).double()
    if not arm.mask:
        take_off_the_mask(model)
    return model


def take_off_the_mask(model: Model) -> None:
    """Let every token look at every other, those ahead too."""
    for part in model.modules():
        if isinstance(part, Attention):
            part.causal = False


def train(model: Model, objective: Any, batches: Any, **settings: Any) -> list[float]:
    """The loss of every step."""
    chosen = TrainingSettings(schedule="cosine", device="cpu", compile="no", save_every=10**9, **settings)
    found = [event.loss for event in Loop(model, objective, batches, chosen).run() if isinstance(event, Step)]
    model.eval()
    return found


# --- language models --------------------------------------------------------------------------------------------------


def language_model(arm: Arm, size: Size) -> dict[str, Any]:
    """Train one, and see what became of it."""
    torch.set_num_threads(1)
    model = build(arm, size, NextTokenConfig(), size.window)
    common: dict[str, Any] = {"window": size.window, "batch_size": size.batch, "seed": 0}
    batches = CausalBatches(documents("train", size), tokenizer(size), **common)
    losses = train(model, Causal(), batches, steps=size.steps, lr=size.lr, warmup=0.05)
    unseen = CausalBatches(documents("test", size), tokenizer(size), **common, evaluation=True)
    share, where = next_token_share(model, unseen)
    return {
        "loss": float(np.mean(losses[-50:])),
        "unseen": unseen_loss(model, unseen),
        "hidden": hidden_loss(model, unseen, size.asked),
        "text": generate(model, tokenizer(size), PROMPT, DRAWN, cache=False).text,
        "curve": [round(float(np.mean(losses[max(0, k - SHOWN) : k])), 3) for k in points(size)],
        "share": share,
        "look": look(model, tokenizer(size).encode(SENTENCE), where),
    }


def points(size: Size) -> list[int]:
    """The steps at which the curves are drawn: closer at the beginning, where most happens."""
    return sorted({max(SHOWN, round(size.steps * (k / 48) ** 2)) for k in range(1, 49)})


@torch.no_grad()
def unseen_loss(model: Model, batches: CausalBatches) -> float:
    """The loss on reviews that the model has not read, as training reckons it: all pieces at once."""
    parts, counted = 0.0, 0.0
    for step in range(batches.steps(0)):
        batch = batches.batch(0, step)
        parts += Causal().sums(model, batch)["loss"].item()
        counted += Causal().counts(batch)["loss"]
    return parts / counted


@torch.no_grad()
def hidden_loss(model: Model, batches: CausalBatches, count: int) -> float:
    """The loss where what comes next is truly hidden: the model is given each beginning, and nothing after it."""
    found: list[Tensor] = []
    for ids, targets in sequences(batches, count):
        ends = [k + 1 for k in range(len(ids)) if targets[k] != IGNORE_INDEX]
        together = torch.cat([ids[:end] for end in ends])
        layout = Flat.from_lengths(ends)
        last = model.backbone(together, layout)[layout.starts[1:].long() - 1]
        assert model.head is not None
        logits = model.head(last, layout, model.backbone)
        found.append(F.cross_entropy(logits, targets[[end - 1 for end in ends]], reduction="none"))
    return float(torch.cat(found).mean())


def sequences(batches: CausalBatches, count: int) -> list[tuple[Tensor, Tensor]]:
    """The first sequences of a pass that have something to guess, each with its targets."""
    found: list[tuple[Tensor, Tensor]] = []
    step = 0
    while len(found) < count and step < batches.steps(0):
        batch = batches.batch(0, step)
        assert batch.targets is not None
        edges = batch.starts.tolist()
        found += [(batch.ids[a:b], batch.targets[a:b]) for a, b in pairwise(edges) if b - a > 1]
        step += 1
    return found[:count]


@torch.no_grad()
def maps(model: Model, ids: Tensor) -> Tensor:
    """(layers, H, L, L): how much each piece looks at each other, in the plain form."""
    found: list[Tensor] = []

    def note(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        assert isinstance(module, Attention)
        x = inputs[0]
        q, k, v = module.qkv(x).unflatten(-1, (3, module.heads, module.head_width)).permute(1, 2, 0, 3)  # (H, L, K)
        found.append(plain_attention(q, k, v, square_mask(len(x)).to(x.dtype) if module.causal else None)[1])

    hooks = [part.register_forward_pre_hook(note) for part in model.modules() if isinstance(part, Attention)]
    model.backbone(ids, Flat.from_lengths([len(ids)]))
    for hook in hooks:
        hook.remove()
    return torch.stack(found)


def next_token_share(model: Model, batches: CausalBatches, count: int = 16) -> tuple[float, tuple[int, int]]:
    """How much of its attention the head that does so most gives to the piece that comes next; and which it is."""
    each = [maps(model, ids).diagonal(1, -2, -1).mean(-1) for ids, _ in sequences(batches, count)]  # (layers, H)
    mean = torch.stack(each).mean(0)
    layer, head = divmod(int(mean.argmax()), mean.shape[1])
    return float(mean.max()), (layer, head)


def look(model: Model, ids: Sequence[int], where: tuple[int, int]) -> list[list[float]]:
    """What one head looks at in a sentence."""
    found = maps(model, torch.tensor(ids))[where[0], where[1]]
    return [[round(value, 2) for value in row] for row in found.tolist()]


# --- classifiers ------------------------------------------------------------------------------------------------------


def classifier(arm: Arm, size: Size) -> dict[str, Any]:
    """Train one on reviews, and ask it about others: as they are, and with their words shuffled."""
    torch.set_num_threads(1)
    model = build(arm, size, ClassifierConfig(classes=2, pool="mean", dropout=0.0), size.review)
    data, test = (
        EncodedExamples.of(examples(s, size.rows), tokenizer(size), LABELS, size.review) for s in ("train", "test")
    )
    assert data.truncated == test.truncated == 0
    train(model, Classification(), ExampleBatches(data, 0, size.batch), epochs=size.epochs, lr=size.class_lr)
    plain, shuffled = (classify(model, rows, PLAIN) for rows in (test, shuffle(test, size)))
    moved = np.abs(np.exp(plain[:, 1]) - np.exp(shuffled[:, 1]))
    return {
        "accuracy": score(plain, test.labels)["accuracy"],
        "shuffled": score(shuffled, test.labels)["accuracy"],
        "moved": float(moved.mean()),
        "most": float(moved.max()),
        "turned": int((plain.argmax(1) != shuffled.argmax(1)).sum()),
        "rows": len(test),
        "first": [round(float(np.exp(rows[0, 1])), 4) for rows in (plain, shuffled)],
    }


def shuffle(data: EncodedExamples, size: Size) -> EncodedExamples:
    """The same rows, the words of each in an order that is drawn; what stands around them stays."""
    rows = [data.ids[a:b] for a, b in pairwise(data.starts)]
    mixed = [np.concatenate([row[:1], *drawn(words(row[1:-1], size), k), row[-1:]]) for k, row in enumerate(rows)]
    return EncodedExamples(np.concatenate(mixed).astype(np.int32), data.starts, None, data.labels, data.truncated)


def words(ids: Row, size: Size) -> list[Row]:
    """Pieces put together to words: one begins where a piece begins with a space."""
    begins = [k for k, piece in enumerate(tokenizer(size).pieces(ids)) if piece.startswith("Ġ")]
    return [word for word in np.split(ids, begins) if len(word)]


def drawn(items: list[Row], number: int) -> list[Row]:
    return [items[k] for k in rng(0, number).permutation(len(items))]


def shuffled_text(size: Size) -> tuple[str, str]:
    """The first review of test, as it is and as the classifiers were given it."""
    test = EncodedExamples.of(examples("test", size.rows), tokenizer(size), LABELS, size.review)
    ends = slice(test.starts[0] + 1, test.starts[1] - 1)
    mixed = drawn(words(test.ids[ends], size), 0)
    return tokenizer(size).decode(test.ids[ends]), " ".join(tokenizer(size).decode(word).strip() for word in mixed)


# --- all of it --------------------------------------------------------------------------------------------------------


def fingerprint() -> str:
    """Of this file and of the reviews: what docs/experiments.json was made from."""
    files = [Path(__file__), *sorted(REVIEWS.glob("*.csv"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


def measure(size: Size, workers: int | None = None) -> dict[str, Any]:
    """Train everything, as many models at a time as there are cores."""
    text, mixed = shuffled_text(size)
    with ProcessPoolExecutor(workers or os.cpu_count(), get_context("spawn")) as pool:
        guessing = {arm.name: pool.submit(language_model, arm, size) for arm in ARMS}
        judging = {arm.name: pool.submit(classifier, arm, size) for arm in ARMS}
        return {
            "made_from": fingerprint(),
            "size": asdict(size),
            "tokens": len(documents("train", size).ids),
            "sentence": spelled(size),
            "review": text,
            "mixed": mixed,
            "points": points(size),
            "language_models": {name: rounded(job.result()) for name, job in guessing.items()},
            "classifiers": {name: rounded(job.result()) for name, job in judging.items()},
        }


def spelled(size: Size) -> list[str]:
    """The sentence piece by piece, as one reads it."""
    pieces = tokenizer(size)
    return [pieces.decode([number]).strip() for number in pieces.encode(SENTENCE)]


def rounded(found: dict[str, Any]) -> dict[str, Any]:
    """Four digits after the point are more than the page shows."""
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in found.items()}
