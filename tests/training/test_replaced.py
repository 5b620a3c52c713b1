"""Replaced-token detection: what the generator samples, what counts as replaced, and what learns from it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.batches.batch import Batch
from headstart.batches.masking import Masking
from headstart.batches.replaced import ReplacedBatches
from headstart.config import MaskedConfig, ReplacedConfig
from headstart.errors import ModelError
from headstart.metrics import Scores
from headstart.model.heads import ReplacedHead
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.runs.events import Saved, Step
from headstart.store.store import Documents
from headstart.tokenizers.tokenizer import Tokenizer
from headstart.training.inference import language_model_scores
from headstart.training.loop import Loop
from headstart.training.objectives import layout_of
from headstart.training.replaced import CHUNK, Replaced, detect, drop_generator, sample_tokens, with_generator
from headstart.training.run_checkpoint import restore_state
from headstart.training.settings import TrainingSettings
from headstart.training.stepper import CompiledStepper, EagerStepper
from tests.batches.helpers import store

V, MASK = 30, 4
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]


def model_with(generator: float | None = 0.5, **changes: Any) -> Model:
    torch.manual_seed(0)
    sizes = {"vocabulary": V, "width": 32, "layers": 2, "heads": 2, "feed_forward": 24, "window": 32}
    config = preset("bert-tiny", **{**sizes, "dropout": 0.0, "attention_dropout": 0.0, **changes})
    model = Model.build(config, ReplacedConfig(generator=generator)).double()
    with torch.no_grad():  # sure of some tokens, so that samples are not all alike
        for p in model.parameters():
            p.mul_(4)
    return model


def make_batch() -> Batch:
    """Two texts between special tokens (0 and 1), with a third of their tokens hidden."""
    torch.manual_seed(1)
    text = torch.randint(5, V, (24,))
    ids = torch.cat([torch.tensor([0]), text[:9], torch.tensor([1, 0]), text[9:], torch.tensor([1])])
    masked = torch.tensor([1, 4, 5, 9, 13, 16, 20, 21])
    hidden = ids.clone()
    hidden[masked] = MASK
    draws = torch.rand(len(masked), dtype=torch.float64)
    starts = torch.tensor([0, 11, 28], dtype=torch.int32)
    return Batch(hidden, starts, 17, targets=ids[masked], masked=masked, draws=draws, text=(ids != 0) & (ids != 1))


def samples(model: Model, batch: Batch) -> Tensor:
    """By hand: the first token at which the summed probabilities exceed the draw."""
    assert isinstance(model.head, ReplacedHead)
    assert model.head.generator is not None
    assert batch.masked is not None
    assert batch.draws is not None
    features = model.head.generator.features(batch.ids, layout_of(batch), None, batch.masked, model.backbone)
    weight, bias = model.head.generator.decoder(model.backbone)
    p = F.linear(features, weight, bias).softmax(-1).tolist()
    rows = zip(p, batch.draws.tolist(), strict=True)
    return torch.tensor([next(i for i, total in enumerate(accumulate(row)) if total > draw) for row, draw in rows])


@pytest.mark.parametrize("chunk", [3, 4096])
def test_tokens_are_sampled_with_their_probabilities(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setitem(CHUNK, "cpu", chunk)
    p = torch.tensor([0.1, 0.0, 0.4, 0.2, 0.3])
    draws = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    sampled = sample_tokens(torch.ones(1000, 1), p.log()[:, None], None, draws)
    for token, share in enumerate(p.tolist()):
        assert abs(int((sampled == token).sum()) - 1000 * share) <= 1
    assert sampled.diff().min() >= 0
    biased = sample_tokens(torch.zeros(1000, 1), torch.zeros(5, 1), p.log(), draws)
    assert torch.equal(biased, sampled)


def test_a_draw_at_either_end_gives_a_token_that_has_a_probability() -> None:
    draws = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    logits = torch.tensor([-math.inf, 0.0, 0.0, -math.inf])
    assert sample_tokens(torch.ones(2, 1), logits[:, None], None, draws).tolist() == [1, 2]
    broken = sample_tokens(torch.full((2, 1), math.nan), logits[:, None], None, draws)
    assert ((broken >= 0) & (broken < 4)).all()  # the loss is nan and says so; an index beyond would end the process


def test_a_sample_that_is_the_original_counts_as_original() -> None:
    model, batch = model_with(), make_batch()
    assert batch.masked is not None
    assert batch.targets is not None
    sampled = samples(model, batch)
    assert len(set(sampled.tolist())) > 3
    targets = torch.where(sampled == batch.targets, (batch.targets - 4) % 25 + 5, batch.targets)
    targets[::2] = sampled[::2]  # every other one is guessed right
    found = detect(model, replace(batch, targets=targets))
    assert found.replaced.nonzero()[:, 0].tolist() == batch.masked[1::2].tolist()


def test_the_model_reads_the_text_with_the_samples_in_it_and_is_scored_on_every_token() -> None:
    model, batch = model_with(), make_batch()
    assert batch.masked is not None
    assert batch.targets is not None
    assert batch.text is not None
    assert isinstance(model.head, ReplacedHead)
    assert model.head.generator is not None
    filled = batch.ids.clone()
    filled[batch.masked] = samples(model, batch)
    original = batch.ids.clone()
    original[batch.masked] = batch.targets
    logits = model(filled, layout_of(batch))
    by_token = F.binary_cross_entropy_with_logits(logits, (filled != original).double(), reduction="none")
    features = model.head.generator.features(batch.ids, layout_of(batch), None, batch.masked, model.backbone)
    guesses = F.linear(features, *model.head.generator.decoder(model.backbone))
    objective = Replaced(weight=7.0)
    counts, sums = objective.counts(batch), objective.sums(model, batch)
    assert counts == {"generator": 8, "detection": 24}
    torch.testing.assert_close(sums["generator"], F.cross_entropy(guesses, batch.targets, reduction="sum"))
    torch.testing.assert_close(sums["detection"], 7 * by_token[batch.text].sum())


def test_no_gradient_passes_through_a_sample() -> None:
    model, batch = model_with(), make_batch()
    names, parameters = zip(*model.named_parameters(), strict=True)
    reached = {}
    for part, value in Replaced().sums(model, batch).items():
        found = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
        reached[part] = {name for name, gradient in zip(names, found, strict=True) if gradient is not None}
    shared = "backbone.embeddings.tokens.weight"
    of_generator = {name for name in names if name.startswith("head.generator.")}
    pooler = {name for name in names if name.startswith("backbone.pooler.")}
    assert reached["generator"] == of_generator | {shared}
    assert reached["detection"] == set(names) - of_generator - pooler


def documents(words: list[int], count: int, seed: int) -> Documents:
    """Each document is one of the words, eight times over: whatever else stands in it was replaced."""
    draw = np.random.default_rng(seed)
    return store([[words[int(draw.integers(len(words)))]] * 8 for _ in range(count)])


def language(words: int) -> tuple[Tokenizer, list[int]]:
    tokenizer = Tokenizer.train([" ".join(WORDS)] * 20, kind="wordpiece", size=100)
    return tokenizer, [tokenizer.encode(word)[0] for word in WORDS[:words]]


def learn(words: int, steps: int) -> Scores:
    """What a model comes to on texts of a language of so many words."""
    tokenizer, ids = language(words)
    sizes = {"vocabulary": tokenizer.size, "width": 64, "layers": 2, "heads": 2, "feed_forward": 128, "window": 16}
    torch.manual_seed(0)
    model = Model.build(preset("small", **sizes, dropout=0.0), ReplacedConfig(generator=0.25))
    common: dict[str, Any] = {"window": 10, "batch_size": 32, "seed": 0, "masking": Masking.of(tokenizer, 0.15)}
    settings = TrainingSettings(steps=steps, lr=2e-3, schedule="cosine", beta2=0.98)
    train = ReplacedBatches(documents(ids, 4000, 0), tokenizer, **common)
    list(Loop(model, Replaced(), train, settings).run())
    valid = ReplacedBatches(documents(ids, 100, 1), tokenizer, evaluation=True, **common)
    return language_model_scores(model, Replaced(), valid, torch.float32)


def test_replaced_tokens_are_soon_told_in_a_language_of_two_words() -> None:
    """The generator still guesses: it puts tokens into the text that are no words of the language."""
    scores = learn(words=2, steps=20)
    assert scores["replaced_share"] > 0.1
    assert scores["detection_accuracy"] > 1 - scores["replaced_share"] / 2  # where none is suspected, all of it is lost
    assert scores["detection_f1"] > 0.7


@pytest.mark.slow
def test_replaced_tokens_are_told_by_their_context() -> None:
    """With eight words, each of which is right in its own documents, only the rest of a document tells."""
    scores = learn(words=8, steps=300)
    assert scores["replaced_share"] > 0.03
    assert scores["detection_f1"] > 0.85


def make_loop(steps: int = 12, **changes: Any) -> Loop:
    tokenizer, ids = language(8)
    sizes = {"vocabulary": tokenizer.size, "width": 32, "layers": 2, "heads": 2, "feed_forward": 48, "window": 16}
    torch.manual_seed(3)
    model = Model.build(preset("small", **sizes, dropout=0.1), ReplacedConfig(generator=0.25))
    settings = TrainingSettings(steps=steps, lr=2e-3, save_every=5, average=0.9, accumulate=2, **changes)
    batches = ReplacedBatches(
        documents(ids, 60, 0), tokenizer, window=10, batch_size=8, seed=0, masking=Masking.of(tokenizer, 0.3)
    )
    return Loop(model, Replaced(), batches, settings)


def test_a_resumed_run_is_the_same_bit_for_bit_with_its_generator() -> None:
    straight, losses, state = make_loop(), [], None
    for event in straight.run():
        if isinstance(event, Step):
            losses.append((event.loss, event.parts))
        elif isinstance(event, Saved) and event.step == 5:
            state = event.state
    assert state is not None
    resumed = make_loop()
    for p in resumed.model.parameters():
        p.data.zero_()  # all that it goes on with is in the state
    restore_state(resumed, state)
    assert losses[5:] == [(event.loss, event.parts) for event in resumed.run() if isinstance(event, Step)]
    expected = straight.model.state_dict()
    assert any("generator" in name for name in expected)
    assert all(torch.equal(value, expected[name]) for name, value in resumed.model.state_dict().items())


def test_the_generators_layers_train_as_the_models_do() -> None:
    loop = make_loop(steps=4, optimizer="muon")
    before = {name: p.detach().clone() for name, p in loop.model.named_parameters()}
    assert all(math.isfinite(event.loss) for event in loop.run() if isinstance(event, Step))
    assert not any(torch.equal(p, before[name]) for name, p in loop.model.named_parameters())
    by_muon = {name for group in loop.optimizer.parts[0].param_groups for name in group["names"]}
    assert sum(name.startswith("head.generator.backbone.layers.") for name in by_muon) == len(by_muon) / 2 > 0
    assert isinstance(loop.stepper, EagerStepper)
    assert len(CompiledStepper(loop.stepper, required=False).layers) == 4


def test_every_evaluation_samples_the_same() -> None:
    tokenizer, ids = language(8)
    loop = make_loop()
    valid = ReplacedBatches(
        documents(ids, 20, 1),
        tokenizer,
        window=10,
        batch_size=8,
        seed=0,
        masking=Masking.of(tokenizer, 0.3),
        evaluation=True,
    )
    first, second = (language_model_scores(loop.model, Replaced(), valid, torch.float32) for _ in range(2))
    assert first == second
    assert first["loss"] == pytest.approx(first["generator_loss"] + 50 * first["detection_loss"])


def test_the_model_that_is_kept_has_no_generator() -> None:
    model = model_with()
    kept = drop_generator(model)
    assert kept.head_config == ReplacedConfig()
    assert not any("generator" in name for name in kept.state_dict())
    batch = make_batch()
    assert torch.equal(kept(batch.ids, layout_of(batch)), model(batch.ids, layout_of(batch)))
    assert kept.backbone is model.backbone
    again = with_generator(kept, 0.25)
    assert again.head_config == ReplacedConfig(generator=0.25)
    assert torch.equal(again(batch.ids, layout_of(batch)), model(batch.ids, layout_of(batch)))
    masked = model.with_head(MaskedConfig())
    assert drop_generator(masked) is masked
    with pytest.raises(ModelError, match="generator was dropped"):
        Replaced().check(kept)
    with pytest.raises(ModelError, match="this model's head is masked"):
        Replaced().check(masked)
