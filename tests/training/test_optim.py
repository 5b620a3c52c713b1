"""Optimizers, groups, schedules and averages: the plain AdamW is torch's, and a run that stops goes on as it was."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from headstart.config import ClassifierConfig, HeadConfig, MaskedConfig, ModelConfig, NextTokenConfig
from headstart.errors import CheckpointError, ModelError
from headstart.model.layout import Flat
from headstart.model.model import Model
from headstart.training import optim
from headstart.training.optim import (
    Average,
    Kind,
    Optimizers,
    PlainAdamW,
    build_optimizer,
    fused_adamw,
    parameter_groups,
    rate,
    reinitialise_top,
    set_unfrozen,
    unfrozen_layers,
)
from headstart.training.precision import bf16_trouble
from headstart.training.settings import Schedule

KINDS: list[Kind] = ["adamw", "muon"]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """These tensors are so small that handing work round costs more than the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small(head: HeadConfig | None = None, *, seed: int = 0, **changes: Any) -> Model:
    sizes: dict[str, Any] = {"vocabulary": 11, "width": 8, "layers": 3, "heads": 2, "feed_forward": 12, "window": 16}
    parts = {"norm": "pre", "pooler": True, "segments": 2}
    torch.manual_seed(seed)
    return Model.build(ModelConfig(**(sizes | parts | changes)), head or ClassifierConfig(classes=2))


def gradients(model: Model, step: int) -> None:
    """Fresh gradients for every parameter that trains, a function of the weights and of the step alone."""
    torch.manual_seed(step)  # for dropout
    source = torch.Generator().manual_seed(step)
    model.zero_grad()
    ids = torch.randint(11, (12,), generator=source)
    logits = model(ids, Flat.from_lengths([5, 7]))
    loss = (logits**2).sum() + sum((p * torch.randn(p.shape, generator=source)).sum() for p in model.parameters())
    loss.backward()


def weights(model: Model) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# --- AdamW, written out -----------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    decay=st.sampled_from([0.0, 0.01, 0.3]),
    lr=st.sampled_from([1e-4, 1e-2, 0.3]),
    betas=st.sampled_from([(0.9, 0.999), (0.8, 0.95), (0.0, 0.5)]),
    eps=st.sampled_from([1e-8, 1e-3]),
)
def test_the_plain_adamw_is_torchs(seed: int, decay: float, lr: float, betas: tuple[float, float], eps: float) -> None:
    """Over 100 steps of a random quadratic problem, with noise in its gradients, a weight that rests every third step
    and another that never has a gradient."""
    source = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    start = [normal(3, 4), normal(5), normal(2)]
    slope, noise = [normal(3, 4), normal(5), normal(2)], [[normal(3, 4), normal(5)] for _ in range(100)]

    def run(optimizer_class: Callable[..., torch.optim.Optimizer]) -> list[Tensor]:
        params = [nn.Parameter(x.clone()) for x in start]
        optimizer = optimizer_class(params, lr=lr, betas=betas, eps=eps, weight_decay=decay)
        for step in range(100):
            for i, p in enumerate(params[:2]):
                p.grad = slope[i].abs() * p.detach() + noise[step][i]
            if step % 3 == 0:
                params[1].grad = None
            optimizer.step()
        return [p.detach() for p in params]

    ours, theirs = run(PlainAdamW), run(torch.optim.AdamW)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    assert torch.equal(ours[2], start[2])
    assert not torch.equal(ours[0], start[0])


def test_the_first_step_by_hand() -> None:
    """Decay pulls 2 to 2 (1 - 0.1 · 0.5); then comes a step of lr against the gradient, whatever its size."""
    weight = nn.Parameter(torch.tensor([2.0, 2.0], dtype=torch.float64))
    optimizer = PlainAdamW([weight], lr=0.1, eps=0.0, weight_decay=0.5)
    weight.grad = torch.tensor([1e-3, -1e3], dtype=torch.float64)
    optimizer.step()
    assert weight.tolist() == pytest.approx([1.9 - 0.1, 1.9 + 0.1])


def as_optimizers(params: list[nn.Parameter], lr: float, weight_decay: float) -> Optimizers:
    group = {"params": params, "names": ["weight"], "lr": lr, "initial": lr, "weight_decay": weight_decay}
    return Optimizers([fused_adamw([group], (0.9, 0.999), 1e-8)])


