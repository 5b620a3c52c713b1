"""A backbone and a head: the swap, the freeze, and probabilities."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.config import ClassifierConfig, HeadConfig, MaskedConfig, ModelConfig, NextTokenConfig
from headstart.errors import ModelError
from headstart.model.layout import Flat
from headstart.model.model import Model, physical_memory

from .strategies import SEEDS, Batch, batches, configs, heads_of, randomized

IDS, LAYOUT = torch.tensor([1, 2, 3, 4, 5, 6]), Flat.from_lengths([3, 2, 1])
TWO = ClassifierConfig(classes=2, pool="last")


def config(**changes: object) -> ModelConfig:
    settings = {"vocabulary": 7, "width": 8, "layers": 2, "heads": 2, "feed_forward": 6, "window": 12}
    return ModelConfig.from_mapping(settings | {"direction": "causal"} | changes, "test")


def assert_same(one: Any, two: Any) -> None:
    """Bit for bit, for a head with one result or with two."""
    for a, b in zip(one if isinstance(one, tuple) else (one,), two if isinstance(two, tuple) else (two,), strict=True):
        assert torch.equal(a, b)


def test_a_model_without_a_head_gives_the_bare_vectors() -> None:
    model = Model.build(config()).eval()
    assert model.head is None and model.head_config is None
    assert torch.equal(model(IDS, LAYOUT), model.backbone(IDS, LAYOUT))


def test_segments_reach_the_embeddings() -> None:
    model = randomized(Model.build(config(segments=2), TWO), seed=0)
    segments = torch.tensor([0, 0, 1, 0, 0, 0])
    moved = (model(IDS, LAYOUT, segments) != model(IDS, LAYOUT)).any(1)
    assert moved.tolist() == [True, False, False]


@settings(max_examples=40)
@given(st.data(), SEEDS)
def test_an_empty_model_is_filled_from_a_state_dict(data: st.DataObject, seed: int) -> None:
    """Its parameters take no memory; what a formula gives is there from the start; filled, it is the same model."""
    c: ModelConfig = data.draw(configs())
    head = data.draw(heads_of(c))
    batch: Batch = data.draw(batches(c))
    model, empty = randomized(Model.build(c, head), seed), Model.empty(c, head).eval()
    assert {p.device.type for p in empty.parameters()} == {"meta"}
    assert {b.device.type for b in empty.buffers()} <= {"cpu"}
    assert {name: p.shape for name, p in empty.named_parameters()} == {
        name: p.shape for name, p in model.named_parameters()
    }
    empty.load_state_dict(model.state_dict(), strict=True, assign=True)
    assert_same(model(batch.ids, batch.flat, batch.segments), empty(batch.ids, batch.flat, batch.segments))


# The swap


def test_a_swap_shares_the_backbone_and_mutates_nothing() -> None:
    language_model = Model.build(config(tied=False), NextTokenConfig()).eval()
    before = copy.deepcopy(language_model.state_dict())
    logits = language_model(IDS, LAYOUT)
    head = language_model.head

    classifier = language_model.with_head(TWO)

    assert classifier.backbone is language_model.backbone
    assert classifier.head_config == TWO
    assert classifier(IDS, LAYOUT).shape == (3, 2)
    assert language_model.head is head and language_model.head_config == NextTokenConfig()
    assert language_model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in language_model.state_dict().items())
    assert torch.equal(language_model(IDS, LAYOUT), logits)
    assert all(p.requires_grad for p in language_model.parameters())


def test_every_swap_draws_a_new_head() -> None:
    model = Model.build(config())
    one, two = (model.with_head(TWO).state_dict()["head.out.weight"] for _ in range(2))
    assert not torch.equal(one, two)


def test_a_swap_back_leaves_the_bare_backbone() -> None:
    model = Model.build(config(), TWO).eval()
    assert torch.equal(model.with_head(None)(IDS, LAYOUT), model.backbone(IDS, LAYOUT))


@pytest.mark.parametrize("training", [True, False])
def test_a_swap_keeps_the_mode(training: bool) -> None:
    model = Model.build(config(), NextTokenConfig()).train(training)
    swapped = model.with_head(TWO)
    assert {part.training for part in swapped.modules()} == {training}
    assert {part.training for part in model.modules()} == {training}


def test_a_swap_on_a_frozen_backbone_stays_frozen() -> None:
    model = Model.build(config(), NextTokenConfig()).freeze()
    swapped = model.with_head(TWO)
    assert swapped.frozen
    assert swapped.training and not swapped.backbone.training
    assert {name for name, p in swapped.named_parameters() if p.requires_grad} == {"head.out.weight", "head.out.bias"}


def test_a_swap_puts_the_head_on_the_backbones_device() -> None:
    model = Model.build(config()).to("meta")
    assert {p.device.type for p in model.with_head(TWO).parameters()} == {"meta"}
    assert model.device.type == "meta"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_swap_gives_the_head_the_backbones_precision(dtype: torch.dtype) -> None:
    model = Model.build(config()).to(dtype).with_head(TWO)
    assert model(IDS, LAYOUT).dtype == dtype


# The freeze


@pytest.mark.parametrize("head", [TWO, ClassifierConfig(classes=2, pool="mean", pooler="tanh")])
def test_a_frozen_backbone_gets_no_gradients_and_the_head_does(head: HeadConfig) -> None:
    model = Model.build(config(), head)
    assert not model.frozen
    assert model.freeze() is model
    assert model.frozen
    model(IDS, LAYOUT).square().sum().backward()
    assert all(p.grad is None for p in model.backbone.parameters())
    assert model.head is not None
    assert all(p.grad is not None for p in model.head.parameters())


def test_a_frozen_backbone_drops_nothing_even_while_the_head_trains() -> None:
    model = Model.build(config(dropout=0.5, attention_dropout=0.5), TWO).freeze().train()
    assert model.head is not None
    assert model.training and model.head.training
    assert not any(part.training for part in model.backbone.modules())
    assert torch.equal(model.backbone(IDS, LAYOUT), model.backbone(IDS, LAYOUT))


def test_a_backbone_that_is_not_frozen_does_drop_in_training() -> None:
    model = Model.build(config(dropout=0.5), TWO).train()
    torch.manual_seed(0)
    assert not torch.equal(model.backbone(IDS, LAYOUT), model.backbone(IDS, LAYOUT))


def test_freezing_takes_effect_at_once() -> None:
    model = Model.build(config(dropout=0.5), TWO).train().freeze()
    assert model.training
    assert not any(part.training for part in model.backbone.modules())
    assert not Model.build(config(), TWO).eval().freeze().training


def test_evaluation_and_back_keeps_a_frozen_backbone_still() -> None:
    model = Model.build(config(), TWO).freeze()
    model.eval()
    assert not any(part.training for part in model.modules())
    model.train()
    assert model.head is not None and model.head.training
    assert not model.backbone.training


def test_a_step_on_a_frozen_model_moves_the_head_alone() -> None:
    model = Model.build(config(), TWO).freeze()
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model(IDS, LAYOUT).square().sum().backward()
    optimizer.step()
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"head.out.weight", "head.out.bias"}


def test_a_tied_head_is_frozen_with_the_embedding_it_shares() -> None:
    model = Model.build(config(direction="bidirectional"), MaskedConfig()).freeze()
    model(IDS, LAYOUT).square().sum().backward()
    assert model.backbone.embeddings.tokens.weight.grad is None
    assert {name for name, p in model.named_parameters() if p.grad is not None} == {
        "head.bias",
        "head.dense.weight",
        "head.dense.bias",
        "head.norm.weight",
        "head.norm.bias",
    }


# Probabilities


@settings(max_examples=30)
@given(st.data(), SEEDS)
@torch.no_grad()
def test_the_probabilities_of_the_classes_sum_to_one(data: st.DataObject, seed: int) -> None:
    c: ModelConfig = data.draw(configs())
    batch: Batch = data.draw(batches(c))
    model = randomized(Model.build(c, ClassifierConfig(classes=3, pool="mean")), seed)
    logs = model.log_probabilities(batch.ids, batch.flat, batch.segments)
    assert logs.shape == (len(batch.lengths), 3)
    torch.testing.assert_close(logs.exp().sum(-1), torch.ones(len(batch.lengths)), rtol=0, atol=1e-5)
    logits = model(batch.ids, batch.flat, batch.segments)
    torch.testing.assert_close(logs - logs[:, :1], logits - logits[:, :1], rtol=1e-5, atol=1e-5)


def test_log_probabilities_of_a_half_precision_model_are_computed_in_full() -> None:
    model = Model.build(config(), ClassifierConfig(classes=2, pool="last")).to(torch.bfloat16).eval()
    assert model.log_probabilities(IDS, LAYOUT).dtype == torch.float32


@pytest.mark.parametrize("head", [None, NextTokenConfig()])
def test_only_a_classifier_has_log_probabilities_of_classes(head: HeadConfig | None) -> None:
    with pytest.raises(ModelError, match="only a classifier gives log-probabilities of classes: swap the head first"):
        Model.build(config(), head).log_probabilities(IDS, LAYOUT)


# Any model


@settings(max_examples=40)
@given(st.data(), SEEDS)
def test_a_seed_gives_the_same_model_again(data: st.DataObject, seed: int) -> None:
    c: ModelConfig = data.draw(configs())
    head = data.draw(st.none() | heads_of(c))

    def build() -> Model:
        torch.manual_seed(seed)
        return Model.build(c, head)

    one, two = build().state_dict(), build().state_dict()
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


@settings(max_examples=40)
@given(st.data(), SEEDS)
def test_a_state_dict_is_all_there_is(data: st.DataObject, seed: int) -> None:
    """Another model of the same config that loads it gives the same answers, bit for bit."""
    c: ModelConfig = data.draw(configs())
    head = data.draw(heads_of(c))
    batch: Batch = data.draw(batches(c))
    one, two = randomized(Model.build(c, head), seed), Model.build(c, head).eval()
    two.load_state_dict(one.state_dict(), strict=True)
    assert_same(one(batch.ids, batch.flat, batch.segments), two(batch.ids, batch.flat, batch.segments))


def test_an_empty_model_needs_no_compiler() -> None:
    """To import it takes longer than to read most models."""
    code = (
        "import sys; from headstart.config import NextTokenConfig; from headstart.model.model import Model; "
        "from headstart.model.presets import preset; Model.empty(preset('lab'), NextTokenConfig()); "
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_model_larger_than_the_machine_is_refused_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = config(layers=1000, width=65_536)
    with pytest.raises(ModelError, match=r"needs [\d.,]+ GiB for its weights alone, and this machine has"):
        Model.build(wanted)
    monkeypatch.setattr("headstart.model.model.physical_memory", lambda: 2**60)
    # Where the machine has more than the system gives this process:
    refusal = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
    monkeypatch.setattr("headstart.model.model.Backbone", lambda config: (_ for _ in ()).throw(refusal))
    with pytest.raises(ModelError, match="for its weights alone, which is more than there is: choose a smaller one"):
        Model.build(wanted)


def test_the_memory_of_a_container_is_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    monkeypatch.setattr("headstart.model.model.MEMORY_LIMITS", (tmp_path / "missing", tmp_path / "limit"))
    assert physical_memory() == machine
    for content, expected in (("max\n", machine), (f"{2**62}\n", machine), ("1000\n", 1000)):
        (tmp_path / "limit").write_text(content)
        assert physical_memory() == expected
    with pytest.raises(ModelError, match="this machine has 1000 B: choose a smaller one"):
        Model.build(config())
