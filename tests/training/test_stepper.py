"""A step that is captured and replayed does what the eager step does."""

from __future__ import annotations

import gc
import math
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headstart.batches.batch import IGNORE_INDEX, Batch, pad_batch
from headstart.config import (
    CausalMaskedConfig,
    ClassifierConfig,
    HeadConfig,
    MaskedConfig,
    MaskedNextSentenceConfig,
    NextTokenConfig,
    ReplacedConfig,
)
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.training import stepper as module
from headstart.training.bf16_copies import Bf16Copies
from headstart.training.moving_average import MovingAverage
from headstart.training.objectives import (
    Causal,
    CausalAndMasked,
    Classification,
    MaskedAndNextSentence,
    MaskedTokens,
    Objective,
)
from headstart.training.optim import build_optimizer
from headstart.training.replaced import Replaced
from headstart.training.settings import TrainingSettings
from headstart.training.sharding import ParallelModel
from headstart.training.stepper import CudaGraphStepper, EagerStepper, no_garbage_collection

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need CUDA")
OPTIMIZERS = ["adamw", "muon"]
WINDOW = 64
CASES: list[Any] = [
    pytest.param(NextTokenConfig(), Causal(), id="causal"),
    pytest.param(MaskedConfig(), MaskedTokens(), id="masked"),
    pytest.param(CausalMaskedConfig(), CausalAndMasked(), id="causal-and-masked"),
    pytest.param(MaskedNextSentenceConfig(), MaskedAndNextSentence(), id="masked-and-next-sentence"),
    pytest.param(ReplacedConfig(generator=0.5), Replaced(), id="replaced"),
    pytest.param(ClassifierConfig(classes=3, pool="last", dropout=0.0), Classification((1.0, 2.0, 0.5)), id="classes"),
    pytest.param(ClassifierConfig(classes=3, pool="mean", dropout=0.0), Classification(), id="classes-by-mean"),
]


def model_with(head: HeadConfig, dropout: float = 0.0) -> Model:
    torch.manual_seed(0)
    causal = isinstance(head, NextTokenConfig) or (isinstance(head, ClassifierConfig) and head.pool == "last")
    sizes: dict[str, Any] = {"vocabulary": 30, "width": 16, "layers": 2, "heads": 2, "feed_forward": 24}
    if isinstance(head, CausalMaskedConfig):
        sizes["direction"] = "both"
    sizes |= {"window": WINDOW, "dropout": dropout, "attention_dropout": 0.0}
    return Model.build(preset("lab" if causal else "bert-tiny", **sizes), head)