@pytest.mark.parametrize("optimizer_class", [PlainAdamW, as_optimizers])
def test_the_courses_reference(optimizer_class: Callable[..., Any], data: Path) -> None:
    """The minBERT assignment's own check of its students' AdamW."""
    reference = np.load(data / "optimizer_test.npy")
    torch.manual_seed(0)
    source = np.random.default_rng(0)
    model = nn.Linear(3, 2, bias=False)
    optimizer = optimizer_class(list(model.parameters()), lr=1e-3, weight_decay=1e-4)
    for _ in range(1000):
        optimizer.zero_grad()
        x = torch.tensor(source.uniform(size=3), dtype=torch.float32)
        y = torch.stack([x[0] + x[1], -x[2]])
        loss = ((y - model(x)) ** 2).sum()
        loss.backward()
        optimizer.step()
    np.testing.assert_allclose(model.weight.detach().numpy(), reference, rtol=1e-4, atol=1e-6)


# --- groups -----------------------------------------------------------------------------------------------------------


def by_name(groups: list[dict[str, Any]], key: str) -> dict[str, Any]:
    return {name: group[key] for group in groups for name in group["names"]}


HEADS: list[tuple[HeadConfig, dict[str, Any]]] = [
    (ClassifierConfig(classes=2, pooler="backbone"), {}),
    (
        ClassifierConfig(classes=3, pool="mean", pooler="tanh"),
        {"norm": "post", "positions": "relative", "pooler": False},
    ),
    (NextTokenConfig(), {"direction": "causal", "tied": True}),
    (NextTokenConfig(), {"direction": "causal", "tied": False}),
    (MaskedConfig(), {"gated": True, "bias": False, "positions": "rotary"}),
]


@pytest.mark.parametrize(("head", "changes"), HEADS)
@pytest.mark.parametrize("frozen", [False, True])
def test_every_parameter_that_trains_is_in_one_group(head: HeadConfig, changes: dict[str, Any], frozen: bool) -> None:
    model = small(head, **changes)
    if frozen:
        model.freeze()
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    groups = parameter_groups(model, lr=0.1, weight_decay=0.01, layer_decay=0.5, head_lr=10)
    named = [pair for group in groups for pair in zip(group["names"], group["params"], strict=True)]
    assert len(named) == len(trainable)
    assert all(trainable[name] is p for name, p in named)
    for group in groups:
        assert group["initial"] == group["lr"]
        assert {p.dim() >= 2 for p in group["params"]} == {group["weight_decay"] == 0.01}
    settings = [(group["lr"], group["weight_decay"]) for group in groups]
    assert len(set(settings)) == len(settings)
    assert len({group["name"] for group in groups}) == len(groups)


def test_rates_fall_from_the_head_to_the_embeddings() -> None:
    """Three layers; each step down from the head halves the rate."""
    model = small(ClassifierConfig(classes=2, pooler="backbone"))
    found = by_name(parameter_groups(model, lr=0.8, weight_decay=0.0, layer_decay=0.5, head_lr=10), "lr")
    expected = {
        "head.": 8.0,
        "backbone.pooler.": 0.8,
        "backbone.norm.": 0.8,
        "backbone.layers.2.": 0.4,
        "backbone.layers.1.": 0.2,
        "backbone.layers.0.": 0.1,
        "backbone.embeddings.": 0.05,
    }
    for name, lr in found.items():
        (prefix,) = [prefix for prefix in expected if name.startswith(prefix)]
        assert lr == pytest.approx(expected[prefix]), name
    assert {prefix for prefix in expected if any(name.startswith(prefix) for name in found)} == expected.keys()


def test_a_tied_head_learns_with_the_embeddings() -> None:
    model = small(NextTokenConfig(), direction="causal", tied=True)
    found = by_name(parameter_groups(model, lr=0.8, weight_decay=0.1, layer_decay=0.5, head_lr=10), "lr")
    assert found["backbone.embeddings.tokens.weight"] == pytest.approx(0.8 * 0.5**4)


def test_norms_and_biases_do_not_decay() -> None:
    model = small(MaskedConfig())
    found = by_name(parameter_groups(model, lr=1, weight_decay=0.1), "weight_decay")
    for name, decay in found.items():
        assert decay == (0.0 if "norm" in name or name.endswith("bias") else 0.1), name


