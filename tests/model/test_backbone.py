"""The backbone: against the plain form, in every layout, and what no model may ever do: see ahead, or see a neighbour.

The properties are tried on models of every kind that a config can describe, with every weight and bias away from 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headstart.config import ModelConfig
from headstart.errors import ConfigError, ModelError
from headstart.model.backbone import Backbone, Embeddings
from headstart.model.initialisation import initialise
from headstart.model.layout import Cached, Dense, Flat, Layout
from headstart.model.positions import sinusoidal

from .reference_attention import one_at_a_time
from .strategies import SEEDS, VOCABULARY, WINDOW, Batch, batches, configs, randomized


def config(**changes: object) -> ModelConfig:
    settings = {"vocabulary": VOCABULARY, "width": 8, "layers": 2, "heads": 2, "feed_forward": 6, "window": WINDOW}
    return ModelConfig.from_mapping(settings | changes, "test")


def changed(ids: Tensor, where: slice) -> Tensor:
    """The same tokens, but every one of `where` another."""
    other = ids.clone()
    other[where] = (other[where] + 1) % VOCABULARY
    return other


def run_flat(backbone: Backbone, batch: Batch, ids: Tensor | None = None) -> Tensor:
    vectors: Tensor = backbone(batch.ids if ids is None else ids, batch.flat, batch.segments)
    return vectors


def run_dense(backbone: Backbone, batch: Batch, ids: Tensor | None = None, filling: int = 0) -> Tensor:
    """(N, D): the real cells of a padded block."""
    segments = None if batch.segments is None else batch.padded(batch.segments)
    block = batch.padded(batch.ids if ids is None else ids, filling)
    vectors: Tensor = backbone(block, batch.dense, segments)
    return vectors[batch.dense.mask]


RUNS = st.sampled_from([run_flat, run_dense])


# What every model is


@settings(max_examples=60)
@given(st.data(), SEEDS)
@torch.no_grad()
def test_every_layout_gives_what_each_sequence_gives_by_itself(data: st.DataObject, seed: int) -> None:
    c: ModelConfig = data.draw(configs())
    batch: Batch = data.draw(batches(c))
    backbone = randomized(Backbone(c), seed).double()
    segments = batch.split(batch.segments) if batch.segments is not None else [None] * len(batch.lengths)
    alone = torch.cat(
        [
            backbone(ids, Flat.from_lengths([len(ids)]), segment)
            for ids, segment in zip(batch.split(batch.ids), segments, strict=True)
        ]
    )
    torch.testing.assert_close(run_flat(backbone, batch), alone, rtol=0, atol=1e-10)
    torch.testing.assert_close(run_dense(backbone, batch), alone, rtol=0, atol=1e-10)


@settings(max_examples=60)
@given(st.data(), SEEDS)
def test_tokens_that_are_asked_for_alone_are_what_they_are_among_all(data: st.DataObject, seed: int) -> None:
    """In value, and in what they teach every weight."""
    config: ModelConfig = data.draw(configs())
    batch: Batch = data.draw(batches(config))
    backbone = randomized(Backbone(config), seed).double()
    keep = torch.tensor(data.draw(st.lists(st.integers(0, len(batch.ids) - 1), max_size=5)), dtype=torch.long)
    some = backbone(batch.ids, batch.flat, batch.segments, keep)
    every = backbone(batch.ids, batch.flat, batch.segments)[keep]
    torch.testing.assert_close(some, every, rtol=0, atol=1e-9)
    weights = [p for name, p in backbone.named_parameters() if "pooler" not in name]
    taught = [torch.autograd.grad(x.sin().sum(), weights, allow_unused=True) for x in (some, every)]
    for one, other in zip(*taught, strict=True):
        if other is not None:
            torch.testing.assert_close(one, other, rtol=0, atol=1e-7)


@settings(max_examples=40)
@given(st.data(), SEEDS)
@torch.no_grad()
def test_the_same_in_float32_with_the_weights_of_a_fresh_model(data: st.DataObject, seed: int) -> None:
    c: ModelConfig = data.draw(configs())
    batch: Batch = data.draw(batches(c))
    torch.manual_seed(seed)
    backbone = Backbone(c)
    initialise(backbone, c)
    backbone.eval()
    exact = run_flat(backbone.double(), batch).float()
    torch.testing.assert_close(run_flat(backbone.float(), batch), exact, rtol=0, atol=1e-5)
    torch.testing.assert_close(run_dense(backbone, batch), exact, rtol=0, atol=1e-5)


@settings(max_examples=40)
@given(st.data(), SEEDS)
def test_the_whole_backbone_with_plain_attention_in_its_place(data: st.DataObject, seed: int) -> None:
    """Values, and the gradient of every parameter."""
    c: ModelConfig = data.draw(configs())
    batch: Batch = data.draw(batches(c))
    backbone = randomized(Backbone(c), seed).double()
    weight = torch.randn(len(batch.ids), c.width, dtype=torch.float64)
    used = [p for name, p in backbone.named_parameters() if not name.startswith("pooler.")]

    def plain(q: Tensor, k: Tensor, v: Tensor, layout: Layout, *, causal: bool, bias: Any, dropout: float) -> Tensor:
        assert dropout == 0
        return one_at_a_time(q, k, v, batch.lengths, causal=causal, bias=bias)

    fast = run_flat(backbone, batch)
    gradients = torch.autograd.grad((fast * weight).sum(), used, materialize_grads=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headstart.model.attention.attend", plain)
        expected = run_flat(backbone, batch)
        expected_gradients = torch.autograd.grad((expected * weight).sum(), used, materialize_grads=True)
    torch.testing.assert_close(fast, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-8, atol=1e-8)


@settings(max_examples=60)
@given(st.data(), SEEDS, st.sampled_from([torch.float32, torch.float64]), RUNS)
@torch.no_grad()
def test_a_causal_model_does_not_see_ahead(data: st.DataObject, seed: int, dtype: torch.dtype, run: Any) -> None:
    """Other tokens from some place on: what stands before it stays as it was, bit for bit."""
    c: ModelConfig = data.draw(configs(direction="causal"))
    batch: Batch = data.draw(batches(c, least=2))
    backbone = randomized(Backbone(c), seed).to(dtype)
    s = data.draw(st.integers(0, len(batch.lengths) - 1))
    begin = sum(batch.lengths[:s])
    position = data.draw(st.integers(1, batch.lengths[s] - 1))
    ahead = slice(begin + position, begin + batch.lengths[s])
    before, after = run(backbone, batch), run(backbone, batch, changed(batch.ids, ahead))
    assert torch.equal(before[: begin + position], after[: begin + position])
    assert torch.equal(before[ahead.stop :], after[ahead.stop :])
    assert not torch.equal(before[ahead], after[ahead])


@settings(max_examples=60)
@given(st.data(), SEEDS, st.sampled_from([torch.float32, torch.float64]), RUNS)
@torch.no_grad()
def test_no_sequence_sees_its_neighbour(data: st.DataObject, seed: int, dtype: torch.dtype, run: Any) -> None:
    """Every token of all the others another: nothing of this one moves, bit for bit."""
    c: ModelConfig = data.draw(configs())
    batch: Batch = data.draw(batches(c))
    backbone = randomized(Backbone(c), seed).to(dtype)
    s = data.draw(st.integers(0, len(batch.lengths) - 1))
    mine = slice(sum(batch.lengths[:s]), sum(batch.lengths[: s + 1]))
    others = changed(batch.ids, slice(None))
    others[mine] = batch.ids[mine]
    before, after = run(backbone, batch), run(backbone, batch, others)
    assert torch.equal(before[mine], after[mine])
    elsewhere = torch.ones(len(batch.ids), dtype=torch.bool)
    elsewhere[mine] = False
    assert len(batch.lengths) == 1 or not torch.equal(before[elsewhere], after[elsewhere])


@settings(max_examples=40)
@given(st.data(), SEEDS)
@torch.no_grad()
def test_padding_is_never_seen(data: st.DataObject, seed: int) -> None:
    c: ModelConfig = data.draw(configs())
    batch: Batch = data.draw(batches(c))
    backbone = randomized(Backbone(c), seed)
    assert torch.equal(run_dense(backbone, batch, filling=0), run_dense(backbone, batch, filling=VOCABULARY - 1))


@settings(max_examples=40)
@given(st.data(), SEEDS)
@torch.no_grad()
def test_empty_sequences_at_the_end_change_nothing(data: st.DataObject, seed: int) -> None:
    c: ModelConfig = data.draw(configs())
    batch: Batch = data.draw(batches(c))
    backbone = randomized(Backbone(c), seed).double()
    filled = Flat.from_lengths([*batch.lengths, 0, 0])
    torch.testing.assert_close(
        backbone(batch.ids, filled, batch.segments), run_flat(backbone, batch), rtol=0, atol=1e-10
    )


@settings(max_examples=30)
@given(st.data(), SEEDS)
def test_no_gradient_crosses_from_one_sequence_to_another_or_back_in_time(data: st.DataObject, seed: int) -> None:
    """The same from the other side: of which tokens does one token's vector depend? Of no others, not in the least."""
    c: ModelConfig = data.draw(configs(norm_epsilon=1e-5))
    batch: Batch = data.draw(batches(c))
    backbone = randomized(Backbone(c), seed).double()
    token = data.draw(st.integers(0, len(batch.ids) - 1))
    places = torch.cat([torch.arange(length) for length in batch.lengths])
    sequences = torch.arange(len(batch.lengths)).repeat_interleave(torch.tensor(batch.lengths))
    seen = sequences == sequences[token]
    if c.direction == "causal":
        seen &= places <= places[token]

    embedded = backbone.embeddings(batch.ids, batch.flat.position, batch.segments).detach().requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backbone.embeddings, "forward", lambda *_: embedded)
        out = run_flat(backbone, batch)[token]
    weight = torch.randn(c.width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    (gradient,) = torch.autograd.grad((out * weight).sum(), embedded)
    assert not gradient[~seen].any()
    assert gradient[token].any()


@pytest.mark.parametrize("length", [64, 333])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", ["ragged", "equal", "dense"])
@torch.no_grad()
def test_nothing_moves_in_long_sequences_either(layout: str, dtype: torch.dtype, length: int) -> None:
    """Where kernels cut the keys into tiles, and skip those that lie wholly ahead."""
    c = config(direction="causal", positions="rotary", width=32, window=400, gated=True)
    backbone = randomized(Backbone(c), seed=3).to(dtype)
    batch = Batch([length, length if layout == "equal" else 50], torch.arange(length + 50) % VOCABULARY, None)
    if layout == "equal":
        batch = replace(batch, ids=torch.arange(2 * length) % VOCABULARY)
    run = run_dense if layout == "dense" else run_flat
    before = run(backbone, batch)
    for position in (1, 31, 32, length - 1):
        after = run(backbone, batch, changed(batch.ids, slice(position, length)))
        assert torch.equal(before[:position], after[:position])
        assert torch.equal(before[length:], after[length:])
        assert not torch.equal(before[position], after[position])


@settings(max_examples=30)
@given(st.data(), SEEDS)
@torch.no_grad()
def test_a_bidirectional_model_does_see_ahead(data: st.DataObject, seed: int) -> None:
    """A guard on the tests above: what they forbid can be seen where it is allowed."""
    c: ModelConfig = data.draw(configs(direction="bidirectional"))
    batch: Batch = data.draw(batches(c, least=2))
    backbone = randomized(Backbone(c), seed).double()
    last = batch.lengths[0] - 1
    before, after = run_flat(backbone, batch), run_flat(backbone, batch, changed(batch.ids, slice(last, last + 1)))
    for position in range(last):
        assert not torch.equal(before[position], after[position])


# Positions


@settings(max_examples=30)
@given(st.data(), SEEDS)
@torch.no_grad()
def test_without_positions_the_order_of_the_tokens_is_nothing(data: st.DataObject, seed: int) -> None:
    c: ModelConfig = data.draw(configs(direction="bidirectional", positions="none"))
    backbone = randomized(Backbone(c), seed).double()
    length = data.draw(st.integers(2, c.window))
    ids = torch.randint(VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed))
    order = torch.tensor(data.draw(st.permutations(range(length))))
    layout = Flat.from_lengths([length])
    torch.testing.assert_close(backbone(ids[order], layout), backbone(ids, layout)[order], rtol=0, atol=1e-10)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "relative"])