def batch_for(objective: Objective, lengths: list[int], seed: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    tokens = sum(lengths)
    starts = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    ids = torch.randint(30, (tokens,), generator=draw)
    more: dict[str, Any] = {"causal": isinstance(objective, Causal)}
    if isinstance(objective, Causal):
        more["targets"] = ids.roll(-1)
    else:
        more |= {"labels": torch.arange(len(lengths)) % 2, "rows": torch.arange(len(lengths))}
        more["segments"] = torch.randint(2, (tokens,), generator=draw)
    if isinstance(objective, MaskedTokens | MaskedAndNextSentence | Replaced):
        masked = torch.arange(0, tokens, 3)
        more |= {"masked": masked, "targets": ids[masked]}
    if isinstance(objective, CausalAndMasked):
        more |= {"causal": True, "targets": ids.roll(-1)}
        if seed % 2:
            more |= {"causal": False, "masked": starts[:-1], "targets": ids[starts[:-1]]}
    if isinstance(objective, Replaced):
        more |= {"draws": torch.rand(len(masked), generator=draw, dtype=torch.float64), "text": ids > 4}
    return Batch(ids, starts, max(lengths), **more)


@pytest.mark.parametrize(("head", "objective"), CASES)
@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, WINDOW), min_size=1, max_size=6))
def test_padding_changes_no_loss_and_no_gradient(head: HeadConfig, objective: Objective, lengths: list[int]) -> None:
    model = model_with(head).double()
    batch = batch_for(objective, lengths)
    padded = pad_batch(batch, WINDOW)
    assert len(padded.ids) % 64 == 0
    assert padded.longest <= WINDOW
    assert padded.starts.diff().min() >= 1 and padded.starts.diff().max() <= padded.longest
    assert torch.equal(padded.ids[: len(batch.ids)], batch.ids)
    results = []
    for each in (batch, padded):
        sums = objective.sums(model, each)
        total: Tensor = torch.stack(list(sums.values())).sum()
        used = [
            p
            for name, p in model.named_parameters()
            if "pooler" not in name or isinstance(head, MaskedNextSentenceConfig)
        ]
        results.append([total, *torch.autograd.grad(total, used, allow_unused=True, materialize_grads=True)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_steps_of_a_run_have_few_sizes() -> None:
    """Pieces of documents: each step has other tokens, sequences and masks than the last."""
    draw, sizes = np.random.default_rng(0), set()
    for _ in range(100):
        lengths = draw.integers(64, 512, size=200)
        lengths = lengths[np.cumsum(lengths) < 32_768]
        masked = torch.arange(round(draw.normal(9_800, 80)))
        starts = torch.from_numpy(np.cumsum([0, *lengths]).astype(np.int32))
        ids = torch.zeros(int(lengths.sum()), dtype=torch.int64)
        padded = pad_batch(Batch(ids, starts, int(lengths.max()), masked=masked, targets=masked), 512)
        sizes.add((len(padded.ids), len(padded.starts), len(padded.masked), padded.longest))  # type: ignore[arg-type]
    assert len(sizes) <= 12


def test_equal_windows_stay_as_they_are() -> None:
    batch = batch_for(Causal(), [32, 32])
    assert pad_batch(batch, WINDOW) == batch


class CpuGraphStepper(CudaGraphStepper):
    """Capturing without a GPU: the step over the same tensors, each time anew."""

    def capture(self, static: Batch, counts: Tensor) -> Callable[[], Tensor]:
        return lambda: self.update(self.backward(static, counts))


def run(
    kind: type[EagerStepper],
    head: HeadConfig,
    objective: Objective,
    *,
    dropout: float = 0.0,
    device: str = "cpu",
    optimizer: Any = "adamw",
) -> Any:
    """24 steps: the stepper, (24, parts + 1) losses and norms, and the weights."""
    model = model_with(head, dropout).to(device, torch.float64 if device == "cpu" else torch.float32).train()
    how = TrainingSettings(optimizer=optimizer, lr=1e-2, average=0.9)
    average = MovingAverage(dict(model.named_parameters()), how.average)
    stepper = kind(ParallelModel(model, objective, how), build_optimizer(model, how), average, how, torch.float32)
    values = []
    for number in range(24):
        lengths = [[5, 9, 2], [30, 40, 50], [7, 1, 20]][number % 3]  # two sizes: 64 and 128 tokens
        batch = batch_for(objective, lengths, seed=number)
        values.append(stepper.step(batch, number, 1, 1 / (1 + number)))
    return stepper, torch.stack(values).cpu(), {name: p.detach().cpu() for name, p in model.named_parameters()}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("head", "objective"), CASES)
def test_a_replayed_step_is_the_eager_step(head: HeadConfig, objective: Objective, optimizer: Any) -> None:
    """Every input anew: tokens, counts and the learning rate."""
    eager, eager_values, expected = run(EagerStepper, head, objective, optimizer=optimizer)
    stepper, values, weights = run(CpuGraphStepper, head, objective, optimizer=optimizer)
    average = eager.average
    assert len(stepper.graphs) == (4 if isinstance(objective, CausalAndMasked) else 2)  # sizes, of each kind
    torch.testing.assert_close(values, eager_values, rtol=1e-9, atol=1e-9)
    for name, value in weights.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-6)
        torch.testing.assert_close(stepper.average.weights[name], average.weights[name], rtol=0, atol=1e-6)
    assert stepper.average.updates == average.updates == 24


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(("head", "objective"), CASES)
def test_gradients_of_copies_are_those_of_the_masters(head: HeadConfig, objective: Objective, frozen: bool) -> None:
    """In float32, where a copy is as good as its master."""
    model = model_with(head).train()
    if frozen:
        model.freeze()
    module, batch = ParallelModel(model, objective, TrainingSettings()).module, batch_for(objective, [5, 9, 2])
    copies = Bf16Copies(module, torch.float32)
    assert len(copies.trainable) == (
        sum(name.startswith("model.head") for name in copies.masters) if frozen else len(copies.masters)
    )
    with torch.no_grad():  # a step of the optimizer
        for p in model.parameters():
            p.add_(0.01 * p.requires_grad)
    copies.refresh()
    gradients = []
    for loss_sums in (module, copies.loss_sums):
        torch.stack(list(loss_sums(batch).values())).sum().backward()  # type: ignore[no-untyped-call]
        copies.return_gradients()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
        model.zero_grad()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=0, atol=0)