def test_equal_groups_are_one_and_say_what_they_hold() -> None:
    model = small()
    names = [group["name"] for group in parameter_groups(model, lr=1, weight_decay=0.1)]
    everything = "embeddings, layer 0, layer 1, layer 2, top, head"
    assert names == [everything, everything + " (no decay)"]
    slower = [group["name"] for group in parameter_groups(model, lr=1, weight_decay=0, layer_decay=0.5, head_lr=2)]
    assert slower == [f"{place} (no decay)" for place in ("embeddings", "layer 0", "layer 1", "layer 2", "top", "head")]


# --- the optimizers that training uses --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_each_parameter_is_moved_by_one_optimizer(kind: Kind) -> None:
    model = small()
    optimizer = build_optimizer(model, kind=kind, lr=0.1, weight_decay=0.01, layer_decay=0.5)
    moved = [name for group in optimizer.groups for name in group["names"]]
    assert sorted(moved) == sorted(name for name, _ in model.named_parameters())
    before = weights(model)
    gradients(model, 0)
    optimizer.step()
    assert not any(torch.equal(p, before[name]) for name, p in model.named_parameters())


def matrices_of(optimizer: Optimizers) -> list[str]:
    """The names of what Muon moves."""
    return [name for group in optimizer.parts[0].param_groups for name in group["names"]]


def test_muon_moves_the_matrices_of_the_layers() -> None:
    model = small()
    optimizer = build_optimizer(model, kind="muon", lr=0.1, weight_decay=0.02)
    muon, adamw = optimizer.parts
    assert isinstance(muon, torch.optim.Muon)
    assert isinstance(adamw, torch.optim.AdamW)
    kinds = ("attention.qkv", "attention.out", "feed_forward.up", "feed_forward.down")
    assert set(matrices_of(optimizer)) == {f"backbone.layers.{i}.{kind}.weight" for i in range(3) for kind in kinds}
    assert {group["weight_decay"] for group in muon.param_groups} == {0.02}


def test_muon_steps_are_as_large_as_adamws() -> None:
    """So one learning rate suits both. A step of AdamW moves a weight by about 0.2 to 0.4 of lr in practice; Muon's by
    0.2 of it, whatever the matrix's shape, times singular values that its five iterations bring near 1."""
    model = small(width=128, feed_forward=128)
    before = weights(model)
    optimizer = build_optimizer(model, kind="muon", lr=0.01, weight_decay=0.0)
    gradients(model, 0)
    optimizer.step()
    for name in matrices_of(optimizer):
        moved = (model.get_parameter(name) - before[name]).square().mean().sqrt().item()
        assert moved == pytest.approx(0.2 * 0.01, rel=0.25), name


def test_a_frozen_backbone_leaves_muon_nothing() -> None:
    optimizer = build_optimizer(small().freeze(), kind="muon", lr=0.1)
    assert [type(part) for part in optimizer.parts] == [torch.optim.AdamW]


@pytest.mark.skipif(bf16_trouble("cpu") is not None, reason="torch's Muon multiplies in bf16, which this CPU cannot")
def test_muon_is_torchs() -> None:
    """Upright matrices, wide ones and square ones; clipped gradients; a rate that changes."""
    ours, theirs = small(width=16, feed_forward=40), small(width=16, feed_forward=40)
    optimizer = build_optimizer(ours, kind="muon", lr=0.01, weight_decay=0.3)
    groups = [
        {"params": [theirs.get_parameter(name) for name in group["names"]], "weight_decay": group["weight_decay"]}
        for group in optimizer.parts[0].param_groups
    ]
    reference = torch.optim.Muon(groups, lr=0.01, adjust_lr_fn="match_rms_adamw")
    for step in range(4):
        gradients(ours, step)
        for name, p in theirs.named_parameters():
            slope = ours.get_parameter(name).grad
            assert slope is not None
            p.grad = slope / 3**step  # at one scale all steps would be the same
        optimizer.step(1 / (1 + step), divide=torch.tensor(3.0**step))
        for group in reference.param_groups:
            group["lr"] = 0.01 / (1 + step)
        reference.step()  # type: ignore[no-untyped-call]
        for name in matrices_of(optimizer):
            p, expected = ours.get_parameter(name), theirs.get_parameter(name)
            torch.testing.assert_close(p, expected, rtol=0, atol=2e-4)  # a step moves a weight by about 2e-3
            with torch.no_grad():
                p.copy_(expected)


