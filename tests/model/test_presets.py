"""The presets are the published architectures: each against the config class and the settings it was published with."""

from __future__ import annotations

from typing import get_args

import pytest
from transformers import (
    BertConfig,
    CamembertConfig,
    DistilBertConfig,
    GPT2Config,
    MPNetConfig,
    PretrainedConfig,
    RobertaConfig,
)

from headstart.config import HEADS, ClassifierConfig, Family, ModelConfig
from headstart.errors import ConfigError
from headstart.model.heads import build_head
from headstart.model.presets import CLASSIFIERS, PRESETS, preset, usual_head

ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu-tanh"}


def test_every_preset_that_was_promised_is_there() -> None:
    assert set(PRESETS) == {
        *("lab", "bert-base", "bert-tiny", "bert-mini", "bert-small", "bert-medium", "minilm-l6", "distilbert"),
        *("roberta-base", "camembert-base", "mpnet-base", "gpt2", "small", "base"),
    }


PUBLISHED: dict[str, PretrainedConfig] = {
    "bert-tiny": BertConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512),
    "bert-mini": BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024),
    "bert-small": BertConfig(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048),
    "bert-medium": BertConfig(hidden_size=512, num_hidden_layers=8, num_attention_heads=8, intermediate_size=2048),
    "bert-base": BertConfig(),
    "minilm-l6": BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536),
}
# RoBERTa, CamemBERT and MPNet were published with 514 positions (two of them unused) and an epsilon of 1e-5.
PUBLISHED |= {
    "roberta-base": RobertaConfig(
        vocab_size=50_265, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5
    ),
    "camembert-base": CamembertConfig(
        vocab_size=32_005, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5
    ),
    "mpnet-base": MPNetConfig(vocab_size=30_527, max_position_embeddings=514, layer_norm_eps=1e-5),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_bert_like_are_as_published(name: str) -> None:
    ours, theirs = preset(name), PUBLISHED[name]
    assert ours.vocabulary == theirs.vocab_size
    assert ours.width == theirs.hidden_size
    assert ours.layers == theirs.num_hidden_layers
    assert ours.heads == theirs.num_attention_heads
    assert ours.feed_forward == theirs.intermediate_size
    assert ours.window + ours.position_offset == theirs.max_position_embeddings
    assert ours.window == 512
    assert ours.segments == getattr(theirs, "type_vocab_size", 0)
    assert ours.norm_epsilon == theirs.layer_norm_eps
    assert ours.activation == ACTIVATIONS[theirs.hidden_act]
    assert ours.dropout == theirs.hidden_dropout_prob
    assert ours.attention_dropout == theirs.attention_probs_dropout_prob
    assert ours.family == theirs.model_type
    assert (ours.direction, ours.norm, ours.embedding_norm, ours.pooler) == ("bidirectional", "post", True, True)
    if isinstance(theirs, MPNetConfig):
        assert (ours.positions, ours.relative_buckets) == ("relative", theirs.relative_attention_num_buckets)
    else:
        assert ours.positions == "learned"


def test_distilbert_is_as_published() -> None:
    ours, theirs = preset("distilbert"), DistilBertConfig()
    assert ours == ModelConfig(
        vocabulary=theirs.vocab_size,
        width=theirs.dim,
        layers=theirs.n_layers,
        heads=theirs.n_heads,
        feed_forward=theirs.hidden_dim,
        window=theirs.max_position_embeddings,
        activation=ACTIVATIONS[theirs.activation],  # type: ignore[arg-type]
        dropout=theirs.dropout,
        attention_dropout=theirs.attention_dropout,
        norm_epsilon=1e-12,
        family="distilbert",
    )


def test_gpt2_is_as_published() -> None:
    ours, theirs = preset("gpt2"), GPT2Config()
    assert ours == ModelConfig(
        vocabulary=theirs.vocab_size,
        width=theirs.n_embd,
        layers=theirs.n_layer,
        heads=theirs.n_head,
        feed_forward=4 * theirs.n_embd,
        window=theirs.n_positions,
        direction="causal",
        norm="pre",
        norm_epsilon=theirs.layer_norm_epsilon,
        activation=ACTIVATIONS[theirs.activation_function],  # type: ignore[arg-type]
        embedding_norm=False,
        dropout=theirs.resid_pdrop,
        attention_dropout=theirs.attn_pdrop,
        family="gpt2",
    )


def test_the_labs_model_is_as_the_lab_wrote_it() -> None:
    lab = preset("lab")
    assert (lab.vocabulary, lab.width, lab.layers, lab.heads, lab.feed_forward) == (50_001, 200, 4, 2, 200)
    assert (lab.direction, lab.positions, lab.norm, lab.activation) == ("causal", "sinusoidal", "post", "relu")
    assert lab.embedding_scale and not lab.embedding_norm and not lab.tied and lab.bias


@pytest.mark.parametrize("name", ["small", "base"])
def test_our_own_recipe(name: str) -> None:
    ours = preset(name)
    assert (ours.positions, ours.norm, ours.gated, ours.tied) == ("rotary", "pre", True, True)
    assert ours.head_width == 64
    assert ours.family == "headstart"


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_goes_through_plain_data_and_back(name: str) -> None:
    assert ModelConfig.from_mapping(preset(name).to_mapping(), "test") == preset(name)


def test_changes_are_made_and_the_preset_stays() -> None:
    before = PRESETS["lab"]
    changed = preset("lab", vocabulary=1000, dropout=0.5)
    assert (changed.vocabulary, changed.dropout, changed.width) == (1000, 0.5, 200)
    assert preset("lab") == before and before.vocabulary == 50_001


def test_an_unknown_preset_is_told_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"preset: unknown preset 'bert-bsae': did you mean 'bert-base'\?"):
        preset("bert-bsae")


