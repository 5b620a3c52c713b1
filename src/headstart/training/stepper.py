"""One step of training: forward and backward over the micro-batches, clip the gradient, update the weights.

EagerStepper       the step as one would write it
CudaGraphStepper   for a GPU, which on small batches mostly waits for Python: the step is captured as a CUDA graph once
                   for each size of batch, and replayed from then on
CompiledStepper    either of them, over layers that `torch.compile` made faster
build_stepper      picks one

A step returns its loss and the norm of its gradient as a tensor on the device. To read a number from a GPU is to wait
until it has done all that it was given, so the loop reads those of many steps at once.
"""

from __future__ import annotations

import gc
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headstart.batches.batch import Batch, micro_batch, pad_batch, rng
from headstart.errors import TrainingError
from headstart.model.heads import ClassifierHead
from headstart.model.layers import Layer
from headstart.training import adamw_triton, cross_entropy_triton
from headstart.training.adamw_triton import FusedAdamW
from headstart.training.bf16_copies import Bf16Copies
from headstart.training.hardware import autocast
from headstart.training.moving_average import MovingAverage
from headstart.training.optim import AdamW, Optimizers
from headstart.training.settings import TrainingSettings
from headstart.training.sharding import ParallelModel, total_norm
from headstart.training.sparse_gradients import sparse_gradient
from headstart.wording import reason

WARMUP_STEPS = 1  # steps of one size before it is captured: kernels are chosen and compiled in them
MAX_GRAPHS = 64  # sizes that are captured: each graph holds memory of its own
LONG_RUN = 50_000_000  # tokens of a run in which compiled layers save more time than compiling takes
MAX_VERSIONS = 16  # of a compiled layer: torch stops at 8, and causal+masked has steps of two kinds
COMPILERS = ("torch._dynamo", "torch._inductor", "triton")  # the modules that their errors come from
DROPOUT = 3  # sets the random numbers of dropout apart from those of order and masks