def test_where_bf16_fails_muon_multiplies_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optim, "bf16_trouble", lambda device: "could not create a primitive")
    model = small(width=32, feed_forward=64)
    before = weights(model)
    optimizer = build_optimizer(model, kind="muon", lr=0.1, weight_decay=0.0)
    gradients(model, 0)
    optimizer.step()
    for name in matrices_of(optimizer):
        moved = (before[name] - model.get_parameter(name)) / (0.1 * 0.2 * math.sqrt(max(before[name].shape)))
        values = torch.linalg.svdvals(moved)
        assert values.max() < 1.3 and values.median() > 0.6, name


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_is_wholly_frozen_is_refused(kind: Kind) -> None:
    model = small()
    model.requires_grad_(False)
    with pytest.raises(ModelError, match="frozen"):
        build_optimizer(model, kind=kind, lr=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_factor_multiplies_the_initial_rate_and_not_the_last(kind: Kind) -> None:
    model = small()
    optimizer = build_optimizer(model, kind=kind, lr=0.1, head_lr=3)
    gradients(model, 0)
    for factor in (0.5, 0.25):
        optimizer.step(factor)
        for group in optimizer.groups:
            assert group["lr"] == pytest.approx((0.3 if group["name"].startswith("head") else 0.1) * factor)


@pytest.mark.parametrize("kind", KINDS)
def test_a_factor_of_zero_moves_nothing(kind: Kind) -> None:
    model = small()
    before = weights(model)
    optimizer = build_optimizer(model, kind=kind, lr=0.1, weight_decay=0.5)
    gradients(model, 0)
    optimizer.step(0.0)
    assert same(weights(model), before)


def test_fused_adamw_is_the_plain_one() -> None:
    """Through the groups, rates and decays of a real model."""
    model = small().double()
    twin = copy.deepcopy(model)
    how: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.1, "layer_decay": 0.7, "head_lr": 5}
    fused = build_optimizer(model, **how, betas=(0.8, 0.9), eps=1e-6)
    plain = PlainAdamW(parameter_groups(twin, **how), betas=(0.8, 0.9), eps=1e-6)
    for step in range(10):
        gradients(model, step)
        fused.step()
        gradients(twin, step)
        plain.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p, twin.get_parameter(name), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", [0, 1, 4])
def test_a_run_that_stops_goes_on_as_it_was(kind: Kind, stop: int, tmp_path: Path) -> None:
    """Through a file, with fresh objects, to the bit; some layers thaw after the stop, so not all have a state then."""

    def fresh() -> tuple[Model, Optimizers]:
        model = small()
        return model, build_optimizer(model, kind=kind, lr=0.02, weight_decay=0.1, layer_decay=0.9)

    def train(model: Model, optimizer: Optimizers, first: int, last: int) -> None:
        for step in range(first, last):
            set_unfrozen(model, None if step >= 5 else 1)
            gradients(model, step)
            optimizer.step(rate("cosine", step, 8, 2))

    model, optimizer = fresh()
    train(model, optimizer, 0, 8)
    never_stopped = weights(model), optimizer.state_dict()[0]

    model, optimizer = fresh()
    train(model, optimizer, 0, stop)
    tensors, meta = optimizer.state_dict()
    save_file({**tensors, **{f"model.{name}": p for name, p in weights(model).items()}}, tmp_path / "state.safetensors")
    del model, optimizer, tensors

    found = load_file(tmp_path / "state.safetensors")
    model, optimizer = fresh()
    model.load_state_dict({name.removeprefix("model."): t for name, t in found.items() if name.startswith("model.")})
    optimizer.load_state_dict({name: t for name, t in found.items() if not name.startswith("model.")}, meta)
    train(model, optimizer, stop, 8)
    assert same(weights(model), never_stopped[0])
    assert same(optimizer.state_dict()[0], never_stopped[1])
    assert len(never_stopped[1]) > len(list(model.parameters()))  # a state for every parameter, moments and counts


def test_what_is_loaded_is_a_copy() -> None:
    model = small()
    optimizer = build_optimizer(model, lr=0.1)
    gradients(model, 0)
    optimizer.step()
    tensors, meta = optimizer.state_dict()
    kept = {name: t.clone() for name, t in tensors.items()}
    other = build_optimizer(model, lr=0.1)
    other.load_state_dict(tensors, meta)
    gradients(model, 1)
    other.step()
    assert same(tensors, kept)