def test_copies_are_made_anew_where_the_masters_were_written_to() -> None:
    """By whatever torch does: not by what a kernel of our own writes, which it does not see."""
    model = model_with(ClassifierConfig(classes=3, dropout=0.0))
    copies = Bf16Copies(ParallelModel(model, Classification(), TrainingSettings()).module, torch.bfloat16)
    master, copy = next(iter(copies.of_parameter.items()))
    average = MovingAverage(dict(model.named_parameters()), 0.9)
    average.weights = {name: value + 1 for name, value in average.weights.items()}
    state = {name: value + 2 for name, value in model.state_dict().items() if value.is_floating_point()}
    for change in (average.swap, average.swap, lambda: model.load_state_dict(state, strict=False)):
        change()
        assert not torch.equal(copy, master.to(torch.bfloat16))
        copies.refresh_changed()
        assert all(torch.equal(copy, master.to(torch.bfloat16)) for master, copy in copies.of_parameter.items())
    with torch.no_grad():
        copy.zero_()
    copies.refresh_changed()  # the masters are what they were
    assert not copy.any()


def test_a_step_that_failed_leaves_no_gradients() -> None:
    """Neither in the parameters nor in their copies: the next step would add to them."""
    model, objective = model_with(ClassifierConfig(classes=3, dropout=0.0)).train(), Classification()
    how = TrainingSettings(lr=1e-2)
    parallel_model, batch = ParallelModel(model, objective, how), batch_for(objective, [5, 9])
    stepper = CpuGraphStepper(parallel_model, build_optimizer(model, how), None, how, torch.float32)
    stepper.bf16_copies = copies = Bf16Copies(parallel_model.module, torch.float32)
    torch.stack(list(copies.loss_sums(batch).values())).sum().backward()  # type: ignore[no-untyped-call]
    assert any(copy.grad is not None for copy in copies.copies.values())
    stepper.discard()
    assert all(x.grad is None for x in [*copies.copies.values(), *model.parameters()])


def test_micro_batches_are_summed_in_the_masters_precision() -> None:
    model, objective = model_with(ClassifierConfig(classes=3, dropout=0.0)).train(), Classification()
    how = TrainingSettings(lr=1e-2, clip=0.0)
    parallel_model, batch = ParallelModel(model, objective, how), batch_for(objective, [5, 9])
    stepper = CpuGraphStepper(parallel_model, build_optimizer(model, how), None, how, torch.float32)
    stepper.bf16_copies = copies = Bf16Copies(parallel_model.module, torch.float32)
    seen: list[Tensor] = []
    for _ in range(2):
        stepper.backward(batch, stepper.loss_counts(batch))
        assert all(copy.grad is None for copy in copies.copies.values())
        seen.append(copies.masters[copies.trainable[0]].grad.clone())  # type: ignore[union-attr]
    torch.testing.assert_close(seen[1], 2 * seen[0])


@pytest.mark.parametrize("clip", [0.0, 0.01])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_sparse_gradients_of_an_embedding_train_as_dense_ones(
    monkeypatch: pytest.MonkeyPatch, micro_batches: int, clip: float
) -> None:
    """To the bit, with rows that are read twice in a text, rows that are not read any more, and decay."""
    head = ClassifierConfig(classes=3, pool="mean", dropout=0.0)
    batches = [batch_for(Classification(), [5, 9, 3, 12, 4], seed) for seed in range(4)]
    weights = []
    for dense in (False, True):
        model = model_with(head)
        if dense:
            monkeypatch.setattr(EagerStepper, "sparse_embedding", None)
        asked = TrainingSettings(lr=1e-2, weight_decay=0.1, clip=clip)
        parallel_model = ParallelModel(model, Classification(), asked)
        stepper = EagerStepper(parallel_model, build_optimizer(model, asked), None, asked, torch.float32)
        found = []
        for number, batch in enumerate(batches):
            stepper.backward(batch, stepper.loss_counts(batch))
            gradient = model.backbone.embeddings.tokens.weight.grad
            found.append(gradient is not None and gradient.is_sparse)
            stepper.zero_grad()
            stepper.step(batch, number, micro_batches, 1.0)
        assert found == [not dense] * 4
        assert not model.backbone.embeddings.tokens.sparse
        weights.append({name: p.detach().clone() for name, p in model.named_parameters()})
    sparse, dense_ones = weights
    assert all(torch.equal(sparse[name], dense_ones[name]) for name in sparse)