def test_wrong_changes_are_all_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        preset("lab", widht=1, heads=3)
    assert str(caught.value) == (
        "preset lab: 2 mistakes"
        "\n  - unknown setting 'widht': did you mean 'width'?"
        "\n  - width 200 does not divide by heads 3: choose a width that is a multiple of the heads"
    )


# Heads as the families have them


def test_every_family_has_a_usual_classifier() -> None:
    assert set(CLASSIFIERS) == set(get_args(Family))


@pytest.mark.parametrize("name", PRESETS)
def test_the_usual_classifier_of_a_preset_can_be_built(name: str) -> None:
    head = usual_head(preset(name), "classifier", 5)
    assert isinstance(head, ClassifierConfig) and head.classes == 5
    build_head(preset(name, vocabulary=10, width=128, heads=2), head)


@pytest.mark.parametrize("kind", HEADS)
def test_a_usual_head_is_of_the_kind_that_was_asked_for(kind: str) -> None:
    assert type(usual_head(preset("bert-tiny"), kind)) is HEADS[kind]


@pytest.mark.parametrize(
    ("name", "pool", "pooler", "bias"),
    [
        ("bert-base", "first", "backbone", True),  # BertForSequenceClassification
        ("roberta-base", "first", "tanh", True),  # RobertaClassificationHead
        ("distilbert", "first", "relu", True),  # pre_classifier and relu
        ("mpnet-base", "first", "tanh", True),
        ("gpt2", "last", "none", False),  # GPT2ForSequenceClassification: `score` has no bias
        ("lab", "last", "none", True),
        ("small", "mean", "none", True),
    ],
)
def test_usual_classifiers_are_those_of_their_families(name: str, pool: str, pooler: str, bias: bool) -> None:
    head = usual_head(preset(name), "classifier")
    assert isinstance(head, ClassifierConfig)
    assert (head.classes, head.pool, head.pooler, head.bias) == (2, pool, pooler, bias)


def test_a_bert_without_its_pooler_is_classified_without_it() -> None:
    head = usual_head(preset("bert-tiny", pooler=False), "classifier")
    assert isinstance(head, ClassifierConfig) and head.pooler == "none"


@pytest.mark.parametrize("name", ["bert-tiny", "distilbert", "roberta-base"])
def test_the_usual_classifier_of_a_causal_twin_can_be_built(name: str) -> None:
    """Causal against masked on one architecture is what a study of objectives compares."""
    config = preset(name, direction="causal", vocabulary=10, width=128, heads=2)
    build_head(config, usual_head(config, "classifier"))


def test_an_unknown_head_is_told_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"head: unknown head 'clasifier': did you mean 'classifier'\?"):
        usual_head(preset("lab"), "clasifier")
