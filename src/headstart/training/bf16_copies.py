"""bf16 copies of weights whose masters are in float32."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headstart.batches.batch import Batch


class Bf16Copies:
    """bf16 copies of the master weights of linear layers: one kernel makes all of them in a step, another returns their
    gradients. Autocast would launch a kernel for each weight, which on small batches is a sixth of the time.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self.module = module
        linear = ((name, part) for name, part in module.named_modules() if isinstance(part, nn.Linear))
        self.masters = {f"{name}.{kind}": p for name, part in linear for kind, p in part.named_parameters()}
        self.copies = {
            name: p.detach().to(dtype, copy=True).requires_grad_(p.requires_grad) for name, p in self.masters.items()
        }
        self.trainable = [name for name, p in self.masters.items() if p.requires_grad]
        self.of_parameter = {self.masters[name]: self.copies[name] for name in self.trainable}
        self.versions = self._versions()

    @torch.no_grad()
    def refresh(self) -> None:
        """Make the copies what their masters are now."""
        if self.of_parameter:
            torch._foreach_copy_(list(self.of_parameter.values()), list(self.of_parameter))

    def refresh_changed(self) -> None:
        """The same where torch wrote to a master since the last time: weights were restored, say, or swapped with their
        average. What a Triton kernel writes it does not count: this is for an optimizer that writes both.
        """
        versions = self._versions()
        if versions != self.versions:
            self.refresh()
            self.versions = versions

    def _versions(self) -> list[int]:
        return [master._version for master in self.of_parameter]

    def loss_sums(self, part: Batch) -> dict[str, Tensor]:
        """The module's forward pass with the copies in the place of the masters."""
        sums: dict[str, Tensor] = torch.func.functional_call(self.module, self.copies, (part,))
        return sums

    def return_gradients(self) -> None:
        """Add the gradients of the copies to those of the masters, in the masters' precision."""
        gradients = {name: grad for name in self.trainable if (grad := self.copies[name].grad) is not None}
        if not gradients:
            return
        exact = [torch.empty_like(self.masters[name]) for name in gradients]
        torch._foreach_copy_(exact, list(gradients.values()))
        for name, gradient in zip(gradients, exact, strict=True):
            master, copy = self.masters[name], self.copies[name]
            master.grad, copy.grad = gradient if master.grad is None else master.grad + gradient, None

    def zero_grad(self) -> None:
        for copy in self.copies.values():
            copy.grad = None
