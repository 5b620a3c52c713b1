"""How the learning rate rises and falls, and what trains when."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.errors import ModelError
from headstart.training.schedule import lr_factor, reinitialise_top, unfreeze_top, unfrozen_layers
from headstart.training.settings import Schedule
from tests.training.test_optim import small

runs = st.integers(1, 200).flatmap(lambda total: st.tuples(st.just(total), st.integers(0, 2 * total)))


@pytest.mark.parametrize("schedule", get_args(Schedule))
@settings(max_examples=100, deadline=None)
@given(run=runs)
def test_a_rate_rises_to_one_and_then_falls(schedule: Schedule, run: tuple[int, int]) -> None:
    total, warmup = run
    rates = [lr_factor(schedule, step, total, warmup) for step in range(total)]
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
    assert lr_factor(schedule, 0, 1, warmup) == 1.0


def test_the_shapes_of_the_fall() -> None:
    """Half-way down: constant 1, linear and cosine 1/2, one-cycle half-way to a thousandth; a quarter of the way down
    cosine has lost (1 - cos 45°) / 2."""
    assert lr_factor("constant", 60, 100, 20) == 1
    assert lr_factor("linear", 60, 100, 20) == pytest.approx(0.5)
    assert lr_factor("cosine", 60, 100, 20) == pytest.approx(0.5)
    assert lr_factor("one-cycle", 65, 100, 0) == pytest.approx((1 + 1e-3) / 2)
    assert lr_factor("linear", 40, 100, 20) == pytest.approx(0.75)
    assert lr_factor("cosine", 40, 100, 20) == pytest.approx(1 - (1 - math.cos(math.pi / 4)) / 2)


def test_where_the_falls_end() -> None:
    """The last step of a long run still learns, but hardly; one-cycle ends at a thousandth."""
    last = 10**9 - 1
    assert 0 < lr_factor("linear", last, 10**9, 0) <= 1.01e-9
    assert 0 < lr_factor("cosine", last, 10**9, 0) < 1e-16
    assert lr_factor("one-cycle", last, 10**9, 0) == pytest.approx(1e-3)


@pytest.mark.parametrize("step", [-1, 10, 11])
def test_a_step_outside_of_the_run_is_refused(step: int) -> None:
    """A line that falls on would turn learning round."""
    with pytest.raises(ValueError, match=rf"step {step} of a run of 10"):
        lr_factor("linear", step, 10, 0)


# --- what trains, and what starts afresh ------------------------------------------------------------------------------


def test_layers_are_unfrozen_from_the_top() -> None:
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
    ],
)
def test_what_trains(count: int, parts: set[str]) -> None:
    model = small()
    unfreeze_top(model, 0 if count else 3)  # whatever was before
    unfreeze_top(model, count)
    for name, p in model.named_parameters():
        assert p.requires_grad == any(name.startswith(f"{part}.") for part in parts | {"head"}), name


def test_a_backbone_has_dropout_from_its_first_unfrozen_layer() -> None:
    model = small().train()
    unfreeze_top(model, 0)
    assert (model.training, model.backbone.training) == (True, False)
    unfreeze_top(model, 1)
    assert (model.training, model.backbone.training) == (True, True)
    model.eval()
    unfreeze_top(model, 2)
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
