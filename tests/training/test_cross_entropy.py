"""The chunked loss is the plain one, in its value, its gradients and its dtypes, and in a fraction of the memory."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from headstart.batches.batch import IGNORE_INDEX
from headstart.errors import ModelError
from headstart.training.cross_entropy import chunked_cross_entropy, plain_cross_entropy, sampled_cross_entropy

Inputs = tuple[Tensor, Tensor, Tensor | None, Tensor]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """These tensors are so small that handing work round costs more than the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def drawn(
    tokens: int,
    words: int,
    width: int,
    *,
    seed: int = 0,
    bias: bool = True,
    ignored: float = 0.3,
    dtype: torch.dtype = torch.float64,
    size: float = 1.0,
) -> Inputs:
    """Random features, weight, bias and targets, all but the targets asking for gradients."""
    source = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        numbers = torch.randn(*shape, generator=source, dtype=torch.float64) * size
        return numbers.to(dtype).requires_grad_()

    targets = torch.randint(words, (tokens,), generator=source)
    targets[torch.rand(tokens, generator=source) < ignored] = IGNORE_INDEX
    return normal(tokens, width), normal(words, width), normal(words) if bias else None, targets


def gradients(loss: Tensor, inputs: Inputs) -> list[Tensor]:
    return list(torch.autograd.grad(loss, [x for x in inputs[:3] if x is not None]))


def close(ours: list[Tensor], theirs: list[Tensor], within: float) -> bool:
    pairs = zip(ours, theirs, strict=True)
    return all(a.dtype == b.dtype and torch.allclose(a, b, rtol=0, atol=within) for a, b in pairs)


cases = st.fixed_dictionaries(
    {
        "tokens": st.integers(0, 9),
        "words": st.integers(1, 7),
        "width": st.integers(1, 5),
        "seed": st.integers(0, 2**32 - 1),
        "bias": st.booleans(),
        "ignored": st.sampled_from([0.0, 0.3, 1.0]),
        "size": st.sampled_from([0.1, 1.0, 30.0]),  # 30: logits far apart, where a careless exp overflows
    }
)


@settings(max_examples=200, deadline=None)
@given(cases, st.sampled_from([1, 3, 1024]), st.floats(-3, 3))
def test_value_and_gradients_are_those_of_the_plain_form(case: dict[str, Any], chunk: int, scale: float) -> None:
    """The scale stands for what is made of the sum afterwards: a mean over a count, or a part of a larger loss."""
    inputs = drawn(**case)
    plain = plain_cross_entropy(*inputs)
    chunked = chunked_cross_entropy(*inputs, chunk=chunk)
    assert chunked.dtype == torch.float64
    torch.testing.assert_close(chunked, plain, rtol=1e-12, atol=1e-10)
    within = 1e-10 * max(1.0, case["size"])
    assert close(gradients(chunked * scale, inputs), gradients(plain * scale, inputs), within)


@given(cases)
@settings(max_examples=50, deadline=None)
def test_the_plain_form_is_torchs_own(case: dict[str, Any]) -> None:
    inputs = drawn(**case)
    features, weight, bias, targets = inputs
    theirs = F.cross_entropy(F.linear(features, weight, bias), targets, ignore_index=IGNORE_INDEX, reduction="sum")
    ours = plain_cross_entropy(*inputs)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert close(gradients(ours, inputs), gradients(theirs, inputs), 1e-10)


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_agree_with_finite_differences(chunk: int, bias: bool) -> None:
    features, weight, b, targets = drawn(7, 5, 3, bias=bias)

    def loss(*inputs: Tensor) -> Tensor:
        return chunked_cross_entropy(inputs[0], inputs[1], inputs[2] if bias else None, targets, chunk=chunk)

    assert torch.autograd.gradcheck(loss, [x for x in (features, weight, b) if x is not None])


def test_a_loss_by_hand() -> None:
    """Logits of 0 and log 3 are chances of 1/4 and 3/4."""
    features = torch.tensor([[1.0], [1.0], [1.0]]).requires_grad_()
    weight = torch.tensor([[0.0], [math.log(3)]])
    loss = chunked_cross_entropy(features, weight, None, torch.tensor([0, 1, IGNORE_INDEX]), chunk=2)
    assert loss.item() == pytest.approx(math.log(4) + math.log(4 / 3))
    (slope,) = torch.autograd.grad(loss, features)
    assert slope.flatten().tolist() == pytest.approx([0.75 * math.log(3), -0.25 * math.log(3), 0.0])


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_word_that_was_thought_impossible(wanted: bool, dtype: torch.dtype) -> None:
    """Its chance is 0 in float32, and its loss is a number all the same; so is that of one which is nearly so."""
    features = torch.eye(3, dtype=dtype).requires_grad_(wanted)
    weight = torch.tensor([[0.0, 0.0, 0.0], [-200.0, -80.0, -1.0]], dtype=dtype)
    loss = chunked_cross_entropy(features, weight, None, torch.tensor([1, 1, IGNORE_INDEX]))
    assert loss.item() == pytest.approx(280)
    if wanted:
        (slope,) = torch.autograd.grad(loss, features)
        assert slope.diag().tolist() == pytest.approx([200, 80, 0])


