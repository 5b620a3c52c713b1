"""How weights move: AdamW written out, and the optimizers that training uses.

PlainAdamW            the algorithm, to read; tested equal to torch's
AdamW                 torch's, fused, without its import of the compiler
Muon                  torch's, for all matrices of one shape at once
parameter_groups      which parameters learn how fast, and which decay
build_optimizer       the fast optimizers over these groups, as one `Optimizers`
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headstart.errors import CheckpointError, ModelError
from headstart.model.model import Model
from headstart.training.hardware import bf16_problem
from headstart.training.settings import OptimizerSettings
from headstart.training.sharding import copy_into, full_tensor, shard_like

Group = dict[str, Any]


# --- AdamW, written out -----------------------------------------------------------------------------------------------


class PlainAdamW(torch.optim.Optimizer):
    """Adam with decoupled weight decay (Kingma & Ba 2015; Loshchilov & Hutter 2019).

    Each weight keeps a running mean of its gradient and of the gradient's square, and moves by their ratio: about `lr`
    a step, whatever the gradient's scale. It is also pulled towards zero, by an amount that the gradient has no say in.

    >>> weight = nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = PlainAdamW([weight], lr=0.1, weight_decay=0.0)
    >>> weight.grad = torch.tensor([1000.0])
    >>> optimizer.step()
    >>> round(weight.item(), 4)  # a gradient of 1000, and a step of 0.1
    0.9
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[Group],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            lr, eps, decay = group["lr"], group["eps"], group["weight_decay"]
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update(step=0, mean=torch.zeros_like(p), square=torch.zeros_like(p))
                state["step"] += 1
                state["mean"] = beta1 * state["mean"] + (1 - beta1) * p.grad
                state["square"] = beta2 * state["square"] + (1 - beta2) * p.grad**2

                # Both began at zero, and after t steps a share beta**t of them is still that zero: take it out.
                mean = state["mean"] / (1 - beta1 ** state["step"])
                square = state["square"] / (1 - beta2 ** state["step"])
                p -= lr * decay * p
                p -= lr * mean / (square.sqrt() + eps)


# --- torch's, without its compiler ------------------------------------------------------------------------------------


