"""What the square mask and the positions do, measured: small models trained with and without each.

    python tools/questions.py     trains them all, writes docs/experiments.json, and then the page

Two kinds of models, of the lab's design and 64 wide, on the answers that ship with the package: language models that
predict the next token, and classifiers, which are then evaluated on answers with their words shuffled. The mask is
removed by hand (`remove_causal_mask`): headstart itself refuses to train such a model.

All of it in float64, with one thread per model: rounding differs between machines, and in float32 that would change
the text that is sampled from a trained model.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, astuple, dataclass
from functools import cache
from itertools import islice, pairwise
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from headstart.batches.batch import IGNORE_INDEX, rng
from headstart.batches.examples import EncodedExamples, ExampleBatches
from headstart.batches.language import CausalBatches
from headstart.config import ClassifierConfig, NextTokenConfig
from headstart.demo import labelled_files
from headstart.metrics import score
from headstart.model.attention import Attention
from headstart.model.layout import Flat
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.reading.examples import Examples, read_examples
from headstart.runs.events import Step
from headstart.store.store import Documents
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.training.inference import classify, language_model_scores
from headstart.training.loop import Loop
from headstart.training.objectives import Causal, Classification
from headstart.training.settings import TrainingSettings
from headstart.use.explain import attention_weights
from headstart.use.generate import Sampling, generate

Ids = NDArray[np.int32]
EXACT = torch.float32


@dataclass(frozen=True)
class Settings:
    """How much is trained; the tests use less."""

    vocabulary: int = 1000
    width: int = 64
    window: int = 64  # of the language models
    steps: int = 1000
    batch_size: int = 16
    lr: float = 4e-3
    text_window: int = 300  # no answer is longer
    epochs: int = 4
    classifier_lr: float = 2e-3
    prefix_sequences: int = 32  # whose every prefix is continued
    rows: int | None = None  # of each split; None is all


PROMPT = "Il faut"
SENTENCE = "Il faut que les élus rendent des comptes."
SAMPLING = Sampling(max_tokens=48, temperature=0.5, seed=0)
SMOOTHED = 5  # steps whose mean is a point of the curve
COMMON: dict[str, Any] = {"schedule": "cosine", "device": "cpu", "compile": "no", "save_every": 10**9}


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
    return Examples(read_examples(labelled_files()[split]).rows[:rows])


@cache
def tokenizer(settings: Settings) -> Tokenizer:
    """Byte-level BPE, which counts in integers: the same tokens on every machine."""
    texts = [row.text for row in examples("train", settings.rows).rows]
    return Tokenizer.train(texts, kind="bpe", size=settings.vocabulary)


def documents(split: str, settings: Settings) -> Documents:
    texts = [row.text for row in examples(split, settings.rows).rows]
    ids = tokenizer(settings).encode_batch(texts)
    starts = np.concatenate([[0], np.cumsum([len(row) for row in ids])])
    return Documents(np.concatenate(ids).astype(np.uint16), starts, np.array([len(text.encode()) for text in texts]))


@cache
def class_names() -> tuple[str, ...]:
    return examples("train", None).class_names


def encoded(split: str, settings: Settings) -> EncodedExamples:
    rows = EncodedExamples.of(examples(split, settings.rows), tokenizer(settings), class_names(), settings.text_window)
    assert rows.truncated == 0
    return rows


# --- the models -------------------------------------------------------------------------------------------------------


def build(arm: Arm, settings: Settings, head: NextTokenConfig | ClassifierConfig, window: int) -> Model:
    """The lab's model at a small size, with the same initial weights for each arm."""
    torch.manual_seed(0)
    size = {"width": settings.width, "feed_forward": settings.width, "layers": 2, "window": window}
    positions = "sinusoidal" if arm.positions else "none"
    config = preset("lab", vocabulary=tokenizer(settings).size, positions=positions, **size)
    model = Model.build(config, head).double()
    if not arm.mask:
        remove_causal_mask(model)
    return model


