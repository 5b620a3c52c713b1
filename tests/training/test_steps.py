"""A step that is recorded and played back does what the step itself does."""

from __future__ import annotations

import math
import threading
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headstart.batches.batch import IGNORE_INDEX, Batch
from headstart.config import ClassifierConfig, HeadConfig, MaskedConfig, MaskedNextSentenceConfig, NextTokenConfig
from headstart.model.model import Model
from headstart.model.presets import preset
from headstart.training import steps as module
from headstart.training.distributed import Spread
from headstart.training.objectives import (
    Causal,
    Classification,
    MaskedAndNextSentence,
    MaskedTokens,
    Objective,
)
from headstart.training.optim import Average, Kind, build_optimizer
from headstart.training.precision import Precision
from headstart.training.steps import Halves, Play, Recorded, Stepper, filled

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are recorded on CUDA alone")
WINDOW = 64
CASES: list[Any] = [
    pytest.param(NextTokenConfig(), Causal(), id="causal"),
    pytest.param(MaskedConfig(), MaskedTokens(), id="masked"),
    pytest.param(MaskedNextSentenceConfig(), MaskedAndNextSentence(), id="masked-and-next-sentence"),
    pytest.param(ClassifierConfig(classes=3, pool="last", dropout=0.0), Classification((1.0, 2.0, 0.5)), id="classes"),
    pytest.param(ClassifierConfig(classes=3, pool="mean", dropout=0.0), Classification(), id="classes-by-mean"),
]


def model_with(head: HeadConfig, dropout: float = 0.0) -> Model:
    torch.manual_seed(0)
    causal = isinstance(head, NextTokenConfig) or (isinstance(head, ClassifierConfig) and head.pool == "last")
    sizes = {"vocabulary": 30, "width": 16, "layers": 2, "heads": 2, "feed_forward": 24, "window": WINDOW}
    return Model.build(preset("lab" if causal else "bert-tiny", **sizes, dropout=dropout, attention_dropout=0.0), head)


def batch_for(objective: Objective, lengths: list[int], seed: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    tokens = sum(lengths)
    starts = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    ids = torch.randint(30, (tokens,), generator=draw)
    more: dict[str, Tensor] = {}
    if isinstance(objective, Causal):
        more["targets"] = ids.roll(-1)
    else:
        more |= {"labels": torch.arange(len(lengths)) % 2, "rows": torch.arange(len(lengths))}
        more["segments"] = torch.randint(2, (tokens,), generator=draw)
    if isinstance(objective, MaskedTokens | MaskedAndNextSentence):
        masked = torch.arange(0, tokens, 3)
        more |= {"masked": masked, "targets": ids[masked]}
    return Batch(ids, starts, max(lengths), **more)


@pytest.mark.parametrize(("head", "objective"), CASES)
@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, WINDOW), min_size=1, max_size=6))
def test_what_fills_a_batch_counts_nowhere(head: HeadConfig, objective: Objective, lengths: list[int]) -> None:
    model = model_with(head).double()
    batch = batch_for(objective, lengths)
    more = filled(batch, WINDOW)
    assert len(more.ids) % 64 == 0
    assert more.longest <= WINDOW and more.starts.diff().max() <= more.longest and more.starts.diff().min() >= 1
    assert torch.equal(more.ids[: len(batch.ids)], batch.ids)
    slopes = []
    for each in (batch, more):
        sums = objective.sums(model, each)
        total: Tensor = torch.stack(list(sums.values())).sum()
        used = [
            p
            for name, p in model.named_parameters()
            if "pooler" not in name or isinstance(head, MaskedNextSentenceConfig)
        ]
        slopes.append([total, *torch.autograd.grad(total, used, allow_unused=True, materialize_grads=True)])
    for one, other in zip(*slopes, strict=True):
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
        more = filled(Batch(ids, starts, int(lengths.max()), masked=masked, targets=masked), 512)
        sizes.add((len(more.ids), len(more.starts), len(more.masked), more.longest))  # type: ignore[arg-type]
    assert len(sizes) <= 12


