from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from headstart.config import Classifier as Head
from headstart.config import ModelConfig
from headstart.model.layout import Flat
from headstart.model.model import Model
from headstart.use import packed as module
from headstart.use.classifier import Classifier
from headstart.use.packed import PackedLinear, can_pack, packed
from tests.model.drawn import SEEDS, configs, stirred

HEADS = [Head(classes=3, pool="mean"), Head(classes=3, pool="mean", pooler="tanh")]
NEEDS_PACKING = pytest.mark.skipif(not can_pack(), reason="this torch has no oneDNN, and packs nothing")


@NEEDS_PACKING
@settings(max_examples=60)
@given(configs(), st.sampled_from(HEADS), SEEDS)
def test_a_packed_model_answers_as_the_model_does(config: ModelConfig, head: Head, seed: int) -> None:
    model = stirred(Model.build(config, head), seed)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fast = packed(model)
    ids, layout = torch.randint(13, (17,)), Flat.of([12, 1, 4])
    with torch.inference_mode():
        torch.testing.assert_close(fast(ids, layout), model(ids, layout), rtol=1e-4, atol=1e-5)
    assert not any(type(each) is nn.Linear for each in fast.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert fast.backbone.embeddings.tokens.weight is model.backbone.embeddings.tokens.weight


@NEEDS_PACKING
def test_the_model_itself_can_still_learn(trained: Path) -> None:
    classifier = Classifier.load(trained)
    classifier.predict(["a witty tale"])
    assert any(isinstance(each, PackedLinear) for each in classifier.fast.modules())
    assert not any(isinstance(each, PackedLinear) for each in classifier.model.modules())
    encoded = classifier.encode(["a witty tale"])
    classifier.model(encoded.batch(np.array([0])).ids, Flat.of([int(encoded.lengths[0])])).sum().backward()
    assert classifier.model.backbone.embeddings.tokens.weight.grad is not None


def test_a_classifier_that_has_answered_can_be_pickled(trained: Path) -> None:
    classifier = Classifier.load(trained)
    answers = classifier.probabilities(["a witty tale", "dull"])
    again: Classifier = pickle.loads(pickle.dumps(classifier))
    assert again.probabilities(["a witty tale", "dull"]) == pytest.approx(answers, abs=0)


def test_where_nothing_can_be_packed_the_model_answers_itself(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Classifier.load(trained).probabilities(["a witty tale", "dull"])

    class Missing(nn.Module):
        def __init__(self, linear: nn.Linear) -> None:
            raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_reorder_linear_weight'")

    monkeypatch.setattr(module, "PackedLinear", Missing)
    classifier = Classifier.load(trained)
    assert classifier.fast is classifier.model
    assert classifier.probabilities(["a witty tale", "dull"]) == pytest.approx(usual, abs=1e-6)
