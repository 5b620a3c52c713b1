"""How weights move: AdamW written out, the optimizers that training uses, and what is done to their rates.

PlainAdamW            the algorithm, to read; tested equal to torch's
Muon                  torch's, for all matrices of one shape at once
parameter_groups      which parameters learn how fast, and which decay
build_optimizer       the fast optimizers over these groups, as one `Optimizers`
rate                  how the learning rate rises and falls over a run
Average               a slower copy of the weights
set_unfrozen, …       what trains at all, and what starts afresh
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, assert_never

import torch
from torch import Tensor, nn

from headstart.errors import CheckpointError, ModelError
from headstart.model.initialisation import initialise
from headstart.model.model import Model
from headstart.training.distributed import fill, like, whole
from headstart.training.precision import bf16_trouble
from headstart.training.settings import Schedule

Group = dict[str, Any]
Kind = Literal["adamw", "muon"]


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


# --- Muon, many matrices at once --------------------------------------------------------------------------------------


class Muon(torch.optim.Muon):
    """torch's Muon (Jordan et al. 2024), which takes one matrix after the other: here all of one shape move together.

    A step is the mean of the gradients with its singular values brought near 1, by five rounds of Newton and Schulz.
    Steps are as large as AdamW's, so that one rate suits both (Liu et al. 2025, "Muon is scalable"). Like torch's fused
    AdamW it divides gradients by `grad_scale` and stays where `found_inf` holds, without asking the device.
    """

    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    def __init__(self, groups: list[Group], dtype: torch.dtype) -> None:
        super().__init__(groups, adjust_lr_fn="match_rms_adamw")
        self.dtype = dtype  # of the products

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            alike: dict[torch.Size, list[nn.Parameter]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    alike.setdefault(p.shape, []).append(p)
                    if not self.state[p]:
                        self.state[p]["momentum_buffer"] = torch.zeros_like(p)
            for matrices in alike.values():
                self._move(matrices, group)

    def _move(self, matrices: list[nn.Parameter], group: Group) -> None:
        """M matrices of one shape (R, C), as one tensor (M, R, C)."""
        means = [self.state[p]["momentum_buffer"] for p in matrices]
        x, mean = torch.stack([whole(p) for p in matrices]), torch.stack([whole(each) for each in means])
        slope = torch.stack([whole(p.grad) for p in matrices if p.grad is not None])
        if self.grad_scale is not None:
            slope = slope / self.grad_scale
        new_mean = mean.lerp(slope, 1 - group["momentum"])
        step = self._orthogonal(slope.lerp(new_mean, group["momentum"]), group)
        lr, size = group["lr"], 0.2 * math.sqrt(max(x.shape[1:]))
        new = x * (1 - lr * group["weight_decay"]) - step * (lr * size)
        if self.found_inf is not None:
            stay = self.found_inf.bool()
            new, new_mean = torch.where(stay, x, new), torch.where(stay, mean, new_mean)
        for p, its_mean, value, mean_value in zip(matrices, means, new, new_mean, strict=True):
            fill(p, value)
            fill(its_mean, mean_value)

    def _orthogonal(self, x: Tensor, group: Group) -> Tensor:
        """(M, R, C) → (M, R, C): each matrix with its singular values near 1, by Newton and Schulz."""
        a, b, c = group["ns_coefficients"]
        y = x.to(self.dtype)
        upright = y.shape[1] > y.shape[2]
        y = y.mT if upright else y  # the smaller of the two products
        y = y / y.norm(dim=(1, 2), keepdim=True).clamp(min=group["eps"])
        for _ in range(group["ns_steps"]):
            gram = y @ y.mT
            y = torch.baddbmm(y, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), y, beta=a)
        return (y.mT if upright else y).to(x.dtype)


# --- which parameters learn how fast ----------------------------------------------------------------------------------


def parameter_groups(
    model: Model, *, lr: float, weight_decay: float, layer_decay: float = 1.0, head_lr: float = 1.0
) -> list[Group]:
    """The trainable parameters, in groups of one rate and one decay each.

    A step down from the head multiplies the rate by `layer_decay`: the top layer of L learns at lr · layer_decay, layer
    i at lr · layer_decay ** (L - i), and the embeddings slowest of all. The last norm and the pooler learn at lr, the
    head at lr · head_lr. What has fewer than two dimensions (norms and biases) does not decay.

    A group holds `params`, their `names`, `lr`, `weight_decay`, the `initial` lr that schedules multiply, and a `name`.
    """
    groups: dict[tuple[float, float], Group] = {}
    places: dict[tuple[float, float], list[str]] = {}
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        place, steps = _place(name, model.config.layers)
        its_lr = lr * head_lr if place == "head" else lr * layer_decay**steps
        decay = weight_decay if p.dim() >= 2 else 0.0
        key = its_lr, decay
        fresh = {"params": [], "names": [], "lr": its_lr, "initial": its_lr, "weight_decay": decay}
        group = groups.setdefault(key, fresh)
        group["params"].append(p)
        group["names"].append(name)
        if place not in places.setdefault(key, []):
            places[key].append(place)
    for key, group in groups.items():
        group["name"] = ", ".join(places[key]) + (" (no decay)" if group["weight_decay"] == 0 else "")
    return list(groups.values())


def _place(name: str, layers: int) -> tuple[str, int]:
    """Where a parameter stands, and how many steps below the head that is.

    >>> _place("backbone.layers.3.attention.qkv.weight", 4), _place("backbone.embeddings.tokens.weight", 4)
    (('layer 3', 1), ('embeddings', 5))
    """
    match name.split("."):
        case "head", *_:
            return "head", 0
        case "backbone", "layers", number, *_:
            return f"layer {number}", layers - int(number)
        case "backbone", "embeddings" | "relative", *_:  # the bias by distance is a position, as much as a row is
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
    def recordable(self) -> bool:
        """Whether a step can be recorded on a GPU and played back: all that it reads lies there."""
        return all(isinstance(group["lr"], Tensor) for group in self.groups)

    def set_rate(self, factor: float) -> None:
        """Let every parameter move at `factor` times its initial rate."""
        for group in self.groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(group["initial"] * factor)
            else:
                group["lr"] = group["initial"] * factor

    def step(self, factor: float | None = 1.0, *, divide: Tensor | None = None, skip: Tensor | None = None) -> None:
        """Update every parameter that has a gradient, at `factor` times its initial rate (None: as it was set).

        Gradients are divided by `divide` first; where `skip` holds true, nothing is updated. Optimizers do both within
        their step, without asking the device.
        """
        if factor is not None:
            self.set_rate(factor)
        for part in self.parts:
            part.grad_scale = divide  # type: ignore[attr-defined]
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
        found: dict[str, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            name, _, moment = key.rpartition(".")
            found.setdefault(name, {})[moment] = value
        known = {name: (part, p) for part, name, p in self._parameters()}
        strange = sorted(found.keys() - known.keys())
        if strange:
            raise CheckpointError(f"the state has {strange[0]}, which is no parameter that this optimizer moves")
        for name, moments in found.items():
            p = known[name][1]
            for moment, value in moments.items():
                if value.dim() > 0 and value.shape != p.shape:  # a single number counts the steps
                    shapes = f"{tuple(value.shape)}, expected {tuple(p.shape)}"
                    raise CheckpointError(f"the state's {name}.{moment} has shape {shapes}")
        for name, (part, p) in known.items():
            part.state.pop(p, None)
            if name in found:  # a parameter that has had no gradient yet has no state
                part.state[p] = {
                    moment: like(p, value.to(p.device, copy=True)) for moment, value in found[name].items()
                }

    @property
    def _kinds(self) -> list[str]:
        return [type(part).__name__ for part in self.parts]

    def _parameters(self) -> Iterable[tuple[torch.optim.Optimizer, str, nn.Parameter]]:
        for part in self.parts:
            for group in part.param_groups:
                for name, p in zip(group["names"], group["params"], strict=True):
                    yield part, name, p


def build_optimizer(
    model: Model,
    *,
    kind: Kind = "adamw",
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    layer_decay: float = 1.0,
    head_lr: float = 1.0,
) -> Optimizers:
    """AdamW for all trainable parameters; or Muon for the matrices within the layers and AdamW for the rest."""
    groups = parameter_groups(model, lr=lr, weight_decay=weight_decay, layer_decay=layer_decay, head_lr=head_lr)
    if not groups:
        raise ModelError("every parameter of this model is frozen: unfreeze some, or there is nothing to train")
    match kind:
        case "adamw":
            return Optimizers([fused_adamw(groups, betas, eps)])
        case "muon":
            matrices, rest = _only(groups, _is_layer_matrix), _only(groups, lambda *each: not _is_layer_matrix(*each))
            parts: list[torch.optim.Optimizer] = []
            if matrices:
                dtype = torch.float32 if bf16_trouble(model.device) else torch.bfloat16
                parts.append(Muon(_rates_on_device(matrices), dtype))
            if rest:
                parts.append(fused_adamw(rest, betas, eps))
            return Optimizers(parts)
        case _:
            assert_never(kind)


def fused_adamw(groups: list[Group], betas: tuple[float, float], eps: float) -> torch.optim.AdamW:
    """torch's AdamW in the form that updates all parameters in one pass, on a CPU as on a GPU."""
    on_gpu = groups[0]["params"][0].is_cuda
    return torch.optim.AdamW(_rates_on_device(groups), betas=betas, eps=eps, fused=True, capturable=on_gpu)