def test_sizes_beyond_the_limit_run_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_GRAPHS", 1)
    stepper, values, _ = run(CpuGraphStepper, *CASES[0].values)
    assert len(stepper.graphs) == 1
    torch.testing.assert_close(values, run(EagerStepper, *CASES[0].values)[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", [EagerStepper, CpuGraphStepper])
def test_a_step_whose_loss_is_not_finite_moves_nothing(kind: type[EagerStepper], optimizer: Any) -> None:
    head, objective = CASES[0].values
    stepper, _, _ = run(kind, head, objective, optimizer=optimizer)
    model, batch = stepper.parallel_model.model, batch_for(objective, [5, 9, 2])
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    moments = {name: value.clone() for name, value in stepper.optimizer.state_dict()[0].items()}
    norm = model.backbone.layers[0].attention_norm
    with norm.register_forward_hook(lambda *given: given[-1] * math.nan):
        values = stepper.step(batch, 24, 1, 1.0)
    assert not values.isfinite().any()
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert all(torch.equal(value, moments[name]) for name, value in stepper.optimizer.state_dict()[0].items())
    assert stepper.step(batch, 25, 1, 1.0).isfinite().all()


@NEEDS_CUDA
@pytest.mark.parametrize(("dropout", "optimizer"), [(0.0, "adamw"), (0.3, "adamw"), (0.3, "muon")])
@pytest.mark.parametrize(("head", "objective"), CASES)
def test_a_cuda_graph_is_the_step_on_a_gpu(
    head: HeadConfig, objective: Objective, dropout: float, optimizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout too: it is drawn by the step's seed, replayed or not."""
    options: dict[str, Any] = {"dropout": dropout, "device": "cuda", "optimizer": optimizer}
    stepper, values, weights = run(CudaGraphStepper, head, objective, **options)
    assert stepper.optimizer.capturable and len(stepper.graphs) == 2
    monkeypatch.setattr(module, "MAX_GRAPHS", 0)
    eager, eager_values, expected = run(CudaGraphStepper, head, objective, **options)
    torch.testing.assert_close(values, eager_values, rtol=1e-4, atol=1e-4)
    for name, value in stepper.average.weights.items():
        torch.testing.assert_close(value, eager.average.weights[name], rtol=0, atol=1e-3)
    for name, value in weights.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-3)


@NEEDS_CUDA
def test_a_cuda_graph_learns_what_a_cpu_learns() -> None:
    for head, objective in (case.values for case in CASES):
        _, on_cpu, _ = run(EagerStepper, head, objective)
        _, on_gpu, _ = run(CudaGraphStepper, head, objective, device="cuda")
        torch.testing.assert_close(on_gpu, on_cpu, rtol=5e-3, atol=5e-3)


@NEEDS_CUDA
def test_a_step_is_captured_while_another_thread_uses_the_gpu() -> None:
    """As one does that writes a checkpoint."""
    weights, ended, errors = torch.ones(1_000_000, device="cuda"), threading.Event(), []

    def copy() -> None:
        while not ended.is_set():
            try:
                weights.cpu()
            except Exception as error:
                errors.append(error)

    thread = threading.Thread(target=copy)
    thread.start()
    try:
        run(CudaGraphStepper, *CASES[0].values, device="cuda")
    finally:
        ended.set()
        thread.join()
    assert not errors


def test_no_garbage_is_collected_during_a_capture() -> None:
    """A reference cycle that is garbage then may hold the CUDA graph of another run."""

    class Cycle:
        def __init__(self) -> None:
            self.itself = self

    freed: list[bool] = []
    garbage = Cycle()
    weakref.finalize(garbage, freed.append, True)
    with no_garbage_collection():
        del garbage
        [[] for _ in range(10 * gc.get_threshold()[0])]  # as many allocations as let the collector run
        assert not freed
    assert gc.isenabled()
    gc.collect()
    assert freed


@NEEDS_CUDA
def test_a_step_is_captured_while_graphs_of_another_run_are_garbage() -> None:
    thresholds = gc.get_threshold()
    try:
        gc.set_threshold(10)  # the collector runs in nearly every function
        for _ in range(3):
            run(CudaGraphStepper, *CASES[0].values, device="cuda")
    finally:
        gc.set_threshold(*thresholds)


def test_ignored_labels_are_ignored() -> None:
    assert pad_batch(batch_for(Classification(), [3, 4]), WINDOW).labels.tolist() == [0, 1, IGNORE_INDEX]  # type: ignore[union-attr]
