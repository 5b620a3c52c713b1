"""Heads: what each makes of the vectors, what it shares, and the combinations that are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headstart.config import (
    ClassifierConfig,
    HeadConfig,
    MaskedConfig,
    MaskedNextSentenceConfig,
    ModelConfig,
    NextSentenceConfig,
    NextTokenConfig,
    ReplacedConfig,
)
from headstart.errors import ModelError
from headstart.model.heads import (
    ClassifierHead,
    Head,
    MaskedHead,
    MaskedNextSentenceHead,
    NextSentenceHead,
    NextTokenHead,
    ReplacedHead,
    build_head,
)
from headstart.model.layers import ACTIVATIONS
from headstart.model.layout import Dense, Flat
from headstart.model.model import Model

from .strategies import SEEDS, Batch, batches, configs, heads_of, randomized


def config(**changes: object) -> ModelConfig:
    settings = {"vocabulary": 7, "width": 8, "layers": 1, "heads": 2, "feed_forward": 6, "window": 12}
    return ModelConfig.from_mapping(settings | changes, "test")


def causal(**changes: object) -> ModelConfig:
    return config(direction="causal", **changes)


# What is refused


@pytest.mark.parametrize(
    ("backbone", "head", "words"),
    [
        (
            config(),
            NextTokenConfig(),
            "a next-token head on a bidirectional backbone would read its own answer: "
            "choose direction = 'causal', or a masked head",
        ),
        (
            causal(),
            MaskedConfig(),
            "a masked head needs both sides of a token, and a causal backbone sees one: "
            "choose direction = 'bidirectional', or a next-token head",
        ),
        (
            causal(),
            ReplacedConfig(generator=0.25),
            "a replaced head needs both sides of a token, and a causal backbone sees one: "
            "choose direction = 'bidirectional', or a next-token head",
        ),
        (
            causal(pooler=True),
            NextSentenceConfig(),
            "a next-sentence head needs both sides of a token, and a causal backbone sees one: "
            "choose direction = 'bidirectional', or a next-token head",
        ),
        (
            causal(pooler=True),
            MaskedNextSentenceConfig(),
            "a masked+next-sentence head needs both sides of a token, and a causal backbone sees one: "
            "choose direction = 'bidirectional', or a next-token head",
        ),
        (
            causal(),
            ClassifierConfig(classes=2, pool="first"),
            "the first token of a causal model sees only itself, so every text would get one answer: "
            "choose pool = 'last' or 'mean'",
        ),
        (
            config(),
            NextSentenceConfig(),
            "a next-sentence head on the backbone's pooler needs a backbone that has one: set pooler = true",
        ),
        (
            config(),
            MaskedNextSentenceConfig(),
            "a masked+next-sentence head on the backbone's pooler needs a backbone that has one: set pooler = true",
        ),
        (
            config(),
            ClassifierConfig(classes=2, pooler="backbone"),
            "a classifier head on the backbone's pooler needs a backbone that has one: set pooler = true",
        ),
    ],
)
def test_a_head_that_could_not_be_honest_is_refused_in_words(
    backbone: ModelConfig, head: HeadConfig, words: str
) -> None:
    with pytest.raises(ModelError) as caught:
        build_head(backbone, head)
    assert str(caught.value) == words
    with pytest.raises(ModelError):
        Model.build(backbone, head)
    with pytest.raises(ModelError):
        Model.build(backbone).with_head(head)


@pytest.mark.parametrize(
    ("backbone", "head", "kind"),
    [
        (causal(), NextTokenConfig(), NextTokenHead),
        (config(), MaskedConfig(), MaskedHead),
        (config(), ReplacedConfig(), ReplacedHead),
        (config(pooler=True), NextSentenceConfig(), NextSentenceHead),
        (config(pooler=True), MaskedNextSentenceConfig(), MaskedNextSentenceHead),
        (config(), ClassifierConfig(classes=2), ClassifierHead),
        (config(pooler=True), ClassifierConfig(classes=2, pooler="backbone"), ClassifierHead),
        (causal(), ClassifierConfig(classes=2, pool="last"), ClassifierHead),
        (causal(), ClassifierConfig(classes=2, pool="mean"), ClassifierHead),
    ],
)
def test_a_head_that_can_be_honest_is_built(backbone: ModelConfig, head: HeadConfig, kind: type[Head]) -> None:
    assert type(build_head(backbone, head)) is kind


# What each makes of the vectors


def vectors_of(model: Model, ids: Tensor, layout: Flat | Dense) -> Tensor:
    vectors: Tensor = model.with_head(None)(ids, layout)
    return vectors


IDS, LAYOUT = torch.tensor([1, 2, 3, 4, 5, 6]), Flat.from_lengths([3, 2, 1])


@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_next_token_logits_are_the_vectors_times_the_vocabulary(tied: bool) -> None:
    model = randomized(Model.build(causal(tied=tied), NextTokenConfig()), seed=0)
    x = vectors_of(model, IDS, LAYOUT)
    head = model.head
    assert isinstance(head, NextTokenHead)
    if tied:
        expected = x @ model.backbone.embeddings.tokens.weight.T
    else:
        assert head.weight is not None and head.bias is not None
        expected = x @ head.weight.T + head.bias
    torch.testing.assert_close(model(IDS, LAYOUT), expected)
    assert model(IDS, LAYOUT).shape == (6, 7)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_masked_logits_pass_through_berts_transform(tied: bool, bias: bool) -> None:
    c = config(tied=tied, bias=bias)
    model = randomized(Model.build(c, MaskedConfig()), seed=0)
    head = model.head
    assert isinstance(head, MaskedHead) and head.bias is not None
    x = vectors_of(model, IDS, LAYOUT) @ head.dense.weight.T
    if bias:
        x = x + head.dense.bias
    x = ACTIVATIONS[c.activation](x)
    x = F.layer_norm(x, (8,), head.norm.weight, head.norm.bias, c.norm_epsilon)
    weight = model.backbone.embeddings.tokens.weight if tied else head.weight
    assert weight is not None
    torch.testing.assert_close(model(IDS, LAYOUT), x @ weight.T + head.bias)


@torch.no_grad()
def test_next_sentence_logits_stand_on_the_pooled_first_token() -> None:
    model = randomized(Model.build(config(pooler=True), NextSentenceConfig()), seed=0)
    head = model.head
    assert isinstance(head, NextSentenceHead)
    firsts = vectors_of(model, IDS, LAYOUT)[[0, 3, 5]]
    expected = model.backbone.pooled(firsts) @ head.out.weight.T + head.out.bias
    torch.testing.assert_close(model(IDS, LAYOUT), expected)


@torch.no_grad()
def test_berts_two_heads_side_by_side() -> None:
    model = randomized(Model.build(config(pooler=True), MaskedNextSentenceConfig()), seed=0)
    head = model.head
    assert isinstance(head, MaskedNextSentenceHead)
    x = vectors_of(model, IDS, LAYOUT)
    tokens, sentences = model(IDS, LAYOUT)
    assert torch.equal(tokens, head.masked(x, LAYOUT, model.backbone))
    assert torch.equal(sentences, head.next_sentence(x, LAYOUT, model.backbone))
    assert (tokens.shape, sentences.shape) == ((6, 7), (3, 2))


@pytest.mark.parametrize("pool", ["first", "last", "mean"])
@pytest.mark.parametrize("norm", ["post", "pre"])
@torch.no_grad()
def test_a_classifier_that_reads_all_layers(pool: Any, norm: Any) -> None:
    """The mean of what every layer gave, whichever tokens are read of it."""
    c = config(layers=3, norm=norm)
    model = randomized(Model.build(c, ClassifierConfig(classes=3, pool=pool, read="all")), seed=0)
    assert isinstance(model.head, ClassifierHead)
    seen: list[Tensor] = []
    hooks = [layer.register_forward_hook(lambda *given: seen.append(given[-1][0])) for layer in model.backbone.layers]
    model.backbone(IDS, LAYOUT)
    for hook in hooks:
        hook.remove()
    vectors = torch.stack(seen).mean(0)
    vectors = vectors if model.backbone.norm is None else model.backbone.norm(vectors)
    expected = model.head(LAYOUT.pool(vectors, pool))
    torch.testing.assert_close(model(IDS, LAYOUT), expected)
    last = Model.build(c, ClassifierConfig(classes=3, pool=pool)).eval()
    last.load_state_dict(model.state_dict())
    assert not torch.allclose(last(IDS, LAYOUT), expected)


@pytest.mark.parametrize("pooler", ["none", "backbone", "tanh", "relu"])
@pytest.mark.parametrize(("pool", "rows"), [("first", [[0], [3], [5]]), ("last", [[2], [4], [5]]),
                                            ("mean", [[0, 1, 2], [3, 4], [5]])])  # fmt: skip
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_classifier_logits_written_out(pool: Any, rows: list[list[int]], pooler: Any, bias: bool) -> None:
    head_config = ClassifierConfig(classes=3, pool=pool, pooler=pooler, bias=bias)
    model = randomized(Model.build(config(pooler=True), head_config), seed=0)
    head = model.head
    assert isinstance(head, ClassifierHead)
    x = vectors_of(model, IDS, LAYOUT)
    x = torch.stack([x[mine].mean(0) for mine in rows])
    if pooler == "backbone":
        x = model.backbone.pooled(x)
    elif pooler != "none":
        assert head.dense is not None
        x = getattr(torch, pooler)(x @ head.dense.weight.T + head.dense.bias)
    expected = x @ head.out.weight.T + (head.out.bias if bias else 0)
    torch.testing.assert_close(model(IDS, LAYOUT), expected)


@settings(max_examples=40)
@given(st.data(), SEEDS)
@torch.no_grad()
def test_the_last_token_is_the_last_real_one(data: st.DataObject, seed: int) -> None:
    """In a padded block too: what fills it up changes no answer, and the true last token does."""
    c: ModelConfig = data.draw(configs())
    batch: Batch = data.draw(batches(c))
    model = randomized(Model.build(c, ClassifierConfig(classes=2, pool="last")), seed).double()
    segments = None if batch.segments is None else batch.padded(batch.segments)
    flat = model(batch.ids, batch.flat, batch.segments)
    for filling in (0, c.vocabulary - 1):
        torch.testing.assert_close(
            model(batch.padded(batch.ids, filling), batch.dense, segments), flat, rtol=0, atol=1e-10
        )
    other = batch.ids.clone()
    other[batch.lengths[0] - 1] = (other[batch.lengths[0] - 1] + 1) % c.vocabulary
    moved = (model(other, batch.flat, batch.segments) != flat).any(1)
    assert moved.tolist() == [True] + [False] * (len(batch.lengths) - 1)


@settings(max_examples=40)
@given(st.data(), SEEDS)
@torch.no_grad()
def test_every_head_gives_in_a_padded_block_what_it_gives_flat(data: st.DataObject, seed: int) -> None:
    c: ModelConfig = data.draw(configs())
    head = data.draw(heads_of(c))
    batch: Batch = data.draw(batches(c))
    model = randomized(Model.build(c, head), seed).double()
    segments = None if batch.segments is None else batch.padded(batch.segments)

    def as_list(results: Tensor | tuple[Tensor, ...]) -> list[Tensor]:
        return [results] if isinstance(results, Tensor) else list(results)

    flat = as_list(model(batch.ids, batch.flat, batch.segments))
    dense = as_list(model(batch.padded(batch.ids), batch.dense, segments))
    for a, b in zip(flat, dense, strict=True):
        by_token = b.dim() == 3 or isinstance(head, ReplacedConfig)
        real = b[batch.dense.mask] if by_token else b
        torch.testing.assert_close(a, real, rtol=0, atol=1e-9)


def test_features_and_the_rest_are_the_classifier_in_two_steps() -> None:
    """So that what a frozen backbone gives can be kept: only the rest holds what is trained."""
    model = Model.build(config(pooler=True), ClassifierConfig(classes=3, pooler="tanh")).eval()
    head = model.head
    assert isinstance(head, ClassifierHead)
    features = head.features(IDS, LAYOUT, None, model.backbone).detach()
    assert torch.equal(head(features), model(IDS, LAYOUT))
    torch.autograd.backward(head(features).sum())
    assert all(p.grad is not None for p in head.parameters())


def test_features_and_decoder_are_the_vocabulary_head_in_two_steps() -> None:
    cases: list[tuple[ModelConfig, HeadConfig]] = [
        (causal(), NextTokenConfig()),
        (causal(tied=False), NextTokenConfig()),
        (config(), MaskedConfig()),
    ]
    for c, head_config in cases:
        model = randomized(Model.build(c, head_config), seed=0)
        head = model.head
        assert isinstance(head, NextTokenHead | MaskedHead)
        x = vectors_of(model, IDS, LAYOUT)
        chosen = head.features(x[[1, 4]])
        torch.testing.assert_close(F.linear(chosen, *head.decoder(model.backbone)), model(IDS, LAYOUT)[[1, 4]])


@pytest.mark.parametrize("pooler", ["none", "tanh", "relu"])
def test_a_classifier_drops_in_training_alone(pooler: Any) -> None:
    """Before each of its layers: `dropped` counts the zeros that reach them."""
    torch.manual_seed(0)
    head = ClassifierHead(config(), ClassifierConfig(classes=2, dropout=0.5, pooler=pooler))
    x = 1 + torch.rand(300, 8)
    dropped: list[float] = []
    layers = [head.out] if head.dense is None else [head.dense, head.out]
    if head.dense is not None:
        torch.nn.init.constant_(head.dense.weight, 0.1)  # so that what reaches the last layer is above 0 unless dropped
        torch.nn.init.constant_(head.dense.bias, 0.1)
    for layer in layers:
        layer.register_forward_pre_hook(lambda _, inputs: dropped.append((inputs[0] == 0).float().mean().item()))
    still = head.eval()(x)
    assert dropped == [0.0] * len(layers)
    assert torch.equal(head(x), still)
    dropped.clear()
    head.train()(x)
    assert dropped == [pytest.approx(0.5, abs=0.06)] * len(layers)


# What is shared


@pytest.mark.parametrize(("c", "head"), [(causal(), NextTokenConfig()), (config(), MaskedConfig())])
def test_a_tied_head_holds_no_second_copy(c: ModelConfig, head: HeadConfig) -> None:
    model = Model.build(c, head)
    shape = (c.vocabulary, c.width)
    assert [name for name, p in model.state_dict().items() if p.shape == shape] == ["backbone.embeddings.tokens.weight"]
    assert [name for name, p in model.named_parameters() if p.shape == shape] == ["backbone.embeddings.tokens.weight"]


def test_an_untied_head_has_a_weight_of_its_own() -> None:
    model = Model.build(causal(tied=False), NextTokenConfig())
    assert isinstance(model.head, NextTokenHead) and model.head.weight is not None
    assert "head.weight" in model.state_dict()
    assert model.head.weight.data_ptr() != model.backbone.embeddings.tokens.weight.data_ptr()


@pytest.mark.parametrize("tied", [True, False])
def test_the_loss_of_a_tied_head_reaches_the_embedding_from_both_ends(tied: bool) -> None:
    """Token 6 is never read: only as an answer can the loss touch its row, and only where the head is tied."""
    model = Model.build(causal(tied=tied), NextTokenConfig())
    loss = F.cross_entropy(model(torch.tensor([1, 2, 3]), Flat.from_lengths([3])), torch.tensor([2, 3, 6]))
    torch.autograd.backward(loss)
    gradient = model.backbone.embeddings.tokens.weight.grad
    assert gradient is not None
    assert gradient[[1, 2, 3]].any(1).all()
    assert gradient[6].any().item() == tied


def test_a_tied_head_follows_the_embedding_when_it_moves() -> None:
    model = Model.build(causal(), NextTokenConfig()).eval()
    with torch.no_grad():
        before = model(IDS, LAYOUT)
        model.backbone.embeddings.tokens.weight[0] *= 3  # a token that the text does not hold
        after = model(IDS, LAYOUT)
    torch.testing.assert_close(after[:, 0], 3 * before[:, 0])
    assert torch.equal(after[:, 1:], before[:, 1:])
