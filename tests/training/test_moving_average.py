"""The moving average of the weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from headstart.errors import CheckpointError
from headstart.model.model import Model
from headstart.training.moving_average import MovingAverage
from headstart.training.optim import build_optimizer
from headstart.training.settings import OptimizerSettings
from tests.training.test_optim import gradients, same, small, weights


def trainable(model: Model) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def test_swapping_twice_changes_nothing() -> None:
    model = small()
    average = MovingAverage(trainable(model), 0.9)
    gradients(model, 0)
    build_optimizer(model, OptimizerSettings(lr=0.1)).step()
    average.update()
    live, averaged = weights(model), {name: t.clone() for name, t in average.state_dict().items()}
    average.swap()
    assert not same(weights(model), live)
    assert same({**weights(model), "updates": averaged["updates"]}, averaged)
    average.swap()
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
        average, expected = MovingAverage(trainable(model), decay), 0.0
        for step, share in enumerate(kept):
            fill(step + 1.0)
            average.update()
            expected = share * expected + (1 - share) * (step + 1.0)
        average.swap()
        for name, p in model.named_parameters():
            assert p.flatten()[0].item() == pytest.approx(expected), (name, decay)


def test_an_average_goes_on_from_its_state(tmp_path: Path) -> None:
    def run(stop: int | None) -> dict[str, Tensor]:
        model = small()
        average, optimizer = MovingAverage(trainable(model), 0.9), build_optimizer(model, OptimizerSettings(lr=0.05))
        for step in range(5):
            gradients(model, step)
            optimizer.step()
            average.update()
            if step == stop:
                save_file(average.state_dict(), tmp_path / "average.safetensors")
                average = MovingAverage(trainable(model), 0.9)
                average.load_state_dict(load_file(tmp_path / "average.safetensors"))
        return average.state_dict()

    assert same(run(stop=2), run(stop=None))


def test_an_average_is_of_what_trains() -> None:
    model = small().freeze()
    average = MovingAverage(trainable(model), 0.9)
    assert set(average.state_dict()) == {"head.out.weight", "head.out.bias", "updates"}
    with pytest.raises(CheckpointError, match=r"backbone\..* is in one only"):
        average.load_state_dict(MovingAverage(trainable(small()), 0.9).state_dict())