def test_equal_windows_stay_as_they_are() -> None:
    batch = batch_for(Causal(), [32, 32])
    assert filled(batch, WINDOW) == batch


class Written(Recorded):
    """Recording without a GPU: the step over the same tensors, each time anew."""

    def record(self, static: Batch, counts: Tensor) -> Play:
        return lambda: self.move(self.gradients(static, counts))


def run(
    kind: type[Stepper],
    head: HeadConfig,
    objective: Objective,
    *,
    dropout: float = 0.0,
    device: str = "cpu",
    optimizer_kind: Kind = "adamw",
) -> Any:
    model = model_with(head, dropout).to(device, torch.float64 if device == "cpu" else torch.float32).train()
    optimizer = build_optimizer(model, kind=optimizer_kind, lr=1e-2)
    spread, average = Spread.of(model, objective, shard=False, changing=False), Average(model, 0.9)
    stepper = kind(model, spread, optimizer, average, 1.0, Precision())
    found = []
    for step in range(24):
        lengths = [[5, 9, 2], [30, 40, 50], [7, 1, 20]][step % 3]  # two sizes: 64 and 128 tokens
        batch = batch_for(objective, lengths, seed=step)

        def seed(share: int, step: int = step) -> None:
            torch.manual_seed(1000 * step + share)

        found.append(stepper.step(batch, 1, seed, factor=1 / (1 + step)))
    return stepper, torch.stack(found).cpu(), {name: p.detach().cpu() for name, p in model.named_parameters()}


@pytest.mark.parametrize("optimizer", get_args(Kind))
@pytest.mark.parametrize(("head", "objective"), CASES)
def test_played_back_it_is_the_same_step(head: HeadConfig, objective: Objective, optimizer: Kind) -> None:
    """Every input anew: tokens, counts and the learning rate."""
    plainly, plain, expected = run(Stepper, head, objective, optimizer_kind=optimizer)
    stepper, played, weights = run(Written, head, objective, optimizer_kind=optimizer)
    average = plainly.average
    assert len(stepper.recordings) == 2
    torch.testing.assert_close(played, plain, rtol=1e-9, atol=1e-9)
    for name, value in weights.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-6)
        torch.testing.assert_close(stepper.average.weights[name], average.weights[name], rtol=0, atol=1e-6)
    assert stepper.average.updates == average.updates == 24


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(("head", "objective"), CASES)
def test_halves_have_the_gradients_of_their_wholes(head: HeadConfig, objective: Objective, frozen: bool) -> None:
    """In float32, where a half is as good as the whole."""
    model = model_with(head).train()
    if frozen:
        model.freeze()
    spread, batch = Spread.of(model, objective, shard=False, changing=False), batch_for(objective, [5, 9, 2])
    halves = Halves(spread.module, torch.float32)
    assert len(halves.moving) == (
        sum(name.startswith("model.head") for name in halves.wholes) if frozen else len(halves.wholes)
    )
    with torch.no_grad():  # a step of the optimizer
        for p in model.parameters():
            p.add_(0.01 * p.requires_grad)
    slopes = []
    for sums in (spread.module, halves.sums):
        torch.stack(list(sums(batch).values())).sum().backward()  # type: ignore[no-untyped-call]
        halves.give_gradients()
        slopes.append({name: p.grad for name, p in model.named_parameters()})
        model.zero_grad()
    for name, slope in slopes[0].items():
        torch.testing.assert_close(slopes[1][name], slope, rtol=0, atol=0)