@settings(max_examples=15)
@given(st.data(), SEEDS)
@torch.no_grad()
def test_with_positions_the_order_is_something(positions: str, data: st.DataObject, seed: int) -> None:
    c: ModelConfig = data.draw(configs(direction="bidirectional", positions=positions))
    backbone = randomized(Backbone(c), seed).double()
    forth, back = torch.tensor([1, 2, 3, 4]), torch.tensor([4, 3, 2, 1])
    layout = Flat.from_lengths([4])
    assert (backbone(forth, layout) - backbone(back, layout).flip(0)).abs().max() > 1e-6


@pytest.mark.parametrize("positions", ["rotary", "relative"])
@torch.no_grad()
def test_positions_on_the_scores_begin_anew_in_each_sequence(positions: str) -> None:
    backbone = randomized(Backbone(config(positions=positions)), seed=1).double()
    vectors = backbone(torch.tensor([1, 2, 3, 1, 2, 3]), Flat.from_lengths([3, 3]))
    torch.testing.assert_close(vectors[:3], vectors[3:], rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_relative_bias_is_added_to_the_scores_of_every_layer() -> None:
    """A bias that leaves each token only itself makes attention the identity on v, whatever the others are."""
    c = config(positions="relative", relative_buckets=8)
    backbone = randomized(Backbone(c), seed=2).double()
    assert backbone.relative is not None
    backbone.relative.weight.fill_(-1e9)
    backbone.relative.weight[0] = 0  # bucket 0: no distance
    ids = torch.tensor([5, 6, 7, 8])
    alone = torch.cat([backbone(ids[:1], Flat.from_lengths([1])), backbone(ids[:2], Flat.from_lengths([2]))[1:]])
    torch.testing.assert_close(backbone(ids, Flat.from_lengths([4]))[:2], alone, rtol=0, atol=1e-10)


@torch.no_grad()
def test_a_relative_bias_tells_left_from_right() -> None:
    """Only the bucket of the next token to the right is open: each token looks there, and the last, which has none,
    at all alike.
    """
    c = config(positions="relative", relative_buckets=8, layers=1)
    backbone = randomized(Backbone(c), seed=2).double()
    assert backbone.relative is not None
    backbone.relative.weight.fill_(-1e9)
    backbone.relative.weight[5] = 0  # 4 buckets look left, and 4 + 1 is one step right
    ids = torch.tensor([5, 6, 7, 8, 9])
    before = backbone(ids, Flat.from_lengths([5]))
    for position, movers in [(0, [0, 4]), (2, [1, 2, 4]), (4, [3, 4])]:
        after = backbone(changed(ids, slice(position, position + 1)), Flat.from_lengths([5]))
        assert (before != after).any(1).nonzero().flatten().tolist() == movers


# Embeddings


def test_embeddings_drop_in_training_alone() -> None:
    part = Embeddings(config(dropout=0.5)).eval()
    ids = torch.zeros(50, dtype=torch.long)
    position = torch.zeros(50, dtype=torch.long)
    torch.manual_seed(0)
    still = part(ids, position, None)
    assert torch.equal(part(ids, position, None), still)
    dropped = part.train()(ids, position, None)
    assert 0.3 < (dropped == 0).float().mean() < 0.7
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], 2 * still[kept])


