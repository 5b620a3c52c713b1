"""Optimizers and parameter groups: the plain AdamW is torch's, and a run that stops goes on as it was."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
from headstart.training.hardware import bf16_problem
from headstart.training.optim import AdamW, Optimizers, PlainAdamW, build_optimizer, parameter_groups
from headstart.training.schedule import lr_factor, unfreeze_top
from headstart.training.settings import OptimizerSettings

KINDS = ["adamw", "muon"]


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
    curvature, noise = [normal(3, 4), normal(5), normal(2)], [[normal(3, 4), normal(5)] for _ in range(100)]

    def run(optimizer_class: Callable[..., torch.optim.Optimizer]) -> list[Tensor]:
        params = [nn.Parameter(x.clone()) for x in start]
        optimizer = optimizer_class(params, lr=lr, betas=betas, eps=eps, weight_decay=decay)
        for step in range(100):
            for i, p in enumerate(params[:2]):
                p.grad = curvature[i].abs() * p.detach() + noise[step][i]
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
    return Optimizers([AdamW([group], OptimizerSettings())])


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
    groups = parameter_groups(model, OptimizerSettings(lr=0.1, weight_decay=0.01, layer_decay=0.5, head_lr=10))
    named = [pair for group in groups for pair in zip(group["names"], group["params"], strict=True)]
    assert len(named) == len(trainable)
    assert all(trainable[name] is p for name, p in named)
    for group in groups:
        assert group["initial"] == group["lr"]
        assert {p.dim() >= 2 for p in group["params"]} == {group["weight_decay"] == 0.01}
    settings = [(group["lr"], group["weight_decay"]) for group in groups]
    assert len(set(settings)) == len(settings)


def test_rates_fall_from_the_head_to_the_embeddings() -> None:
    """Three layers; each step down from the head halves the rate."""
    model = small(ClassifierConfig(classes=2, pooler="backbone"))
    found = by_name(
        parameter_groups(model, OptimizerSettings(lr=0.8, weight_decay=0.0, layer_decay=0.5, head_lr=10)), "lr"
    )
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
    found = by_name(
        parameter_groups(model, OptimizerSettings(lr=0.8, weight_decay=0.1, layer_decay=0.5, head_lr=10)), "lr"
    )
    assert found["backbone.embeddings.tokens.weight"] == pytest.approx(0.8 * 0.5**4)


def test_norms_and_biases_do_not_decay() -> None:
    model = small(MaskedConfig())
    found = by_name(parameter_groups(model, OptimizerSettings(lr=1, weight_decay=0.1)), "weight_decay")
    for name, decay in found.items():
        assert decay == (0.0 if "norm" in name or name.endswith("bias") else 0.1), name


def test_parameters_of_one_rate_and_decay_are_one_group() -> None:
    model = small()
    assert len(parameter_groups(model, OptimizerSettings(lr=1, weight_decay=0.1))) == 2
    slower = parameter_groups(model, OptimizerSettings(lr=1, weight_decay=0, layer_decay=0.5, head_lr=2))
    assert [group["lr"] for group in slower] == [0.5**4, 0.5**3, 0.5**2, 0.5, 1.0, 2.0]


# --- the optimizers that training uses --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_each_parameter_is_moved_by_one_optimizer(kind: Any) -> None:
    model = small()
    optimizer = build_optimizer(model, OptimizerSettings(optimizer=kind, lr=0.1, weight_decay=0.01, layer_decay=0.5))
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
    optimizer = build_optimizer(model, OptimizerSettings(optimizer="muon", lr=0.1, weight_decay=0.02))
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
    optimizer = build_optimizer(model, OptimizerSettings(optimizer="muon", lr=0.01, weight_decay=0.0))
    gradients(model, 0)
    optimizer.step()
    for name in matrices_of(optimizer):
        moved = (model.get_parameter(name) - before[name]).square().mean().sqrt().item()
        assert moved == pytest.approx(0.2 * 0.01, rel=0.25), name


def test_a_frozen_backbone_leaves_muon_nothing() -> None:
    optimizer = build_optimizer(small().freeze(), OptimizerSettings(optimizer="muon", lr=0.1))
    assert [type(part) for part in optimizer.parts] == [AdamW]


@pytest.mark.skipif(bf16_problem("cpu") is not None, reason="torch's Muon multiplies in bf16, which this CPU cannot")
def test_muon_is_torchs() -> None:
    """Tall matrices, wide ones and square ones; clipped gradients; a rate that changes."""
    ours, theirs = small(width=16, feed_forward=40), small(width=16, feed_forward=40)
    optimizer = build_optimizer(ours, OptimizerSettings(optimizer="muon", lr=0.01, weight_decay=0.3))
    groups = [
        {"params": [theirs.get_parameter(name) for name in group["names"]], "weight_decay": group["weight_decay"]}
        for group in optimizer.parts[0].param_groups
    ]
    reference = torch.optim.Muon(groups, lr=0.01, adjust_lr_fn="match_rms_adamw")
    for step in range(4):
        gradients(ours, step)
        for name, p in theirs.named_parameters():
            gradient = ours.get_parameter(name).grad
            assert gradient is not None
            p.grad = gradient / 3**step  # at one scale all steps would be the same
        optimizer.set_lr(1 / (1 + step))
        optimizer.step(divide_by=torch.tensor(3.0**step))
        for group in reference.param_groups:
            group["lr"] = 0.01 / (1 + step)
        reference.step()  # type: ignore[no-untyped-call]
        for name in matrices_of(optimizer):
            p, expected = ours.get_parameter(name), theirs.get_parameter(name)
            torch.testing.assert_close(p, expected, rtol=0, atol=2e-4)  # a step moves a weight by about 2e-3
            with torch.no_grad():
                p.copy_(expected)


def test_where_bf16_fails_muon_multiplies_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optim, "bf16_problem", lambda device: "could not create a primitive")
    model = small(width=32, feed_forward=64)
    before = weights(model)
    optimizer = build_optimizer(model, OptimizerSettings(optimizer="muon", lr=0.1, weight_decay=0.0))
    gradients(model, 0)
    optimizer.step()
    for name in matrices_of(optimizer):
        moved = (before[name] - model.get_parameter(name)) / (0.1 * 0.2 * math.sqrt(max(before[name].shape)))
        values = torch.linalg.svdvals(moved)
        assert values.max() < 1.3 and values.median() > 0.6, name


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_is_wholly_frozen_is_refused(kind: Any) -> None:
    model = small()
    model.requires_grad_(False)
    with pytest.raises(ModelError, match="frozen"):
        build_optimizer(model, OptimizerSettings(optimizer=kind, lr=0.1))


@pytest.mark.parametrize("kind", KINDS)
def test_a_factor_multiplies_the_initial_rate_and_not_the_last(kind: Any) -> None:
    model = small()
    optimizer = build_optimizer(model, OptimizerSettings(optimizer=kind, lr=0.1, head_lr=3))
    gradients(model, 0)
    for factor in (0.5, 0.25):
        optimizer.set_lr(factor)
        optimizer.step()
        for group in optimizer.groups:
            initial = 0.3 if group["names"][0].startswith("head.") else 0.1
            assert group["lr"] == pytest.approx(initial * factor)


@pytest.mark.parametrize("kind", KINDS)
def test_a_factor_of_zero_moves_nothing(kind: Any) -> None:
    model = small()
    before = weights(model)
    optimizer = build_optimizer(model, OptimizerSettings(optimizer=kind, lr=0.1, weight_decay=0.5))
    gradients(model, 0)
    optimizer.set_lr(0.0)
    optimizer.step()
    assert same(weights(model), before)


def test_fused_adamw_is_the_plain_one() -> None:
    """Through the groups, rates and decays of a real model."""
    model = small().double()
    twin = copy.deepcopy(model)
    how = OptimizerSettings(lr=0.01, weight_decay=0.1, layer_decay=0.7, head_lr=5, beta1=0.8, beta2=0.9, epsilon=1e-6)
    fused = build_optimizer(model, how)
    plain = PlainAdamW(parameter_groups(twin, how), betas=(0.8, 0.9), eps=1e-6)
    for step in range(10):
        gradients(model, step)
        fused.step()
        gradients(twin, step)
        plain.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p, twin.get_parameter(name), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_within_the_limit_are_not_divided(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """To divide by 1 gives the same bits, and writes every gradient once more."""
    given = []

    def noted(*tensors: Any, grad_scale: Any, fused: Any = torch._fused_adamw_, **more: Any) -> None:
        given.append(grad_scale)
        fused(*tensors, grad_scale=grad_scale, **more)

    monkeypatch.setattr(torch, "_fused_adamw_", noted)
    model = small()
    moved = []
    for scale in (None, torch.tensor(1.0), torch.tensor(4.0)):
        twin = copy.deepcopy(model)
        gradients(twin, 1)
        build_optimizer(twin, OptimizerSettings(optimizer=kind)).step(divide_by=scale)
        moved.append(weights(twin))
    assert same(moved[0], moved[1])
    assert [each is None for each in dict.fromkeys(given)] == [True, False]  # None twice, then 4


def test_adamw_is_torchs_to_the_bit() -> None:
    """Over a gradient scale, a step that is skipped, and a parameter that has no gradient yet."""
    model = small()
    twin = copy.deepcopy(model)
    how = OptimizerSettings(lr=0.01, weight_decay=0.1, layer_decay=0.7, head_lr=5)
    ours = build_optimizer(model, how)
    theirs = Optimizers([torch.optim.AdamW(parameter_groups(twin, how), betas=(how.beta1, how.beta2), fused=True)])
    for step in range(4):
        for each, optimizer in ((model, ours), (twin, theirs)):
            gradients(each, step)
            if step == 0:
                each.backbone.embeddings.tokens.weight.grad = None
            optimizer.step(divide_by=torch.tensor(3.0), skip=torch.tensor(step == 2))
            optimizer.zero_grad()
    assert same(weights(model), weights(twin))
    assert same(ours.state_dict()[0], theirs.state_dict()[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", [0, 1, 4])
def test_a_run_that_stops_goes_on_as_it_was(kind: Any, stop: int, tmp_path: Path) -> None:
    """Through a file, with fresh objects, to the bit; layers that are unfrozen after the stop have no state yet."""

    def fresh() -> tuple[Model, Optimizers]:
        model = small()
        return model, build_optimizer(
            model, OptimizerSettings(optimizer=kind, lr=0.02, weight_decay=0.1, layer_decay=0.9)
        )

    def train(model: Model, optimizer: Optimizers, first: int, last: int) -> None:
        for step in range(first, last):
            unfreeze_top(model, 3 if step >= 5 else 1)
            gradients(model, step)
            optimizer.set_lr(lr_factor("cosine", step, 8, 2))
            optimizer.step()

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
    optimizer = build_optimizer(model, OptimizerSettings(lr=0.1))
    gradients(model, 0)
    optimizer.step()
    tensors, meta = optimizer.state_dict()
    kept = {name: t.clone() for name, t in tensors.items()}
    other = build_optimizer(model, OptimizerSettings(lr=0.1))
    other.load_state_dict(tensors, meta)
    gradients(model, 1)
    other.step()
    assert same(tensors, kept)


def test_loading_forgets_what_was_there() -> None:
    model = small()
    optimizer = build_optimizer(model, OptimizerSettings(lr=0.1))
    beginning = optimizer.state_dict()
    gradients(model, 0)
    optimizer.step()
    optimizer.load_state_dict(*beginning)
    assert optimizer.state_dict()[0] == {}


def test_the_state_of_another_run_is_refused_and_changes_nothing() -> None:
    model = small()
    optimizer = build_optimizer(model, OptimizerSettings(lr=0.1))
    gradients(model, 0)
    optimizer.step()
    tensors, meta = optimizer.state_dict()
    kept = {name: t.clone() for name, t in tensors.items()}

    with pytest.raises(CheckpointError, match=r"\['AdamW'\].*\['Muon', 'AdamW'\]"):
        build_optimizer(model, OptimizerSettings(optimizer="muon", lr=0.1)).load_state_dict(tensors, meta)
    with pytest.raises(CheckpointError, match=r"head\.out\.gain"):
        optimizer.load_state_dict({**tensors, "head.out.gain.exp_avg": torch.zeros(2)}, meta)
    with pytest.raises(CheckpointError, match=r"head\.out\.weight\.exp_avg has shape \(2, 9\), expected \(2, 8\)"):
        optimizer.load_state_dict({**tensors, "head.out.weight.exp_avg": torch.zeros(2, 9)}, meta)
    assert same(optimizer.state_dict()[0], kept)


def test_zero_grad_takes_the_gradients_away() -> None:
    model = small()
    optimizer = build_optimizer(model, OptimizerSettings(optimizer="muon", lr=0.1))
    gradients(model, 0)
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())
