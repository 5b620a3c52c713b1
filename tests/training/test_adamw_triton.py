"""AdamW in one Triton kernel against the plain one; without a GPU by Triton's interpreter, TRITON_INTERPRET=1."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headstart.batches.batch import Batch
from headstart.config import ClassifierConfig
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.training import adamw_triton
from headstart.training.adamw_triton import BLOCK, FusedAdamW
from headstart.training.moving_average import MovingAverage
from headstart.training.objectives import Classification
from headstart.training.optim import AdamW, Optimizers, PlainAdamW, build_optimizer
from headstart.training.settings import OptimizerSettings, TrainingSettings
from headstart.training.sharding import ParallelModel
from headstart.training.stepper import CudaGraphStepper

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
pytestmark = pytest.mark.skipif(
    not adamw_triton.AVAILABLE or not (ON_GPU or os.environ.get("TRITON_INTERPRET") == "1"),
    reason="needs Triton, and a GPU or TRITON_INTERPRET=1",
)
SHAPES = [(3, 5), (2, BLOCK), (BLOCK + 1,), (7,), (5, 1000), (2,)]  # the last never has a gradient
WITH_COPY = [0, 1, 4]  # and their gradients are in bf16
SETTINGS = OptimizerSettings(lr=0.01, beta1=0.8, beta2=0.95, epsilon=1e-6)


class Run:
    """Parameters in two groups, the copies of some, and the kernel that moves them."""

    def __init__(self) -> None:
        source = torch.Generator().manual_seed(0)
        self.params = [nn.Parameter(torch.randn(shape, generator=source).to(DEVICE)) for shape in SHAPES]
        self.copies = {self.params[i]: self.params[i].detach().to(torch.bfloat16).requires_grad_() for i in WITH_COPY}
        names = [str(i) for i in range(len(SHAPES))]
        self.optimizer = AdamW(
            [
                {"params": self.params[:2], "names": names[:2], "lr": 0.01, "initial": 0.01, "weight_decay": 0.1},
                {"params": self.params[2:], "names": names[2:], "lr": 0.03, "initial": 0.03, "weight_decay": 0.0},
            ],
            SETTINGS,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = torch.tensor(group["lr"], device=DEVICE)
        self.optimizers = Optimizers([self.optimizer])
        self.fused = FusedAdamW(self.optimizer, self.copies)

    def give_gradients(self, step: int) -> list[Tensor]:
        """Of every parameter but the last, and in the first step but the fourth; the same in float32."""
        source, gradients = torch.Generator().manual_seed(100 + step), []
        for i, p in enumerate(self.params[:-1]):
            gradient = torch.randn(p.shape, generator=source).to(DEVICE) * 10.0 ** (i - 2)
            if p in self.copies:
                gradient = gradient.to(torch.bfloat16)
            where = self.copies.get(p, p)
            where.grad = None if step == 0 and i == 3 else gradient
            gradients.append(gradient.float())
        return gradients

    def step(self, divide_by: float = 1.0, skip: bool = False) -> Tensor:
        norm = self.fused.gradient_norm()
        self.fused.step(divide_by=torch.tensor(divide_by, device=DEVICE), skip=torch.tensor(skip, device=DEVICE))
        return norm


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6 * max(1.0, b.detach().abs().max().item()))


def is_copy(copy: Tensor, master: Tensor) -> bool:
    """The interpreter cuts off where a GPU rounds to the nearest."""
    expected = master.detach().to(torch.bfloat16)
    return torch.equal(copy, expected) if ON_GPU else torch.allclose(copy.float(), expected.float(), rtol=2**-7)


def test_the_kernel_is_the_plain_adamw() -> None:
    """Gradients in bf16 and float32, blocks that are whole and not, a gradient scale, a step that is skipped."""
    run = Run()
    twins = [nn.Parameter(p.detach().clone()) for p in run.params]
    groups = [{"params": twins[:2], "lr": 0.01, "weight_decay": 0.1}, {"params": twins[2:], "lr": 0.03}]
    plain = PlainAdamW(groups, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.0)
    start = [p.detach().clone() for p in twins]
    for step in range(5):
        gradients = run.give_gradients(step)
        used = [g for i, g in enumerate(gradients) if not (step == 0 and i == 3)]
        norm = run.step(divide_by=1.0 + step, skip=step == 2)
        torch.testing.assert_close(norm, torch.nn.utils.get_total_norm(used), rtol=1e-5, atol=0.0)
        if step == 2:
            continue
        for i, gradient in enumerate(gradients):
            twins[i].grad = None if step == 0 and i == 3 else gradient / (1.0 + step)
        plain.step()
        for p, twin in zip(run.params, twins, strict=True):
            close(p, twin)
        for p, copy in run.copies.items():
            assert is_copy(copy, p)
    assert torch.equal(run.params[-1], start[-1]) and run.params[-1] not in run.optimizer.state
    assert not any(torch.equal(p, before) for p, before in zip(run.params[:-1], start, strict=False))
    assert [int(run.optimizer.state[p]["step"]) for p in run.params[:-1]] == [4, 4, 4, 3, 4]


def test_a_skipped_step_writes_nothing() -> None:
    run = Run()
    run.give_gradients(0)
    run.step()
    before = {name: value.clone() for name, value in run.optimizers.state_dict()[0].items()}
    weights = [p.detach().clone() for p in [*run.params, *run.copies.values()]]
    run.give_gradients(1)
    run.copies[run.params[1]].grad.fill_(torch.nan)  # type: ignore[union-attr]
    assert not run.step(divide_by=torch.nan, skip=True).isfinite()
    after = run.optimizers.state_dict()[0]
    assert all(torch.equal(value, before[name]) for name, value in after.items() if not name.startswith("3."))
    assert all(torch.equal(p, was) for p, was in zip([*run.params, *run.copies.values()], weights, strict=True))


@pytest.mark.parametrize("kernel_first", [True, False])
def test_it_goes_on_from_the_state_of_torchs_and_the_other_way(kernel_first: bool) -> None:
    def train(run: Run, steps: range, by_kernel: bool) -> None:
        for step in steps:
            gradients = run.give_gradients(step)
            if by_kernel:
                run.step()
                continue
            for i, (p, gradient) in enumerate(zip(run.params, gradients, strict=False)):
                p.grad = None if step == 0 and i == 3 else gradient
            run.optimizers.step()

    one_kind, both = Run(), Run()
    train(one_kind, range(4), by_kernel=True)
    train(both, range(2), by_kernel=kernel_first)
    later = Run()
    with torch.no_grad():
        for p, q in zip(later.params, both.params, strict=True):
            p.copy_(q)
    later.optimizers.load_state_dict(*both.optimizers.state_dict())
    train(later, range(2, 4), by_kernel=not kernel_first)
    for p, q in zip(later.params, one_kind.params, strict=True):
        close(p, q)
    moments, expected = later.optimizers.state_dict()[0], one_kind.optimizers.state_dict()[0]
    assert moments.keys() == expected.keys()
    for name, value in moments.items():
        close(value, expected[name])


def test_gradients_that_lie_otherwise_are_read_as_they_are() -> None:
    """Transposed, and at an address that no wide load can read."""
    runs = [Run(), Run()]
    for run in runs:
        run.give_gradients(1)
    first, second = runs[1].params[2], runs[1].copies[runs[1].params[4]]
    assert first.grad is not None and second.grad is not None
    first.grad = torch.cat([first.grad[:1], first.grad])[1:]
    second.grad = second.grad.T.contiguous().T
    norms = [run.step() for run in runs]
    assert torch.equal(*norms)
    for p, q in zip(runs[0].params, runs[1].params, strict=True):
        assert torch.equal(p, q)


def test_a_captured_step_has_a_table_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Filled after the capture, with the addresses that its gradients have in the graph."""
    run, twin = Run(), Run()
    for each in (run, twin):
        each.give_gradients(1)
        each.step()
    before = [p.detach().clone() for p in run.params]
    eager = run.fused.table
    graph_gradients = run.give_gradients(2), [run.copies.get(p, p).grad for p in run.params]  # a graph keeps them
    with monkeypatch.context() as patch, run.fused.captured():
        patch.setattr(adamw_triton, "_adamw_kernel", _Recorded())  # a capture launches nothing
        patch.setattr(adamw_triton, "_norm_kernel", _Recorded())
        patch.setattr(torch, "_foreach_add_", lambda *given: None)
        run.step()
        recorded = adamw_triton._adamw_kernel.launches
    assert run.fused.table is eager
    for i in range(len(run.params)):
        run.copies.get(run.params[i], run.params[i]).grad = None
    run.give_gradients(7)
    run.fused.gradient_norm()  # an eager step fills its own table
    assert all(torch.equal(p, was) for p, was in zip(run.params, before, strict=True))
    for p in run.params[:-1]:
        run.optimizer.state[p]["step"] += 1
    for grid, given, options in recorded:  # replay
        adamw_triton._adamw_kernel[grid](*given, **options)
    twin.give_gradients(2)
    twin.step()
    assert graph_gradients
    for p, q in zip(run.params, twin.params, strict=True):
        assert torch.equal(p, q)