@settings(max_examples=50)
@given(st.data(), SEEDS)
@torch.no_grad()
def test_embeddings_written_out(data: st.DataObject, seed: int) -> None:
    c: ModelConfig = data.draw(configs())
    part = randomized(Embeddings(c), seed).double()
    ids, places, segments = [3, 1, 4], [0, 1, 5], [0, 2, 1]
    segments = [min(s, max(c.segments - 1, 0)) for s in segments]
    rows = []
    for token, position, segment in zip(ids, places, segments, strict=True):
        x = part.tokens.weight[token] * (c.width**0.5 if c.embedding_scale else 1)
        if c.positions == "sinusoidal":
            x = x + sinusoidal(WINDOW, c.width)[position].double()
        if c.positions in ("learned", "relative"):
            assert part.positions is not None
            x = x + part.positions.weight[position + c.position_offset]
        if c.segments:
            assert part.segments is not None
            x = x + part.segments.weight[segment]
        if c.embedding_norm:
            assert part.norm is not None
            x = F.layer_norm(x, (c.width,), part.norm.weight, part.norm.bias, c.norm_epsilon)
        rows.append(x)
    given_segments = torch.tensor(segments) if c.segments else None
    ours = part(torch.tensor(ids), torch.tensor(places), given_segments)
    torch.testing.assert_close(ours, torch.stack(rows), rtol=0, atol=1e-9)