class _Uncompiled(torch.optim.Optimizer):
    """Methods of torch's optimizers as they are written, without the wrappers that keep them from being compiled.

    Each wrapper imports the compiler when it is first called, which takes over a second, and no step is compiled here.
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)


class AdamW(_Uncompiled, torch.optim.AdamW):
    """torch's AdamW in the form that updates all parameters in one pass, on a CPU as on a GPU.

    A sparse gradient counts as the dense one that it stands for: rows without a gradient move by their momentum, and
    decay. It is written into a tensor of zeros that is kept for it, of which only its rows are zeroed again.
    """

    _torch_step = inspect.unwrap(torch.optim.AdamW.step)

    def __init__(self, groups: list[Group], settings: OptimizerSettings) -> None:
        betas, on_gpu = (settings.beta1, settings.beta2), groups[0]["params"][0].is_cuda
        super().__init__(groups, betas=betas, eps=settings.epsilon, fused=True, capturable=on_gpu)
        self._zeros: dict[nn.Parameter, Tensor] = {}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        written = [(p.grad, self._make_dense(p)) for p in parameters if p.grad.is_sparse]
        self._torch_step()
        for sparse, dense in written:
            dense.index_fill_(0, sparse.indices()[0], 0.0)

    def _make_dense(self, p: nn.Parameter) -> Tensor:
        """Replace a sparse gradient of whole rows by a dense one, and return that."""
        assert p.grad is not None
        if p not in self._zeros:
            self._zeros[p] = torch.zeros_like(p)
        dense = self._zeros[p].index_copy_(0, p.grad.indices()[0], p.grad.values())
        p.grad = dense
        return dense


# --- Muon, many matrices at once --------------------------------------------------------------------------------------


class Muon(_Uncompiled, torch.optim.Muon):
    """torch's Muon (Jordan et al. 2024), which takes one matrix after the other: here all of one shape move together.

    A step is the mean of the gradients with its singular values brought near 1, by five Newton-Schulz iterations.
    Steps are as large as AdamW's, so that one rate suits both (Liu et al. 2025, "Muon is scalable"). Like torch's fused
    AdamW it divides gradients by `grad_scale` and stays where `found_inf` holds, without reading either back from the
    device: so a CUDA graph can capture it.
    """

    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    def __init__(self, groups: list[Group], dtype: torch.dtype) -> None:
        super().__init__(groups, adjust_lr_fn="match_rms_adamw")
        self.dtype = dtype  # of the products

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    by_shape.setdefault(p.shape, []).append(p)
                    if not self.state[p]:
                        self.state[p]["momentum_buffer"] = torch.zeros_like(p)
            for matrices in by_shape.values():
                self._update(matrices, group)

    def _update(self, matrices: list[nn.Parameter], group: Group) -> None:
        """M matrices of one shape (R, C), as one tensor (M, R, C). Orthogonalising needs them in one piece."""
        buffers = [self.state[p]["momentum_buffer"] for p in matrices]
        weight = torch.stack([full_tensor(p) for p in matrices])
        mean = torch.stack([full_tensor(buffer) for buffer in buffers])
        gradient = torch.stack([full_tensor(p.grad) for p in matrices if p.grad is not None])
        if self.grad_scale is not None:
            gradient = gradient / self.grad_scale
        new_mean = mean.lerp(gradient, 1 - group["momentum"])
        direction = self._orthogonalise(gradient.lerp(new_mean, group["momentum"]), group)  # Nesterov's momentum
        lr, size = group["lr"], 0.2 * math.sqrt(max(weight.shape[1:]))  # the root mean square of AdamW's steps
        new = weight * (1 - lr * group["weight_decay"]) - direction * (lr * size)
        if self.found_inf is not None:
            skip = self.found_inf.bool()
            new, new_mean = torch.where(skip, weight, new), torch.where(skip, mean, new_mean)
        for p, buffer, p_value, mean_value in zip(matrices, buffers, new, new_mean, strict=True):
            copy_into(p, p_value)
            copy_into(buffer, mean_value)

    def _orthogonalise(self, x: Tensor, group: Group) -> Tensor:
        """(M, R, C) → (M, R, C): each matrix with its singular values near 1.

        A Newton-Schulz iteration is y ← a y + b (y yᵀ) y + c (y yᵀ)² y: a polynomial of the singular values, which
        converges where they start at 1 at most.
        """
        a, b, c = group["ns_coefficients"]
        y = x.to(self.dtype)
        tall = y.shape[1] > y.shape[2]
        y = y.mT if tall else y  # the smaller of the two Gram matrices
        y = y / y.norm(dim=(1, 2), keepdim=True).clamp(min=group["eps"])
        for _ in range(group["ns_steps"]):
            gram = y @ y.mT
            y = torch.baddbmm(y, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), y, beta=a)
        return (y.mT if tall else y).to(x.dtype)


# --- which parameters learn how fast ----------------------------------------------------------------------------------


def parameter_groups(
    model: Model, settings: OptimizerSettings, keep: Callable[[str, Tensor], bool] = lambda name, p: True
) -> list[Group]:
    """The trainable parameters that `keep` accepts, in groups of one rate and one decay each.

    A step down from the head multiplies the rate by `layer_decay`: the top layer of L learns at lr · layer_decay, layer
    i at lr · layer_decay ** (L - i), and the embeddings slowest of all. The last norm and the pooler learn at lr, the
    head at lr · head_lr. What has fewer than two dimensions (norms and biases) does not decay.

    A group holds `params`, their `names`, `lr`, `weight_decay`, and the `initial` lr that schedules multiply.
    """
    groups: dict[tuple[float, float], Group] = {}
    for name, p in model.named_parameters():
        if not (p.requires_grad and keep(name, p)):
            continue
        part, depth = depth_of(name, model.config.layers)
        lr = settings.lr * (settings.head_lr if part == "head" else settings.layer_decay**depth)
        decay = settings.weight_decay if p.dim() >= 2 else 0.0
        empty = {"params": [], "names": [], "lr": lr, "initial": lr, "weight_decay": decay}
        group = groups.setdefault((lr, decay), empty)
        group["params"].append(p)
        group["names"].append(name)
    return list(groups.values())


def depth_of(name: str, layers: int) -> tuple[str, int]:
    """The part of the model that a parameter is in, and how many steps below the head that is.

    >>> depth_of("backbone.layers.3.attention.qkv.weight", 4), depth_of("backbone.embeddings.tokens.weight", 4)
    (('layer 3', 1), ('embeddings', 5))
    """
    match name.split("."):
        case "head", *_:
            return "head", 0
        case "backbone", "layers", number, *_:
            return f"layer {number}", layers - int(number)
        case "backbone", "embeddings" | "relative", *_:  # a bias by distance is a position, as much as a row is
            return "embeddings", layers + 1
        case "backbone", "norm" | "pooler", *_:
            return "top", 0
    raise ModelError(f"parameter {name} is in no part of the model that has a learning rate")


# --- the optimizers that training uses --------------------------------------------------------------------------------


class Optimizers:
    """One or two torch optimizers that step together. Their groups are those of `parameter_groups`."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = list(parts)

    @property
    def groups(self) -> list[Group]:
        return [group for part in self.parts for group in part.param_groups]

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can capture a step: everything that it reads lies on the GPU, the rates too."""
        return all(isinstance(group["lr"], Tensor) for group in self.groups)

    def set_lr(self, factor: float) -> None:
        """Let every parameter learn at `factor` times its initial rate."""
        for group in self.groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(group["initial"] * factor)
            else:
                group["lr"] = group["initial"] * factor

    def step(self, *, divide_by: Tensor | None = None, skip: Tensor | None = None) -> None:
        """Update every parameter that has a gradient.

        Gradients are divided by `divide_by` first; where `skip` holds true, nothing is updated. Optimizers do both
        within their step, on the device: they are the `grad_scale` and `found_inf` of torch's gradient scaler.
        """
        if divide_by is not None and divide_by.device.type == "cpu" and divide_by == 1:
            divide_by = None  # it would change nothing, and write every gradient once more
        for part in self.parts:
            part.grad_scale = divide_by  # type: ignore[attr-defined]
            part.found_inf = None if skip is None else skip.float()  # type: ignore[attr-defined]
            part.step()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad()

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What the next step depends on: the live tensors as `parameter.moment`, and what JSON can say of them."""
        tensors = {
            f"{name}.{moment}": value
            for part, name, p in self._parameters()
            for moment, value in part.state.get(p, {}).items()
        }
        return tensors, {"optimizers": self._kinds}

    def load_state_dict(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Go on from a copy of such a state; an error where it is of another optimizer or another model."""
        if meta.get("optimizers") != self._kinds:
            raise CheckpointError(f"the state is of optimizers {meta.get('optimizers')}, and these are {self._kinds}")
        parameters = {name: p for _, name, p in self._parameters()}
        states: dict[str, dict[str, Tensor]] = {}  # a parameter that has had no gradient yet has none
        for key, value in tensors.items():
            name, _, moment = key.rpartition(".")
            if name not in parameters:
                raise CheckpointError(f"the state has {name}, which is no parameter that this optimizer moves")
            p = parameters[name]
            if value.dim() > 0 and value.shape != p.shape:  # a single number counts the steps
                shapes = f"{tuple(value.shape)}, expected {tuple(p.shape)}"
                raise CheckpointError(f"the state's {key} has shape {shapes}")
            states.setdefault(name, {})[moment] = shard_like(p, value.to(p.device, copy=True))
        for part, name, p in self._parameters():
            part.state.pop(p, None)
            if name in states:
                part.state[p] = states[name]

    @property
    def _kinds(self) -> list[str]:
        return [type(part).__name__ for part in self.parts]

    def _parameters(self) -> Iterable[tuple[torch.optim.Optimizer, str, nn.Parameter]]:
        for part in self.parts:
            for group in part.param_groups:
                for name, p in zip(group["names"], group["params"], strict=True):
                    yield part, name, p


def build_optimizer(model: Model, settings: OptimizerSettings) -> Optimizers:
    """AdamW for all trainable parameters; or Muon for the matrices within the layers and AdamW for the rest."""

    def for_muon(name: str, p: Tensor) -> bool:
        in_layer = name.removeprefix("head.generator.").startswith("backbone.layers.")
        return settings.optimizer == "muon" and in_layer and p.dim() == 2

    parts: list[torch.optim.Optimizer] = []
    if matrices := parameter_groups(model, settings, for_muon):
        dtype = torch.float32 if bf16_problem(model.device) else torch.bfloat16
        parts.append(Muon(_lr_on_device(matrices), dtype))
    if others := parameter_groups(model, settings, lambda name, p: not for_muon(name, p)):
        parts.append(AdamW(_lr_on_device(others), settings))
    if not parts:
        raise ModelError("every parameter of this model is frozen: unfreeze some, or there is nothing to train")
    return Optimizers(parts)


def _lr_on_device(groups: list[Group]) -> list[Group]:
    """On a GPU the rates lie there too, so that a captured step reads them anew at every replay."""
    device = groups[0]["params"][0].device
    if device.type != "cuda":
        return groups
    return [{**group, "lr": torch.tensor(group["lr"], device=device)} for group in groups]