def _rates_on_device(groups: list[Group]) -> list[Group]:
    """On a GPU the rates lie there too, so that a recorded step reads them anew each time."""
    device = groups[0]["params"][0].device
    if device.type != "cuda":
        return groups
    return [{**group, "lr": torch.tensor(group["lr"], device=device)} for group in groups]


def _is_layer_matrix(name: str, p: Tensor) -> bool:
    return name.startswith("backbone.layers.") and p.dim() == 2


def _only(groups: list[Group], keep: Callable[[str, Tensor], bool]) -> list[Group]:
    """The groups with only those of their parameters that `keep` accepts; groups that this empties are left out."""
    parts = []
    for group in groups:
        kept = [(name, p) for name, p in zip(group["names"], group["params"], strict=True) if keep(name, p)]
        if kept:
            parts.append({**group, "names": [name for name, _ in kept], "params": [p for _, p in kept]})
    return parts


# --- over a run -------------------------------------------------------------------------------------------------------


def rate(schedule: Schedule, step: int, total: int, warmup: int) -> float:
    """What the learning rate is multiplied by at a step, counted from 0, of a run of `total` steps.

    It rises in a line to 1 over the first `warmup` steps. Then it stays (`constant`), falls in a line (`linear`) or in
    half a cosine (`cosine`) so as to be 0 at step `total`, just after the last; or (`one-cycle`) falls in half a cosine
    to a thousandth, where 30 % of the steps are a warm-up unless another one is asked for.

    >>> [rate("linear", step, total=6, warmup=2) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if not 0 <= step < total:
        raise ValueError(f"step {step} of a run of {total}: steps are counted from 0 to {total - 1}")
    if schedule == "one-cycle" and warmup == 0:
        warmup = round(0.3 * total)
    warmup = min(warmup, total)
    if step < warmup:
        return (step + 1) / warmup
    left = (total - step) / (total - warmup)  # 1 just after the warm-up, and above 0 at the last step
    half_cosine = math.sin(math.pi / 2 * left) ** 2  # (1 + cos(π (1 - left))) / 2, exact near 0
    match schedule:
        case "constant":
            return 1.0
        case "linear":
            return left
        case "cosine":
            return half_cosine
        case "one-cycle":
            return 1e-3 + (1 - 1e-3) * half_cosine
        case _:
            assert_never(schedule)


class Average:
    """An exponential moving average of the weights that train: steadier than where the last step left them.

    Early on it follows closely, forgetting where the run began: the n-th update keeps at most (1 + n) / (10 + n) of it.

    >>> from headstart.model.presets import preset
    >>> model = Model.build(preset("lab", vocabulary=10))
    >>> average = Average(model, decay=0.999)
    >>> average.update(model)  # after each step
    >>> average.swap(model)    # the model has the average now: evaluate it, save it
    >>> average.swap(model)    # and now what it had before
    """

    def __init__(self, model: Model, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def update(self, model: Model) -> None:
        self.updates += 1
        kept = min(self.decay, (1 + self.updates) / (10 + self.updates))
        live = dict(model.named_parameters())
        for name, averaged in self.weights.items():
            averaged.lerp_(live[name], 1 - kept)

    @torch.no_grad()
    def swap(self, model: Model) -> None:
        """Exchange the averaged and the live weights; twice is as if nothing had been done."""
        live = dict(model.named_parameters())
        for name, averaged in self.weights.items():
            held = averaged.clone()
            averaged.copy_(live[name])
            live[name].copy_(held)

    def state_dict(self) -> dict[str, Tensor]:
        """The live tensors by the names of their parameters, and the number of updates."""
        return {**self.weights, "updates": torch.tensor(self.updates)}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from a copy of such a state."""
        if tensors.keys() != self.weights.keys() | {"updates"}:
            names = sorted(tensors.keys() ^ (self.weights.keys() | {"updates"}))
            raise CheckpointError(
                f"the average is of other parameters than those that train: {names[0]} is in one only"
            )
        self.updates = int(tensors["updates"])
        for name, averaged in self.weights.items():
            fill(averaged, tensors[name])