@torch.no_grad()
def test_a_text_without_segments_lies_in_segment_0() -> None:
    backbone = randomized(Backbone(config(segments=2)), seed=0)
    ids, layout = torch.tensor([1, 2, 3]), Flat.from_lengths([3])
    assert torch.equal(backbone(ids, layout), backbone(ids, layout, torch.tensor([0, 0, 0])))
    assert not torch.equal(backbone(ids, layout), backbone(ids, layout, torch.tensor([0, 0, 1])))


def test_a_position_table_that_begins_late_is_used_from_its_offset_to_its_end() -> None:
    backbone = Backbone(config(position_offset=2))
    backbone(torch.zeros(WINDOW, dtype=torch.long), Flat.from_lengths([WINDOW])).square().sum().backward()
    assert backbone.embeddings.positions is not None
    gradient = backbone.embeddings.positions.weight.grad
    assert gradient is not None
    assert gradient.shape[0] == WINDOW + 2
    assert gradient.abs().sum(1).gt(0).tolist() == [False, False] + [True] * WINDOW


# The rest


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "relative", "none"])
def test_a_sequence_may_fill_the_window_and_no_more(positions: str) -> None:
    backbone = Backbone(config(positions=positions))
    assert backbone(torch.zeros(WINDOW, dtype=torch.long), Flat.from_lengths([WINDOW])).shape == (WINDOW, 8)
    long = torch.zeros(WINDOW + 1, dtype=torch.long)
    for ids, layout in [
        (long, Flat.from_lengths([WINDOW + 1])),
        (long[None], Dense(torch.ones(1, WINDOW + 1, dtype=torch.bool))),
    ]:
        with pytest.raises(ModelError, match=r"13 tokens is longer than the model's window of 12: cut it, or"):
            backbone(ids, layout)


