"""The formula against the real tensors, block by block; and both against totals known from elsewhere.

Models are built on the meta device here: shapes without memory.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertModel,
    CamembertConfig,
    CamembertModel,
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    MPNetConfig,
    MPNetModel,
    PretrainedConfig,
    PreTrainedModel,
    RobertaConfig,
    RobertaForSequenceClassification,
    RobertaModel,
)

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
from headstart.model.count import BYTES, Count, count, count_tensors
from headstart.model.model import Model
from headstart.model.presets import PRESETS, preset

from .strategies import configs, heads_of

TWO = ClassifierConfig(classes=2, pool="last")


def assert_they_agree(config: ModelConfig, head: HeadConfig | None) -> None:
    tensors, counted = count_tensors(Model.empty(config, head)), count(config, head)
    assert {b.name: b.number for b in counted.blocks if not b.shared} == tensors.blocks
    assert (counted.total, counted.trainable) == (tensors.total, tensors.trainable)
    assert tensors.agrees(counted)
    assert not tensors.agrees(count(replace(config, feed_forward=config.feed_forward + 1), head))


def every_head(config: ModelConfig) -> list[HeadConfig | None]:
    if config.direction == "causal":
        return [None, NextTokenConfig(), TWO, ClassifierConfig(classes=3, pool="mean", pooler="relu")]
    heads: list[HeadConfig | None] = [None, MaskedConfig(), TWO, ClassifierConfig(classes=5, pooler="tanh", bias=False)]
    heads += [ReplacedConfig(), ReplacedConfig(generator=0.25), ReplacedConfig(generator=0.5)]
    if config.pooler:
        heads += [NextSentenceConfig(), MaskedNextSentenceConfig(), ClassifierConfig(classes=2, pooler="backbone")]
    return heads


@pytest.mark.parametrize("name", PRESETS)
def test_formula_and_tensors_agree_for_every_preset_and_head(name: str) -> None:
    for head in every_head(preset(name)):
        assert_they_agree(preset(name), head)


@settings(max_examples=150)
@given(st.data())
def test_formula_and_tensors_agree_for_any_config_and_head(data: st.DataObject) -> None:
    config: ModelConfig = data.draw(configs())
    head = data.draw(st.none() | heads_of(config))
    assert_they_agree(config, head)


@settings(max_examples=40)
@given(st.data())
def test_frozen_and_trainable_are_told_apart_by_formula_and_by_tensors(data: st.DataObject) -> None:
    config: ModelConfig = data.draw(configs())
    head = data.draw(st.none() | heads_of(config))
    counted = count(config, head, frozen=True)
    assert count_tensors(Model.empty(config, head).freeze()).agrees(counted)
    assert counted.total == count(config, head).total
    assert counted.trainable < counted.total


# Totals known from elsewhere


def blocks(counted: Count) -> dict[str, int]:
    return {block.name: block.number for block in counted.blocks}


def test_the_labs_language_model() -> None:
    counted = count(preset("lab"), NextTokenConfig())
    assert counted.total == count_tensors(Model.empty(preset("lab"), NextTokenConfig())).total == 21_018_401
    assert blocks(counted)["token embedding"] == 10_000_200
    assert sum(block.each for block in counted.blocks if block.copies == 4) == 242_000
    assert sum(block.number for block in counted.blocks if block.part == "head") == 10_050_201


def test_the_labs_classifier() -> None:
    counted = count(preset("lab"), TWO)
    assert counted.total == count_tensors(Model.empty(preset("lab"), TWO)).total == 10_968_602
    assert blocks(counted)["head: classifier"] == 402
    assert count(preset("lab"), TWO, frozen=True).trainable == 402


def test_bert_base_with_its_pooler() -> None:
    assert count(preset("bert-base")).total == 109_482_240
    assert blocks(count(preset("bert-base")))["pooler"] == 590_592


def test_gpt2_with_its_tied_head_counted_once() -> None:
    counted = count(preset("gpt2"), NextTokenConfig())
    assert counted.total == count_tensors(Model.empty(preset("gpt2"), NextTokenConfig())).total == 124_439_808
    (shared,) = [block for block in counted.blocks if block.shared]
    assert (shared.name, shared.number, shared.part) == ("head: vocabulary", 50_257 * 768, "head")
    assert count(preset("gpt2")).total == counted.total


def small_bert(width: int, layers: int, heads: int) -> BertConfig:
    return BertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * width
    )


ROBERTA = {"max_position_embeddings": 514, "type_vocab_size": 1}

REFERENCES: list[tuple[str, HeadConfig | None, type[PreTrainedModel], PretrainedConfig, dict[str, object]]] = [
    ("bert-tiny", None, BertModel, small_bert(128, 2, 2), {}),
    ("bert-mini", None, BertModel, small_bert(256, 4, 4), {}),
    ("bert-small", None, BertModel, small_bert(512, 4, 8), {}),
    ("bert-medium", None, BertModel, small_bert(512, 8, 8), {}),
    ("minilm-l6", None, BertModel, small_bert(384, 6, 12), {}),
    ("bert-base", None, BertModel, BertConfig(), {}),
    ("bert-base", MaskedNextSentenceConfig(), BertForPreTraining, BertConfig(), {}),
    ("bert-base", MaskedConfig(), BertForMaskedLM, BertConfig(), {"pooler": False}),
    ("distilbert", None, DistilBertModel, DistilBertConfig(), {}),
    ("distilbert", MaskedConfig(), DistilBertForMaskedLM, DistilBertConfig(), {}),
    ("roberta-base", None, RobertaModel, RobertaConfig(vocab_size=50_265, **ROBERTA), {}),
    (
        "roberta-base",
        ClassifierConfig(classes=2, pooler="tanh"),
        RobertaForSequenceClassification,
        RobertaConfig(vocab_size=50_265, num_labels=2, **ROBERTA),
        {"pooler": False},
    ),
    ("camembert-base", None, CamembertModel, CamembertConfig(vocab_size=32_005, **ROBERTA), {}),
    ("mpnet-base", None, MPNetModel, MPNetConfig(vocab_size=30_527, max_position_embeddings=514), {}),
    ("gpt2", None, GPT2Model, GPT2Config(), {}),
    ("gpt2", NextTokenConfig(), GPT2LMHeadModel, GPT2Config(), {}),
]


@pytest.mark.parametrize(
    ("name", "head", "kind", "theirs", "changes"), REFERENCES, ids=[f"{r[0]}-{r[2].__name__}" for r in REFERENCES]
)
def test_transformers_counts_the_same(
    name: str,
    head: HeadConfig | None,
    kind: type[PreTrainedModel],
    theirs: PretrainedConfig,
    changes: dict[str, object],
) -> None:
    with torch.device("meta"):
        expected = sum(p.numel() for p in kind(theirs).parameters())
    assert count(preset(name, **changes), head).total == expected


@pytest.mark.parametrize(
    ("name", "total"), [("roberta-base", 124_645_632), ("distilbert", 66_362_880), ("minilm-l6", 22_713_216)]
)
def test_published_totals(name: str, total: int) -> None:
    assert count(preset(name)).total == total


# What a reader is shown


@settings(max_examples=80)
@given(st.data())
def test_the_formula_that_is_shown_comes_to_the_number_beside_it(data: st.DataObject) -> None:
    config: ModelConfig = data.draw(configs())
    for block in count(config, data.draw(st.none() | heads_of(config))).blocks:
        if block.shared:
            assert block.formula == "the token embedding, shared"
        else:
            assert re.fullmatch(r"[\d ×+()]+", block.formula)
            assert eval(block.formula.replace("×", "*")) == block.each
        assert block.number == block.each * block.copies


@settings(max_examples=40)
@given(st.data())
def test_block_names_are_unique_and_no_block_is_empty(data: st.DataObject) -> None:
    config: ModelConfig = data.draw(configs())
    shown = count(config, data.draw(st.none() | heads_of(config))).blocks
    assert len({block.name for block in shown}) == len(shown)
    assert all(block.number > 0 for block in shown)
    assert all((block.part == "head") == block.name.startswith(("head: ", "generator: ")) for block in shown)


def test_memory_by_hand() -> None:
    """402 of 10,968,602 are trained: gradients once and AdamW's moments twice, for these alone."""
    frozen = count(preset("lab"), TWO, frozen=True)
    assert frozen.memory() == {"weights": 4 * 10_968_602, "gradients": 4 * 402, "optimizer": 8 * 402}
    assert frozen.memory("bfloat16") == {"weights": 2 * 10_968_602, "gradients": 2 * 402, "optimizer": 4 * 402}
    whole = count(preset("lab"), TWO)
    assert whole.memory() == {"weights": 43_874_408, "gradients": 43_874_408, "optimizer": 87_748_816}


def test_memory_is_what_torch_takes() -> None:
    model = Model.build(preset("lab", vocabulary=50), TWO)
    optimizer = torch.optim.AdamW(model.parameters(), capturable=False, foreach=False)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    moments = [t for state in optimizer.state.values() for key, t in state.items() if key != "step"]
    weights = sum(p.nbytes for p in model.parameters())
    assert count(model.config, TWO).memory() == {
        "weights": weights,
        "gradients": weights,
        "optimizer": sum(t.nbytes for t in moments),
    }


@pytest.mark.parametrize("precision", BYTES)
def test_a_precision_is_as_wide_as_torch_says(precision: str) -> None:
    assert BYTES[precision] == getattr(torch, precision).itemsize  # type: ignore[index]


def test_counting_makes_no_tensor() -> None:
    """A trillion parameters are counted at once; built, they would not fit on any machine."""
    config = ModelConfig(vocabulary=10**6, width=10**5, layers=100, heads=1000, feed_forward=4 * 10**5)
    assert count(config).total > 10**12
