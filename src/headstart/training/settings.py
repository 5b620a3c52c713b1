"""How to train: every choice, with its default and a line of help that the command line and docs share.

The settings of a run are flat (`lr = 1e-4` in a recipe, `--lr` on the command line) and inherited from named groups, so
that a function can take the group it needs and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Literal

from headstart.config import Settings

Schedule = Literal["constant", "linear", "cosine", "one-cycle"]


def setting(default: Any, text: str, *, group: str | None = None, everyday: bool = False, **limits: Any) -> Any:
    """A field with its help and limits, the group that it is listed in, and whether it is an everyday option."""
    return field(default=default, metadata={"help": text, "group": group, "everyday": everyday, **limits})


def other_default(name: str, default: Any) -> Any:
    """A field of `TrainingSettings` again, with another default."""
    metadata = {f.name: f.metadata for f in fields(TrainingSettings)}
    return field(default=default, metadata=metadata[name])


_optimizer = partial(setting, group="optimizer")
_schedule = partial(setting, group="schedule")
_evaluation = partial(setting, group="evaluation")
_saving = partial(setting, group="saving")
_hardware = partial(setting, group="hardware")


@dataclass(frozen=True)
class OptimizerSettings(Settings):
    """How a gradient moves the weights."""

    optimizer: Literal["adamw", "muon"] = _optimizer("adamw", "AdamW, or Muon for the matrices of the layers.")
    lr: float = _optimizer(1e-4, "Peak learning rate.", above=0, everyday=True)
    weight_decay: float = _optimizer(0.01, "Decoupled decay; norms and biases have none.", least=0)
    beta1: float = _optimizer(0.9, "Decay of the mean of gradients.", least=0, below=1)
    beta2: float = _optimizer(0.999, "Decay of the mean of squared gradients.", least=0, below=1)
    epsilon: float = _optimizer(1e-8, "Added to the root of the mean square.", above=0)
    clip: float = _optimizer(1.0, "Largest norm of the gradient; 0 for no limit.", least=0)
    layer_decay: float = _optimizer(1.0, "Each layer learns at this share of the rate of the one above.", above=0)
    head_lr: float = _optimizer(1.0, "The head learns at this many times the rate.", above=0)
    average: float = _optimizer(
        0.0, "Decay of an average of the weights that is used in their place; 0: none.", least=0, below=1
    )

    @classmethod
    def rules(cls, value: Mapping[str, Any], well: Callable[..., bool]) -> Iterator[str]:
        yield from super().rules(value, well)
        if well("layer_decay") and value["layer_decay"] > 1:
            yield f"layer_decay is {value['layer_decay']}, and must be at most 1"


@dataclass(frozen=True)
class ScheduleSettings(Settings):
    """How long a run is, and what changes in the course of it."""

    seed: int = _schedule(0, "Decides fresh weights, order, masks and dropout.", least=0, below=2**32, everyday=True)
    epochs: int = _schedule(10, "Passes over the training data.", least=1, everyday=True)
    steps: int | None = _schedule(None, "Steps in all, instead of epochs.", least=1, everyday=True)
    batch_size: int = _schedule(8, "Sequences a step.", least=1, everyday=True)
    accumulate: int = _schedule(1, "Micro-batches a step: the same result in less memory.", least=1)
    schedule: Schedule = _schedule("linear", "How the learning rate falls after the warm-up.")
    warmup: float = _schedule(0.1, "Share of the steps in which the learning rate rises.", least=0, below=1)
    unfreeze: int = _schedule(
        0, "Gradual unfreezing: epochs from one layer to the next, from the top; 0: all train at once.", least=0
    )
    reinitialise: int = _schedule(0, "Top layers to draw afresh before fine-tuning.", least=0)
    skip_bad_steps: int = _schedule(0, "Steps whose loss is not finite to leave out before giving up.", least=0)


@dataclass(frozen=True)
class EvaluationSettings(Settings):
    """When the model is scored on valid, and what follows from it."""

    evaluate_every: int | None = _evaluation(None, "Steps between evaluations; by default, once an epoch.", least=1)
    patience: int | None = _evaluation(None, "Stop after so many evaluations without a better one.", least=1)
    weights: Literal["best", "last"] = _evaluation("best", "Which weights to keep: the best on valid, or the last.")


@dataclass(frozen=True)
class SavingSettings(Settings):
    """What is written while a run is in progress."""

    save_every: int | None = _saving(
        None, "Steps between checkpoints; by default one after each epoch, 30 seconds to 10 minutes apart.", least=1
    )
    keep: int = _saving(2, "Checkpoints to keep.", least=1)
    track: bool = _saving(False, "Write TensorBoard files into the run folder too (the extra `track`).")


@dataclass(frozen=True)
class HardwareSettings(Settings):
    """What the run is computed on, and how."""

    device: str = _hardware("auto", "auto, cpu, or cuda.", everyday=True)
    precision: Literal["auto", "float32", "bf16"] = _hardware("auto", "auto: bf16 on a GPU that can, else float32.")
    compile: Literal["auto", "yes", "no"] = _hardware(
        "auto", "Compile the layers: faster steps after some seconds. auto: on a GPU, where a run is long."
    )
    recompute: bool = _hardware(False, "Compute activations again in the backward pass: less memory, more time.")
    shard: bool = _hardware(
        False, "Under torchrun: shard weights and moments over the processes (FSDP2), not copy them."
    )
    deterministic: bool = _hardware(False, "On a GPU: the same bits each time, somewhat slower.")

    @classmethod
    def rules(cls, value: Mapping[str, Any], well: Callable[..., bool]) -> Iterator[str]:
        yield from super().rules(value, well)
        known = value["device"] in ("auto", "cpu", "cuda") if well("device") else True
        if not known and not value["device"].startswith("cuda:"):
            yield f"device is {value['device']!r}: choose auto, cpu, cuda or cuda:1"


# A dataclass takes the fields of its last base first.
@dataclass(frozen=True)
class TrainingSettings(HardwareSettings, SavingSettings, EvaluationSettings, ScheduleSettings, OptimizerSettings):
    """What every run has. Studies add their own."""
