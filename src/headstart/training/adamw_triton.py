"""AdamW on a GPU: one kernel for all parameters of a step, and one for the norm of their gradients.

torch's fused AdamW wants gradients in float32 and leaves bf16 copies of the weights to others: three passes over all
weights in place of one, and memory is what AdamW waits for. Here gradients are read as they are, bf16 or float32, and
the copies are written with the weights. The state is torch's (`step`, `exp_avg`, `exp_avg_sq`), so that a run goes on
from either's checkpoints. The same in plain torch is `PlainAdamW` in `optim.py`.

A kernel takes few arguments, so the addresses of all tensors lie in a table on the device, a row for each of P
parameters. Their elements are cut into blocks, and a program works on one. Blocks that are whole need no mask, and
without one loads and stores are wide; what is left of each parameter has a launch of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

AVAILABLE = triton is not None
BLOCK, WARPS = 4096, 8  # elements that a program works on, and the warps that share them
ALIGNED = 16  # bytes that every address is a multiple of: the widest load

# columns of the table; 0 where a parameter has no such tensor
WEIGHT, GRADIENT, BF16_GRADIENT, MEAN, SQUARE, COPY, STEP, LR, DECAY, SIZE = range(10)
COLUMNS = 10

_CONTIGUOUS = torch.contiguous_format


def supports(parameters: Iterable[Tensor]) -> bool:
    """Whether the kernel can update these: on a GPU, in float32, each in one piece."""
    return AVAILABLE and all(p.is_cuda and p.dtype == torch.float32 and _is_plain(p) for p in parameters)


def _is_plain(x: Tensor) -> bool:
    return x.is_contiguous() and x.data_ptr() % ALIGNED == 0


def _cut(sizes: list[int]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Blocks that are whole, and those that are not, as (row, number of the block in it).

    >>> _cut([BLOCK, 2 * BLOCK + 1])
    ([(0, 0), (1, 0), (1, 1)], [(1, 2)])
    """
    whole = [(row, block) for row, size in enumerate(sizes) for block in range(size // BLOCK)]
    return whole, [(row, size // BLOCK) for row, size in enumerate(sizes) if size % BLOCK]


class FusedAdamW:
    """The steps of an AdamW. `copies` has the bf16 copies of some of its parameters: it is they that have the gradients
    of these, unless they were added to the parameters' own.
    """

    def __init__(self, optimizer: torch.optim.AdamW, copies: Mapping[nn.Parameter, Tensor]) -> None:
        self.optimizer, self.copies = optimizer, copies
        self.parameters: list[nn.Parameter] = []
        self.groups: list[dict[str, Any]] = []  # one for each parameter
        for group in optimizer.param_groups:
            self.parameters += group["params"]
            self.groups += [group] * len(group["params"])
        betas, device = optimizer.defaults["betas"], self.parameters[0].device
        self.constants = *betas, *(math.log(max(beta, 1e-300)) for beta in betas), optimizer.defaults["eps"]
        self.decays = torch.tensor([group["weight_decay"] for group in self.groups], device=device)
        self.blocks = [  # (blocks, 2) each
            (torch.tensor(blocks, dtype=torch.int32, device=device), is_whole)
            for blocks, is_whole in zip(_cut([p.numel() for p in self.parameters]), (True, False), strict=True)
            if blocks
        ]
        self.table = torch.zeros(len(self.parameters), COLUMNS, dtype=torch.int64, device=device)
        self.rows: list[list[int]] = []  # what it is to hold
        self.captured_tables: list[Tensor] = []  # that graphs read
        self.capturing = False
        self.gradients: list[Tensor | None] = []

    @contextmanager
    def captured(self) -> Iterator[None]:
        """A block in which a step is captured as a CUDA graph.

        Its gradients will lie where they lie now, so it reads a table of its own at every replay. That is filled after
        the capture, in which nothing can be copied from the host, and allocated before: from a graph's own memory it
        would be overwritten.
        """
        eager, self.table, self.capturing = self.table, torch.zeros_like(self.table), True
        self.captured_tables.append(self.table)
        try:
            yield
            self.table.copy_(torch.tensor(self.rows))
        finally:
            self.table, self.capturing = eager, False

    @torch.no_grad()
    def gradient_norm(self) -> Tensor:
        """The norm of all gradients together, which the `step` that follows will use."""
        self.gradients = [self._gradient(p) for p in self.parameters]
        self.rows = [self._row(index) for index in range(len(self.parameters))]
        if not self.capturing:
            rows = torch.tensor(self.rows)
            self.table.copy_(rows.pin_memory() if self.table.is_cuda else rows, non_blocking=True)
        squares = [torch.empty(len(blocks), device=self.table.device) for blocks, _ in self.blocks]
        for (blocks, is_whole), out in zip(self.blocks, squares, strict=True):
            _norm_kernel[(len(blocks),)](self.table, blocks, out, BLOCK, is_whole, num_warps=WARPS)
        return torch.cat(squares).sum().sqrt()

    @torch.no_grad()
    def step(self, *, divide_by: Tensor, skip: Tensor) -> None:
        """Update every parameter that has a gradient, which is divided by `divide_by`; none where `skip` is true."""
        moved = [p for p, gradient in zip(self.parameters, self.gradients, strict=True) if gradient is not None]
        kept = (~skip).float()
        if moved:
            torch._foreach_add_([self.optimizer.state[p]["step"] for p in moved], [kept] * len(moved))
        for blocks, is_whole in self.blocks:
            _adamw_kernel[(len(blocks),)](
                self.table, blocks, divide_by, kept, *self.constants, BLOCK, is_whole, num_warps=WARPS
            )
        self.gradients = []

    def _gradient(self, p: nn.Parameter) -> Tensor | None:
        copy = self.copies.get(p)
        gradient = p.grad if copy is None or copy.grad is None else copy.grad
        return gradient if gradient is None or _is_plain(gradient) else gradient.clone(memory_format=_CONTIGUOUS)

    def _row(self, index: int) -> list[int]:
        """The table's row of a parameter; zeros where it has no gradient."""
        p, gradient, row = self.parameters[index], self.gradients[index], [0] * COLUMNS
        if gradient is None:
            return row
        state = self.optimizer.state[p]
        if not state:
            state["step"] = torch.zeros((), device=p.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
        row[BF16_GRADIENT if gradient.dtype == torch.bfloat16 else GRADIENT] = gradient.data_ptr()
        row[WEIGHT], row[MEAN], row[SQUARE] = (x.data_ptr() for x in (p, state["exp_avg"], state["exp_avg_sq"]))
        row[COPY] = self.copies[p].data_ptr() if p in self.copies else 0
        row[STEP], row[LR] = state["step"].data_ptr(), self.groups[index]["lr"].data_ptr()
        row[DECAY], row[SIZE] = self.decays[index].data_ptr(), p.numel()
        return row


# --- the kernels ------------------------------------------------------------------------------------------------------


def _pointer_body(row, column: tl.constexpr, dtype: tl.constexpr, bytes: tl.constexpr):  # type: ignore[no-untyped-def]
    """To the tensor of this column, whose address is a multiple of `bytes`: a thread loads so many at once.

    They are four elements of each tensor, 16 bytes of float32 and 8 of bf16: values stay in the thread that loads them.
    """
    return tl.multiple_of(tl.load(row + column).to(tl.pointer_type(dtype)), bytes)


def _elements_body(table, blocks, block: tl.constexpr, is_whole: tl.constexpr):  # type: ignore[no-untyped-def]
    """The row of this program's parameter, which of its elements the program works on, and which of them are there."""
    place = blocks + 2 * tl.program_id(0)
    row = table + tl.load(place) * _COLUMNS
    index = tl.load(place + 1).to(tl.int64) * block + tl.arange(0, block)
    size = tl.load(row + _SIZE)  # 0 where there is no gradient, and no addresses
    inside = _everywhere(index, size)
    if not is_whole:
        inside = index < size
    return row, index, inside


def _everywhere_body(index, number):  # type: ignore[no-untyped-def]
    """A mask of all elements where the number is not 0, and of none where it is."""
    return (index * 0 + number) != 0


def _gradient_body(row, index, inside):  # type: ignore[no-untyped-def]
    """In float32. One of the two loads has nothing to do."""
    full, half = _pointer(row, _GRADIENT, tl.float32, 16), _pointer(row, _BF16_GRADIENT, tl.bfloat16, 8)
    is_full = inside & _everywhere(index, tl.load(row + _GRADIENT))
    is_half = inside & _everywhere(index, tl.load(row + _BF16_GRADIENT))
    return tl.load(full + index, is_full, other=0.0) + tl.load(half + index, is_half, other=0.0).to(tl.float32)


def _norm_body(table, blocks, squares, block: tl.constexpr, is_whole: tl.constexpr):  # type: ignore[no-untyped-def]
    row, index, inside = _elements(table, blocks, block, is_whole)
    gradient = _gradient(row, index, inside)
    tl.store(squares + tl.program_id(0), tl.sum(gradient * gradient, 0))


def _adamw_body(  # type: ignore[no-untyped-def]
    table,
    blocks,
    divide_by,
    kept,
    beta1: tl.constexpr,
    beta2: tl.constexpr,
    log_beta1: tl.constexpr,
    log_beta2: tl.constexpr,
    epsilon: tl.constexpr,
    block: tl.constexpr,
    is_whole: tl.constexpr,
):
    row, index, inside = _elements(table, blocks, block, is_whole)
    inside = inside & _everywhere(index, tl.load(kept).to(tl.int64))
    weights, means = _pointer(row, _WEIGHT, tl.float32, 16) + index, _pointer(row, _MEAN, tl.float32, 16) + index
    squares, copies = _pointer(row, _SQUARE, tl.float32, 16) + index, _pointer(row, _COPY, tl.bfloat16, 8) + index
    gradient = _gradient(row, index, inside) / tl.load(divide_by)
    weight = tl.load(weights, mask=inside, other=0.0)
    mean = beta1 * tl.load(means, mask=inside, other=0.0) + (1 - beta1) * gradient
    square = beta2 * tl.load(squares, mask=inside, other=0.0) + (1 - beta2) * gradient * gradient

    # 1 - beta**step in double precision: after few steps it is a small difference of two large numbers.
    moves = tl.load(row + _SIZE) > 0
    step = tl.load(_pointer(row, _STEP, tl.float32, 4), mask=moves, other=1.0).to(tl.float64)
    step = tl.maximum(step, 1.0)  # it is 0 where the first step of all is skipped
    mean_share = (1 - tl.exp(step * log_beta1)).to(tl.float32)
    square_share = (1 - tl.exp(step * log_beta2)).to(tl.float32)
    lr = tl.load(_pointer(row, _LR, tl.float32, 4), mask=moves, other=0.0)
    decay = tl.load(_pointer(row, _DECAY, tl.float32, 4), mask=moves, other=0.0)
    weight -= lr * decay * weight
    weight -= lr / mean_share * mean / (tl.sqrt(square) / tl.sqrt(square_share) + epsilon)

    tl.store(weights, weight, mask=inside)
    tl.store(means, mean, mask=inside)
    tl.store(squares, square, mask=inside)
    tl.store(copies, weight.to(tl.bfloat16), mask=inside & _everywhere(index, tl.load(row + _COPY)))


if AVAILABLE:
    _WEIGHT, _GRADIENT, _BF16_GRADIENT, _MEAN, _SQUARE, _COPY, _STEP, _LR, _DECAY, _SIZE, _COLUMNS = map(
        tl.constexpr, range(11)
    )
    _pointer, _everywhere = triton.jit(_pointer_body), triton.jit(_everywhere_body)
    _elements, _gradient = triton.jit(_elements_body), triton.jit(_gradient_body)
    _norm_kernel, _adamw_kernel = triton.jit(_norm_body), triton.jit(_adamw_body)
