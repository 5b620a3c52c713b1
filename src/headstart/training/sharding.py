"""A model in several processes: copied to each (DDP), or sharded over them (FSDP2, `--shard`).

DDP keeps all weights in every process and sums gradients over them. FSDP2 keeps a part of every weight, gradient and
moment in each; a layer gathers its weights just before it runs and frees them after. Such a part is a `DTensor`: the
functions at the end take plain tensors and DTensors alike.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from headstart.batches.batch import Batch
from headstart.config import MaskedNextSentenceConfig, NextSentenceConfig
from headstart.errors import ConfigError
from headstart.model.layers import Layer
from headstart.model.model import Model
from headstart.parallel import SINGLE, Parallel
from headstart.training.objectives import Objective
from headstart.training.settings import TrainingSettings


class LossModule(nn.Module):
    """The objective of a model as one module: DDP and FSDP wrap the forward pass of a module, up to the loss."""

    def __init__(self, model: Model, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        return self.objective.sums(self.model, batch)


class ParallelModel:
    """A model with its objective, wrapped for the processes that train it; in a single one, nothing is wrapped."""

    def __init__(
        self, model: Model, objective: Objective, settings: TrainingSettings, parallel: Parallel = SINGLE
    ) -> None:
        self.model, self.parallel = model, parallel
        self.loss = LossModule(model, objective)
        self.module: Any = self.loss
        if settings.shard:
            if parallel.world_size == 1:
                raise ConfigError("shard", ["weights are split among processes, and this is one: start it by torchrun"])
            _shard(self.loss, parallel.world_size)  # in place
        elif parallel.world_size > 1:
            # DDP waits for the gradient of every parameter, and must be told where some may have none.
            unused = bool(settings.unfreeze) or not _uses_all_parameters(model)
            # Buffers are functions of the config, the same in all processes: nothing needs to be sent.
            since_213 = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
            options: dict[str, Any] = {"forward_sync_buffers" if since_213 else "broadcast_buffers": False}
            self.module = DistributedDataParallel(self.loss, find_unused_parameters=unused, **options)

    @property
    def is_sharded(self) -> bool:
        return any(is_sharded(p) for p in self.loss.parameters())

    def loss_counts(self, batch: Batch) -> dict[str, float]:
        """How many terms each part of the loss has in this batch."""
        return self.loss.objective.counts(batch)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of the passes inside stay in this process, to be added to those of a later pass."""
        with ExitStack() as stack:
            if isinstance(self.module, DistributedDataParallel):
                stack.enter_context(self.module.no_sync())
            elif self.is_sharded:
                self.module.set_requires_gradient_sync(False)
                stack.callback(self.module.set_requires_gradient_sync, True)
            yield

    def unwrapped(self) -> Model:
        """The model in one piece, without what training put around it; a collective."""
        if not self.is_sharded:
            return self.model
        model = Model.empty(self.model.config, self.model.head_config)
        weights = {name: full_tensor(value).clone() for name, value in self.model.state_dict().items()}
        model.load_state_dict(weights, assign=True)
        return model.train(self.model.training)

    @contextmanager
    def unsharded(self) -> Iterator[None]:
        """With the weights outside the layers in one piece: scoring calls the model, not `module`, whose forward pass
        would gather them. Layers gather their own.
        """
        with ExitStack() as stack:
            if self.is_sharded:
                self.module.unshard()
                stack.callback(self.module.reshard)
            yield


def _uses_all_parameters(model: Model) -> bool:
    """Whether every parameter takes part in the loss: the backbone may have a pooler that this head does not use."""
    head = model.head_config
    pools = (
        isinstance(head, NextSentenceConfig | MaskedNextSentenceConfig) or getattr(head, "pooler", None) == "backbone"
    )
    return model.backbone.pooler is None or pools


def _shard(loss: LossModule, world_size: int) -> None:
    """FSDP2: each layer is gathered and freed by itself; embeddings and head together, as the rest."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(loss.model.device.type, (world_size,))
    for layer in loss.model.backbone.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(loss, mesh=mesh)


def checkpoint_activations(model: Model) -> None:
    """Keep no layer's activations: the backward pass computes them again, for less memory and more time."""
    from torch.utils.checkpoint import checkpoint

    for layer in model.modules():
        if isinstance(layer, Layer):
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)  # type: ignore[method-assign]


# --- tensors that may be sharded --------------------------------------------------------------------------------------


def is_sharded(x: Tensor) -> bool:
    return hasattr(x, "full_tensor")


def local_rows(x: Tensor) -> Tensor:
    """The rows of a sharded tensor that this process has; those of all, in the order of their ranks, are the tensor."""
    rows: Tensor = x.to_local()  # type: ignore[attr-defined]
    return rows


def full_tensor(x: Tensor) -> Tensor:
    """A tensor in one piece, in every process; a collective."""
    if not is_sharded(x):
        return x
    full: Tensor = x.full_tensor()  # type: ignore[attr-defined]
    return full


def shard_like(x: Tensor, full: Tensor) -> Tensor:
    """A tensor that is in one piece, sharded as `x` is. Every process has it already: nothing is sent."""
    if not is_sharded(x) or full.dim() == 0:
        return full
    from torch.distributed.tensor import distribute_tensor

    sharded: Any = x
    return distribute_tensor(full, sharded.device_mesh, sharded.placements, src_data_rank=None)


@torch.no_grad()
def copy_into(x: Tensor, full: Tensor) -> None:
    """Write a tensor that is in one piece into one that may be sharded."""
    x.copy_(shard_like(x, full))


def total_norm(gradients: list[Any], parallel: Parallel) -> Tensor:
    """The norm of all gradients together; each process has a part of those that are sharded."""
    if not any(is_sharded(gradient) for gradient in gradients):
        return torch.nn.utils.get_total_norm(gradients)
    local = [local_rows(gradient) if is_sharded(gradient) else gradient for gradient in gradients]
    own = torch.nn.utils.get_total_norm(local)
    return parallel.all_reduce(own.square()).sqrt()