def test_no_tokens_is_a_loss_of_zero_with_gradients_of_zero() -> None:
    inputs = drawn(0, 5, 3)
    loss = chunked_cross_entropy(*inputs)
    assert loss.item() == 0
    found = gradients(loss, inputs)
    assert [tuple(g.shape) for g in found] == [(0, 3), (5, 3), (5,)]
    assert not any(g.any() for g in found)


def test_the_shares_of_a_batch_add_up_to_the_batch() -> None:
    """What gradient accumulation rests on: each share divided by the count of the whole."""
    inputs = features, weight, bias, targets = drawn(10, 6, 4)
    count = (targets != IGNORE_INDEX).sum()
    whole = chunked_cross_entropy(*inputs, chunk=4) / count
    shares = [
        chunked_cross_entropy(features[part], weight, bias, targets[part], chunk=4) / count
        for part in (slice(0, 3), slice(3, 10))
    ]
    torch.testing.assert_close(sum(shares), whole)
    expected = gradients(whole, inputs)
    for share in shares:
        share.backward()  # type: ignore[no-untyped-call]
    assert close([x.grad for x in (features, weight, bias) if x is not None and x.grad is not None], expected, 1e-12)


@pytest.mark.parametrize("chunk", [2, 100])
def test_a_weight_that_is_the_embedding_too(chunk: int) -> None:
    """Tied weights get the gradients of both their uses."""
    _, weight, bias, targets = drawn(8, 6, 4)
    ids = torch.arange(8) % 6

    def gradient(loss: Any, **how: Any) -> Tensor:
        return torch.autograd.grad(loss(torch.tanh(weight[ids]), weight, bias, targets, **how), weight)[0]

    chunked, plain = gradient(chunked_cross_entropy, chunk=chunk), gradient(plain_cross_entropy)
    assert close([chunked], [plain], 1e-10)


class Made(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers every operation, and the size of the largest tensor that any of them made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.largest = 0
        self.operations: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.operations.append(func.__name__)
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.numel())
        return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_more_than_a_chunk_of_logits_is_ever_made(dtype: torch.dtype) -> None:
    """Forward and backward: 600 tokens, 50 words filled up to 64, 20 tokens a chunk."""
    inputs = drawn(600, 50, 2, dtype=dtype)
    with Made() as made:
        gradients(chunked_cross_entropy(*inputs, chunk=20), inputs)
    assert made.largest == 20 * 64
    with Made() as made:
        gradients(plain_cross_entropy(*inputs), inputs)
    assert made.largest == 600 * 50


def test_no_work_for_gradients_that_nobody_asks_for() -> None:
    """Neither under no_grad nor where no input has one: the same operations as a bare sum."""
    inputs = drawn(6, 5, 3)
    bare = tuple(None if x is None else x.detach() for x in inputs)
    with Made() as without:
        free = chunked_cross_entropy(*bare, chunk=2)  # type: ignore[arg-type]
    with torch.no_grad(), Made() as under_no_grad:
        loss = chunked_cross_entropy(*inputs, chunk=2)
    with Made() as asked:
        assert chunked_cross_entropy(*inputs, chunk=2).requires_grad
    assert not loss.requires_grad
    assert not free.requires_grad
    assert without.operations == under_no_grad.operations
    assert sum("mm" in name for name in without.operations) == 3  # three chunks, and the logits of each
    assert sum("mm" in name for name in asked.operations) == 9
    torch.testing.assert_close(loss, plain_cross_entropy(*inputs))