class _Recorded:
    """In a kernel's place: what it was launched with."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, Any, Any]] = []

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *given, **options: self.launches.append((grid, given, options))


# --- in a run ---------------------------------------------------------------------------------------------------------


class Uncaptured(CudaGraphStepper):
    """Capturing without a GPU: the step over the same tensors, each time anew."""

    def capture(self, static: Batch, counts: Tensor) -> Callable[[], Tensor]:
        return lambda: self.update(self.backward(static, counts))


def stepper_for(monkeypatch: pytest.MonkeyPatch, *, fused: bool, average: bool = False) -> CudaGraphStepper:
    torch.manual_seed(0)
    sizes = {"vocabulary": 30, "width": 16, "layers": 2, "heads": 2, "feed_forward": 24, "window": 64}
    head = ClassifierConfig(classes=3, dropout=0.0)
    model = Model.build(preset("bert-tiny", **sizes, dropout=0.0, attention_dropout=0.0), head).to(DEVICE).train()
    how = TrainingSettings(lr=1e-3, weight_decay=0.1, head_lr=5, clip=0.5, average=0.9 if average else 0.0)
    optimizer = build_optimizer(model, how)
    for group in optimizer.groups:
        group["lr"] = torch.as_tensor(group["lr"], device=DEVICE)
    monkeypatch.setattr(adamw_triton, "supports", lambda parameters: fused)
    kept = MovingAverage(dict(model.named_parameters()), how.average) if average else None
    kind = CudaGraphStepper if ON_GPU else Uncaptured
    stepper = kind(ParallelModel(model, Classification(), how), optimizer, kept, how, torch.bfloat16)
    assert (stepper.fused is not None) is fused
    return stepper


def batch(seed: int) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    ids, starts = torch.randint(30, (16,), generator=draw), torch.tensor([0, 5, 14, 16], dtype=torch.int32)
    return Batch(ids, starts, 9, segments=torch.zeros_like(ids), labels=torch.tensor([0, 1, 2]))


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_run_is_that_of_torchs_adamw(monkeypatch: pytest.MonkeyPatch, micro_batches: int) -> None:
    """Six steps, in the third of which the weights are restored to what they were at first."""
    results = []
    for fused in (True, False):
        stepper = stepper_for(monkeypatch, fused=fused, average=True)
        model = stepper.parallel_model.model
        start, values = {name: p.detach().clone() for name, p in model.named_parameters()}, []
        for number in range(6):
            if number == 3:
                model.load_state_dict(start)
            values.append(stepper.step(batch(number), number, micro_batches, 1 / (1 + number)))
        assert stepper.average is not None and stepper.bf16_copies is not None
        copies = stepper.bf16_copies.of_parameter.items()
        assert not fused or all(is_copy(copy, p) for p, copy in copies)
        assert all(copy.grad is None for _, copy in copies)
        results.append((torch.stack(values), dict(model.named_parameters()), stepper.average.weights))
    (found, weights, average), (expected_values, expected, expected_average) = results
    torch.testing.assert_close(found, expected_values, rtol=2e-3, atol=2e-3)  # a copy may be rounded the other way
    for name, p in expected.items():
        moved = (p - start[name]).norm() + 1e-3
        assert (weights[name] - p).norm() < 0.1 * moved, name
        assert (average[name] - expected_average[name]).norm() < 0.1 * moved, name


def test_muon_runs_and_exact_runs_have_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    stepper = stepper_for(monkeypatch, fused=True)
    model, how = stepper.parallel_model.model, TrainingSettings(optimizer="muon", lr=1e-3)
    for settings, precision in ((how, torch.bfloat16), (TrainingSettings(lr=1e-3), torch.float32)):
        parallel_model = ParallelModel(model, Classification(), settings)
        other = CudaGraphStepper(parallel_model, build_optimizer(model, settings), None, settings, precision)
        assert other.fused is None
