"""The gradient of an embedding as the rows that a batch has read, where a dense one would be zero almost everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def sparse_gradient(embedding: nn.Embedding | None) -> Iterator[None]:
    """A forward and backward pass after which the gradient of this embedding has the rows that were read, each once."""
    if embedding is None or not embedding.weight.requires_grad:
        yield
        return
    embedding.sparse = True
    # Before it is added to the gradient of the micro-batches before.
    hook = embedding.weight.register_hook(coalesced)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        embedding.sparse = False
        hook.remove()
    if embedding.weight.grad is not None:
        embedding.weight.grad = coalesced(embedding.weight.grad)


def coalesced(gradient: Tensor) -> Tensor:
    """A sparse gradient with one row for each index. Values are summed in their order, as those of dense gradients are,
    so that both train alike to the bit; torch's own `coalesce` sums in another order.
    """
    if gradient.is_coalesced():
        return gradient
    indices, where = gradient._indices()[0].unique(return_inverse=True)  # type: ignore[no-untyped-call]
    values = gradient._values()
    values = values.new_zeros(len(indices), values.shape[1]).index_add_(0, where, values)
    return torch.sparse_coo_tensor(indices[None], values, gradient.shape, is_coalesced=True, check_invariants=False)