@pytest.mark.parametrize(("only", "products"), [("features", 6), ("weight", 6), ("bias", 6)])
def test_only_the_gradients_that_are_asked_for(only: str, products: int) -> None:
    """Three chunks: the logits of each, and another product where the gradient is one."""
    inputs = drawn(5, 4, 3)
    kept = ("features", "weight", "bias").index(only)
    expected = gradients(plain_cross_entropy(*inputs), inputs)[kept]
    for i, x in enumerate(inputs[:3]):
        if x is not None and i != kept:
            x.requires_grad_(False)
    with Made() as made:
        chunked_cross_entropy(*inputs, chunk=2).backward()  # type: ignore[no-untyped-call]
    assert sum("mm" in name for name in made.operations) == products
    found = [None if x is None else x.grad for x in inputs[:3]]
    assert [i for i, g in enumerate(found) if g is not None] == [kept]
    torch.testing.assert_close(found[kept], expected)


# --- bf16 -----------------------------------------------------------------------------------------------------------


def test_bf16_features_meet_float32_weights() -> None:
    features, weight, bias, targets = drawn(50, 40, 16, dtype=torch.float32)
    half = features.detach().bfloat16().requires_grad_()
    inputs = (half, weight, bias, targets)
    loss = chunked_cross_entropy(*inputs, chunk=7)
    assert loss.dtype == torch.float32
    found = gradients(loss, inputs)
    assert [g.dtype for g in found] == [torch.bfloat16, torch.float32, torch.float32]
    exact_inputs = (features, weight, bias, targets)
    exact = plain_cross_entropy(*exact_inputs)
    assert loss.item() == pytest.approx(exact.item(), rel=0.01)
    for ours, theirs in zip(found, gradients(exact, exact_inputs), strict=True):
        assert (ours.float() - theirs).norm() < 0.02 * theirs.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_multiplies_in_bf16_and_sums_in_float32(dtype: torch.dtype) -> None:
    """As torch's own layers would under autocast, whichever dtype the features come in: the same logits, to the bit."""
    features, weight, bias, targets = drawn(30, 20, 16, dtype=torch.float32)
    inputs = (features.detach().to(dtype).requires_grad_(), weight, bias, targets)
    with torch.autocast("cpu", torch.bfloat16):
        ours = chunked_cross_entropy(*inputs, chunk=7)
        plain = plain_cross_entropy(*inputs)
        logits = F.linear(*inputs[:3])
    assert logits.dtype == torch.bfloat16
    theirs = F.cross_entropy(logits.float(), targets, ignore_index=IGNORE_INDEX, reduction="sum")
    assert ours.dtype == plain.dtype == torch.float32
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    assert plain.item() == pytest.approx(theirs.item(), rel=1e-6)
    expected = gradients(theirs, inputs)
    for loss in (ours, plain):
        found = gradients(loss, inputs)
        assert [g.dtype for g in found] == [g.dtype for g in expected]
        for a, b in zip(found, expected, strict=True):
            assert (a.float() - b.float()).norm() < 0.01 * b.float().norm()


def test_float64_stays_float64_under_autocast() -> None:
    inputs = drawn(6, 5, 3)
    expected = plain_cross_entropy(*inputs)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(chunked_cross_entropy(*inputs, chunk=100), expected, rtol=1e-14, atol=0)


def test_a_scale_is_not_rounded_to_bf16() -> None:
    """1 / 3 in bf16 is off by 0.1 %; all of a gradient would be."""
    inputs = drawn(30, 20, 16, dtype=torch.bfloat16, bias=False)
    whole = gradients(chunked_cross_entropy(*inputs), inputs)[0]
    third = gradients(chunked_cross_entropy(*inputs) / 3, inputs)[0]
    assert torch.equal(third, (whole.float() / 3).bfloat16())


# --- bad input ------------------------------------------------------------------------------------------------------


def test_as_many_targets_as_vectors() -> None:
    """Where the surplus is whole chunks, nothing else would notice."""
    features, weight, bias, targets = drawn(4, 5, 3)
    with pytest.raises(ModelError, match="2 vectors and 4 targets"):
        chunked_cross_entropy(features[:2], weight, bias, targets, chunk=2)


@pytest.mark.parametrize("target", [-1, 5])
def test_a_target_beyond_the_vocabulary_is_refused(target: int) -> None:
    features, weight, bias, _ = drawn(1, 5, 3)
    with pytest.raises(IndexError, match=f"{target}, and the vocabulary has 5 words"):
        chunked_cross_entropy(features, weight, bias, torch.tensor([target]))


# --- memory ---------------------------------------------------------------------------------------------------------