def test_loading_forgets_what_was_there() -> None:
    model = small()
    optimizer = build_optimizer(model, lr=0.1)
    beginning = optimizer.state_dict()
    gradients(model, 0)
    optimizer.step()
    optimizer.load_state_dict(*beginning)
    assert optimizer.state_dict()[0] == {}


def test_the_state_of_another_run_is_refused_and_changes_nothing() -> None:
    model = small()
    optimizer = build_optimizer(model, lr=0.1)
    gradients(model, 0)
    optimizer.step()
    tensors, meta = optimizer.state_dict()
    kept = {name: t.clone() for name, t in tensors.items()}

    with pytest.raises(CheckpointError, match=r"\['AdamW'\].*\['Muon', 'AdamW'\]"):
        build_optimizer(model, kind="muon", lr=0.1).load_state_dict(tensors, meta)
    with pytest.raises(CheckpointError, match=r"head\.out\.gain"):
        optimizer.load_state_dict({**tensors, "head.out.gain.exp_avg": torch.zeros(2)}, meta)
    with pytest.raises(CheckpointError, match=r"head\.out\.weight\.exp_avg has shape \(2, 9\), expected \(2, 8\)"):
        optimizer.load_state_dict({**tensors, "head.out.weight.exp_avg": torch.zeros(2, 9)}, meta)
    assert same(optimizer.state_dict()[0], kept)


def test_zero_grad_takes_the_gradients_away() -> None:
    model = small()
    optimizer = build_optimizer(model, kind="muon", lr=0.1)
    gradients(model, 0)
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())


# --- schedules --------------------------------------------------------------------------------------------------------

runs = st.integers(1, 200).flatmap(lambda total: st.tuples(st.just(total), st.integers(0, 2 * total)))


@pytest.mark.parametrize("schedule", get_args(Schedule))
@settings(max_examples=100, deadline=None)
@given(run=runs)
def test_a_rate_rises_to_one_and_then_falls(schedule: Schedule, run: tuple[int, int]) -> None:
    total, warmup = run
    rates = [rate(schedule, step, total, warmup) for step in range(total)]
    if schedule == "one-cycle" and warmup == 0:
        warmup = round(0.3 * total)
    warmup = min(warmup, total)
    assert all(0 < r <= 1 for r in rates)
    assert max(rates) == 1
    rising, falling = rates[:warmup], rates[max(warmup - 1, 0) :]
    assert rising == pytest.approx([(step + 1) / warmup for step in range(warmup)])
    assert falling[0] == 1
    assert falling == sorted(falling, reverse=True)


@pytest.mark.parametrize("schedule", get_args(Schedule))
@pytest.mark.parametrize("warmup", [0, 1, 5])
def test_a_run_of_one_step_is_at_the_full_rate(schedule: Schedule, warmup: int) -> None:
    assert rate(schedule, 0, 1, warmup) == 1.0


def test_the_shapes_of_the_fall() -> None:
    """Half-way down: constant 1, linear and cosine 1/2, one-cycle half-way to a thousandth; a quarter of the way down
    cosine has lost (1 - cos 45°) / 2."""
    assert rate("constant", 60, 100, 20) == 1
    assert rate("linear", 60, 100, 20) == pytest.approx(0.5)
    assert rate("cosine", 60, 100, 20) == pytest.approx(0.5)
    assert rate("one-cycle", 65, 100, 0) == pytest.approx((1 + 1e-3) / 2)
    assert rate("linear", 40, 100, 20) == pytest.approx(0.75)
    assert rate("cosine", 40, 100, 20) == pytest.approx(1 - (1 - math.cos(math.pi / 4)) / 2)


def test_where_the_falls_end() -> None:
    """The last step of a long run still learns, but hardly; one-cycle ends at a thousandth."""
    last = 10**9 - 1
    assert 0 < rate("linear", last, 10**9, 0) <= 1.01e-9
    assert 0 < rate("cosine", last, 10**9, 0) < 1e-16
    assert rate("one-cycle", last, 10**9, 0) == pytest.approx(1e-3)


@pytest.mark.parametrize("step", [-1, 10, 11])
def test_a_step_outside_of_the_run_is_refused(step: int) -> None:
    """A line that falls on would turn learning round."""
    with pytest.raises(ValueError, match=rf"step {step} of a run of 10"):
        rate("linear", step, 10, 0)


# --- averages ---------------------------------------------------------------------------------------------------------


