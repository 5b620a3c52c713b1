"""How to train: every choice of the loop, with its default and a line of help that the command line and docs share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headstart.config import Settings

Schedule = Literal["constant", "linear", "cosine", "one-cycle"]


def setting(default: Any, text: str, **limits: Any) -> Any:
    """A field with its help and its limits."""
    return field(default=default, metadata={"help": text, **limits})


@dataclass(frozen=True)
class TrainingSettings(Settings):
    """What every run has. Studies add their own."""

    seed: int = setting(0, "Decides fresh weights, order, masks and dropout.", least=0, below=2**32)
    epochs: int = setting(10, "Passes over the training data.", least=1)
    steps: int | None = setting(None, "Steps in all, instead of epochs.", least=1)
    batch_size: int = setting(8, "Sequences a step.", least=1)
    accumulate: int = setting(1, "Micro-batches a step: the same result in less memory.", least=1)
    optimizer: Literal["adamw", "muon"] = setting("adamw", "AdamW, or Muon for the matrices of the layers.")
    lr: float = setting(1e-4, "Peak learning rate.", above=0)
    schedule: Schedule = setting("linear", "How the learning rate falls after the warm-up.")
    warmup: float = setting(0.1, "Share of the steps in which the learning rate rises.", least=0, below=1)
    weight_decay: float = setting(0.01, "Decoupled decay; norms and biases have none.", least=0)
    beta1: float = setting(0.9, "Decay of the mean of gradients.", least=0, below=1)
    beta2: float = setting(0.999, "Decay of the mean of squared gradients.", least=0, below=1)
    epsilon: float = setting(1e-8, "Added to the root of the mean square.", above=0)
    clip: float = setting(1.0, "Largest norm of the gradient; 0 for no limit.", least=0)
    layer_decay: float = setting(1.0, "Each layer learns at this share of the rate of the one above.", above=0)
    head_lr: float = setting(1.0, "The head learns at this many times the rate.", above=0)
    unfreeze: int = setting(0, "Epochs between the thawing of one layer and the next; 0: all train at once.", least=0)
    reinitialise: int = setting(0, "Top layers to draw afresh before fine-tuning.", least=0)
    average: float = setting(
        0.0, "Decay of an average of the weights that is used in their place; 0: none.", least=0, below=1
    )
    patience: int | None = setting(None, "Stop after so many evaluations without a better one.", least=1)
    weights: Literal["best", "last"] = setting("best", "Which weights to keep: the best on valid, or the last.")
    evaluate_every: int | None = setting(None, "Steps between evaluations; by default, once an epoch.", least=1)
    save_every: int | None = setting(
        None, "Steps between checkpoints; by default one after each epoch, 30 seconds to 10 minutes apart.", least=1
    )
    keep: int = setting(2, "Checkpoints to keep.", least=1)
    skip_bad_steps: int = setting(0, "Steps with a loss that is no number to leave out before giving up.", least=0)
    precision: Literal["auto", "float32", "bf16"] = setting("auto", "auto: bf16 on a GPU that can, else float32.")
    device: str = setting("auto", "auto, cpu, or cuda.")
    shard: bool = setting(False, "Under torchrun: split weights and moments among processes (FSDP2), not copy them.")
    recompute: bool = setting(False, "Compute activations again on the way back: less memory, more time.")
    compile: Literal["auto", "yes", "no"] = setting(
        "auto", "Compile the layers: faster steps after some seconds. auto: on a GPU, where a run is long."
    )
    track: bool = setting(False, "Write TensorBoard files into the run folder too (the extra `track`).")
    deterministic: bool = setting(False, "On a GPU: the same bits each time, somewhat slower.")

    @classmethod
    def rules(cls, value: Mapping[str, Any], well: Callable[..., bool]) -> Iterator[str]:
        if well("layer_decay") and value["layer_decay"] > 1:
            yield f"layer_decay is {value['layer_decay']}, and must be at most 1"
        if (
            well("device")
            and value["device"] not in ("auto", "cpu", "cuda")
            and not value["device"].startswith("cuda:")
        ):
            yield f"device is {value['device']!r}: choose auto, cpu, cuda or cuda:1"