def test_the_last_norm_belongs_to_pre_norm_models() -> None:
    """A pre-norm model's vectors leave with mean 0 and variance 1; a post-norm layer sees to it itself."""
    for norm in ("pre", "post"):
        backbone = Backbone(config(norm=norm)).double()
        assert (backbone.norm is not None) == (norm == "pre")
        vectors = backbone(torch.arange(6), Flat.from_lengths([6]))
        torch.testing.assert_close(vectors.mean(-1), torch.zeros(6).double(), rtol=0, atol=1e-7)
        torch.testing.assert_close(vectors.var(-1, unbiased=False), torch.ones(6).double(), rtol=0, atol=1e-3)


@torch.no_grad()
def test_the_pooler_is_a_dense_layer_and_tanh() -> None:
    backbone = randomized(Backbone(config(pooler=True)), seed=4)
    assert backbone.pooler is not None
    x = torch.randn(3, 8)
    expected = torch.tanh(x @ backbone.pooler.weight.T + backbone.pooler.bias)
    torch.testing.assert_close(backbone.pooled(x), expected)


def test_a_backbone_without_a_pooler_says_so() -> None:
    with pytest.raises(ModelError, match="no pooler: set pooler = true"):
        Backbone(config()).pooled(torch.zeros(1, 8))


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "relative"])
def test_tables_that_a_formula_gives_are_not_saved(positions: str) -> None:
    backbone = Backbone(config(positions=positions))
    assert {name for name, _ in backbone.named_buffers()}
    assert not {name for name, _ in backbone.named_buffers()} & set(backbone.state_dict())


@pytest.mark.parametrize("lengths", [[4, 2], [3, 3], [4, 2, 0]], ids=str)
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "relative", "none"])
def test_autocast_to_bfloat16_trains(positions: str, lengths: list[int]) -> None:
    """Half precision in the middle of things: it runs, it stays near, and gradients are real numbers."""
    backbone = randomized(Backbone(config(positions=positions)), seed=5, scale=0.1)
    ids, layout = torch.arange(6), Flat.from_lengths(lengths)
    exact = backbone(ids, layout)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        near = backbone(ids, layout)
    torch.testing.assert_close(near.float(), exact, rtol=0, atol=0.1)
    near.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in backbone.parameters())


# Step by step


@settings(max_examples=40)
@given(st.data(), SEEDS)
@torch.no_grad()
def test_a_text_read_step_by_step_gives_what_it_gives_at_once(data: st.DataObject, seed: int) -> None:
    c: ModelConfig = data.draw(configs(direction="causal", segments=0))
    backbone = randomized(Backbone(c), seed).double()
    steps = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5).filter(lambda s: sum(s) <= c.window))
    shape = (data.draw(st.integers(1, 3)), sum(steps))
    ids = torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))
    at_once = backbone(ids, Dense(torch.ones(shape, dtype=torch.bool)))
    layout = Cached(torch.ones(shape[0], steps[0], dtype=torch.bool))
    begin = 0
    for length, following in zip(steps, [*steps[1:], 0], strict=True):
        now = ids[:, begin : begin + length]
        vectors = backbone(now, layout)
        torch.testing.assert_close(vectors, at_once[:, begin : begin + length], rtol=0, atol=1e-10)
        assert torch.equal(backbone(now, layout), vectors)  # a step that is taken again gives the same again
        begin += length
        layout = layout.next(following)