def test_swapping_twice_changes_nothing() -> None:
    model = small()
    average = Average(model, 0.9)
    gradients(model, 0)
    build_optimizer(model, lr=0.1).step()
    average.update(model)
    live, averaged = weights(model), {name: t.clone() for name, t in average.state_dict().items()}
    average.swap(model)
    assert not same(weights(model), live)
    assert same({**weights(model), "updates": averaged["updates"]}, averaged)
    average.swap(model)
    assert same(weights(model), live)
    assert same(average.state_dict(), averaged)


def test_an_average_by_hand() -> None:
    """All weights 0, then 1, 2, 3. Updates keep 2/11, 3/12 and 4/13 of the average while that is below the decay."""
    model = small()

    def fill(value: float) -> None:
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(value)

    for decay, kept in ((0.999, (2 / 11, 3 / 12, 4 / 13)), (0.25, (2 / 11, 0.25, 0.25)), (0.1, (0.1, 0.1, 0.1))):
        fill(0.0)
        average, expected = Average(model, decay), 0.0
        for step, share in enumerate(kept):
            fill(step + 1.0)
            average.update(model)
            expected = share * expected + (1 - share) * (step + 1.0)
        average.swap(model)
        for name, p in model.named_parameters():
            assert p.flatten()[0].item() == pytest.approx(expected), (name, decay)


def test_an_average_goes_on_from_its_state(tmp_path: Path) -> None:
    def run(stop: int | None) -> dict[str, Tensor]:
        model = small()
        average, optimizer = Average(model, 0.9), build_optimizer(model, lr=0.05)
        for step in range(5):
            gradients(model, step)
            optimizer.step()
            average.update(model)
            if step == stop:
                save_file(average.state_dict(), tmp_path / "average.safetensors")
                average = Average(model, 0.9)
                average.load_state_dict(load_file(tmp_path / "average.safetensors"))
        return average.state_dict()

    assert same(run(stop=2), run(stop=None))


def test_an_average_is_of_what_trains() -> None:
    model = small().freeze()
    average = Average(model, 0.9)
    assert set(average.state_dict()) == {"head.out.weight", "head.out.bias", "updates"}
    with pytest.raises(CheckpointError, match=r"backbone\..* is in one only"):
        average.load_state_dict(Average(small(), 0.9).state_dict())


# --- what trains, and what starts afresh ------------------------------------------------------------------------------


def test_layers_thaw_from_the_top() -> None:
    assert [unfrozen_layers(epoch, 3) for epoch in range(6)] == [0, 1, 2, 3, 3, 3]
    assert [unfrozen_layers(epoch, 2, every=2) for epoch in range(6)] == [0, 0, 1, 1, 2, 2]


TOP = {"backbone.norm", "backbone.pooler"}


@pytest.mark.parametrize(
    ("count", "parts"),
    [
        (0, set()),
        (1, {"backbone.layers.2"} | TOP),
        (2, {"backbone.layers.1", "backbone.layers.2"} | TOP),
        (3, {"backbone"}),
        (None, {"backbone"}),
    ],
)
def test_what_trains(count: int | None, parts: set[str]) -> None:
    model = small()
    set_unfrozen(model, 0 if count else None)  # whatever was before
    set_unfrozen(model, count)
    for name, p in model.named_parameters():
        assert p.requires_grad == any(name.startswith(f"{part}.") for part in parts | {"head"}), name


def test_a_backbone_has_dropout_from_its_first_thaw() -> None:
    model = small().train()
    set_unfrozen(model, 0)
    assert (model.training, model.backbone.training) == (True, False)
    set_unfrozen(model, 1)
    assert (model.training, model.backbone.training) == (True, True)
    model.eval()
    set_unfrozen(model, 2)
    assert (model.training, model.backbone.training) == (False, False)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_the_top_layers_are_drawn_anew(count: int) -> None:
    model = small()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(7.0)
    reinitialise_top(model, count)
    fresh = [f"backbone.layers.{i}." for i in range(3 - count, 3)] + ["backbone.pooler."] * (count > 0)
    for name, p in model.named_parameters():
        assert (7.0 in p) != name.startswith(tuple(fresh)), name


@pytest.mark.parametrize("count", [-1, 4])
def test_no_more_layers_can_be_drawn_anew_than_there_are(count: int) -> None:
    with pytest.raises(ModelError, match=f"{count} layers to draw anew, and the model has 3"):
        reinitialise_top(small(), count)