def test_shares_are_summed_in_whole_precision() -> None:
    model, objective = model_with(ClassifierConfig(classes=3, dropout=0.0)).train(), Classification()
    spread, batch = Spread.of(model, objective, shard=False, changing=False), batch_for(objective, [5, 9])
    stepper = Written(model, spread, build_optimizer(model, lr=1e-2), None, math.inf, Precision())
    stepper.halves = Halves(spread.module, torch.float32)
    seen: list[Tensor] = []
    for _ in range(2):
        stepper.gradients(batch, stepper.counts(batch))
        assert all(half.grad is None for half in stepper.halves.halves.values())
        seen.append(stepper.halves.wholes[stepper.halves.moving[0]].grad.clone())  # type: ignore[union-attr]
    torch.testing.assert_close(seen[1], 2 * seen[0])


def test_sizes_beyond_the_limit_are_taken_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 1)
    stepper, played, _ = run(Written, *CASES[0].values)
    assert len(stepper.recordings) == 1
    torch.testing.assert_close(played, run(Stepper, *CASES[0].values)[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("optimizer", get_args(Kind))
@pytest.mark.parametrize("kind", [Stepper, Written])
def test_a_step_without_a_number_moves_nothing(kind: type[Stepper], optimizer: Kind) -> None:
    head, objective = CASES[0].values
    stepper, _, _ = run(kind, head, objective, optimizer_kind=optimizer)
    before = {name: p.detach().clone() for name, p in stepper.model.named_parameters()}
    moments = {name: value.clone() for name, value in stepper.optimizer.state_dict()[0].items()}
    norm = stepper.model.backbone.layers[0].attention_norm
    with norm.register_forward_hook(lambda *given: given[-1] * math.nan):
        found = stepper.step(batch_for(objective, [5, 9, 2]), 1, lambda share: None, factor=1.0)
    assert not found.isfinite().any()
    assert all(torch.equal(p, before[name]) for name, p in stepper.model.named_parameters())
    assert all(torch.equal(value, moments[name]) for name, value in stepper.optimizer.state_dict()[0].items())
    found = stepper.step(batch_for(objective, [5, 9, 2]), 1, lambda share: None, factor=1.0)
    assert found.isfinite().all()


@NEEDS_CUDA
@pytest.mark.parametrize(("dropout", "optimizer"), [(0.0, "adamw"), (0.3, "adamw"), (0.3, "muon")])
@pytest.mark.parametrize(("head", "objective"), CASES)
def test_a_recording_is_the_step_on_a_gpu(
    head: HeadConfig, objective: Objective, dropout: float, optimizer: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout too: it is drawn by the step's seed, played back or not."""
    options: dict[str, Any] = {"dropout": dropout, "device": "cuda", "optimizer_kind": optimizer}
    stepper, played, weights = run(Recorded, head, objective, **options)
    assert stepper.optimizer.recordable and len(stepper.recordings) == 2
    monkeypatch.setattr(module, "MOST", 0)
    plainly, plain, expected = run(Recorded, head, objective, **options)
    torch.testing.assert_close(played, plain, rtol=1e-4, atol=1e-4)
    for name, value in stepper.average.weights.items():
        torch.testing.assert_close(value, plainly.average.weights[name], rtol=0, atol=1e-3)
    for name, value in weights.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-3)


@NEEDS_CUDA
def test_a_recording_learns_what_a_cpu_learns() -> None:
    for head, objective in (case.values for case in CASES):
        _, plain, _ = run(Stepper, head, objective)
        _, played, _ = run(Recorded, head, objective, device="cuda")
        torch.testing.assert_close(played, plain, rtol=5e-3, atol=5e-3)


@NEEDS_CUDA
def test_a_step_is_recorded_while_another_thread_uses_the_gpu() -> None:
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
        run(Recorded, *CASES[0].values, device="cuda")
    finally:
        ended.set()
        thread.join()
    assert not errors


def test_ignored_labels_are_ignored() -> None:
    assert filled(batch_for(Classification(), [3, 4]), WINDOW).labels.tolist() == [0, 1, IGNORE_INDEX]  # type: ignore[union-attr]