@dataclass
class EagerStepper:
    """A step, one operation after the other."""

    parallel_model: ParallelModel
    optimizer: Optimizers
    average: MovingAverage | None
    settings: TrainingSettings
    precision: torch.dtype

    @property
    def device(self) -> torch.device:
        return self.parallel_model.model.device

    def step(self, batch: Batch, number: int, micro_batches: int, lr_factor: float) -> Tensor:
        """Update the weights by one batch, the `number`-th from 0, at `lr_factor` times their learning rates.

        Returns the parts of its loss and the gradient's norm. Where one of them is not finite the weights stay as they
        were. Each process has `micro_batches` of the batch.
        """
        counts, parallel = self.loss_counts(batch), self.parallel_model.parallel
        self.optimizer.set_lr(lr_factor)
        loss = torch.zeros(len(counts), dtype=torch.float64, device=self.device)  # (parts,)
        total = micro_batches * parallel.world_size
        for index in range(parallel.rank, total, parallel.world_size):
            part = micro_batch(batch, index, total)
            self.seed_dropout(number, index)
            # Gradient accumulation: gradients add up in `p.grad`. Summing them over processes takes a collective, which
            # DDP and FSDP run inside the backward pass: only the last one needs it.
            last = index + parallel.world_size >= total
            with nullcontext() if last else self.parallel_model.no_sync():
                if part is not None:
                    loss += self.backward(part.to(self.device), counts)
                elif parallel.world_size > 1:
                    # There are fewer sequences than micro-batches. The other processes wait in their backward pass for
                    # a gradient from here: give one of zeros, from whatever sequences.
                    other = micro_batch(batch, 0, total)
                    assert other is not None
                    self.backward(other.to(self.device), counts, weight=0.0)
        return self.update_average(self.update(parallel.all_reduce(loss)))

    def loss_counts(self, batch: Batch) -> Tensor:
        """(parts,): how many terms each part of the loss has in the whole batch, and at least 1."""
        counts = [max(count, 1.0) for count in self.parallel_model.loss_counts(batch).values()]
        on_cpu = torch.tensor(counts, dtype=torch.float32)
        return (on_cpu.pin_memory() if self.device.type == "cuda" else on_cpu).to(self.device, non_blocking=True)

    def seed_dropout(self, number: int, index: int) -> None:
        """What dropout drops depends on the seed, the step and the micro-batch, and on nothing before."""
        seed = int(rng(self.settings.seed, number, index, DROPOUT).integers(2**63))
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` looks for kinds of device that are not here
        if self.device.type == "cuda":
            torch.cuda.manual_seed_all(seed)

    def backward(self, part: Batch, counts: Tensor, weight: float = 1.0) -> Tensor:
        """Forward and backward over one micro-batch: the (parts,) of its loss, divided by the counts of the batch."""
        with sparse_gradient(self.sparse_embedding):
            with autocast(self.precision, self.device):
                sums = self.loss_sums(part)
            means = [value / count for value, count in zip(sums.values(), counts, strict=True)]
            # DDP and FSDP average gradients over processes. Ours must be summed: the counts are of the whole batch.
            loss = torch.stack(means).sum() * (weight * self.parallel_model.parallel.world_size)
            if loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call]
        return torch.stack([mean.detach().double() for mean in means])

    def loss_sums(self, part: Batch) -> dict[str, Tensor]:
        sums: dict[str, Tensor] = self.parallel_model.module(part)
        return sums

    @property
    def sparse_embedding(self) -> nn.Embedding | None:
        """The token embedding where its gradient is kept for the tokens of the batch alone, on a CPU.

        A batch of eight sentences has 200 of the 30,000 rows of BERT's: to write zeros for all others, and to read them
        for the norm, takes a fortieth of a step. The loss of a language model gives every row a gradient.
        """
        model = self.parallel_model.model
        tokens = model.backbone.embeddings.tokens
        alone = self.device.type == "cpu" and self.parallel_model.parallel.world_size == 1
        return tokens if alone and isinstance(model.head, ClassifierHead) and isinstance(tokens, nn.Embedding) else None

    def update(self, loss: Tensor) -> Tensor:
        """Clip and update; (parts + 1,): the loss and the gradient's norm.

        The optimizer divides by what the norm is over the limit, and skips where something is not finite: nothing is
        read back to decide it.
        """
        norm = self.gradient_norm()
        values = torch.cat([loss, norm.double()[None]])
        over_limit = (norm / (self.settings.clip or math.inf)).clamp(min=1.0).float()
        self.update_weights(divide_by=over_limit, skip=~values.isfinite().all())
        self.zero_grad()
        return values

    def gradient_norm(self) -> Tensor:
        gradients = [p.grad for p in self.parallel_model.model.parameters() if p.grad is not None]
        gradients = [gradient.values() if gradient.is_sparse else gradient for gradient in gradients]
        return total_norm(gradients, self.parallel_model.parallel)

    def update_weights(self, *, divide_by: Tensor, skip: Tensor) -> None:
        self.optimizer.step(divide_by=divide_by, skip=skip)

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def update_average(self, values: Tensor) -> Tensor:
        """Let the moving average follow. Its weight changes from step to step, so no CUDA graph captures it."""
        if self.average and (values.is_cuda or values.isfinite().all()):
            self.average.update()  # on a GPU, where a step was skipped, by weights that stayed
        return values

    def discard(self) -> None:
        """After a step that failed: free its gradients and memory."""
        self.zero_grad()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def uncompiled(self) -> AbstractContextManager[None]:
        """A block in which the layers run as they are written."""
        return nullcontext()

    def close(self) -> None:
        """Leave the model as it was before training."""


class CapturedStep(NamedTuple):
    """A CUDA graph of a step: it reads its batch and its counts from these tensors, at every replay."""

    batch: Batch
    counts: Tensor
    replay: Callable[[], Tensor]


@dataclass
class CudaGraphStepper(EagerStepper):
    """A step that is captured for each size of batch, and replayed.

    A CUDA graph is the list of kernels that a step launches, with the addresses that they read and write. Replayed, all
    of it is one launch. So a captured step must always do the same, on tensors that stay where they are: batches are
    padded to a few sizes and copied into the tensors of their graph, learning rates lie on the device, and no number is
    read back in between. Dropout too: torch's generators hand a graph its seed at each replay.
    """

    steps_of_size: Counter[Any] = field(default_factory=Counter)
    graphs: dict[Any, CapturedStep] = field(default_factory=dict)
    pool: Any = None
    accumulating: bool = False  # whether a step has several micro-batches

    def __post_init__(self) -> None:
        exact = self.precision == torch.float32
        self.bf16_copies = None if exact else Bf16Copies(self.parallel_model.module, self.precision)
        self.fused: FusedAdamW | None = None  # a step of AdamW that moves the copies too
        parts = self.optimizer.parts
        if self.bf16_copies is not None and len(parts) == 1 and isinstance(parts[0], AdamW):
            parameters = [p for group in self.optimizer.groups for p in group["params"]]
            if adamw_triton.supports(parameters):
                self.fused = FusedAdamW(parts[0], self.bf16_copies.of_parameter)

    def loss_sums(self, part: Batch) -> dict[str, Tensor]:
        if self.bf16_copies is None:
            return super().loss_sums(part)
        if self.fused is None:
            self.bf16_copies.refresh()  # the last step moved the masters alone
        return self.bf16_copies.loss_sums(part)

    def gradient_norm(self) -> Tensor:
        return super().gradient_norm() if self.fused is None else self.fused.gradient_norm()

    def update_weights(self, *, divide_by: Tensor, skip: Tensor) -> None:
        (self.optimizer if self.fused is None else self.fused).step(divide_by=divide_by, skip=skip)

    def zero_grad(self) -> None:
        super().zero_grad()
        if self.bf16_copies is not None:
            self.bf16_copies.zero_grad()

    def backward(self, part: Batch, counts: Tensor, weight: float = 1.0) -> Tensor:
        loss = super().backward(part, counts, weight)
        if self.bf16_copies is not None and (self.fused is None or self.accumulating):
            self.bf16_copies.return_gradients()  # after each micro-batch: a sum of them in bf16 would be coarse
        return loss

    def step(self, batch: Batch, number: int, micro_batches: int, lr_factor: float) -> Tensor:
        if self.fused is not None and self.bf16_copies is not None:
            self.bf16_copies.refresh_changed()
        self.accumulating = micro_batches > 1
        if self.accumulating:
            return super().step(batch, number, micro_batches, lr_factor)
        counts, padded = self.loss_counts(batch), pad_batch(batch, self.parallel_model.model.config.window)
        padded = padded.pinned() if self.device.type == "cuda" else padded
        size = (
            tuple((name, tuple(value.shape)) for name, value in padded.tensors().items()),
            padded.longest,
            padded.causal,
        )
        self.steps_of_size[size] += 1
        self.optimizer.set_lr(lr_factor)
        captured = self.graphs.get(size)
        if captured is None and (self.steps_of_size[size] <= WARMUP_STEPS or len(self.graphs) == MAX_GRAPHS):
            self.seed_dropout(number, 0)
            return self.update_average(self.update(self.backward(padded.to(self.device), counts)))
        if captured is None:
            static = padded.to(self.device)
            captured = self.graphs[size] = CapturedStep(static, counts, self.capture(static, counts))
        captured.counts.copy_(counts)
        for name, value in padded.tensors().items():
            getattr(captured.batch, name).copy_(value, non_blocking=True)
        self.seed_dropout(number, 0)
        return self.update_average(captured.replay())

    def capture(self, static: Batch, counts: Tensor) -> Callable[[], Tensor]:
        """A function that replays the step over the batch and the counts that these tensors hold then."""
        graph = torch.cuda.CUDAGraph()
        self.pool = self.pool or torch.cuda.graph_pool_handle()  # one for all graphs: they never run at once
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # a graph's memory comes from its own pool: leave room for it
        table = nullcontext() if self.fused is None else self.fused.captured()
        # Another thread may be copying a checkpoint from the GPU: what it does there does not break this capture.
        with table, no_garbage_collection(), torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            values = self.update(self.backward(static, counts))

        def replay() -> Tensor:
            graph.replay()
            return values.clone()  # graphs of one pool write over each other's results

        return replay


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A block in which Python frees no reference cycles: among them may be CUDA graphs of a run before, and to free one
    during a capture breaks it.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class CompiledStepper:
    """Another stepper over compiled layers; where they cannot be compiled after all, over the layers as written.

    `required`: that was asked for, and not to be able to is an error.
    """

    def __init__(self, stepper: EagerStepper, *, required: bool) -> None:
        self.stepper, self.required = stepper, required
        self.layers = [part for part in stepper.parallel_model.model.modules() if isinstance(part, Layer)]
        self.compiled = False
        self.failure: str | None = None  # why the layers run as they are written

    def step(self, batch: Batch, number: int, micro_batches: int, lr_factor: float) -> Tensor:
        if not self.compiled and self.failure is None:
            self.compile(batch)
        if not self.compiled:
            return self.stepper.step(batch, number, micro_batches, lr_factor)
        try:
            # Too many sizes of batch: torch would print a warning, and run a layer uncompiled without a word to us.
            with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True, recompile_limit=MAX_VERSIONS):
                return self.stepper.step(batch, number, micro_batches, lr_factor)
        except Exception as error:
            if not type(error).__module__.startswith(COMPILERS):
                raise
            if self.required:
                raise TrainingError(
                    f"the layers cannot be compiled here ({reason(error)}): train with --compile no"
                ) from None
            self.failure = reason(error)
        self.discard()
        self.close()
        return self.stepper.step(batch, number, micro_batches, lr_factor)

    def compile(self, batch: Batch) -> None:
        """Let the layers be compiled in the step that follows.

        Batches of texts have many sizes: code that takes any of them is compiled at once, and not one for each.
        """
        logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
        ragged = len(batch.ids) != (len(batch.starts) - 1) * batch.longest
        for layer in self.layers:
            layer.compile(dynamic=True if ragged else None)  # sets `_compiled_call_impl`
        self.compiled = True

    def discard(self) -> None:
        self.stepper.discard()

    @contextmanager
    def uncompiled(self) -> Iterator[None]:
        """For scoring, whose batches have other sizes: to compile for each of them would take longer than they do."""
        calls = [layer._compiled_call_impl for layer in self.layers]
        for layer in self.layers:
            layer._compiled_call_impl = None
        try:
            yield
        finally:
            for layer, call in zip(self.layers, calls, strict=True):
                layer._compiled_call_impl = call

    def close(self) -> None:
        for layer in self.layers:
            layer._compiled_call_impl = None
        self.compiled = False


Stepper = EagerStepper | CompiledStepper


def build_stepper(
    parallel_model: ParallelModel,
    optimizer: Optimizers,
    average: MovingAverage | None,
    settings: TrainingSettings,
    precision: torch.dtype,
    count_tokens: Callable[[], int],
) -> Stepper:
    """The fastest stepper that this run can have; `count_tokens` says about how many tokens the run will see."""
    # A CUDA graph always does the same. Gradual unfreezing changes which weights train; several processes wait for one
    # another; and without the Triton kernel the loss over a vocabulary reads numbers back.
    capturable = (
        parallel_model.model.device.type == "cuda"
        and optimizer.capturable
        and not settings.unfreeze
        and parallel_model.parallel.world_size == 1
        and cross_entropy_triton.AVAILABLE
    )
    kind = CudaGraphStepper if capturable else EagerStepper
    stepper = kind(parallel_model, optimizer, average, settings, precision)
    required = settings.compile == "yes"
    if required or (settings.compile == "auto" and capturable and count_tokens() >= LONG_RUN):
        return CompiledStepper(stepper, required=required)
    return stepper
