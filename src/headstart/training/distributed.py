"""Several processes, one run. `torchrun` starts them; each takes its share of every batch, and the shares add up.

    torchrun --nproc-per-node 2 -m headstart finetune …

Which examples a step sees depends on the seed alone. Each loss is divided by the count of the whole batch, so the
gradients of the shares are added up, and a run is the same however many processes it has. Weights are copied to every
process (DDP), or split among them with their gradients and moments (FSDP2, `--shard`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from headstart.batches.batch import Batch
from headstart.config import MaskedNextSentenceConfig, NextSentenceConfig
from headstart.errors import ConfigError
from headstart.model.model import Model
from headstart.parallel import SINGLE, Parallel, timeout
from headstart.training.objectives import Objective
from headstart.training.parallel import ProcessGroup


def team() -> Parallel:
    """The processes that have joined; this one alone where none have."""
    return ProcessGroup(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else SINGLE


def meet() -> None:
    team().barrier()


def agree(what: str, value: str) -> None:
    team().require_same(what, value)


def patience() -> float:
    return timeout()


def sum_over(x: Tensor) -> Tensor:
    return team().all_reduce(x)


def total_norm(slopes: Iterable[Tensor]) -> Tensor:
    """The norm of all gradients together, wherever their parts are."""
    slopes = list(slopes)
    if not any(_is_split(slope) for slope in slopes):
        return torch.nn.utils.get_total_norm(slopes)
    here = torch.nn.utils.get_total_norm([_here(slope) for slope in slopes])
    return sum_over(here.square()).sqrt()


# --- weights in several processes -------------------------------------------------------------------------------------


class Sums(nn.Module):
    """The objective of a model as one module: what it computes between the moments at which processes meet."""

    def __init__(self, model: Model, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        return self.objective.sums(self.model, batch)


@dataclass
class Spread:
    """A model in one or several processes."""

    module: Any  # `Sums`, or what wraps it

    @classmethod
    def of(cls, model: Model, objective: Objective, *, shard: bool, changing: bool) -> Spread:
        """`changing`: what trains is not the same in every step."""
        sums = Sums(model, objective)
        size = team().world_size
        if shard:
            if size == 1:
                raise ConfigError("shard", ["weights are split among processes, and this is one: start it by torchrun"])
            _split(sums)
            return cls(sums)
        if size == 1:
            return cls(sums)
        idle = changing or not _uses_all(model)
        # Buffers are functions of the config: to send them around in every step would tell nobody anything.
        parallel: Any = nn.parallel.DistributedDataParallel
        since_213 = "forward_sync_buffers" in inspect.signature(parallel).parameters
        buffers = {"forward_sync_buffers" if since_213 else "broadcast_buffers": False}
        return cls(parallel(sums, find_unused_parameters=idle, **buffers))

    @property
    def objective(self) -> Objective:
        sums = self.module.module if isinstance(self.module, nn.parallel.DistributedDataParallel) else self.module
        found: Objective = sums.objective
        return found

    @property
    def split(self) -> bool:
        return any(_is_split(p) for p in self.module.parameters())

    def alone(self) -> AbstractContextManager[Any]:
        """Gradients of this pass stay here, to be added up with those of the next."""
        if isinstance(self.module, nn.parallel.DistributedDataParallel):
            return self.module.no_sync()
        return _unsynced(self.module) if self.split else nullcontext()

    def plain(self, model: Model) -> Model:
        """The model in one piece, without what training put around it; all processes ask at once."""
        if not self.split:
            return model
        made = Model.empty(model.config, model.head_config)
        made.load_state_dict({name: whole(value).clone() for name, value in model.state_dict().items()}, assign=True)
        return made.train(model.training)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """With the weights that belong to no layer in one piece, as scoring wants them; layers gather their own."""
        if not self.split:
            yield
            return
        self.module.unshard()
        try:
            yield
        finally:
            self.module.reshard()


def _uses_all(model: Model) -> bool:
    """Whether every parameter takes part in the loss: a pooler may be there that this head passes by."""
    head = model.head_config
    pools = (
        isinstance(head, NextSentenceConfig | MaskedNextSentenceConfig) or getattr(head, "pooler", None) == "backbone"
    )
    return model.backbone.pooler is None or pools


@contextmanager
def _unsynced(module: Any) -> Iterator[None]:
    module.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        module.set_requires_gradient_sync(True)


def _split(sums: Sums) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(sums.model.device.type, (team().world_size,))
    for layer in sums.model.backbone.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(sums, mesh=mesh)


def recompute(model: Model) -> None:
    """Keep no layer's activations for the way back: they are computed again, for less memory and more time."""
    from torch.utils.checkpoint import checkpoint

    for layer in model.backbone.layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def whole(x: Tensor) -> Tensor:
    """A tensor in one piece, in every process; all of them ask at once."""
    if not _is_split(x):
        return x
    found: Tensor = x.full_tensor()  # type: ignore[attr-defined]
    return found


@torch.no_grad()
def fill(x: Tensor, full: Tensor) -> None:
    """Write a tensor that is in one piece into one that may be split."""
    x.copy_(like(x, full))


def like(x: Tensor, full: Tensor) -> Tensor:
    """A tensor that is in one piece, split as `x` is."""
    if not _is_split(x) or full.dim() == 0:
        return full
    from torch.distributed.tensor import distribute_tensor

    split: Any = x
    return distribute_tensor(full, split.device_mesh, split.placements, src_data_rank=None)


def _is_split(x: Tensor) -> bool:
    return hasattr(x, "full_tensor")


def _here(x: Any) -> Tensor:
    found: Tensor = x.to_local() if _is_split(x) else x
    return found