@torch.no_grad()
def test_two_ways_on_from_one_prompt_do_not_mix() -> None:
    backbone = randomized(Backbone(config(direction="causal")), seed=1).double()
    prompt = Cached(torch.ones(1, 3, dtype=torch.bool))
    backbone(torch.tensor([[1, 2, 3]]), prompt)
    for token in (4, 5, 4):
        step = backbone(torch.tensor([[token]]), prompt.next(1))
        at_once = backbone(torch.tensor([1, 2, 3, token]), Flat.from_lengths([4]))
        torch.testing.assert_close(step[0, 0], at_once[-1], rtol=0, atol=1e-10)


def test_steps_may_fill_the_window_and_no_more() -> None:
    backbone = Backbone(config(direction="causal"))
    layout = Cached(torch.ones(1, WINDOW, dtype=torch.bool))
    backbone(torch.zeros(1, WINDOW, dtype=torch.long), layout)
    with pytest.raises(ModelError, match="13 tokens is longer than the model's window of 12"):
        backbone(torch.zeros(1, 1, dtype=torch.long), layout.next(1))


def test_a_bidirectional_model_cannot_read_step_by_step() -> None:
    with pytest.raises(ModelError, match="a bidirectional model looks ahead, so it reads a text at once"):
        Backbone(config())(torch.zeros(1, 2, dtype=torch.long), Cached(torch.ones(1, 2, dtype=torch.bool)))


# On a GPU, where attention is another kernel

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
KINDS = [
    pytest.param(
        {"positions": positions, "direction": direction, "width": width}, id=f"{positions}-{direction}-{width}"
    )
    for positions in ("sinusoidal", "learned", "rotary", "relative", "none")
    for direction in ("causal", "bidirectional")
    for width in (8, 200)  # heads of 4 and of the lab's 100, neither of which is a multiple of 8
    if not (positions == "relative" and direction == "causal")
]


@NEEDS_CUDA
@pytest.mark.parametrize("changes", KINDS)
@pytest.mark.parametrize("half", [True, False], ids=["bfloat16", "float32"])
@pytest.mark.parametrize("lengths", [[5, 12, 1], [6, 6], [7, 4, 0, 0]], ids=str)
def test_on_a_gpu_as_on_a_cpu(changes: dict[str, object], half: bool, lengths: list[int]) -> None:
    """Values near, gradients real numbers, and nothing ahead and no neighbour seen, bit for bit."""
    c = config(**changes)
    backbone = randomized(Backbone(c), seed=6, scale=0.1)
    ids = torch.randint(VOCABULARY, (sum(lengths),), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = backbone.double()(ids, Flat.from_lengths(lengths)).float()
    backbone.float().cuda()

    def run(ids: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=half):
            vectors: Tensor = backbone(ids.cuda(), Flat.from_lengths(lengths, "cuda"))
        return vectors.float()

    vectors = run(ids)
    torch.testing.assert_close(vectors.cpu(), expected, rtol=0, atol=0.1 if half else 1e-3)
    torch.autograd.backward((vectors * torch.randn_like(vectors)).sum())
    assert all(p.grad is not None and p.grad.isfinite().all() for p in backbone.parameters())

    with torch.no_grad():
        neighbour = run(changed(ids, slice(lengths[0], None)))
        assert torch.equal(vectors[: lengths[0]], neighbour[: lengths[0]])
        assert not torch.equal(vectors[lengths[0] :], neighbour[lengths[0] :])
        ahead = run(changed(ids, slice(3, lengths[0])))
        assert torch.equal(vectors[:3], ahead[:3]) == (c.direction == "causal")


@pytest.mark.parametrize("buckets", [512, 1024])
def test_a_number_of_buckets_that_is_accepted_can_be_used(buckets: int) -> None:
    try:
        c = config(positions="relative", relative_buckets=buckets, window=600)
    except ConfigError:
        return
    table = Backbone(c).buckets
    assert table is not None
    assert table.min() >= 0
    assert table.max() < buckets
    assert (table[0].diff() >= 0).all()