# --- what trains, and what starts afresh ------------------------------------------------------------------------------


def unfrozen_layers(epoch: int, layers: int, every: int = 1) -> int:
    """Gradual unfreezing (Howard & Ruder 2018): how many layers, from the top, train in an epoch.

    The head alone in the first, then one more layer `every` so many epochs; with the last of them, all there is.

    >>> [unfrozen_layers(epoch, layers=2) for epoch in range(4)]
    [0, 1, 2, 2]
    """
    return min(epoch // every, layers)


def set_unfrozen(model: Model, layers_from_top: int | None) -> None:
    """Let the head train, and so many layers with what stands above them; None, or all of them: the embeddings too.

    Build the optimizer before, while everything trains: it leaves alone what has no gradient, and knows the rest.
    """
    layers = model.config.layers
    count = layers if layers_from_top is None else layers_from_top
    for name, p in model.named_parameters():
        place, steps = _place(name, layers)
        trains = place == "head" or count >= layers or (count > 0 and steps <= count)
        p.requires_grad_(trains)
    model.train(model.training)  # a backbone that is wholly frozen has no dropout


def reinitialise_top(model: Model, layers: int) -> None:
    """Draw the top layers anew, and the pooler, which knows only them (Zhang et al. 2021); none where `layers` is 0."""
    found = len(model.backbone.layers)
    if not 0 <= layers <= found:
        raise ModelError(f"{layers} layers to draw anew, and the model has {found}: choose 0 to {found}")
    for layer in list(model.backbone.layers)[found - layers :]:
        initialise(layer, model.config)
    if layers and model.backbone.pooler is not None:
        initialise(model.backbone.pooler, model.config)