def remove_causal_mask(model: Model) -> None:
    """Let every token attend to every other, the later ones too."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.causal = False


def train(model: Model, objective: Any, batches: Any, **settings: Any) -> list[float]:
    """The loss of every step."""
    loop = Loop(model, objective, batches, TrainingSettings(**COMMON, **settings))
    losses = [event.loss for event in loop.run() if isinstance(event, Step)]
    model.eval()
    return losses


# --- language models --------------------------------------------------------------------------------------------------


def language_model(arm: Arm, settings: Settings) -> dict[str, Any]:
    """Train a language model and measure what it learned."""
    torch.set_num_threads(1)
    model = build(arm, settings, NextTokenConfig(), settings.window)
    common: dict[str, Any] = {"window": settings.window, "batch_size": settings.batch_size, "seed": 0}
    batches = CausalBatches(documents("train", settings), tokenizer(settings), **common)
    losses = train(model, Causal(), batches, steps=settings.steps, lr=settings.lr, warmup=0.05)
    test = CausalBatches(documents("test", settings), tokenizer(settings), **common, evaluation=True)
    share, layer, head = next_token_attention(model, test)
    weights = attention_weights(model, torch.tensor(tokenizer(settings).encode(SENTENCE)))[layer, head]
    return {
        "train_loss": float(np.mean(losses[-50:])),
        "test_loss": test_loss(model, test),
        "prefix_loss": prefix_loss(model, test, settings.prefix_sequences),
        "text": generate(model, tokenizer(settings), PROMPT, SAMPLING, cache=False).text,
        "curve": [round(float(np.mean(losses[max(0, k - SMOOTHED) : k])), 3) for k in curve_steps(settings)],
        "next_token_attention": share,
        "attention": [[round(value, 2) for value in row] for row in weights.tolist()],
    }


def curve_steps(settings: Settings) -> list[int]:
    """The steps at which the curves are drawn: closer at the beginning, where most happens."""
    return sorted({max(SMOOTHED, round(settings.steps * (k / 48) ** 2)) for k in range(1, 49)})


def test_loss(model: Model, batches: CausalBatches) -> float:
    """The loss on unseen text as training computes it: all tokens at once."""
    return language_model_scores(model, Causal(), batches, EXACT)["loss"]


@torch.no_grad()
def prefix_loss(model: Model, batches: CausalBatches, count: int) -> float:
    """The loss where the next token is not in the input: the model gets each prefix, and nothing after it."""
    losses: list[Tensor] = []
    for ids, targets in sequences(batches, count):
        ends = [k + 1 for k in range(len(ids)) if targets[k] != IGNORE_INDEX]
        layout = Flat.from_lengths(ends)
        last = model.backbone(torch.cat([ids[:end] for end in ends]), layout)[layout.starts[1:].long() - 1]
        assert model.head is not None
        logits = model.head(last, layout, model.backbone)
        losses.append(F.cross_entropy(logits, targets[[end - 1 for end in ends]], reduction="none"))
    return float(torch.cat(losses).mean())


def sequences(batches: CausalBatches, count: int) -> list[tuple[Tensor, Tensor]]:
    """The first sequences of an epoch that have something to predict, each with its targets."""
    every = (batches.batch(0, step) for step in range(batches.steps(0)))
    longer = ((batch, a, b) for batch in every for a, b in pairwise(batch.starts.tolist()) if b - a > 1)
    return [(batch.ids[a:b], batch.targets[a:b]) for batch, a, b in islice(longer, count) if batch.targets is not None]


def next_token_attention(model: Model, batches: CausalBatches, count: int = 16) -> tuple[float, int, int]:
    """The largest mean weight that a head gives to the next token; and the layer and head that give it."""
    weights = [attention_weights(model, ids).diagonal(1, -2, -1).mean(-1) for ids, _ in sequences(batches, count)]
    mean = torch.stack(weights).mean(0)  # (layers, H)
    return float(mean.max()), *divmod(int(mean.argmax()), mean.shape[1])


# --- classifiers ------------------------------------------------------------------------------------------------------


def classifier(arm: Arm, settings: Settings) -> dict[str, Any]:
    """Train a classifier on answers and evaluate it on others: as they are, and with their words shuffled."""
    torch.set_num_threads(1)
    head = ClassifierConfig(classes=len(class_names()), pool="mean", dropout=0.0)
    model = build(arm, settings, head, settings.text_window)
    batches = ExampleBatches(encoded("train", settings), 0, settings.batch_size)
    train(model, Classification(), batches, epochs=settings.epochs, lr=settings.classifier_lr)
    test = encoded("test", settings)
    intact, shuffled = (classify(model, rows, EXACT) for rows in (test, shuffle(test, settings)))
    right = [np.exp(rows[np.arange(len(test)), test.labels]) for rows in (intact, shuffled)]  # of the right label
    shift = np.abs(right[0] - right[1])
    return {
        "accuracy": score(intact, test.labels)["accuracy"],
        "shuffled_accuracy": score(shuffled, test.labels)["accuracy"],
        "mean_shift": float(shift.mean()),
        "largest_shift": float(shift.max()),
        "changed_labels": int((intact.argmax(1) != shuffled.argmax(1)).sum()),
        "rows": len(test),
        "first_answer": [round(float(rows[0]), 4) for rows in right],
    }


def shuffle(data: EncodedExamples, settings: Settings) -> EncodedExamples:
    """The same rows, the words of each in random order; the special tokens around them stay."""
    rows = [data.ids[a:b] for a, b in pairwise(data.starts)]
    mixed = [np.concatenate([row[:1], *shuffled_words(row[1:-1], k, settings), row[-1:]]) for k, row in enumerate(rows)]
    return EncodedExamples(np.concatenate(mixed).astype(np.int32), data.starts, None, data.labels, data.truncated)


def shuffled_words(ids: Ids, number: int, settings: Settings) -> list[Ids]:
    """The words of row `number`, shuffled; a word begins where a token begins with a space."""
    begins = [k for k, token in enumerate(tokenizer(settings).pieces(ids)) if token.startswith("Ġ")]
    words = [word for word in np.split(ids, begins) if len(word)]
    return [words[k] for k in rng(0, number).permutation(len(words))]


def first_answer(settings: Settings) -> tuple[str, str]:
    """The first answer of test, as it is and as it is shuffled for the classifiers."""
    test, decode = encoded("test", settings), tokenizer(settings).decode
    ids = test.ids[test.starts[0] + 1 : test.starts[1] - 1]
    return decode(ids), " ".join(decode(word).strip() for word in shuffled_words(ids, 0, settings))


# --- all of it --------------------------------------------------------------------------------------------------------


def fingerprint() -> str:
    """Of the settings and of the answers: docs/experiments.json is stale where it has another."""
    values = [astuple(Settings()), PROMPT, SENTENCE, astuple(SAMPLING), SMOOTHED, sorted(COMMON.items())]
    digest = hashlib.sha256(repr(values).encode())
    for path in labelled_files().values():
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def measure(settings: Settings) -> dict[str, Any]:
    """Train everything, as many models at a time as there are cores."""
    answer, shuffled_answer = first_answer(settings)
    tokens = tokenizer(settings).encode(SENTENCE)
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        language_models = {arm.name: pool.submit(language_model, arm, settings) for arm in ARMS}
        classifiers = {arm.name: pool.submit(classifier, arm, settings) for arm in ARMS}
        return {
            "fingerprint": fingerprint(),
            "settings": asdict(settings),
            "tokens": len(documents("train", settings).ids),
            "sentence": [tokenizer(settings).decode([token]).strip() for token in tokens],
            "answer": answer,
            "shuffled_answer": shuffled_answer,
            "curve_steps": curve_steps(settings),
            "language_models": {name: rounded(job.result()) for name, job in language_models.items()},
            "classifiers": {name: rounded(job.result()) for name, job in classifiers.items()},
        }


def rounded(measured: dict[str, Any]) -> dict[str, Any]:
    """Four digits are more than the page shows."""
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in measured.items()}