MEASURE = """
import re, sys
from pathlib import Path
import torch
from headstart.training import cross_entropy

def memory(field):
    return int(re.search(field + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

form, tokens = sys.argv[1], int(sys.argv[2])
loss = getattr(cross_entropy, form)
features = torch.randn(tokens, 64, requires_grad=True)
weight = torch.randn(50_001, 64, requires_grad=True)
bias = torch.zeros(50_001, requires_grad=True)
targets = torch.randint(50_001, (tokens,))
before = memory("VmRSS")
loss(features, weight, bias, targets).backward()
print(memory("VmHWM") - before)
"""


def growth(form: str, tokens: int) -> int:
    """By how many kB a process grows at most while it computes the loss and its gradients.

    The kernel's own high-water mark of a fresh process. (`ru_maxrss` would not do: a child inherits its parent's.)
    """
    command = [sys.executable, "-c", MEASURE, form, str(tokens)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel's high-water mark is read from /proc")
def test_an_eighth_of_the_memory_or_less() -> None:
    """50,001 words, 32,768 tokens. The plain form would need 20 GB for them, and is measured on a quarter of the tokens
    and multiplied by four: all of its large tensors have one row a token."""
    tokens = 32_768
    chunked, plain = growth("chunked_cross_entropy", tokens), 4 * growth("plain_cross_entropy", tokens // 4)
    one_set_of_logits = tokens * 50_001 * 4 / 1024
    assert plain > one_set_of_logits  # else it was not measured
    assert chunked * 8 < plain, f"chunked {chunked / 1e6:.2f} GB, plain {plain / 1e6:.2f} GB"


# --- on a GPU -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel runs on CUDA alone")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("words", [50, 50_001])
def test_the_gpu_kernel_is_the_plain_form(words: int, dtype: torch.dtype) -> None:
    features, weight, bias, targets = drawn(300, words, 20, dtype=torch.float32)
    on_gpu = [
        None if x is None else x.detach().cuda().requires_grad_(x.is_floating_point()) for x in (features, weight, bias)
    ]
    inputs = (on_gpu[0], on_gpu[1], on_gpu[2], targets.cuda())
    with torch.autocast("cuda", dtype, enabled=dtype == torch.bfloat16):
        loss = chunked_cross_entropy(*inputs, chunk=128)  # type: ignore[arg-type]
    found = gradients(loss, inputs)  # type: ignore[arg-type]
    exact = plain_cross_entropy(features, weight, bias, targets)
    within = 1e-4 if dtype == torch.float32 else 0.02
    assert loss.item() == pytest.approx(exact.item(), rel=within)
    for ours, theirs in zip(found, gradients(exact, (features, weight, bias, targets)), strict=True):
        assert (ours.cpu() - theirs).norm() < within * theirs.norm()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel runs on CUDA alone")
def test_a_gpu_says_nan_of_a_target_beyond_the_vocabulary() -> None:
    features, weight, bias, _ = (None if x is None else x.cuda() for x in drawn(2, 5, 3, dtype=torch.float32))
    assert features is not None and weight is not None
    loss = chunked_cross_entropy(features, weight, bias, torch.tensor([1, 5], device="cuda"))
    assert loss.isnan()


@given(cases)
@settings(deadline=None)
def test_a_sample_of_all_words_is_the_whole_loss(case: dict[str, Any]) -> None:
    inputs = drawn(**case)
    words = torch.arange(case["words"])
    whole = plain_cross_entropy(*inputs)
    sampled = sampled_cross_entropy(*inputs, words, torch.zeros(case["words"], dtype=torch.float64))
    torch.testing.assert_close(sampled, whole, rtol=1e-9, atol=1e-9)
    assert close(gradients(sampled, inputs), gradients(whole, inputs), 1e-9)


@pytest.mark.parametrize("bias", [True, False])
def test_a_sample_is_a_softmax_over_its_words_alone(bias: bool) -> None:
    """Their logits, each lowered by the logarithm of its chance; no other word has a gradient."""
    features, weight, own_bias, targets = inputs = drawn(7, 9, 4, bias=bias, ignored=0.0)
    targets = targets % 3 * 3  # 0, 3 and 6
    words, chance = torch.tensor([0, 3, 4, 6]), torch.tensor([0.9, 0.5, 0.25, 1.0], dtype=torch.float64)
    logits = F.linear(features, weight, own_bias)[:, words] - chance.log()
    expected = F.cross_entropy(logits, torch.searchsorted(words, targets), reduction="sum")
    loss = sampled_cross_entropy(features, weight, own_bias, targets, words, chance.log())
    torch.testing.assert_close(loss, expected)
    ours, theirs = (gradients(value, inputs) for value in (loss, expected))
    assert close(ours, theirs, 1e-9)
    assert ours[1][[1, 2, 5, 7, 8]].abs().sum() == 0
